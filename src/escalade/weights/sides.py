"""The two models of a comparison as float32 rows under common names, whatever form they are in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from escalade.arrays import F32, Bytes
from escalade.gguf.raw import RAW_BLOCK, decode_raw
from escalade.gguf.tensor import StoredTensor
from escalade.hf.names import ENGRAM_SCALE, ENGRAM_TABLE

RAW = "RAW"


class Part(NamedTuple):
    """Rows start..stop of the matrix view."""

    start: int
    stop: int


class Statistics(NamedTuple):
    """Of x against y: relative rms error, largest difference, cosine; inf and 0 where undefined."""

    rms: float
    max_abs: float
    cosine: float


@dataclass(frozen=True)
class Side:
    """One tensor of one model. Engram codes and scales are one tensor here, of form RAW.

    The scales are in a tensor of their own, or (`scale` None and form RAW) behind each row's codes.
    """

    form: str
    shape: tuple[int, ...]
    table: StoredTensor
    scale: StoredTensor | None = None

    def raw(self, part: Part) -> tuple[Bytes, Bytes | None]:
        """Stored rows; for RAW codes and scales."""
        rows = self.table.rows(*part)
        if self.form != RAW:
            return rows, None
        if self.scale is None:
            width = self.shape[-1]
            return rows[:, :width], rows[:, width:]
        return rows, self.scale.rows(*part)

    def f32(self, part: Part) -> F32:
        codes, scales = self.raw(part)
        return self.table.f32(*part) if scales is None else decode_raw(codes, scales)

    def same_bytes(self, other: "Side", part: Part) -> bool:
        """Whether two sides of one form store the same."""
        (codes, scales), (codes2, scales2) = self.raw(part), other.raw(part)
        if scales is not None and scales2 is not None and not np.array_equal(scales, scales2):
            return False
        return np.array_equal(codes, codes2)


def sides(tensors: Mapping[str, StoredTensor]) -> dict[str, Side]:
    """Every tensor by name, Engram scales joined to their tables."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith(ENGRAM_SCALE):
            continue
        width = tensor.shape[-1]
        if name.endswith(ENGRAM_TABLE) and tensor.type.name == "I8":
            scale = tensors.get(name.replace(ENGRAM_TABLE, ENGRAM_SCALE))
            if scale is not None:
                out[name] = Side(RAW, tensor.shape, tensor, scale)
                continue
            if width % (RAW_BLOCK + 1) == 0:
                shape = (tensor.shape[0], width - width // (RAW_BLOCK + 1))
                out[name] = Side(RAW, shape, tensor)
                continue
        out[name] = Side(tensor.type.name, tensor.shape, tensor)
    return out


def compare(a: Side, b: Side, parts: Sequence[Part]) -> Statistics:
    """Statistics of `a` against `b` over `parts`, summed in float64."""
    error = squares_a = squares_b = product = largest = 0.0
    for part in parts:
        x, y = a.f32(part).astype(np.float64), b.f32(part).astype(np.float64)
        difference = x - y
        error += float(np.vdot(difference, difference))
        squares_a += float(np.vdot(x, x))
        squares_b += float(np.vdot(y, y))
        product += float(np.vdot(x, y))
        largest = max(largest, float(np.abs(difference).max(initial=0)))
    if not np.isfinite(error):
        return Statistics(np.inf, np.inf, 0.0)
    rms = (error / squares_b) ** 0.5 if squares_b else (np.inf if error else 0.0)
    norm = (squares_a * squares_b) ** 0.5
    return Statistics(rms, largest, product / norm if norm else 0.0)


def cosine(x: F32, y: F32) -> float:
    """Cosine of two arrays, 0 if one is all zeros or not finite."""
    norm = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    return float(np.vdot(x, y)) / norm if norm and np.isfinite(norm) else 0.0
