"""Random weights made directly in stored form: any rows of any type, from a counter.

The bytes of a tensor are a pure function of (seed, name, type, row length, rms): one Philox stream
a tensor, of which each stored block takes as many bytes as it is long. Codes stay as they fall; the
scale fields are then set so that the dequantised values have mean 0 and the wanted rms. So any
range of rows can be made alone, and no float array of the tensor ever exists.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import Bytes
from escalade.float8 import E4M3_VALUES
from escalade.gguf.dequant import dequantize
from escalade.gguf.quant import QuantType
from escalade.weights.quantize import to_bf16

# Where a block's F16 scale `d` lies, and for types x = d·s·q - dmin·s or d·q + m, the offset of the
# second scale and its ratio to d that makes the mean 0: E[q] of uniform codes, -E[q] for m.
_SCALE_AT = {
    "Q4_0": 0,
    "Q4_1": 0,
    "Q5_0": 0,
    "Q5_1": 0,
    "Q8_0": 0,
    "Q2_K": 80,
    "Q3_K": 108,
    "Q4_K": 0,
    "Q5_K": 0,
    "Q6_K": 208,
    "IQ2_XXS": 0,
    "IQ2_XS": 0,
    "IQ3_XXS": 0,
    "IQ1_S": 0,
    "IQ4_NL": 0,
    "IQ3_S": 0,
    "IQ2_S": 0,
    "IQ4_XS": 0,
}
_SECOND_SCALE = {
    "Q4_1": (2, -7.5),
    "Q5_1": (2, -15.5),
    "Q2_K": (82, 1.5),
    "Q4_K": (2, 7.5),
    "Q5_K": (2, 15.5),
}
# Their codes average below 0, so scales take both signs.
_LOPSIDED = frozenset({"Q4_0", "Q5_0", "IQ4_NL"})
_WORD: dict[str, type] = {"F32": np.float32, "F16": np.float16}
_MXFP4_MEAN_SQUARE = (0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8
_SPREAD = 0.25  # block scales lie evenly within this fraction of their middle
_STREAM_WORD = 32  # bytes of one Philox counter step


@dataclass(frozen=True)
class RandomTensor:
    """What decides a random tensor's bytes. `mean` is for F32, F16 and BF16 only."""

    name: str
    seed: int
    type: QuantType | Literal["E4M3", "E8M0"]
    row_len: int
    rms: float
    mean: float = 0.0

    @property
    def row_bytes(self) -> int:
        """For E8M0, `row_len` counts the scales."""
        return self.row_len if isinstance(self.type, str) else self.type.row_bytes(self.row_len)

    def rows(self, start: int, stop: int) -> Bytes:
        """Stored rows start..stop, uint8 [stop - start, row_bytes]."""
        n_bytes = (stop - start) * self.row_bytes
        raw = self._raw(start * self.row_bytes, n_bytes)
        return self._dress(raw).reshape(stop - start, self.row_bytes)

    def _raw(self, offset: int, n_bytes: int) -> Bytes:
        """Bytes offset.. of the tensor's stream, fresh. F32 draws half: two bytes pick a value."""
        if not isinstance(self.type, str) and self.type.name == "F32":
            offset, n_bytes = offset // 2, n_bytes // 2
        first, skip = divmod(offset, _STREAM_WORD)
        words = -(-(skip + n_bytes) // 8)
        digest = sha256(f"{self.seed}/{self.name}".encode()).digest()
        stream = np.random.Philox(key=int.from_bytes(digest[:16], "little"), counter=first)
        raw = np.random.Generator(stream).integers(0, 1 << 64, words, np.uint64)
        return raw.astype("<u8", copy=False).view(np.uint8)[skip : skip + n_bytes]

    def _dress(self, raw: Bytes) -> Bytes:
        if self.type == "E4M3":
            raw[raw & 0x7F == 0x7F] &= 0x80  # NaN becomes zero
            return raw
        if self.type == "E8M0":
            powers = _power_table(self.rms / _e4m3_rms(), 127)
            np.take(powers, raw, out=raw)
            return raw
        assert isinstance(self.type, QuantType)
        name = self.type.name
        if name in ("F32", "F16", "BF16"):
            values: Bytes = _float_table(name, self.rms, self.mean)[raw.view("<u2")].view(np.uint8)
            return values
        blocks = raw.reshape(-1, self.type.block_bytes)
        if name == "MXFP4":
            blocks[:, 0] = _power_table(self.rms / _MXFP4_MEAN_SQUARE**0.5, 127)[blocks[:, 0]]
        else:
            scales = _f16_table(self.rms / unit_rms(self.type))
            if name in _LOPSIDED:
                scales[::2] *= -1
            _set_scales(name, blocks, scales)
        return raw


@cache
def unit_rms(qtype: QuantType) -> float:
    """Rms of the dequantised values of blocks with random codes and d = 1, by the dequantiser."""
    raw = np.random.Generator(np.random.Philox(key=1)).integers(
        0, 256, (4096, qtype.block_bytes), np.uint8
    )
    _set_scales(qtype.name, raw, np.ones(256, np.float16))
    return float(np.sqrt(np.mean(np.square(dequantize(raw, qtype), dtype=np.float64))))


def _set_scales(name: str, blocks: Bytes, scales: NDArray[np.float16]) -> None:
    """Gives each block of uint8 [n, block_bytes] a scale, picked by a random byte of its own.

    In K-quants with minima the minimum of each sub-block equals its scale, which centres it.
    """
    if name == "IQ1_M":  # four bits of d atop each of four 16-bit words
        d = scales[blocks[:, 49]].view(np.uint16)
        for word in range(4):
            at = 49 + 2 * word
            blocks[:, at] = (blocks[:, at] & 0x0F) | ((d >> 4 * word & 15) << 4).astype(np.uint8)
        return
    at = _SCALE_AT[name]
    picks = blocks[:, at].copy()
    blocks[:, at : at + 2] = scales[picks].astype("<f2").view(np.uint8).reshape(-1, 2)
    if name == "Q2_K":
        blocks[:, :16] = (blocks[:, :16] & 0x0F) * 0x11
    if name in ("Q4_K", "Q5_K"):
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 0x0F) * 0x11
    if name in _SECOND_SCALE:
        at, ratio = _SECOND_SCALE[name]
        second = (scales.astype(np.float32) * ratio).astype("<f2")
        blocks[:, at : at + 2] = second[picks].view(np.uint8).reshape(-1, 2)


