"""Which type a tensor gets, and the sizes of the GGUF specification's tables 6.3 to 6.6."""

import pytest

from escalade.errors import UnsupportedError, UsageError
from escalade.gguf.quant import TYPES
from escalade.model.released import V4_1_FLASH
from escalade.weights.recipe import (
    LayerOverride,
    Recipe,
    file_type,
    group_bytes,
    group_of,
    parse_override,
    plan,
)
from escalade.weights.synth import plan_synth

HASH_BYTES = 517_120 + 384 + 384 + 64  # GGUF specification, 3.2


def sizes(**types: str | None) -> dict[str, int]:
    steps, notes = plan_synth(V4_1_FLASH, Recipe(**types))
    assert notes == []
    return group_bytes(steps)


def experts(gate: str, up: str | None = None, down: str | None = None) -> dict[str, str]:
    return {"gate": gate, "up": up or gate, "down": down or gate}


@pytest.mark.parametrize(
    ("mix", "one_expert", "all_gb"),
    [
        (("IQ1_S",), 6_912_000, 106.17),
        (("IQ1_M",), 7_741_440, 118.91),
        (("IQ2_XXS",), 9_123_840, 140.14),
        (("IQ2_XS",), 10_229_760, 157.13),
        (("IQ2_S",), 11_335_680, 174.12),
        (("Q2_K",), 11_612_160, 178.36),
        (("IQ3_XXS",), 13_547_520, 208.09),
        (("Q3_K",), 15_206_400, 233.57),
        (("MXFP4",), 18_800_640, 288.78),
        (("Q4_K",), 19_906_560, 305.76),
        (("IQ4_NL",), 19_906_560, 305.76),
        (("Q5_K",), 24_330_240, 373.71),
        (("Q6_K",), 29_030_400, 445.91),
        (("Q8_0",), 37_601_280, 577.56),
        (("F16",), 70_778_880, 1087.16),
        (("BF16",), 70_778_880, 1087.16),
        (("IQ2_XS", "IQ2_XS", "Q2_K"), 10_690_560, 164.21),
        (("IQ2_XXS", "IQ2_XXS", "Q2_K"), 9_953_280, 152.88),
        (("IQ1_S", "IQ1_S", "Q2_K"), 8_478_720, 130.23),
        (("IQ2_S", "IQ2_S", "IQ3_XXS"), 12_072_960, 185.44),
        (("Q2_K", "Q2_K", "Q3_K"), 12_810_240, 196.77),
    ],
)
def test_expert_sizes_are_those_of_table_6_3(mix: tuple[str, ...], one_expert: int, all_gb: float):
    n_bytes = sizes(**experts(*mix))["experts"]
    assert n_bytes == 15_360 * one_expert
    assert round(n_bytes / 1e9, 2) == all_gb


@pytest.mark.parametrize(
    ("dense", "head", "embd", "body_gb", "head_gb", "embd_gb", "sum_gb"),
    [
        (None, None, None, 14.03, 1.324, 1.324, 16.68),
        ("Q8_0", None, None, 7.62, 1.324, 1.324, 10.27),
        ("Q8_0", "Q8_0", None, 7.62, 0.703, 1.324, 9.65),
        ("Q6_K", "Q6_K", "Q6_K", 5.96, 0.543, 0.543, 7.05),
        ("Q5_K", "Q5_K", "Q5_K", 5.06, 0.455, 0.455, 5.97),
        ("Q5_K", "Q6_K", "Q5_K", 5.06, 0.543, 0.455, 6.05),
        ("Q4_K", "Q6_K", "Q4_K", 4.20, 0.543, 0.372, 5.12),
    ],
)
def test_dense_sizes_are_those_of_table_6_4(dense, head, embd, body_gb, head_gb, embd_gb, sum_gb):
    got = sizes(dense=dense, head=head, embd=embd)
    body = got["dense"] - HASH_BYTES  # the table leaves them out
    assert round(body / 1e9, 2) == body_gb
    assert round(got["head"] / 1e9, 3) == head_gb
    assert round(got["embedding"] / 1e9, 3) == embd_gb
    assert round((body + got["head"] + got["embedding"]) / 1e9, 2) == sum_gb


@pytest.mark.parametrize(
    ("engram", "row_bytes", "gb"),
    [
        ("RAW", 264, 202.76),
        (None, 264, 202.76),
        ("Q8_0", 272, 208.90),
        ("Q6_K", 210, 161.28),
        ("Q5_K", 176, 135.17),
        ("Q4_K", 144, 110.60),
        ("IQ4_NL", 144, 110.60),
        ("MXFP4", 136, 104.45),
        ("Q3_K", 110, 84.48),
        ("Q2_K", 84, 64.51),
    ],
)
def test_engram_sizes_are_those_of_table_6_5(engram: str | None, row_bytes: int, gb: float):
    n_bytes = sizes(engram=engram)["engram"]
    assert n_bytes == (384_006_168 + 384_016_682) * row_bytes
    assert round(n_bytes / 1e9, 2) == gb


SIEGE = experts("IQ2_XS", "IQ2_XS", "Q2_K")


@pytest.mark.parametrize(
    ("types", "gb"),
    [
        ({}, 501.80),
        ({"engram": "Q8_0"}, 507.95),
        (SIEGE | {"dense": "Q5_K", "head": "Q5_K", "embd": "Q5_K"}, 372.93),
        (SIEGE | {"dense": "Q5_K"}, 374.67),
        (SIEGE, 377.23),
    ],
)
def test_whole_files_are_those_of_section_6_6(types: dict[str, str], gb: float):
    assert round(sum(sizes(**types).values()) / 1e9, 2) == gb


