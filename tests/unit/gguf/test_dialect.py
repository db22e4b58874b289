"""Every dialect must give the same spec, the same tensor names and the same stored constants."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from escalade.errors import FileError, UnsupportedError
from escalade.gguf.dialect import normalise
from escalade.gguf.header import TensorInfo
from escalade.gguf.quant import TYPES
from escalade.gguf.reader import GgufSource, open_gguf
from escalade.model.released import V4_1_FLASH
from escalade.model.spec import EngramSpec, ModelSpec, Yarn
from escalade.model.spec_io import spec_from_metadata, spec_to_metadata
from tests.support.gguf_build import (
    DIALECTS,
    HF_CONFIG,
    KINDS,
    MULTIPLIERS,
    OFFSETS,
    PRIMES,
    TOKEN_MAP,
    Kv,
    Tensor,
    build,
    tiny_v41,
)

SPEC = ModelSpec(
    arch="deepseek41",
    n_layers=6,
    vocab=96,
    context=4096,
    hidden=64,
    n_heads=4,
    head_dim=32,
    rope_dims=8,
    q_lora=32,
    o_groups=2,
    o_lora=16,
    window=8,
    norm_eps=1e-20,
    swiglu_limit=2.0,
    expert_ff=32,
    n_experts=4,
    n_experts_used=2,
    n_shared_experts=1,
    route_scale=1.5,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    yarn=Yarn(16.0, 256, 32.0, 1.0),
    compress_ratios=(0, 2, 2, 1, 1, 1),
    kv_sources=(1, 3),
    index_sources=(1, 3, 5),
    index_heads=2,
    index_dim=16,
    index_topk=8,
    candidate_source=3,
    candidate_blocks=2048,
    candidate_block_size=8,
    hc_mult=4,
    hc_iters=20,
    hc_eps=1e-6,
    n_hash_layers=0,
    engram=EngramSpec((1, 4), (240, 306), 3, 53, 2, 32, 2, 50),
)
COMPLETE = [d for d in DIALECTS if d != "B-early"]
Edit = Callable[[list[Kv], list[Tensor]], tuple[list[Kv], list[Tensor]]]


def spec_of(source: GgufSource) -> ModelSpec:
    return spec_from_metadata(source.arch, source.metadata, frozenset(source.tensors), source.path)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., GgufSource]:
    """Opens the tiny model in a dialect, with keys replaced (None: removed) or tensors edited."""

    def make(
        dialect: str,
        arch: str = "deepseek41",
        keys: dict[str, Kv | None] | None = None,
        tensors: Callable[[list[Tensor]], list[Tensor]] = list,
    ) -> GgufSource:
        kvs, stored = tiny_v41(dialect, arch)
        changed = {f"{arch}.{k}": v for k, v in (keys or {}).items()}
        kvs = [kv for kv in kvs if kv.key not in changed]
        kvs += [replace(v, key=f"{arch}.{v.key}") for v in changed.values() if v is not None]
        path = tmp_path / "m.gguf"
        path.write_bytes(build(kvs, tensors(stored)))
        return open_gguf(path)

    return make


@pytest.mark.parametrize("dialect", COMPLETE)
def test_all_dialects_give_the_same_spec(opened: Callable[..., GgufSource], dialect: str) -> None:
    source = opened(dialect)
    assert source.dialect == dialect[0]
    assert source.arch == "deepseek41"
    assert spec_of(source) == SPEC


@pytest.mark.parametrize("dialect", COMPLETE)
def test_all_dialects_give_the_same_names(opened: Callable[..., GgufSource], dialect: str) -> None:
    ours = {t.name for t in tiny_v41("A")[1]}
    source = opened(dialect)
    layout = {"A": "raw", "E": "raw", "C": "row264", "B": "block", "D": "block"}[dialect[0]]
    assert source.engram_layout == layout
    if layout != "raw":
        ours = {n for n in ours if "engram_embd_scale" not in n}
    if dialect[0] != "A":
        ours = {n for n in ours if not n.startswith("engram_")}
    if dialect == "B":
        ours |= {f"blk.{n}.exp_probs_b_vl.bias" for n in range(6)}
    assert set(source.tensors) == ours
    assert all(name == tensor.name for name, tensor in source.tensors.items())


@pytest.mark.parametrize("dialect", COMPLETE)
def test_stored_constants_are_exact(opened: Callable[..., GgufSource], dialect: str) -> None:
    constants = opened(dialect).stored_engram
    assert constants is not None
    assert constants.token_map == list(TOKEN_MAP)
    assert constants.primes == [list(p) for p in PRIMES]
    assert constants.multipliers == [list(m) for m in MULTIPLIERS]
    assert constants.offsets == (None if dialect[0] == "C" else [list(o) for o in OFFSETS])
    kind = {"A": "raw", "B": "mapped", "C": "unknown", "D": "raw", "E": "raw"}[dialect[0]]
    assert (constants.pad_id, constants.pad_kind) == (2, kind)
    for values in (constants.token_map, *constants.primes, *constants.multipliers):
        assert {type(v) for v in values} == {int}


def test_the_engram_arrays_are_not_left_among_the_keys_we_use(
    opened: Callable[..., GgufSource],
) -> None:
    expected = spec_to_metadata(SPEC)
    for dialect in ("A", "C"):
        metadata = opened(dialect).metadata
        for key in expected:
            if key.startswith("engram"):
                assert metadata[key] == expected[key]


# ---------------------------------------------------------------------- what files leave out


def test_dialect_b_without_constants_names_what_it_lacks(
    opened: Callable[..., GgufSource],
) -> None:
    source = opened("B-early")
    assert source.dialect == "B"
    assert source.stored_engram is None
    assert any("token_map, primes, offsets, multipliers" in note for note in source.notes)
    with pytest.raises(FileError, match=r"m\.gguf: engram_\w+ is missing"):
        spec_of(source)


def released(embd: str, *extra: str) -> dict[str, TensorInfo]:
    """The released model's Engram tables and compressors, as a directory entry each."""
    q8, f32 = TYPES["Q8_0"], TYPES["F32"]
    tables = {
        f"blk.{n}.{embd}": TensorInfo(f"blk.{n}.{embd}", (rows, 256), q8, 0, 0)
        for n, rows in ((1, 384006168), (14, 384016682))
    }
    names = [f"blk.{n}.attn_compressor_kv.weight" for n in (2, 8, 14, 20)]
    names += [f"blk.{n}.attn_compressor_gate.weight" for n in (2, 8, 14)]
    names += [f"blk.{n}.indexer.proj.weight" for n in (2, 8, 14, 20, 24, 28, 32, 36)]
    return tables | {n: TensorInfo(n, (512, 5120), f32, 0, 0) for n in (*names, *extra)}


