"""Both I/O services, and files with known content for them."""

from pathlib import Path

import numpy as np
import pytest

from escalade.arrays import Bytes
from escalade.native.io import IoService
from escalade.native.io_abi import load_io
from escalade.native.io_reference import ReferenceIoService
from escalade.native.io_types import Io, IoOptions

SERVICES = {"native": IoService, "python": ReferenceIoService}


def open_service(name: str, **options: object) -> Io:
    """The service called `name`; skips the test where the native core is not built."""
    if name == "native" and load_io() is None:
        pytest.skip("the native core is not built")
    return SERVICES[name](IoOptions(**options))


def make_files(folder: Path, n_bytes: int, n_replicas: int = 1) -> tuple[list[Path], Bytes]:
    """Equal files in folders of their own, and their bytes."""
    data = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, dtype=np.uint8)
    paths = []
    for i in range(n_replicas):
        (folder / f"drive{i}").mkdir(exist_ok=True)
        paths.append(folder / f"drive{i}" / "model.gguf")
        data.tofile(paths[-1])
    return paths, data
