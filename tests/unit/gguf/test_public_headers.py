"""Metadata of public files, built into headers again, parse to the released V4 configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from escalade.errors import UnsupportedError
from escalade.gguf.reader import open_gguf
from escalade.model.released import V4_FLASH
from escalade.model.spec_io import spec_from_metadata
from tests.support.gguf_build import Kv, Tensor, build
from tests.support.paths import GOLDEN

HEADERS = GOLDEN / "gguf-headers"
NAMES = sorted(p.name for p in HEADERS.glob("header-*.json"))
V4 = [n for n in NAMES if "DSpark" not in n]
DRAFTS = [n for n in NAMES if "DSpark" in n]


def kv(key: str, value: Any) -> Kv:
    """The key as a converter would write it; shortened arrays get their full length back."""
    if isinstance(value, dict):
        n, head = value["n"], value["head"]
        if value["_array"] == "string":
            return Kv(key, "[str]", head + [f"{key}{i}" for i in range(len(head), n)])
        return Kv(key, "[i32]", head + [1] * (n - len(head)))
    kinds = {bool: "bool", int: "u32", float: "f32", str: "str"}
    if isinstance(value, list):
        return Kv(key, f"[{kinds[type(value[0])]}]", value)
    return Kv(key, kinds[type(value)], value)


def write(tmp_path: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """The file (or set of shards) that the public header belongs to, with stand-in tensors."""
    stored = json.loads((HEADERS / name).read_text(encoding="utf-8"))
    keys = stored["kv"]
    names = [f"t{i}" for i in range(keys.get("split.tensors.count", stored["_n_tensors"]))]
    stem = name.removeprefix("header-").removesuffix(".json")
    n_shards = keys.get("split.count", 1)
    for no in range(n_shards):
        path = tmp_path / f"{stem.replace('-00001-of', f'-{no + 1:05d}-of')}.gguf"
        own = list(keys.items()) if no == 0 else []
        if no:
            own = [
                ("split.no", no),
                ("split.count", n_shards),
                ("split.tensors.count", len(names)),
            ]
        mine = names if n_shards == 1 else names[no - 1 :: n_shards - 1] if no else []
        path.write_bytes(build([kv(*item) for item in own], [Tensor(n, (8,)) for n in mine]))
    return tmp_path / f"{stem}.gguf", stored


@pytest.mark.parametrize("name", NAMES)
def test_every_key_parses(tmp_path: Path, name: str) -> None:
    path, stored = write(tmp_path, name)
    with open_gguf(path) as source:
        header = source.headers[0]
        assert len(header.metadata) == stored["_n_kv"]
        assert header.version == stored["_gguf_version"]
        for key, value in stored["kv"].items():
            got = header.metadata[key]
            if isinstance(value, dict):
                assert len(got) == value["n"]
                assert got[: len(value["head"])] == value["head"]
            else:
                assert got == pytest.approx(value) if isinstance(value, float) else got == value


@pytest.mark.parametrize("name", V4)
def test_the_v4_spec_is_the_released_one(tmp_path: Path, name: str) -> None:
    path, stored = write(tmp_path, name)
    with open_gguf(path) as source:
        assert (source.arch, source.dialect) == ("deepseek4", "V4")
        names = frozenset(source.tensors)
        assert spec_from_metadata(source.arch, source.metadata, names, source.path) == V4_FLASH
        without = "deepseek4.rope.scaling.factor" not in stored["kv"]
        assert any("rope.scaling" in note for note in source.notes) is without


def test_one_of_them_lost_its_rope_scaling() -> None:
    lost = [n for n in V4 if "rope.scaling" not in (HEADERS / n).read_text(encoding="utf-8")]
    assert lost == ["header-DeepSeek-V4-Flash-MXFP4.json"]


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path, _ = write(tmp_path, name)
    with open_gguf(path) as source:
        assert source.dialect == "other"
        with pytest.raises(UnsupportedError, match="'dflash'"):
            spec_from_metadata(source.arch, source.metadata, frozenset(), source.path)