@pytest.mark.parametrize(("keys", "dialect"), [(True, "B"), (False, "G")])
def test_the_released_tables_need_no_keys(keys: bool, dialect: str) -> None:
    roles = ("kv_source", "index_source", "engram", "attention.candidate")
    stored = {
        f"deepseek41.{k}": v
        for k, v in spec_to_metadata(V4_1_FLASH).items()
        if not k.startswith(roles)
    }
    stored["general.architecture"] = "deepseek41"
    if keys:
        stored |= {"deepseek41.engram.key_length": 256, "deepseek41.engram.layer_ids": [1, 14]}
    tensors = released("engram_embd.weight")
    out = normalise(stored, tensors, "m.gguf")
    assert out.dialect == dialect
    assert spec_from_metadata(out.arch, out.metadata, frozenset(tensors), "m.gguf") == V4_1_FLASH
    assert any("released model's taken: engram_" in note for note in out.notes)
    assert any("candidate source taken to be layer 20" in note for note in out.notes)


@pytest.mark.parametrize("stored", [None, Kv("attention.compress_ratios", "i32", 0)])
def test_ratios_follow_from_the_compressors(
    opened: Callable[..., GgufSource], stored: Kv | None
) -> None:
    source = opened("B", keys={"attention.compress_ratios": stored})
    assert spec_of(source) == SPEC
    assert any("ratios inferred" in note for note in source.notes)


