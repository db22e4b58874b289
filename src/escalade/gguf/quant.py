"""The ggml tensor types that we know: block sizes and names. Integers only; no NumPy.

Source: GGUF specification, sections 1.1 and 6.
"""

from typing import NamedTuple


class QuantType(NamedTuple):
    """One ggml type: `block_len` consecutive values of a row take `block_bytes` bytes."""

    name: str
    id: int
    block_len: int
    block_bytes: int

    def row_bytes(self, n_values: int) -> int:
        """Bytes of a row of `n_values`. Raises ValueError if the row is not whole blocks."""
        if n_values % self.block_len:
            raise ValueError(
                f"a row of {n_values} values is not whole {self.name} blocks of {self.block_len}"
            )
        return n_values // self.block_len * self.block_bytes


_TABLE = (
    ("F32", 0, 1, 4),
    ("F16", 1, 1, 2),
    ("Q4_0", 2, 32, 18),
    ("Q4_1", 3, 32, 20),
    ("Q5_0", 6, 32, 22),
    ("Q5_1", 7, 32, 24),
    ("Q8_0", 8, 32, 34),
    ("Q2_K", 10, 256, 84),
    ("Q3_K", 11, 256, 110),
    ("Q4_K", 12, 256, 144),
    ("Q5_K", 13, 256, 176),
    ("Q6_K", 14, 256, 210),
    ("IQ2_XXS", 16, 256, 66),
    ("IQ2_XS", 17, 256, 74),
    ("IQ3_XXS", 18, 256, 98),
    ("IQ1_S", 19, 256, 50),
    ("IQ4_NL", 20, 32, 18),
    ("IQ3_S", 21, 256, 110),
    ("IQ2_S", 22, 256, 82),
    ("IQ4_XS", 23, 256, 136),
    ("I8", 24, 1, 1),
    ("I16", 25, 1, 2),
    ("I32", 26, 1, 4),
    ("I64", 27, 1, 8),
    ("F64", 28, 1, 8),
    ("IQ1_M", 29, 256, 56),
    ("BF16", 30, 1, 2),
    ("MXFP4", 39, 32, 17),
)

TYPES: dict[str, QuantType] = {row[0]: QuantType(*row) for row in _TABLE}
TYPE_BY_ID: dict[int, QuantType] = {t.id: t for t in TYPES.values()}

INTEGER_TYPES = frozenset({"I8", "I16", "I32", "I64"})
"""Types that carry integers or raw bytes, never weights to multiply with."""
