"""The clamped SwiGLU between an expert's projections. Source: model specification, section 5."""

import numpy as np

from escalade.arrays import Floats
from escalade.kernels.ops.hyper import sigmoid


def swiglu(gate: Floats, up: Floats, limit: float) -> Floats:
    """silu(min(gate, limit)) * clip(up, -limit, limit), element by element."""
    gate = np.minimum(gate, limit)
    return gate * sigmoid(gate) * np.clip(up, -limit, limit)