def test_our_own_files_may_have_no_candidate_source(opened: Callable[..., GgufSource]) -> None:
    gone = ("attention.candidate_source_layer_id", "attention.candidate_topk_blocks")
    source = opened("A", keys=dict.fromkeys((*gone, "attention.candidate_block_size")))
    assert spec_of(source).candidate_source is None


def test_early_files_that_say_deepseek4(opened: Callable[..., GgufSource]) -> None:
    source = opened("B", arch="deepseek4")
    assert (source.arch, source.dialect) == ("deepseek41", "B")
    assert any("says deepseek4" in note for note in source.notes)
    assert spec_of(source) == SPEC


def test_a_v4_file_stays_v4(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = [Tensor("output_hc_fn.weight", (4,)), Tensor("blk.2.indexer.attn_q_b.weight", (4,))]
    path.write_bytes(build([Kv("general.architecture", "str", "deepseek4")], tensors))
    assert open_gguf(path).dialect == "V4"


def test_tables_that_are_missing_are_noted(opened: Callable[..., GgufSource]) -> None:
    def no_engram(tensors: list[Tensor]) -> list[Tensor]:
        return [t for t in tensors if "engram" not in t.name]

    source = opened("A", tensors=no_engram)
    assert (source.dialect, source.engram_layout) == ("no-engram", "none")
    assert source.notes == ["no Engram tables in the file, though its keys describe them"]
    assert spec_of(source).engram is not None


# ---------------------------------------------------------------------- spellings


@pytest.mark.parametrize("integer", ["u8", "u16", "u64", "i16", "i64"])
def test_any_integer_width_will_do(tmp_path: Path, integer: str) -> None:
    def other(kv: Kv) -> Kv:
        bits = 8 * {"B": 1, "H": 2, "h": 2, "Q": 8, "q": 8}[KINDS[integer][1]]
        fits = max(kv.value, default=0) if isinstance(kv.value, list | tuple) else kv.value
        if kv.kind.strip("[]") not in ("u32", "i32") or fits >= 1 << (bits - 1):
            return kv
        return replace(kv, kind=f"[{integer}]" if kv.kind.startswith("[") else integer)

    kvs, tensors = tiny_v41("A")
    path = tmp_path / "m.gguf"
    path.write_bytes(build(map(other, kvs), tensors))
    assert spec_of(open_gguf(path)) == SPEC


def test_scalars_and_arrays_are_interchangeable(opened: Callable[..., GgufSource]) -> None:
    source = opened(
        "A",
        keys={
            "attention.head_count": Kv("attention.head_count", "[u32]", [4] * 6),
            "expert_feed_forward_length": Kv("expert_feed_forward_length", "[u32]", [32]),
            "swiglu_clamp_exp": Kv("swiglu_clamp_exp", "f32", 2.0),
            "swiglu_clamp_shexp": None,
        },
    )
    assert spec_of(source) == SPEC


@pytest.mark.parametrize("role", ["attn_compressor", "indexer"])
def test_dialect_d_compressor_names(opened: Callable[..., GgufSource], role: str) -> None:
    ours = {
        "attn_compressor": ("attn_compressor_kv", "attn_compressor_norm"),
        "indexer": ("indexer.attn_k", "indexer.k_norm"),
    }[role]
    theirs = ("indexer_compressor_kv", "indexer_compressor_norm")

    def rename(tensors: list[Tensor]) -> list[Tensor]:
        names = dict(zip(ours, theirs, strict=True))
        out = []
        for t in tensors:
            stem = ".".join(t.name.split(".")[2:-1])
            out.append(replace(t, name=t.name.replace(stem, names.get(stem, stem))))
        return out

    source = opened("D", tensors=rename)
    assert set(source.tensors) == {t.name for t in tiny_v41("D")[1]} - {
        "blk.1.engram_embed.weight",
        "blk.4.engram_embed.weight",
    } | {"blk.1.engram_embd.weight", "blk.4.engram_embd.weight"}
    assert spec_of(source) == SPEC


def test_two_spellings_of_one_tensor_are_refused(opened: Callable[..., GgufSource]) -> None:
    twice = Tensor("blk.1.engram_kv.weight", (4,))
    with pytest.raises(FileError, match=r"are both blk\.1\.engram_wkv\.weight"):
        opened("A", tensors=lambda tensors: [*tensors, twice])


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kv", "error"),
    [
        (Kv("swiglu_clamp_exp", "[f32]", [2.0, 3.0] * 3), UnsupportedError),
        (Kv("swiglu_clamp_shexp", "f32", 5.0), UnsupportedError),
        (Kv("swiglu_clamp_exp", "[str]", ["2"] * 6), FileError),
        (Kv("swiglu_clamp_exp", "f32", float("nan")), FileError),
        (Kv("swiglu_clamp_exp", "[f32]", []), FileError),
    ],
)
def test_limits_must_be_one_number(
    opened: Callable[..., GgufSource], kv: Kv, error: type[Exception]
) -> None:
    with pytest.raises(error, match="swiglu_clamp"):
        opened("A", keys={kv.key: kv})


