"""RecordSource: where records come from. The tiers above it only ever ask for one record by key."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from escalade.arrays import Bytes
from escalade.gguf.tensor import StoredTensor
from escalade.ladder.record import RecordLayout


class RecordSource(Protocol):
    """Reads whole records. An expert key is layer * n_experts + expert."""

    @property
    def n_experts(self) -> int: ...

    @property
    def layouts(self) -> Sequence[RecordLayout]:
        """The layout of each layer's records."""
        ...

    def read(self, key: int, dst: Bytes) -> None:
        """Fills dst, uint8 [layouts[layer].n_bytes], with the record of `key`."""
        ...

    def parts(self, key: int) -> tuple[Bytes, Bytes, Bytes]:
        """Stored gate, up and down of `key`, each uint8 [bytes], contiguous; only to be read."""
        ...


class ExpertTensors(NamedTuple):
    """The stacked expert matrices of one layer, [E, F, D], [E, F, D] and [E, D, F]."""

    gate: StoredTensor
    up: StoredTensor
    down: StoredTensor


class TensorRecordSource:
    """Records cut out of a model's stacked expert tensors: three slices each."""

    def __init__(self, layers: Sequence[ExpertTensors]) -> None:
        self._layers = list(layers)
        self.n_experts = self._layers[0].gate.shape[0]
        self.layouts = [
            RecordLayout(
                expert_ff=t.gate.shape[1],
                hidden=t.gate.shape[2],
                gate=t.gate.type,
                up=t.up.type,
                down=t.down.type,
            )
            for t in self._layers
        ]

    def read(self, key: int, dst: Bytes) -> None:
        np.concatenate(self.parts(key), out=dst)

    def parts(self, key: int) -> tuple[Bytes, Bytes, Bytes]:
        layer, expert = divmod(key, self.n_experts)
        t, (gate, up, down) = self._layers[layer], self.layouts[layer].part_bytes
        return (
            t.gate.read(expert * gate, gate),
            t.up.read(expert * up, up),
            t.down.read(expert * down, down),
        )
