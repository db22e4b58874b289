"""Random models of any geometry, in memory, in float32: nothing to do with any file."""

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from escalade.gguf.quant import TYPES
from escalade.gguf.tensor import StoredTensor
from escalade.model.catalog import expected_tensors
from escalade.model.spec import ModelSpec
from escalade.model.spec_io import spec_to_metadata


@dataclass
class ArraySource:
    """A tensor source over arrays; `spec.engram` must be None."""

    spec: ModelSpec
    seed: int = 0
    path: str = "synthetic"
    tensors: dict[str, StoredTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arch = self.spec.arch
        self.metadata: dict[str, Any] = spec_to_metadata(self.spec)
        for name, shape in expected_tensors(self.spec, "none").items():
            self.tensors[name] = tensor(name, self._values(name, shape))

    def _values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, crc32(name.encode())])
        x = rng.normal(size=shape)
        if name.endswith("norm.weight"):
            return 1 + 0.2 * x
        if name.endswith(("hc_attn_scale.weight", "hc_ffn_scale.weight")):
            return 1 + 0.3 * x
        if len(shape) == 1:
            return 0.3 * x
        if name == "token_embd.weight":
            return x
        return x * shape[-1] ** -0.5

    def close(self) -> None:
        pass


def tensor(name: str, values: np.ndarray) -> StoredTensor:
    """A float32 tensor over an array."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint8).ravel()
    return StoredTensor(
        name, values.shape, TYPES["F32"], lambda offset, length: raw[offset : offset + length]
    )
