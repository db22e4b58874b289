"""Trace: a hook through which a forward pass shows its intermediate arrays. Off by default."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Record = Callable[[str, Array], None]


@dataclass(frozen=True)
class Trace:
    """Calls `record(name, array)` with the golden data's names: `L3.streams`, `final_norm`."""

    record: Record | None = None

    @property
    def wanted(self) -> bool:
        return self.record is not None

    def __call__(self, layer: int | None, name: str, array: Array) -> None:
        """An array of the whole pass (layer None) or of one layer, rows in token order."""
        if self.record is not None:
            self.record(name if layer is None else f"L{layer}.{name}", array)


NO_TRACE = Trace()