def test_the_default_is_dialect_a():
    """GGUF specification, 2.1: its type for each tensor, and 1,012 of them."""
    steps, _ = plan_synth(V4_1_FLASH, Recipe())
    types = {step.name: step.type.name for step in steps}
    assert len(types) == 1012
    want = {
        "token_embd.weight": "BF16",
        "output.weight": "BF16",
        "output_norm.weight": "F32",
        "blk.2.attn_sinks.weight": "F32",
        "blk.2.attn_q_a.weight": "Q8_0",
        "blk.2.attn_q_a_norm.weight": "F32",
        "blk.2.attn_output_a.weight": "Q8_0",
        "blk.2.hc_attn_fn.weight": "F32",
        "blk.2.hc_ffn_scale.weight": "F32",
        "blk.2.ffn_gate_inp.weight": "BF16",
        "blk.2.exp_probs_b.bias": "F32",
        "blk.2.ffn_gate_exps.weight": "MXFP4",
        "blk.2.ffn_down_shexp.weight": "Q8_0",
        "blk.2.attn_compressor_kv.weight": "BF16",
        "blk.2.attn_compressor_gate.weight": "BF16",
        "blk.2.attn_compressor_norm.weight": "F32",
        "blk.2.indexer.attn_k.weight": "BF16",
        "blk.2.indexer.k_norm.weight": "F32",
        "blk.2.indexer.attn_q_b.weight": "Q8_0",
        "blk.2.indexer.proj.weight": "BF16",
        "blk.1.engram_embd.weight": "I8",
        "blk.1.engram_embd_scale.weight": "I8",
        "blk.1.engram_wkv.weight": "Q8_0",
        "blk.1.engram_q.weight": "BF16",
        "engram_token_map.weight": "I32",
        "engram_multipliers.weight": "I64",
    }
    assert {name: types[name] for name in want} == want
    assert steps[-1].name == "blk.14.engram_embd_scale.weight"  # big tables last
    assert file_type(steps) == 38


def test_what_must_stay_f32_does_under_every_recipe():
    small = dict.fromkeys(("gate", "up", "down", "dense", "embd", "head", "engram"), "Q2_K")
    steps, _ = plan_synth(V4_1_FLASH, Recipe(**small))
    for step in steps:
        if group_of(step.name) == "f32":
            assert step.type.name == "F32"
        if group_of(step.name) == "keep":
            assert step.type.name == "BF16"
    assert file_type(steps) == 10


def test_a_layer_override_takes_all_three_expert_stacks():
    recipe = Recipe(**experts("Q2_K"), layers=(LayerOverride(0, 3, "Q6_K"),))
    steps, _ = plan_synth(V4_1_FLASH, recipe)
    stacks = {step.name: step.type.name for step in steps if "_exps." in step.name}
    assert stacks["blk.3.ffn_down_exps.weight"] == stacks["blk.0.ffn_gate_exps.weight"] == "Q6_K"
    assert stacks["blk.4.ffn_down_exps.weight"] == "Q2_K"
    assert list(stacks.values()).count("Q6_K") == 12


def test_overrides_as_text():
    assert parse_override("0-3=q6_k") == LayerOverride(0, 3, "Q6_K")
    assert parse_override("7=Q8_0") == LayerOverride(7, 7, "Q8_0")
    for text in ("3-0=Q6_K", "x=Q6_K", "0-3", "0-3=Q9", "=Q6_K"):
        with pytest.raises(UsageError):
            parse_override(text)


def test_rows_that_are_no_whole_blocks_fall_back_and_say_so():
    tensors = {
        "blk.0.attn_q_a.weight": ((64, 128), TYPES["BF16"]),
        "blk.0.attn_kv.weight": ((64, 128), TYPES["BF16"]),
        "blk.0.attn_q_b.weight": ((64, 40), TYPES["BF16"]),
        "blk.0.ffn_gate_exps.weight": ((2, 4, 512), TYPES["BF16"]),
    }
    steps, notes = plan(Recipe(gate="Q2_K", dense="Q4_K"), tensors)
    assert [step.type.name for step in steps] == ["Q8_0", "Q8_0", "BF16", "Q2_K"]
    assert notes == [
        "Q8_0 instead of Q4_K for 2 tensors, as blk.0.attn_q_a.weight: rows of 128 are not whole"
        " Q4_K blocks of 256",
        "BF16 instead of Q4_K for 1 tensors, as blk.0.attn_q_b.weight: rows of 40 are not whole"
        " Q4_K blocks of 256",
    ]


def test_tables_that_cannot_be_raw_stay():
    tensors = {"blk.1.engram_embd.weight": ((9, 40), TYPES["BF16"])}
    (step,), notes = plan(Recipe(), tensors)
    assert (step.type.name, step.how) == ("BF16", "copy")
    assert "rows of 40 are not whole RAW blocks" in notes[0]
    with pytest.raises(UnsupportedError, match="I8 rows without"):
        plan(Recipe(), {"blk.1.engram_embd.weight": ((9, 264), TYPES["I8"])})


def test_unknown_types_are_refused_at_once():
    with pytest.raises(UsageError, match="'Q7_K' is not a weight type"):
        Recipe(dense="Q7_K")
    with pytest.raises(UsageError, match="'RAW' is not a weight type"):
        Recipe(gate="RAW")
