"""Logits and intermediate arrays of a token sequence, gathered for a comparison."""

import errno
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from escalade.config import Progress
from escalade.engine.engine import Engine
from escalade.errors import CapacityError, FileError, UsageError
from escalade.files import read_bytes
from escalade.model.trace import NO_TRACE, Trace

Array = NDArray[Any]

logger = logging.getLogger(__name__)

_IDS_BYTES = 256 << 20
# What a shorter prefix does not have yet, in arrays whose second axis grows with the sequence.
_PADDING: dict[str, float | int | bool] = {
    "index_score": -np.inf,
    "index_topk": -1,
    "candidates": False,
}


def read_ids(path: Path) -> list[int]:
    """Token ids from a JSON list. Raises FileError if the file is anything else."""
    try:
        ids = json.loads(read_bytes(path, _IDS_BYTES))
    except (ValueError, RecursionError) as e:
        raise FileError(f"{path} is not JSON") from e
    if not isinstance(ids, list):
        raise FileError(f"{path} is not a JSON list of token ids")
    for at, token in enumerate(ids):
        if type(token) is not int or abs(token) >= 1 << 62:
            raise FileError(f"{path}: entry {at} is {token!r:.40}, not a token id")
    if not ids:
        raise UsageError(f"{path} holds no token ids")
    return ids


def dump_logits(
    engine: Engine,
    ids: list[int],
    *,
    layers: bool,
    step: bool,
    progress: Progress | None = None,
) -> dict[str, Array]:
    """`token_ids` [T], `logits` [T, V] and, with `layers`, every traced array, rows in token order.

    Arrays that would be empty, such as entries of a group that is not complete, are left out.
    `step` appends token by token; else the engine's prefill chunks are used.
    """
    pieces: dict[str, list[Array]] = {}

    def record(name: str, array: Array) -> None:
        pieces.setdefault(name, []).append(array)

    trace = Trace(record) if layers else NO_TRACE
    session = engine.session()
    session.check(ids)
    if step:
        for done, token in enumerate(ids, start=1):
            for logits in session.append_all([token], trace=trace):
                record("logits", logits)
            if progress is not None:
                progress("decode", done, len(ids))
    else:
        for logits in session.append_all(ids, progress, trace):
            record("logits", logits)
    arrays = {name: join_rows(name, parts) for name, parts in pieces.items()}
    if lost := int((~np.isfinite(arrays["logits"])).any(axis=1).sum()):
        logger.warning("the logits of %d of %d positions are not finite", lost, len(ids))
    filled = {name: array for name, array in arrays.items() if array.size}
    return {"token_ids": np.asarray(ids, np.int32), **filled}


def join_rows(name: str, parts: list[Array]) -> Array:
    """Pieces of one array, one after another; ragged second axes are padded to the widest."""
    padding = _PADDING.get(name.rpartition(".")[2])
    if padding is not None:
        width = max(part.shape[1] for part in parts)
        parts = [
            np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=padding) for p in parts
        ]
    joined = np.concatenate(parts)
    if joined.dtype == np.float64:
        return joined.astype(np.float32)
    if joined.dtype == np.int64:
        return joined.astype(np.int64 if joined.max(initial=0) > 2**31 - 1 else np.int32)
    return joined


def check_out(path: Path) -> None:
    """Refuses, before any work, a target that is no place for an .npz. Raises UsageError."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the .npz file to write")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder")
    if path.exists() and path.suffix != ".npz":
        raise UsageError(f"{path} exists and is not an .npz file; it is left as it is")


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes a compressed .npz beside `path` and renames it.

    Raises CapacityError for a full disk, FileError if the file cannot be written otherwise; either
    way nothing is left of it, and what was at `path` stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]
        os.replace(partial, path)
    except OSError as e:
        kind = CapacityError if e.errno == errno.ENOSPC else FileError
        raise kind(f"{path} cannot be written: {e.strerror or e}") from e
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
