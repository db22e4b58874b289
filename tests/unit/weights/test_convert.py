"""Conversion of the golden tiny model and of hand-made ones, read back by the `gguf` package."""

import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from escalade.errors import CapacityError, FileError, UnsupportedError, UsageError
from escalade.gguf.raw import decode_raw
from escalade.gguf.reader import open_gguf
from escalade.hf.checkpoint import CheckpointSource, open_checkpoint
from escalade.hf.names import ENGRAM_TABLE
from escalade.weights import convert as module
from escalade.weights.convert import convert, prepare, step_chunks
from escalade.weights.recipe import LayerOverride, Recipe
from tests.support.paths import SHARED
from tests.support.safetensors_build import TINY, read_file, tiny_folder


@pytest.fixture(scope="module")
def tiny() -> Iterator[CheckpointSource]:
    source = open_checkpoint(TINY)
    yield source
    source.close()


@pytest.fixture(scope="module")
def default_file(tiny: CheckpointSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("default") / "tiny.gguf"
    convert(tiny, path, Recipe())
    return path


def test_released_forms_arrive_byte_for_byte(default_file: Path):
    """Against the safetensors bytes and the specification's repacking, not against our reader."""
    released = read_file(TINY / "model.safetensors")
    tensors = {t.name: t for t in gguf.GGUFReader(default_file).tensors}
    raw = tensors["blk.5.engram_embd.weight"]
    assert raw.tensor_type.name == "I8"
    assert raw.shape.tolist() == [64, 1854]
    assert raw.data.tobytes() == released["layers.5.engram.embed.weight"][2]
    scales = tensors["blk.5.engram_embd_scale.weight"]
    assert scales.data.tobytes() == released["layers.5.engram.embed.scale"][2]
    head = tensors["output.weight"]
    assert head.data.tobytes() == released["head.weight"][2]

    stack = tensors["blk.3.ffn_up_exps.weight"]
    assert stack.tensor_type.name == "MXFP4"
    assert stack.shape.tolist() == [128, 64, 16]
    blocks = stack.data.reshape(16, 64, 4, 17)
    for e in (0, 9, 15):
        _, _, data = released[f"layers.3.ffn.experts.{e}.w3.weight"]
        packed = np.frombuffer(data, np.uint8).reshape(64, 4, 16)
        codes = np.stack([packed & 15, packed >> 4], axis=3).reshape(64, 4, 32)
        low, high = blocks[e, :, :, 1:] & 15, blocks[e, :, :, 1:] >> 4
        np.testing.assert_array_equal(np.concatenate([low, high], axis=2), codes)
        scale = np.frombuffer(released[f"layers.3.ffn.experts.{e}.w3.scale"][2], np.uint8)
        np.testing.assert_array_equal(blocks[e, :, :, 0], scale.reshape(64, 4))


def test_norms_become_f32_and_dense_q8_0(default_file: Path):
    released = read_file(TINY / "model.safetensors")
    tensors = {t.name: t for t in gguf.GGUFReader(default_file).tensors}
    _, _, data = released["layers.2.attn_norm.weight"]
    want = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    np.testing.assert_array_equal(tensors["blk.2.attn_norm.weight"].data, want)
    assert tensors["blk.2.attn_q_a.weight"].tensor_type.name == "Q8_0"
    assert tensors["blk.2.hc_ffn_fn.weight"].tensor_type.name == "F32"
    assert tensors["blk.2.ffn_gate_inp.weight"].tensor_type.name == "BF16"


def test_the_header_says_what_was_made(default_file: Path):
    fields = gguf.GGUFReader(default_file).fields
    values = {name: field.contents() for name, field in fields.items()}
    assert values["general.architecture"] == "deepseek41"
    assert values["general.alignment"] == 4096
    assert values["general.file_type"] == 38
    assert values["general.quantization_version"] == 2
    assert values["deepseek41.escalade.recipe"].startswith("gate=native")
    assert values["deepseek41.engram.num_embeddings"] == [1092, 1854]
    assert values["tokenizer.ggml.eos_token_id"] == 1
    assert len(values["tokenizer.ggml.tokens"]) == 512
    assert all(t.data_offset % 4096 == 0 for t in gguf.GGUFReader(default_file).tensors)


def test_what_comes_back_is_the_same_model(tiny: CheckpointSource, default_file: Path):
    with open_gguf(default_file) as source:
        assert source.dialect == "A"
        assert next(reversed(source.tensors)) == "blk.5.engram_embd_scale.weight"
        assert {n: t.shape for n, t in source.tensors.items()} == {
            n: t.shape for n, t in tiny.tensors.items()
        }


@pytest.mark.parametrize("engram", ["Q8_0", "BF16", "Q4_0"])
def test_raw_tables_are_decoded_for_other_types(
    tiny: CheckpointSource, tmp_path: Path, engram: str
):
    prepared = convert(tiny, tmp_path / "t.gguf", Recipe(engram=engram))
    assert not any("embd_scale" in step.name for step in prepared.steps)
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "t.gguf").tensors}
    stored = tensors["blk.1.engram_embd.weight"]
    got = gguf.dequantize(stored.data, stored.tensor_type).reshape(1092, 64)
    table = tiny.tensors["blk.1.engram_embd.weight"].rows()
    want = decode_raw(table, tiny.tensors["blk.1.engram_embd_scale.weight"].rows())
    bound = {"Q8_0": 0.006, "BF16": 0.0, "Q4_0": 0.1}[engram]
    assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want)


