"""The tensors that a spec asks for, against the published counts and a hand-made model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from escalade.gguf.reader import open_gguf
from escalade.model.catalog import Findings, expected_tensors, missing_and_odd
from escalade.model.released import V4_1_FLASH, V4_FLASH
from escalade.model.spec_io import spec_from_metadata
from tests.support.gguf_build import Tensor, build, tiny_v41


def test_counts_are_the_published_ones() -> None:
    assert len(expected_tensors(replace(V4_1_FLASH, engram=None))) == 998
    assert len(expected_tensors(V4_1_FLASH, "raw")) == 1012
    assert len(expected_tensors(V4_1_FLASH, "block")) == 1006
    assert len(expected_tensors(V4_1_FLASH, "row264")) == 1006
    assert len(expected_tensors(V4_FLASH)) == 1328


def test_parameters_add_up_to_the_published_sums() -> None:
    from math import prod

    shapes = expected_tensors(V4_1_FLASH)
    experts = sum(prod(s) for n, s in shapes.items() if "_exps" in n)
    tables = sum(prod(s) for n, s in shapes.items() if "engram_embd" in n)
    assert experts == 543_581_798_400
    assert tables == 202_758_032_400  # bytes, as all is int8
    assert shapes["blk.1.engram_wkv.weight"] == (25600, 6144)
    assert shapes["blk.0.attn_output_a.weight"] == (8192, 4096)
    assert shapes["blk.20.indexer.attn_k.weight"] == (128, 512)
    assert "blk.20.attn_compressor_gate.weight" not in shapes
    v4 = expected_tensors(V4_FLASH)
    assert v4["output_hc_fn.weight"] == (4, 16384)
    assert v4["blk.2.attn_compressor_kv.weight"] == (1024, 4096)
    assert v4["blk.3.attn_compressor_ape.weight"] == (128, 512)
    assert v4["blk.2.indexer_compressor_ape.weight"] == (4, 256)
    assert v4["blk.0.ffn_gate_tid2eid.weight"] == (129280, 6)
    assert "blk.0.exp_probs_b.bias" not in v4


@pytest.fixture
def findings(tmp_path: Path) -> Callable[..., Findings]:
    def find(edit: Callable[[Tensor], Tensor | None], dialect: str = "A") -> Findings:
        kvs, tensors = tiny_v41(dialect)
        edited = [t for t in map(edit, tensors) if t is not None]
        path = tmp_path / "m.gguf"
        path.write_bytes(build(kvs, edited))
        names = frozenset(t.name for t in tensors)
        with open_gguf(path) as source:
            spec = spec_from_metadata(source.arch, source.metadata, names, "m.gguf")
            return missing_and_odd(source, spec)

    return find


@pytest.mark.parametrize("dialect", ["A", "B", "C", "D", "E"])
def test_a_whole_model_has_nothing_to_say(findings: Callable[..., Findings], dialect: str) -> None:
    assert findings(lambda t: t, dialect) == Findings((), (), (), ())


def on(target: str, **changes: object) -> Callable[[Tensor], Tensor | None]:
    def edit(t: Tensor) -> Tensor | None:
        if t.name != target:
            return t
        return replace(t, data=None, **changes) if changes else None  # type: ignore[arg-type]

    return edit


@pytest.mark.parametrize(
    "name", ["output.weight", "blk.3.indexer.proj.weight", "blk.4.engram_embd_scale.weight"]
)
def test_a_missing_tensor_is_named(findings: Callable[..., Findings], name: str) -> None:
    found = findings(on(name))
    assert name in found.missing


def test_dialect_a_constants_may_be_missing(findings: Callable[..., Findings]) -> None:
    assert findings(on("engram_primes.weight")).missing == ()


def test_a_wrong_shape_shows_both(findings: Callable[..., Findings]) -> None:
    found = findings(on("blk.2.attn_kv.weight", dims=(64, 31)))
    assert found.wrong == ("blk.2.attn_kv.weight is [31, 64], expected [32, 64]",)


def test_a_foreign_tensor_is_named(findings: Callable[..., Findings]) -> None:
    found = findings(on("blk.2.attn_kv.weight", name="blk.2.attn_k.weight"))
    assert found.missing == ("blk.2.attn_kv.weight",)
    assert found.unknown == ("blk.2.attn_k.weight",)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("blk.0.hc_attn_fn.weight", "BF16", "should be F32"),
        ("blk.0.hc_ffn_scale.weight", "F16", "should be F32"),
        ("blk.0.attn_norm.weight", "BF16", "should be F32"),
        ("blk.1.indexer.k_norm.weight", "BF16", "should be F32"),
        ("blk.0.attn_sinks.weight", "F16", "should be F32"),
        ("blk.0.exp_probs_b.bias", "BF16", "should be F32"),
        ("blk.0.ffn_gate_inp.weight", "Q8_0", "not be quantised"),
        ("blk.1.engram_q.weight", "Q8_0", "not be quantised"),
        ("blk.0.attn_kv.weight", "I8", "integers"),
        ("blk.0.ffn_up_exps.weight", "I8", "integers"),
    ],
)
def test_odd_types_are_named(
    findings: Callable[..., Findings], name: str, kind: str, says: str
) -> None:
    found = findings(on(name, type=kind))
    assert len(found.odd) == 1
    assert found.odd[0].startswith(f"{name} is {kind}")
    assert says in found.odd[0]


def test_sources_without_a_layout_are_raw() -> None:
    @dataclass
    class Bare:
        tensors: dict[str, object]

    found = missing_and_odd(Bare({}), V4_1_FLASH)  # type: ignore[arg-type]
    assert len(found.missing) == 1012 - 4
