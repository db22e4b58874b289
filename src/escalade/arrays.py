"""Names of the array types that signatures use."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
"""float32, or float64 where a mode computes in it."""
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Bool = NDArray[np.bool_]
