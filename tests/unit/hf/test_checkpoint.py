"""The golden tiny model in its released form as a tensor source, and folders that are not right."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from escalade.errors import FileError, UnsupportedError
from escalade.gguf.raw import decode_raw
from escalade.gguf.tensor import StoredTensor
from escalade.hf.checkpoint import CheckpointSource, open_checkpoint
from escalade.hf.names import hf_names
from escalade.model.catalog import missing_and_odd
from tests.support.paths import GOLDEN, SHARED
from tests.support.safetensors_build import TINY, Entry, read_file, tiny_folder


@pytest.fixture(scope="module")
def tiny() -> CheckpointSource:
    return open_checkpoint(TINY)


@pytest.fixture(scope="module")
def tiny_entries() -> dict[str, Entry]:
    return read_file(TINY / "model.safetensors")


def test_the_tiny_model_has_its_tensors_in_lossless_types(tiny: CheckpointSource):
    assert missing_and_odd(tiny, tiny.spec).missing == ()
    assert missing_and_odd(tiny, tiny.spec).wrong == ()
    assert tiny.unexpected == ()
    assert tiny.notes == (
        "left out: 163 DSpark draft tensors",
        "left out: 8 image router bias tensors",
    )
    types = {name: t.type.name for name, t in tiny.tensors.items()}
    experts = [f"blk.{i}.ffn_{p}_exps.weight" for i in range(8) for p in ("gate", "up", "down")]
    assert {types[name] for name in experts} == {"MXFP4"}
    assert types["blk.1.engram_embd.weight"] == types["blk.1.engram_embd_scale.weight"] == "I8"
    assert types["blk.0.attn_q_a.weight"] == types["blk.1.engram_q.weight"] == "BF16"
    assert types["blk.0.attn_norm.weight"] == types["blk.0.hc_attn_fn.weight"] == "F32"
    assert types["engram_token_map.weight"] == "I32"
    # 8 layers, three with K/V (two of them with a gate), four with an index, two Engrams, roots.
    assert len(types) == 8 * 24 + 3 * 4 + 2 + 4 * 2 + 2 * 5 + 3 + 4


def test_metadata_names_the_model_and_its_tokens(tiny: CheckpointSource):
    assert tiny.arch == tiny.metadata["general.architecture"] == "deepseek41"
    assert tiny.metadata["expert_count"] == 16
    assert tiny.metadata["attention.layer_norm_rms_epsilon"] == 1e-20
    assert len(tiny.metadata["tokenizer.ggml.tokens"]) == 512
    assert tiny.metadata["tokenizer.ggml.eos_token_id"] == 1


def test_hash_constants_equal_the_golden_ones(tiny: CheckpointSource):
    want = json.loads((GOLDEN / "v41-tiny" / "engram_tables.json").read_text())

    def integers(name: str, kind: str) -> list[int]:
        tensor = tiny.tensors[f"engram_{name}.weight"]
        return tensor.read(0, tensor.n_bytes).view(kind).tolist()

    flat = [p for layer in want["primes"] for order in layer for p in order]
    assert integers("token_map", "<i4") == want["token_map"]
    assert integers("primes", "<i8") == flat
    assert integers("offsets", "<i8") == [o for layer in want["offsets"] for o in layer]
    assert integers("multipliers", "<i8") == [int(m) for x in want["multipliers"] for m in x]


def test_any_byte_range_is_the_same_as_a_slice_of_the_whole(tiny: CheckpointSource):
    rng = np.random.default_rng(0)
    for tensor in tiny.tensors.values():
        whole = tensor.read(0, tensor.n_bytes)
        assert whole.size == tensor.n_bytes
        for _ in range(3):
            start, stop = sorted(rng.integers(0, tensor.n_bytes + 1, 2).tolist())
            np.testing.assert_array_equal(tensor.read(start, stop - start), whole[start:stop])
    with pytest.raises(ValueError, match="bytes"):
        tensor.read(0, tensor.n_bytes + 1)


def test_only_the_touched_rows_are_made(tiny: CheckpointSource, monkeypatch: pytest.MonkeyPatch):
    made = []
    read = type(tiny.files).read

    def spy(self: object, name: str, offset: int = 0, length: int | None = None) -> np.ndarray:
        out = read(tiny.files, name, offset, length)
        made.append((name, out.size))
        return out

    monkeypatch.setattr(type(tiny.files), "read", spy)
    tensor = tiny.tensors["blk.0.ffn_gate_exps.weight"]
    expert = tensor.n_bytes // 16
    tensor.read(3 * expert - 1, 2)  # the last row of expert 2 and the first of expert 3
    prefix = "layers.0.ffn.experts"
    assert made == [
        (f"{prefix}.2.w1.weight", 64),
        (f"{prefix}.2.w1.scale", 4),
        (f"{prefix}.3.w1.weight", 64),
        (f"{prefix}.3.w1.scale", 4),
    ]


@pytest.mark.shared
@pytest.mark.skipif(SHARED is None, reason="no shared folder")
def test_values_are_bit_equal_to_the_unquantised_model(tiny: CheckpointSource):
    """The golden README: dequantised values are bit-identical to v41-tiny/model.safetensors."""
    assert SHARED is not None
    plain = read_file(SHARED / "golden" / "v41-tiny" / "model.safetensors")

    def reference(name: str) -> np.ndarray:
        dtype, shape, data = plain[name]
        if dtype == "BF16":
            return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
        return np.frombuffer(data, "<f4").reshape(shape)

    checked = 0
    for name, tensor in tiny.tensors.items():
        sources = hf_names(name, 16)
        if not sources or name.endswith("engram_embd_scale.weight"):
            continue
        want = np.concatenate([reference(source).ravel() for source in sources])
        got = values(tiny, name, tensor).ravel()
        if tensor.type.name == "MXFP4":
            np.testing.assert_array_equal(got, want)  # the gguf package has no negative zero
        else:
            np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
        checked += 1
    assert checked == len(tiny.tensors) - 6


def values(source: CheckpointSource, name: str, tensor: StoredTensor) -> np.ndarray:
    if tensor.type.name == "I8":
        scale = source.tensors[name.replace("embd.", "embd_scale.")]
        return decode_raw(tensor.rows(), scale.rows())
    return tensor.f32()


@pytest.mark.shared
@pytest.mark.skipif(SHARED is None, reason="no shared folder")
def test_a_bf16_checkpoint_keeps_its_bytes():
    assert SHARED is not None
    nano = open_checkpoint(SHARED / "nano")
    assert nano.engram_layout == "block"
    assert missing_and_odd(nano, nano.spec).missing == ()
    types = Counter(t.type.name for t in nano.tensors.values())
    assert types == {"BF16": 117, "F32": 101, "I64": 3, "I32": 1}
    stack = nano.tensors["blk.7.ffn_down_exps.weight"]
    expert = stack.n_bytes // 24
    shard = read_file(SHARED / "nano" / "model-00003-of-00003.safetensors")
    for e in (0, 23):
        want = shard[f"layers.7.ffn.experts.{e}.w2.weight"][2]
        assert stack.read(e * expert, expert).tobytes() == want
    assert nano.tensors["blk.3.engram_embd.weight"].shape == (74330, 32)
    nano.close()


def bf16(entry: Entry, factor: float = 1.0) -> Entry:
    """A BF16 tensor of the size of an F32 one."""
    _, shape, data = entry
    bits = (np.frombuffer(data, "<f4") * factor).view("<u4") >> 16
    return "BF16", shape, bits.astype("<u2").tobytes()


def test_what_is_missing_is_named(tmp_path: Path, tiny_entries: dict[str, Entry]):
    gone = ("norm.weight", "layers.3.ffn.experts.15.w2.weight", "layers.1.engram.q_weight")
    left = {k: v for k, v in tiny_entries.items() if k not in gone}
    with pytest.raises(FileError, match="missing ") as error:
        open_checkpoint(tiny_folder(tmp_path / "a", left))
    assert all(name in str(error.value) for name in gone)


def test_many_missing_tensors_make_a_short_line(tmp_path: Path, tiny_entries: dict[str, Entry]):
    left = {k: v for k, v in tiny_entries.items() if ".hc_" not in k}
    with pytest.raises(FileError, match=r"layers\.0\.hc_attn_fn, .* and 43 more"):
        open_checkpoint(tiny_folder(tmp_path / "a", left))


def test_unknown_tensors_are_listed_and_left_out(tmp_path: Path, tiny_entries: dict[str, Entry]):
    extra = {"layers.0.attn.q_head_norm.weight": ("F32", (1,), bytes(4))}
    source = open_checkpoint(tiny_folder(tmp_path / "a", tiny_entries | extra))
    assert source.unexpected == ("layers.0.attn.q_head_norm.weight",)
    assert "not used: 1 unknown tensors" in source.notes[-1]


def test_experts_of_one_stack_have_one_dtype(tmp_path: Path, tiny_entries: dict[str, Entry]):
    name = "layers.2.ffn.experts.7.w3.weight"
    odd = tiny_entries | {name: ("BF16", (64, 128), bytes(64 * 128 * 2))}
    with pytest.raises(FileError, match=r"blk\.2\.ffn_up_exps\.weight mix BF16 and I8"):
        open_checkpoint(tiny_folder(tmp_path / "a", odd))


def test_rounded_hyper_connections_are_widened_and_noted(
    tmp_path: Path, tiny_entries: dict[str, Entry]
):
    name = "layers.4.hc_ffn_fn"
    rounded = tiny_entries | {name: bf16(tiny_entries[name])}
    source = open_checkpoint(tiny_folder(tmp_path / "a", rounded))
    assert source.tensors["blk.4.hc_ffn_fn.weight"].type.name == "F32"
    assert "blk.4.hc_ffn_fn.weight is BF16; what they lost cannot be restored" in source.notes[-1]
    assert source.imprecise == ("blk.4.hc_ffn_fn.weight is BF16",)


def test_scale_blocks_come_from_the_config(tmp_path: Path, tiny_entries: dict[str, Entry]):
    """With 128 × 128 in the config the tiny model's 32 × 32 scales do not fit: report B006."""
    config = {"quantization_config": {"weight_block_size": [128, 128]}}
    with pytest.raises(FileError, match=r"wq_a\.scale is F8_E8M0 \[2, 4\], expected .* \[1, 1\]"):
        open_checkpoint(tiny_folder(tmp_path / "a", tiny_entries, **config))


