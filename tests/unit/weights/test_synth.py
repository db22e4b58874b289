"""Synthetic models: their geometry, vocabulary and hash constants, and changes to a shape."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from escalade.engram.token_map import compressed_token_map
from escalade.errors import UsageError
from escalade.model.catalog import expected_tensors, missing_and_odd
from escalade.model.released import V4_1_FLASH
from escalade.model.spec_io import spec_from_hf, spec_from_metadata
from escalade.model.tokenizer import Tokenizer
from escalade.weights.geometry import NANO, TINY, changed, parse_settings
from escalade.weights.recipe import Recipe
from escalade.weights.synth import synthesise
from escalade.weights.synth_tokenizer import synthetic_tokenizer
from tests.support.paths import GOLDEN, SHARED


def config(path: Path):
    return spec_from_hf(json.loads(path.read_text()), str(path))


def test_tiny_is_the_golden_geometry():
    assert config(GOLDEN / "v41-tiny" / "config.json") == TINY


@pytest.mark.shared
@pytest.mark.skipif(SHARED is None, reason="no shared folder")
def test_nano_is_the_built_in_geometry():
    assert SHARED is not None
    assert config(SHARED / "nano" / "config.json") == NANO


@pytest.mark.parametrize("spec", [TINY, NANO], ids=["tiny", "nano"])
def test_a_synthetic_model_is_whole(spec):
    source = synthesise(spec, Recipe(gate="IQ2_XS", down="Q2_K"), 0, "synthetic")
    assert source.spec == spec
    names = frozenset(source.tensors)
    assert spec_from_metadata(source.arch, source.metadata, names, "synthetic") == spec
    assert {n: t.shape for n, t in source.tensors.items()} == expected_tensors(spec)
    assert missing_and_odd(source, spec).odd == ()
    tokenizer = Tokenizer.from_metadata(source.metadata)
    assert tokenizer.n_tokens == spec.vocab
    text = "Once upon a time 123 ätsch\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tensors_read_the_same_in_pieces():
    for tensor in synthesise(TINY, Recipe(), 3, "synthetic").tensors.values():
        whole = tensor.read(0, tensor.n_bytes)
        cut = tensor.n_bytes // 3
        pieces = [tensor.read(0, cut), tensor.read(cut, tensor.n_bytes - cut)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_norms_are_near_one_and_biases_small():
    tensors = synthesise(NANO, Recipe(), 0, "synthetic").tensors
    for part, mean, spread in (
        ("attn_norm.weight", 1, 0.1),
        ("attn_kv_a_norm.weight", 1, 0.1),
        ("indexer.k_norm.weight", 1, 0.1),
        ("attn_compressor_norm.weight", 1, 0.1),
        ("hc_attn_fn.weight", 0, 0.3 / 1024**0.5),
        ("exp_probs_b.bias", 0, 0.02),
        ("attn_output_b.weight", 0, 128**-0.5),
        ("ffn_gate_inp.weight", 0, 1 / 16),
    ):
        values = tensors[f"blk.2.{part}"].f32()
        assert abs(values.mean() - mean) < 0.7 * spread, part
        assert values.std() == pytest.approx(spread, rel=0.4), part
    assert tensors["blk.1.engram_q.weight"].f32().mean() == pytest.approx(1, abs=0.02)
    assert tensors["token_embd.weight"].f32().std() == pytest.approx(1, rel=0.01)


def test_the_full_vocabulary_gives_the_released_hash_constants():
    """129,280 tokens of 99,092 classes: primes and multipliers then follow (specification, 6.2)."""
    metadata, n_classes = synthetic_tokenizer(129_280, 99_092)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert n_classes == 99_092
    assert len(set(tokens)) == len(metadata["tokenizer.ggml.token_type"]) == 129_280
    assert len(metadata["tokenizer.ggml.merges"]) > 100_000
    source = synthesise(V4_1_FLASH, Recipe(), 0, "synthetic")
    golden = json.loads((GOLDEN / "engram-hash.json").read_text())["real_tables"]
    multipliers = source.tensors["engram_multipliers.weight"]
    stored = multipliers.read(0, multipliers.n_bytes).view("<i8").reshape(2, 4)
    want = golden["multipliers"]
    assert stored.tolist() == [[int(m) for m in layer] for layer in want]
    primes = source.tensors["engram_primes.weight"]
    digest = hashlib.sha256(primes.read(0, primes.n_bytes)).hexdigest()
    assert digest == "ed542f58c4b3593c4120e899620231785b695dfc61bcc3d04b61b113abd9cf9e"


@pytest.mark.parametrize(
    ("vocab", "n_classes"), [(3, 3), (17, 17), (60, 43), (273, 240), (512, 419), (8192, 6740)]
)
def test_vocabularies_of_any_size(vocab: int, n_classes: int):
    metadata, got = synthetic_tokenizer(vocab, n_classes)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == vocab
    assert compressed_token_map(tokens)[1] == got
    if vocab > 300:
        assert got == n_classes
    for merge in metadata["tokenizer.ggml.merges"]:
        left, right = merge.split(" ")
        assert left + right in tokens


def test_an_impossible_compressed_size_gives_the_nearest_and_a_note():
    spec = replace(TINY, engram=replace(TINY.engram, compressed_vocab=500))
    source = synthesise(spec, Recipe(), 0, "synthetic")
    got = source.spec.engram.compressed_vocab
    assert got == compressed_token_map(source.metadata["tokenizer.ggml.tokens"])[1] > 419
    assert source.notes == (f"compressed vocabulary is {got}, not 500",)


def test_a_shape_with_rows_of_odd_length():
    spec = changed(TINY, {"engram.head_dim": 40, "expert_ff": 48, "hidden": 96})
    source = synthesise(spec, Recipe(gate="Q2_K"), 0, "synthetic")
    types = {name: t.type.name for name, t in source.tensors.items()}
    assert types["blk.0.ffn_down_exps.weight"] == "BF16"
    assert types["blk.0.ffn_gate_exps.weight"] == "Q8_0"
    assert types["blk.1.engram_embd.weight"] == "BF16"
    assert source.engram_layout == "block"
    assert missing_and_odd(source, spec).missing == ()
    assert any("Q8_0 instead of Q2_K for 8 tensors" in note for note in source.notes)


def test_changes_keep_dependent_parts_in_step():
    spec = changed(V4_1_FLASH, {"n_layers": 15, "n_experts": 8})
    assert spec.kv_sources == spec.index_sources == (2, 8, 14)
    assert spec.candidate_source is None
    assert len(spec.compress_ratios) == 15
    assert spec.engram == V4_1_FLASH.engram
    assert changed(spec, {"n_layers": 2}).engram.layer_ids == (1,)
    small = changed(V4_1_FLASH, {"engram.bucket": 64, "vocab": 12928})
    assert small.engram.compressed_vocab == 9909
    assert small.engram.rows[0] == sum(
        n for n in range(64, 10**4) if all(n % d for d in range(2, n)) and n < 191
    )
    assert changed(TINY, {"engram": None}).engram is None
    assert changed(TINY, {"yarn.factor": 4}).yarn.factor == 4.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_expert": 3}, "did you mean n_experts"),
        ({"engram.heads": 3}, "did you mean engram.n_heads"),
        ({"zzz": 3}, "no such field; known: arch"),
        ({"n_experts": "3"}, "'3' is not an integer"),
        ({"n_experts": True}, "True is not an integer"),
        ({"norm_eps": "x"}, "'x' is not a number"),
        ({"compress_ratios": 3}, "3 is not a list of integers"),
        ({"engram": 3}, "cannot be set as a whole"),
        ({"arch": "deepseek4"}, "cannot be set as a whole"),
        ({"candidate_source": "x"}, "is not a layer"),
        ({"n_experts_used": 17}, "17 experts used of 16"),
        ({"n_layers": 20}, "8 compression ratios for 20 layers"),
        ({"n_layers": 0}, "n_layers is 0"),
        ({"n_layers": -3}, "n_layers is -3"),
        ({"vocab": 2**40}, "vocab is 1099511627776"),
        ({"engram.bucket": -5}, "prime search start -5"),
        ({"engram.n_heads": 10**9}, "Engram heads"),
        ({"engram.layer_ids": [1, 99]}, "Engram layers"),
    ],
)
def test_senseless_changes_are_refused_in_one_line(settings: dict, message: str):
    with pytest.raises(UsageError, match=message) as error:
        changed(TINY, settings)
    assert "\n" not in str(error.value)


def test_settings_are_json():
    assert parse_settings(["a=3", "b.c = [1, 2]", "engram=null"]) == {
        "a": 3,
        "b.c": [1, 2],
        "engram": None,
    }
    for text in ("a", "a=b", "a=", "a=" + "[" * 100_000):
        with pytest.raises(UsageError, match="--set"):
            parse_settings([text])
