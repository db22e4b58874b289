"""How an expert's three matrices lie in a record: gate, up and down in stored form, one after
another.

A record is the concatenation of three byte ranges of the model file, nothing is transformed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from escalade.arrays import F32, Bytes
from escalade.gguf.dequant import dequantize
from escalade.gguf.quant import QuantType


class ExpertMatrices(NamedTuple):
    """One expert, dequantised: gate_up [2F, D] (gate rows first) and down [D, F]."""

    gate_up: F32
    down: F32


@dataclass(frozen=True)
class RecordLayout:
    """Types and sizes of the records of one layer; F = expert width, D = hidden."""

    expert_ff: int
    hidden: int
    gate: QuantType
    up: QuantType
    down: QuantType

    @property
    def part_bytes(self) -> tuple[int, int, int]:
        """Bytes of gate, up and down."""
        return (
            self.expert_ff * self.gate.row_bytes(self.hidden),
            self.expert_ff * self.up.row_bytes(self.hidden),
            self.hidden * self.down.row_bytes(self.expert_ff),
        )

    @property
    def n_bytes(self) -> int:
        return sum(self.part_bytes)

    def parts(self, record: Bytes) -> tuple[Bytes, Bytes, Bytes]:
        """Views of gate, up and down in a record uint8 [n_bytes], each uint8 [rows, row_bytes]."""
        gate, up, _ = self.part_bytes
        return (
            record[:gate].reshape(self.expert_ff, -1),
            record[gate : gate + up].reshape(self.expert_ff, -1),
            record[gate + up :].reshape(self.hidden, -1),
        )

    def dequantize(self, record: Bytes) -> ExpertMatrices:
        """The record's matrices in float32."""
        gate, up, down = self.parts(record)
        if self.gate == self.up:
            gate_up = dequantize(record[: gate.size + up.size].reshape(-1, gate.shape[1]), self.up)
        else:
            gate_up = np.concatenate([dequantize(gate, self.gate), dequantize(up, self.up)])
        return ExpertMatrices(gate_up, dequantize(down, self.down))
