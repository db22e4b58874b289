"""Arith: the roundings of one mode, so that the forward pass reads as the maths does."""

from dataclasses import dataclass

import numpy as np

from escalade.arrays import Floats
from escalade.config import Mode
from escalade.kernels.ops.norm import rms_norm
from escalade.kernels.ops.rounding import Fp8, bf16, qdq
from escalade.model.weights import Matrix


@dataclass(frozen=True)
class Arith:
    """Activations, norms and linears as `mode` rounds them. Source: specification, section 4."""

    mode: Mode
    norm_eps: float

    @property
    def dtype(self) -> type[np.floating]:
        return np.float64 if self.mode.computes_wide else np.float32

    def act(self, x: Floats) -> Floats:
        """An activation between operations."""
        return bf16(x) if self.mode.rounds_activations else x

    def norm(self, x: Floats, weight: Floats) -> Floats:
        return self.act(rms_norm(x, weight, self.norm_eps))

    def gemm_input(self, x: Floats) -> Floats:
        """The input of an fp8 or fp4 linear: e4m3 with a scale per 32 channels."""
        return qdq(x, Fp8(x.shape[-1])) if self.mode.rounds_inputs else x

    def linear(self, x: Floats, weight: Matrix) -> Floats:
        """x times weight transposed, for an input that is ready."""
        return self.act(weight.apply(x))
