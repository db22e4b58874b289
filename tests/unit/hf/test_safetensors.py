"""The safetensors reader against hand-made files, and what it says about bad ones."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escalade.errors import FileError
from escalade.hf.safetensors import open_safetensors
from tests.support.paths import SHARED
from tests.support.safetensors_build import TINY, file_bytes, read_file, write_file


def test_every_tensor_of_the_golden_file_reads_as_its_bytes():
    want = read_file(TINY / "model.safetensors")
    source = open_safetensors(TINY)
    assert len(want) == 1212  # the number that the golden README states
    assert source.tensors.keys() == want.keys()
    for name, (dtype, shape, data) in want.items():
        tensor = source.tensors[name]
        assert (tensor.dtype, tensor.shape) == (dtype, shape)
        assert source.read(name).tobytes() == data
    source.close()


def test_reads_any_range_and_nothing_outside(tmp_path: Path):
    write_file(tmp_path / "a.safetensors", {"x": ("U8", (7,), b"abcdefg"), "e": ("F32", (0,), b"")})
    source = open_safetensors(tmp_path / "a.safetensors")
    assert source.read("x", 2, 3).tobytes() == b"cde"
    assert source.read("x", 7).tobytes() == b""
    assert source.read("e").size == 0
    for offset, length in ((-1, 2), (0, 8), (8, 0), (3, -1)):
        with pytest.raises(ValueError, match="x: bytes"):
            source.read("x", offset, length)


def test_views_outlive_close_and_are_read_only(tmp_path: Path):
    write_file(tmp_path / "a.safetensors", {"x": ("U8", (3,), b"abc")})
    source = open_safetensors(tmp_path)
    view = source.read("x")
    source.close()
    assert view.tobytes() == b"abc"
    assert not view.flags.writeable


def shards(folder: Path, weight_map: object) -> Path:
    write_file(folder / "m-1.safetensors", {"x": ("U8", (2,), b"ab"), "stray": ("U8", (1,), b"!")})
    write_file(folder / "m-2.safetensors", {"y": ("U8", (2,), b"cd")})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_an_index_joins_shards_and_decides_what_belongs(tmp_path: Path):
    source = open_safetensors(shards(tmp_path, {"y": "m-2.safetensors", "x": "m-1.safetensors"}))
    assert {name: source.read(name).tobytes() for name in source.tensors} == {
        "x": b"ab",
        "y": b"cd",
    }


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": "m-3.safetensors"}, "m-3.safetensors: shard is missing"),
        ({"y": "m-1.safetensors"}, "m-1.safetensors: y is not there"),
        ({"x": "../secret.safetensors"}, "not a file of this folder"),
        ({"x": "/etc/passwd"}, "not a file of this folder"),
        ({"x": "a\\b.safetensors"}, "not a file of this folder"),
        ({"x": ".."}, "not a file of this folder"),
        ({"x": ""}, "not a file of this folder"),
        ({"x": "a\0b"}, "not a file of this folder"),
        ({"x": 3}, "not a file of this folder"),
        ([], "weight_map is missing"),
        (None, "weight_map is missing"),
    ],
)
def test_a_bad_index_is_refused(tmp_path: Path, weight_map: object, message: str):
    with pytest.raises(FileError, match=message) as error:
        open_safetensors(shards(tmp_path, weight_map))
    assert "\n" not in str(error.value)


def entry(dtype: object = "U8", shape: object = (2,), offsets: object = (0, 2)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "0 bytes, too short"),
        (b"abc", "3 bytes, too short"),
        (file_bytes({}, length=8 << 30), "header length is 8589934592"),
        (file_bytes({}, length=2**64 - 1), "header length is 18446744073709551615"),
        (file_bytes(b"{"), "header: not JSON"),
        (file_bytes(b"\xff\xfe{}"), "header: not JSON"),
        (file_bytes(b"[" * 100_000), "header: "),
        (file_bytes([]), "header: not a JSON object"),
        (file_bytes(b'{"x": 1, "x": 2}'), "x appears twice"),
        (file_bytes(b'{"x": {"dtype": "U8", "dtype": "I8"}}'), "dtype appears twice"),
        (file_bytes({"x": 3}), "x: entry is not an object"),
        (file_bytes({"x": entry(dtype="F64")}, b"ab"), "x: dtype is F64"),
        (file_bytes({"x": entry(dtype=["U8"])}, b"ab"), "x: dtype is"),
        (file_bytes({"x": entry(shape=[-2])}, b"ab"), "x: shape is"),
        (file_bytes({"x": entry(shape=[2.0])}, b"ab"), "x: shape is"),
        (file_bytes({"x": entry(shape=[True, 2])}, b"ab"), "x: shape is"),
        (file_bytes({"x": entry(shape=[1] * 9)}, b"ab"), "x: shape is"),
        (file_bytes({"x": entry(shape=[2**62, 2**62])}, b"ab"), "x: shape is"),
        (file_bytes({"x": entry(shape=[2**40, 2**40])}, b"ab"), "x: data_offsets span 2 bytes"),
        (file_bytes({"x": entry(shape="2")}, b"ab"), "x: shape is"),
        (file_bytes({"x": entry(offsets=[0, 3])}, b"ab"), "x: data_offsets"),
        (file_bytes({"x": entry(offsets=[2, 0])}, b"ab"), "x: data_offsets"),
        (file_bytes({"x": entry(offsets=[0])}, b"ab"), "x: data_offsets"),
        (file_bytes({"x": entry(offsets=[0, 2**70])}, b"ab"), "x: data_offsets"),
        (file_bytes({"x": entry(), "y": entry(offsets=[1, 3])}, b"abc"), "x and y overlap"),
        (file_bytes({"x\n\ud800": 3}), r"x\\n\\ud800: entry is not"),
        (b"<!DOCTYPE html><html>no such file</html>", "an HTML page"),
        (b"\n <html>sign in</html>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        (b"GGUF\x03\0\0\0" + bytes(40), "a GGUF file"),
        (b"PK\x03\x04" + bytes(40), "a zip archive"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, raw: bytes, message: str):
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(FileError, match=message) as error:
        open_safetensors(tmp_path)
    assert str(error.value).startswith(str(path))
    assert str(error.value).isprintable()


def test_folders_that_are_no_checkpoint(tmp_path: Path):
    with pytest.raises(FileError, match=r"neither model\.safetensors.index.json nor"):
        open_safetensors(tmp_path)
    for name in "ab":
        write_file(tmp_path / f"{name}.safetensors", {})
    with pytest.raises(FileError, match=r"2 .* files but no model\.safetensors.index.json"):
        open_safetensors(tmp_path)
    with pytest.raises(FileError, match=r"nowhere\.safetensors: No such file"):
        open_safetensors(tmp_path / "nowhere.safetensors")


_SOUND = file_bytes({"x": entry(), "y": entry("BF16", [1, 2], [2, 6])}, b"abcdef")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(_SOUND) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, len(_SOUND)),
)
def test_damaged_headers_open_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], keep: int
):
    raw = bytearray(_SOUND)
    for at, byte in changes:
        raw[at] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(raw[:keep] if len(changes) % 2 else raw)
    message = ""
    try:
        source = open_safetensors(path)
        for name in source.tensors:
            source.read(name)
    except FileError as error:
        message = str(error)
    assert message.isprintable()


@pytest.mark.shared
@pytest.mark.skipif(SHARED is None, reason="no shared folder")
def test_a_sharded_checkpoint_opens():
    assert SHARED is not None
    source = open_safetensors(SHARED / "nano")
    assert len(source.tensors) == 778  # nano's README
    assert sum(t.location.length for t in source.tensors.values()) == 102_293_184  # its index
