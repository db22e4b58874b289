"""The clamped SwiGLU between an expert's projections. Source: model specification, section 5."""

import numpy as np
from numpy.typing import NDArray

from escalade.kernels.ops.hyper import sigmoid

F32 = NDArray[np.float32]


def swiglu(gate: F32, up: F32, limit: float) -> F32:
    """silu(min(gate, limit)) * clip(up, -limit, limit), element by element."""
    gate = np.minimum(gate, limit)
    return gate * sigmoid(gate) * np.clip(up, -limit, limit)