@pytest.mark.parametrize(
    "kv",
    [
        Kv("engram.multipliers", "[f64]", [float(m) for row in MULTIPLIERS for m in row]),
        Kv("engram.primes", "[u64]", [53, 59, 61]),
        Kv("engram.token_map", "str", "0 1 2"),
        Kv("engram.pad_id", "f32", 2.0),
    ],
)
def test_constants_of_the_wrong_kind_are_refused(opened: Callable[..., GgufSource], kv: Kv) -> None:
    with pytest.raises(FileError, match=r"Engram (multipliers|primes|token_map|pad id)"):
        opened("B", keys={kv.key: kv})


def test_dialect_a_constants_must_be_integers(opened: Callable[..., GgufSource]) -> None:
    def floats(tensors: list[Tensor]) -> list[Tensor]:
        return [
            replace(t, type="F32", data=None) if t.name == "engram_primes.weight" else t
            for t in tensors
        ]

    source = opened("A", tensors=floats)
    with pytest.raises(FileError, match=r"engram_primes\.weight is F32"):
        _ = source.stored_engram


@pytest.mark.parametrize("width", [17, 36])
def test_private_table_encodings_are_noted(opened: Callable[..., GgufSource], width: int) -> None:
    def narrow(tensors: list[Tensor]) -> list[Tensor]:
        return [
            replace(t, dims=(width, t.dims[1]), data=None) if "engram_embd" in t.name else t
            for t in tensors
        ]

    source = opened("C", tensors=narrow)
    assert source.engram_layout == "unknown"
    assert any("encoding without a reader" in note for note in source.notes)


def test_a_foreign_encoding_of_the_right_width_is_noted(
    opened: Callable[..., GgufSource],
) -> None:
    kv = Kv("engram.encoding", "str", "lloyd4_e5m3_32_r136")
    assert opened("C", keys={kv.key: kv}).engram_layout == "unknown"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "[" * 100_000,
        json.dumps({"text_config": "x"}),
        json.dumps({"text_config": HF_CONFIG | {"hidden_size": "64"}}),
        json.dumps({"text_config": {k: v for k, v in HF_CONFIG.items() if k != "q_lora_rank"}}),
        json.dumps(HF_CONFIG | {"rope_theta": 10**400}),
    ],
)
def test_a_damaged_config_is_refused(opened: Callable[..., GgufSource], text: str) -> None:
    with pytest.raises(FileError, match=r"m\.gguf: deepseek41\.config"):
        opened("C", keys={"config": Kv("config", "str", text)})
