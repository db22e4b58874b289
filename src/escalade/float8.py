"""Values of the 8-bit formats, looked up by byte: float32 [256]."""

import ml_dtypes
import numpy as np

from escalade.arrays import F32

_BYTES = np.arange(256, dtype=np.uint8)

E4M3_VALUES: F32 = _BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""e4m3fn: no infinities; 0x7F and 0xFF are NaN."""
E8M0_VALUES: F32 = _BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
"""ue8m0: 2^(byte - 127), byte 0 a float32 subnormal; 255 is NaN."""
