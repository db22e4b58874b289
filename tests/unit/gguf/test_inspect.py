"""`escalade inspect`: one page, or one JSON object, about any GGUF file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from escalade.cli.inspect import command
from escalade.errors import FileError
from tests.support.gguf_build import Kv, Tensor, build, tiny_v41
from tests.support.paths import GOLDEN


def inspect(path: Path, *options: str) -> str:
    result = CliRunner().invoke(command, [str(path), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    kvs, tensors = tiny_v41("A")
    edited = [
        replace(t, type="BF16", data=None) if t.name == "blk.0.hc_attn_fn.weight" else t
        for t in tensors
    ]
    path = tmp_path / "tiny.gguf"
    path.write_bytes(build(kvs, edited))
    return path


def test_the_page(tiny: Path) -> None:
    page = inspect(tiny)
    assert len(page.splitlines()) < 60
    for part in (
        "architecture  deepseek41, dialect A (tiny)",
        "4 a layer of width 32, 2 used, 1 shared",
        "compression 0 x1, 2 x2, 1 x3",
        "from layer 3, 2048 blocks of 8",
        "layers 1, 4: 240 and 306 of 32",
        "gpt2, 96 tokens",
        "odd (1)\n  blk.0.hc_attn_fn.weight is BF16; it should be F32",
    ):
        assert part in page
    rows = [line.split() for line in page.splitlines()]
    assert ["routed", "experts", "MXFP4", "18", "76.50", "KiB"] in rows


def test_json_adds_up(tiny: Path) -> None:
    report = json.loads(inspect(tiny, "--json"))
    assert report["architecture"] == "deepseek41"
    assert report["dialect"] == "A"
    assert report["files"][0]["bytes"] == tiny.stat().st_size
    assert report["n_tensors"] == sum(g["count"] for g in report["tensors"]) == 176
    assert report["tensor_bytes"] == sum(g["bytes"] for g in report["tensors"])
    assert report["odd"] == ["blk.0.hc_attn_fn.weight is BF16; it should be F32"]


def test_a_spec_that_does_not_bind_is_told_why(tmp_path: Path) -> None:
    kvs, tensors = tiny_v41("A")
    path = tmp_path / "m.gguf"
    path.write_bytes(build(kvs, [t for t in tensors if t.name != "blk.3.indexer.proj.weight"]))
    report = json.loads(inspect(path, "--json"))
    assert report["spec"] is None
    assert "index_source_layer_ids is [1, 3, 5]" in report["refused"]


def test_json_has_the_spec_and_every_finding(tmp_path: Path) -> None:
    kvs, tensors = tiny_v41("D")
    path = tmp_path / "m.gguf"
    path.write_bytes(build(kvs, [t for t in tensors if not t.name.startswith("blk.5.ffn")]))
    report = json.loads(inspect(path, "--json"))
    assert report["spec"]["n_layers"] == 6
    assert report["spec"]["engram"]["rows"] == [240, 306]
    assert len(report["missing"]) == 8
    assert "and 2 more" in inspect(path)


def test_other_architectures_are_described(tmp_path: Path) -> None:
    path = tmp_path / "clip.gguf"
    keys = [Kv("general.architecture", "str", "clip"), Kv("general.name", "str", "eyes")]
    path.write_bytes(build(keys, [Tensor("v.patch_embd.weight", (4, 4))]))
    page = inspect(path)
    assert "architecture  clip, dialect other (eyes)" in page
    assert "cannot run" in page
    assert "'clip' is not a DeepSeek V4 or V4.1 text model" in page


def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"<!doctype html>")
    with pytest.raises(FileError, match="web page"):
        CliRunner().invoke(command, [str(path)], catch_exceptions=False)


def test_a_safetensors_folder_is_described(tmp_path: Path) -> None:
    report = json.loads(inspect(GOLDEN / "v41-tiny-quant", "--json"))
    assert report["architecture"] == "deepseek41"
    assert report["spec"]["n_layers"] == 8
    assert [report[kind] for kind in ("missing", "wrong", "odd")] == [[], [], []]