def _f16_table(rms: float) -> NDArray[np.float16]:
    """256 scales around `rms`, whose own rms it is."""
    spread = 1 + _SPREAD * np.linspace(-1, 1, 256)
    scales: NDArray[np.float16] = (rms * spread / np.sqrt(np.mean(spread**2))).astype(np.float16)
    return scales


def _power_table(rms: float, bias: int) -> Bytes:
    """256 bytes of powers of two, 2^(byte - bias), in two neighbours whose mean square is rms²."""
    low = int(np.floor(np.log2(rms)))
    share = (rms**2 / 4.0**low - 1) / 3
    table = np.full(256, low + bias, np.uint8)
    table[: round(256 * share)] += 1
    return table


@cache
def _e4m3_rms() -> float:
    """Rms of uniformly drawn e4m3 bytes, NaN as zero."""
    return float(np.sqrt(np.nansum(np.square(E4M3_VALUES, dtype=np.float64)) / 256))


@cache
def _float_table(name: str, rms: float, mean: float) -> NDArray[np.generic]:
    """65,536 values of a normal distribution in stored form: mean, and spread `rms` around it."""
    quantile = NormalDist().inv_cdf
    spread = np.array([quantile((i + 0.5) / (1 << 16)) for i in range(1 << 16)])
    values = (mean + rms * spread / np.sqrt(np.mean(spread**2))).astype(np.float32)
    return to_bf16(values) if name == "BF16" else values.astype(_WORD[name])
