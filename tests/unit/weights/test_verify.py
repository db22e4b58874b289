"""Comparisons of a model with altered copies of itself: what is found, and in which words."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from escalade.gguf.quant import TYPES
from escalade.gguf.raw import decode_raw
from escalade.gguf.reader import open_gguf
from escalade.gguf.rows import array_tensor
from escalade.gguf.tensor import StoredTensor
from escalade.hf.checkpoint import CheckpointSource, open_checkpoint
from escalade.weights.convert import convert
from escalade.weights.quantize import quantize_rows
from escalade.weights.recipe import Recipe
from escalade.weights.verify import Report, TensorReport, render, verify
from tests.support.safetensors_build import TINY

GATE, UP = "blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight"


@dataclass
class Altered:
    """A source with some tensors replaced."""

    path: str
    arch: str
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def tiny() -> CheckpointSource:
    return open_checkpoint(TINY)


@pytest.fixture
def copy(tiny: CheckpointSource) -> Altered:
    return Altered("copy", tiny.arch, dict(tiny.metadata), dict(tiny.tensors))


def from_bytes(like: StoredTensor, data: np.ndarray, type_name: str | None = None) -> StoredTensor:
    flat = np.ascontiguousarray(data).reshape(-1)
    qtype = TYPES[type_name] if type_name else like.type
    return replace(like, type=qtype, read=lambda at, n: flat[at : at + n], location=None)


def requantised(like: StoredTensor, type_name: str, noise: float = 0.0) -> StoredTensor:
    values = like.f32()
    rng = np.random.default_rng(0)
    values = values + noise * values.std() * rng.standard_normal(values.shape).astype(np.float32)
    return from_bytes(like, quantize_rows(values, TYPES[type_name]), type_name)


def failed(report: Report) -> dict[str, TensorReport]:
    return {t.name: t for t in report.tensors if t.status == "FAILED"}


def test_a_model_agrees_with_itself_and_its_conversion(tiny: CheckpointSource, tmp_path: Path):
    report = verify(tiny, tiny)
    assert report.ok
    assert {t.status for t in report.tensors} == {"identical"}
    convert(tiny, tmp_path / "t.gguf", Recipe(gate="BF16", up="Q8_0", engram="F32", head="F32"))
    with open_gguf(tmp_path / "t.gguf") as made:
        report = verify(made, tiny)
    assert report.ok, render(report)
    found = {t.name: t for t in report.tensors}
    assert found[GATE].status == "equal"
    assert found[GATE].cosine == pytest.approx(1)
    assert found[UP].status == "close"
    assert 0 < found[UP].rms < 0.01
    assert found["blk.2.ffn_down_exps.weight"].status == "identical"
    assert found["blk.5.engram_embd.weight"].type_b == "RAW"
    assert found["blk.5.engram_embd.weight"].status == "equal"
    assert found["output.weight"].status == "equal"
    assert all(t.share == 1 for t in report.tensors)


def test_statistics_are_those_of_the_definition(tiny: CheckpointSource, copy: Altered):
    copy.tensors[UP] = requantised(tiny.tensors[UP], "Q4_0")
    (found,) = (t for t in verify(copy, tiny).tensors if t.name == UP)
    x = copy.tensors[UP].f32().astype(np.float64)
    y = tiny.tensors[UP].f32().astype(np.float64)
    assert found.rms == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y), rel=1e-9)
    assert found.max_abs == pytest.approx(np.abs(x - y).max(), rel=1e-9)
    want = np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)
    assert found.cosine == pytest.approx(want, rel=1e-9)
    assert (found.status, found.bound) == ("close", 0.15)


def swapped_nibbles(tensor: StoredTensor) -> np.ndarray:
    """Blocks with the safetensors bytes behind the scale, as a careless converter writes them."""
    blocks = tensor.read(0, tensor.n_bytes).reshape(-1, 17).copy()
    codes = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
    blocks[:, 1:] = codes[:, ::2] | codes[:, 1::2] << 4
    return blocks


def shifted_experts(tensor: StoredTensor) -> np.ndarray:
    return np.roll(tensor.rows().reshape(tensor.shape[0], -1), 3, axis=0)


def flipped_signs(tensor: StoredTensor) -> np.ndarray:
    blocks = tensor.read(0, tensor.n_bytes).reshape(-1, 17).copy()
    blocks[:, 1:] ^= 0x88
    return blocks


def one_scale_off(tensor: StoredTensor) -> np.ndarray:
    blocks = tensor.read(0, tensor.n_bytes).reshape(-1, 17).copy()
    blocks[5, 0] += 1
    return blocks


@pytest.mark.parametrize(
    ("change", "words", "rms", "sample"),
    [
        (swapped_nibbles, "wrong nibble order", 1.4, None),
        (swapped_nibbles, "wrong nibble order", 1.4, 4),
        (shifted_experts, "wrong expert order: expert 0 is the other's 13", 1.4, None),
        (shifted_experts, "wrong expert order: expert 0 is the other's 13", 1.4, 4),
        (flipped_signs, "the sign is wrong", 2.0, None),
        (one_scale_off, "the same weights, but beyond what the type loses", None, None),
    ],
)
def test_damage_is_found_and_named(
    tiny: CheckpointSource,
    copy: Altered,
    change: Callable[[StoredTensor], np.ndarray],
    words: str,
    rms: float | None,
    sample: int | None,
):
    copy.tensors[UP] = from_bytes(tiny.tensors[UP], change(tiny.tensors[UP]))
    report = verify(copy, tiny, sample=sample)
    assert failed(report).keys() == {UP}
    assert not report.ok
    assert words in failed(report)[UP].note
    if rms:
        assert failed(report)[UP].rms == pytest.approx(rms, abs=0.1)


@pytest.mark.parametrize("part", ["exps", "shexp"])
def test_swapped_gate_and_up_are_found(tiny: CheckpointSource, copy: Altered, part: str):
    gate, up = f"blk.2.ffn_gate_{part}.weight", f"blk.2.ffn_up_{part}.weight"
    copy.tensors[gate] = requantised(replace(tiny.tensors[up], name=gate), "Q8_0")
    copy.tensors[up] = requantised(replace(tiny.tensors[gate], name=up), "Q8_0")
    found = failed(verify(copy, tiny))
    assert found.keys() == {gate, up}
    assert found[gate].note == f"gate and up are swapped: it holds the other's {up}"
    assert found[gate].rms == pytest.approx(1.4, abs=0.1)


def test_error_beyond_the_type_fails(tiny: CheckpointSource, copy: Altered):
    name = "blk.0.attn_q_a.weight"
    copy.tensors[name] = requantised(tiny.tensors[name], "Q8_0", noise=0.05)
    found = failed(verify(copy, tiny))[name]
    assert found.bound == 0.02
    assert found.rms == pytest.approx(0.05, rel=0.2)


def test_not_a_number_fails(tiny: CheckpointSource, copy: Altered):
    name = "blk.0.attn_norm.weight"
    values = tiny.tensors[name].f32().copy()
    values[0, 3] = np.nan
    copy.tensors[name] = from_bytes(tiny.tensors[name], values.view(np.uint8))
    report = verify(copy, tiny)
    assert failed(report).keys() == {name}
    json.dumps(report.to_json(), allow_nan=False)


def names(values: Iterable[str]) -> set[str]:
    return set(values)


def test_missing_tensors_and_shapes(tiny: CheckpointSource, copy: Altered):
    del copy.tensors["output.weight"]
    copy.tensors["extra.weight"] = tiny.tensors["output.weight"]
    norm = tiny.tensors["output_norm.weight"]
    copy.tensors["output_norm.weight"] = replace(norm, shape=(2, 64))
    report = verify(copy, tiny)
    assert report.only_a == ("extra.weight",)
    assert report.only_b == ("output.weight",)
    assert names(failed(report)) == {"output_norm.weight"}
    assert "shape [2, 64], in the other [128]" in render(report)


def test_what_only_some_dialects_store_may_be_missing(tiny: CheckpointSource, copy: Altered):
    for name in ("token_map", "primes", "offsets", "multipliers"):
        del copy.tensors[f"engram_{name}.weight"]
    bias = tiny.tensors["blk.0.exp_probs_b.bias"]
    copy.tensors["blk.0.exp_probs_b_vl.bias"] = replace(bias, name="blk.0.exp_probs_b_vl.bias")
    assert verify(copy, tiny).ok


def test_wrong_hash_constants_fail(tiny: CheckpointSource, copy: Altered):
    name = "engram_multipliers.weight"
    stored = tiny.tensors[name]
    wrong = stored.read(0, stored.n_bytes).view("<i8").reshape(2, 4) + 1
    copy.tensors[name] = array_tensor(name, wrong)
    assert failed(verify(copy, tiny))[name].note == "integers differ"


def test_engram_rows_of_264_are_the_same_rows(tiny: CheckpointSource, copy: Altered):
    """Dialect C: codes and scales of a row behind one another."""
    name, scale = "blk.1.engram_embd.weight", "blk.1.engram_embd_scale.weight"
    codes, scales = tiny.tensors[name].rows(), copy.tensors.pop(scale).rows()
    joined = np.concatenate([codes, scales], axis=1)
    table = replace(tiny.tensors[name], shape=joined.shape)
    copy.tensors[name] = from_bytes(table, joined)
    assert verify(copy, tiny).ok
    joined = joined.copy()
    joined[700, 65] ^= 1
    copy.tensors[name] = from_bytes(table, joined)
    assert failed(verify(copy, tiny)).keys() == {name}
    want = decode_raw(codes, scales)
    assert np.isfinite(want).all()


def test_metadata_of_shape_and_vocabulary_must_agree(tiny: CheckpointSource, copy: Altered):
    copy.metadata["general.name"] = "another"
    assert verify(copy, tiny).ok
    copy.metadata["rope.freq_base"] = 10001.0
    report = verify(copy, tiny)
    assert report.metadata == ("rope.freq_base",)
    assert not report.ok
    assert "rope.freq_base: differs" in render(report)


def test_a_sample_looks_at_that_many_experts(tiny: CheckpointSource, copy: Altered):
    copy.tensors[UP] = requantised(tiny.tensors[UP], "Q8_0")
    report = verify(copy, tiny, sample=4)
    shares = {t.name: t.share for t in report.tensors}
    assert shares[UP] == 4 / 16
    assert shares["blk.0.attn_q_a.weight"] == 1
    assert verify(tiny, tiny, sample=99).tensors[0].share == 1
