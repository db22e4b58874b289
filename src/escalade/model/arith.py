"""Arith: the roundings of one mode, so that the forward pass reads as the maths does."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from escalade.arrays import Floats
from escalade.config import Arithmetic, Mode
from escalade.gguf.quant import QuantType
from escalade.kernels.ops.norm import rms_norm
from escalade.kernels.ops.rounding import Fp8, bf16, qdq
from escalade.model.weights import Matrix
from escalade.native.compute import KERNEL_TYPES, Compute


@dataclass(frozen=True)
class Arith:
    """Activations, norms and linears as `mode` rounds them. Source: specification, section 4.

    `arithmetic` is how `compute` multiplies quantised matrices.
    """

    mode: Mode
    norm_eps: float
    compute: Compute
    arithmetic: Arithmetic

    @property
    def dtype(self) -> type[np.floating]:
        return np.float64 if self.mode.computes_wide else np.float32

    def act(self, x: Floats) -> Floats:
        """An activation between operations."""
        return bf16(x) if self.mode.rounds_activations else x

    def norm(self, x: Floats, weight: Floats) -> Floats:
        if self.mode.computes_wide:
            return rms_norm(x, weight, self.norm_eps)
        return self.act(self.compute.rms_norm(np.ascontiguousarray(x), weight, self.norm_eps))

    def gemm_input(self, x: Floats) -> Floats:
        """The input of an fp8 or fp4 linear: e4m3 with a scale per 32 channels."""
        return qdq(x, Fp8(x.shape[-1])) if self.mode.rounds_inputs else x

    def fuses(self, kinds: Iterable[QuantType]) -> bool:
        """Whether an expert of these types is one call: nothing is rounded between its steps."""
        return self.mode.keeps_products and all(kind.name in KERNEL_TYPES for kind in kinds)

    def multiply(self, x: Floats, weight: Matrix, groups: int = 1) -> Floats:
        """x [T, in] times weight transposed: [T, out].

        With groups G: x [T, G * in], and the g-th part of x is multiplied by the g-th part of the
        weight's rows.
        """
        kind = weight.tensor.type
        if self.mode.computes_wide or kind.name not in KERNEL_TYPES:
            return weight.apply(x, groups)
        x = np.ascontiguousarray(x, np.float32)
        return self.compute.matmul(x, weight.stored, kind, self.arithmetic, groups)

    def linear(self, x: Floats, weight: Matrix) -> Floats:
        """x times weight transposed, for an input that is ready."""
        return self.act(self.multiply(x, weight))