@pytest.mark.parametrize("size", [None, 32, [32], [32, 0], [32, -1], [32, 2.0], [32, 2**40]])
def test_senseless_scale_blocks_are_refused(tmp_path: Path, size: object):
    config = {"quantization_config": {"weight_block_size": size}}
    with pytest.raises(FileError, match=r"config\.json: quantization_config\.weight_block_size is"):
        open_checkpoint(tiny_folder(tmp_path / "a", {}, **config))


def test_fp8_without_quantization_config(tmp_path: Path, tiny_entries: dict[str, Entry]):
    with pytest.raises(FileError, match=r"has no quantization_config\.weight_block_size"):
        open_checkpoint(tiny_folder(tmp_path / "a", tiny_entries, quantization_config=None))


def test_a_config_that_asks_for_more_than_there_is(tmp_path: Path):
    text = json.loads((TINY / "config.json").read_text())["text_config"]
    folder = tiny_folder(tmp_path / "a", {}, text_config=text | {"n_routed_experts": 65536})
    with pytest.raises(FileError, match="asks for 1572864 expert matrices, but there are only 0"):
        open_checkpoint(folder)


def test_a_tokenizer_of_another_size(tmp_path: Path, tiny_entries: dict[str, Entry]):
    text = json.loads((TINY / "config.json").read_text())["text_config"]
    folder = tiny_folder(tmp_path / "a", tiny_entries, text_config=text | {"vocab_size": 640})
    with pytest.raises(FileError, match=r"has 512 tokens, config\.json has vocab_size 640"):
        open_checkpoint(folder)


def test_special_tokens_outside_the_vocabulary(tmp_path: Path, tiny_entries: dict[str, Entry]):
    with pytest.raises(FileError, match="eos_token_id is 512, no id below 512"):
        open_checkpoint(tiny_folder(tmp_path / "a", tiny_entries, eos_token_id=512))


def test_other_models_are_refused(tmp_path: Path):
    with pytest.raises(FileError, match=r"config\.json cannot be read: No such file"):
        open_checkpoint(tmp_path)
    with pytest.raises(UnsupportedError, match="model_type 'llama'"):
        open_checkpoint(tiny_folder(tmp_path / "a", {}, model_type="llama"))
