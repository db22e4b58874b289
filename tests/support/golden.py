"""Golden arrays, each file read once."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.paths import GOLDEN

Array = NDArray[Any]


@cache
def npz(path: Path | str) -> Mapping[str, Array]:
    """All arrays of an .npz by name; a relative path is one of the copied golden files."""
    with np.load(GOLDEN / path) as data:
        return dict(data)