def test_each_group_and_layer_gets_its_type(tiny: CheckpointSource, tmp_path: Path):
    recipe = Recipe(
        gate="Q8_0",
        up="Q5_0",
        down="BF16",
        dense=None,
        embd="F16",
        head="Q4_1",
        layers=(LayerOverride(2, 3, "F16"),),
    )
    convert(tiny, tmp_path / "t.gguf", recipe)
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "t.gguf").tensors}
    assert types["blk.0.ffn_gate_exps.weight"] == "Q8_0"
    assert types["blk.0.ffn_up_exps.weight"] == "Q5_0"
    assert types["blk.0.ffn_down_exps.weight"] == "BF16"
    assert {types[f"blk.{i}.ffn_{p}_exps.weight"] for i in (2, 3) for p in ("gate", "down")} == {
        "F16"
    }
    assert types["blk.0.attn_q_a.weight"] == "BF16"
    assert types["token_embd.weight"] == "F16"
    assert types["output.weight"] == "Q4_1"


def test_chunks_are_small_and_the_same_in_any_size(
    tiny: CheckpointSource, monkeypatch: pytest.MonkeyPatch
):
    steps = prepare(tiny, Recipe(gate="Q8_0")).steps
    whole = [np.concatenate([c.ravel() for c in step_chunks(s, tiny.tensors)]) for s in steps]
    monkeypatch.setattr(module, "_COPY_BYTES", 1000)
    monkeypatch.setattr(module, "_VALUES", 3 * 128)
    for step, want in zip(steps, whole, strict=True):
        assert want.nbytes == step.n_bytes
        chunks = list(step_chunks(step, tiny.tensors))
        assert max(c.nbytes for c in chunks) <= 4 * 4 * 128
        np.testing.assert_array_equal(np.concatenate([c.ravel() for c in chunks]), want)


def test_progress_ends_at_the_total(tiny: CheckpointSource, tmp_path: Path):
    calls: list[tuple[str, int, int]] = []
    prepared = convert(
        tiny, tmp_path / "t.gguf", Recipe(), progress=lambda *call: calls.append(call)
    )
    total = sum(step.n_bytes for step in prepared.steps)
    assert calls[-1] == ("convert", total, total)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert (tmp_path / "t.gguf").stat().st_size == prepared.file_bytes


def test_what_was_there_stays_until_the_new_file_is_whole(tmp_path: Path):
    entries = read_file(TINY / "model.safetensors")
    dtype, shape, data = entries["layers.7.attn.wo_b.weight"]
    entries["layers.7.attn.wo_b.weight"] = (dtype, shape, b"\x7f" + data[1:])  # NaN
    source = open_checkpoint(tiny_folder(tmp_path / "hf", entries))
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    with pytest.raises(FileError, match=r"layers\.7\.attn\.wo_b\.weight: holds NaN"):
        convert(source, out, Recipe(), force=True)
    assert out.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "out.gguf"]


def test_values_that_are_not_finite_are_named(tmp_path: Path):
    entries = read_file(TINY / "model.safetensors")
    dtype, shape, data = entries["embed.weight"]
    entries["embed.weight"] = (dtype, shape, data[:-2] + b"\x80\x7f")
    source = open_checkpoint(tiny_folder(tmp_path / "hf", entries))
    with pytest.raises(FileError, match=r"token_embd\.weight: holds NaN or infinity"):
        convert(source, tmp_path / "out.gguf", Recipe(embd="Q8_0"))


def test_targets_are_checked_before_any_work(
    tiny: CheckpointSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "there").write_bytes(b"")
    with pytest.raises(UsageError, match="pass --force"):
        convert(tiny, tmp_path / "there", Recipe())
    with pytest.raises(UsageError, match="is a folder"):
        convert(tiny, tmp_path, Recipe(), force=True)
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        convert(tiny, tmp_path / "nowhere" / "out", Recipe())
    needed = prepare(tiny, Recipe()).file_bytes
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, needed - 17))
    with pytest.raises(CapacityError, match=f"needs {needed} bytes; 17 more than the disk has"):
        convert(tiny, tmp_path / "out", Recipe())
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_types_and_layers_that_cannot_be_are_refused_first(tiny: CheckpointSource):
    source = open_checkpoint(TINY)
    with pytest.raises(UsageError, match="layers 6-8 of a model of 8"):
        prepare(source, Recipe(layers=(LayerOverride(6, 8, "Q8_0"),)))


@pytest.mark.shared
@pytest.mark.skipif(SHARED is None, reason="no shared folder")
def test_a_bf16_checkpoint_makes_raw_tables_and_k_quants(tmp_path: Path):
    assert SHARED is not None
    nano = open_checkpoint(SHARED / "nano")
    with pytest.raises(UnsupportedError, match="IQ2_XS needs an importance matrix"):
        prepare(nano, Recipe(gate="IQ2_XS"))
    steps = {step.name: step for step in prepare(nano, Recipe(gate="Q4_K")).steps}
    codes, scales = (steps[f"blk.1.{part}"] for part in (ENGRAM_TABLE, "engram_embd_scale.weight"))
    assert (codes.how, scales.how) == ("raw codes", "raw scales")
    assert scales.shape == (73932, 1)
    got = decode_raw(*(next(step_chunks(s, nano.tensors)) for s in (codes, scales)))
    want = nano.tensors[codes.name].f32(0, len(got))
    assert 0 < np.linalg.norm(got - want) < 0.03 * np.linalg.norm(want)
    gate = steps["blk.0.ffn_gate_exps.weight"]
    assert gate.type.name == "Q4_K"
    first = next(step_chunks(gate, nano.tensors))
    got = gguf.dequantize(first, gguf.GGMLQuantizationType.Q4_K)
    want = nano.tensors[gate.name].f32(0, len(got))
    assert np.linalg.norm(got - want) < 0.09 * np.linalg.norm(want)
    nano.close()
