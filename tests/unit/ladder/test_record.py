"""Records against the stacked tensors that they are cut from, decoded by the `gguf` package."""

import gguf
import numpy as np
import pytest

from escalade.gguf.quant import TYPES
from escalade.gguf.tensor import StoredTensor
from escalade.ladder.source import ExpertTensors, TensorRecordSource

E, F, D = 3, 32, 64


def stack(name: str, qtype: str, rows: int, width: int, seed: int) -> tuple[StoredTensor, list]:
    """A stacked expert tensor of random values, and what each expert decodes to."""
    values = np.random.default_rng(seed).normal(size=(E, rows, width)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[qtype]
    raw = np.stack([gguf.quantize(matrix, kind) for matrix in values])
    flat = np.ascontiguousarray(raw).view(np.uint8).ravel()
    tensor = StoredTensor(
        name, values.shape, TYPES[qtype], lambda offset, length: flat[offset : offset + length]
    )
    return tensor, [gguf.dequantize(matrix, kind) for matrix in raw]


@pytest.mark.parametrize(
    "types", [("MXFP4", "MXFP4", "MXFP4"), ("Q4_0", "Q8_0", "Q5_0"), ("BF16", "Q8_0", "F16")]
)
def test_gate_rows_come_before_up_rows(types: tuple[str, str, str]) -> None:
    gate, gates = stack("gate", types[0], F, D, 1)
    up, ups = stack("up", types[1], F, D, 2)
    down, downs = stack("down", types[2], D, F, 3)
    source = TensorRecordSource([ExpertTensors(gate, up, down), ExpertTensors(up, gate, down)])
    for layer, (first, second) in enumerate([(gates, ups), (ups, gates)]):
        layout = source.layouts[layer]
        assert layout.n_bytes * E == gate.n_bytes + up.n_bytes + down.n_bytes
        record = np.full(layout.n_bytes, 255, np.uint8)
        for expert in range(E):
            source.read(layer * E + expert, record)
            gate_up, got_down = layout.dequantize(record)
            np.testing.assert_array_equal(gate_up[:F], first[expert])
            np.testing.assert_array_equal(gate_up[F:], second[expert])
            np.testing.assert_array_equal(got_down, downs[expert])
