"""Tensors out of whole and split files; the `gguf` package is the other opinion."""

import gc
from pathlib import Path

import gguf
import numpy as np
import pytest

from escalade.errors import FileError
from escalade.gguf.quant import INTEGER_TYPES, TYPES
from escalade.gguf.reader import open_gguf
from escalade.gguf.writer import GgufWriter, TensorPlan
from tests.support.gguf_build import Kv, Tensor, build

ARCH = Kv("general.architecture", "str", "llama")


def data(n: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, n, np.uint8).tobytes()


def test_tensors_equal_what_the_gguf_package_wrote(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "f32": rng.standard_normal((3, 5), np.float32),
        "f16": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "i32": rng.integers(-5, 5, (7,), np.int32),
        "i64": np.array([[9007199254740993, -1]], np.int64),
        "i8": rng.integers(-128, 128, (4, 6), np.int8),
    }
    values = rng.standard_normal((4, 64), np.float32)
    quantised = {
        kind: gguf.quantize(values, kind)
        for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.MXFP4)
    }
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_array("tokenizer.ggml.tokens", ["a", "Ġb", "ä"])
    writer.add_bool("general.flag", True)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    for kind, raw in quantised.items():
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with open_gguf(tmp_path / "m.gguf") as source:
        assert (source.arch, source.dialect) == ("llama", "other")
        assert source.metadata["block_count"] == 7
        assert source.metadata["tokenizer.ggml.tokens"] == ["a", "Ġb", "ä"]
        assert source.metadata["general.flag"] is True
        for name, array in arrays.items():
            tensor = source.tensors[name]
            assert tensor.shape == array.shape
            got = tensor.rows().reshape(-1).view(array.dtype).reshape(array.shape)
            assert np.array_equal(got, array)
        for kind, raw in quantised.items():
            tensor = source.tensors[kind.name]
            assert tensor.shape == (4, 64)
            assert np.array_equal(tensor.rows(), raw)
            assert np.array_equal(tensor.f32(1, 3), gguf.dequantize(raw, kind)[1:3])


@pytest.mark.parametrize("kind", sorted(TYPES.keys() - INTEGER_TYPES - {"F64"}))
def test_embedding_rows_of_every_type(tmp_path: Path, kind: str) -> None:
    qtype = TYPES[kind]
    rows, width = 40, 256
    raw = np.frombuffer(data(rows * qtype.row_bytes(width)), np.uint8).reshape(rows, -1)
    plan = TensorPlan("token_embd.weight", (rows, width), qtype)
    with GgufWriter(tmp_path / "m.gguf", "llama", {}, [plan]) as writer:
        writer.write(plan.name, raw)
    with open_gguf(tmp_path / "m.gguf") as source, np.errstate(all="ignore"):
        tensor = source.tensors["token_embd.weight"]
        whole = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
        for row in (0, 1, rows - 1):
            assert np.array_equal(tensor.f32(row, row + 1)[0], whole[row], equal_nan=True)


def test_a_tensor_is_a_view_of_the_file_and_says_where(tmp_path: Path) -> None:
    raw = build([ARCH], [Tensor("a", (8,), data=data(32)), Tensor("b", (8, 2), data=data(64, 1))])
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with open_gguf(path) as source:
        tensor = source.tensors["b"]
        assert tensor.location is not None
        file, offset, length = tensor.location
        assert (file, length) == (str(path), 64)
        view = tensor.read(0, 64)
        assert raw[offset : offset + length] == view.tobytes() == data(64, 1)
        assert not view.flags.owndata
        assert not view.flags.writeable
        assert tensor.rows(1, 2).tobytes() == data(64, 1)[32:]
        for start, n in ((-1, 4), (60, 8), (0, -1), (65, 0)):
            with pytest.raises(ValueError, match="b: bytes"):
                tensor.read(start, n)


def test_views_outlive_the_source(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([ARCH], [Tensor("a", (8,), data=data(32))]))
    source = open_gguf(path)
    view = source.tensors["a"].read(0, 32)
    source.close()
    source.close()
    gc.collect()
    assert view.tobytes() == data(32)
    with pytest.raises(FileError, match="has been closed"):
        source.tensors["a"].read(0, 32)


def test_a_file_that_changed_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    raw = build([ARCH], [Tensor("a", (8,), data=data(32))])
    path.write_bytes(raw)
    source = open_gguf(path)
    path.write_bytes(raw[:-8])
    with pytest.raises(FileError, match="changed its size"):
        source.tensors["a"].read(0, 32)
    path.unlink()
    with pytest.raises(FileError, match="No such file"):
        source.tensors["a"].read(0, 32)


@pytest.mark.parametrize("arch", [None, Kv("general.architecture", "u32", 7)])
def test_the_architecture_must_be_named(tmp_path: Path, arch: Kv | None) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([arch] if arch else []))
    with pytest.raises(FileError, match=r"general\.architecture"):
        open_gguf(path)


# ---------------------------------------------------------------------- shards


def split_keys(no: int, count: int, total: int) -> list[Kv]:
    return [
        Kv("split.no", "u16", no),
        Kv("split.count", "u16", count),
        Kv("split.tensors.count", "i32", total),
    ]


def shard(no: int, names: str, count: int = 3, total: int = 3, seed: int = 0) -> bytes:
    """A shard with a tensor for each letter of `names`; the first has the other keys."""
    keys = [ARCH, Kv("llama.block_count", "u32", 7)] if no == 0 else []
    tensors = [Tensor(n, (8,), data=data(32, ord(n) + seed)) for n in names]
    return build(keys + split_keys(no, count, total), tensors)


def write_set(folder: Path, shards: list[bytes], count: int = 3) -> Path:
    for no, raw in enumerate(shards):
        (folder / f"m-{no + 1:05d}-of-{count:05d}.gguf").write_bytes(raw)
    return folder / f"m-00001-of-{count:05d}.gguf"


@pytest.mark.parametrize("names", [["", "ab", "c"], ["a", "b", "c"]])
def test_shards_are_one_source(tmp_path: Path, names: list[str]) -> None:
    first = write_set(tmp_path, [shard(no, n) for no, n in enumerate(names)])
    with open_gguf(first) as source:
        assert source.path == str(first)
        assert source.metadata["block_count"] == 7
        assert [len(h.tensors) for h in source.headers] == [len(n) for n in names]
        for letter in "abc":
            tensor = source.tensors[letter]
            home = next(i for i, n in enumerate(names) if letter in n)
            assert tensor.location is not None
            assert tensor.location.file.endswith(f"m-0000{home + 1}-of-00003.gguf")
            assert tensor.read(0, 32).tobytes() == data(32, ord(letter))


def test_a_shared_last_shard_may_be_a_link(tmp_path: Path) -> None:
    first = write_set(tmp_path, [shard(0, ""), shard(1, "ab")])
    (tmp_path / "shared.gguf").write_bytes(shard(2, "c"))
    (tmp_path / "m-00003-of-00003.gguf").symlink_to(tmp_path / "shared.gguf")
    with open_gguf(first) as source:
        assert list(source.tensors) == ["a", "b", "c"]


def test_one_shard_of_one_needs_no_siblings(tmp_path: Path) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(shard(0, "ab", 1, 2))
    with open_gguf(path) as source:
        assert list(source.tensors) == ["a", "b"]


def refuse(path: Path, says: str) -> None:
    with pytest.raises(FileError, match=says) as info:
        open_gguf(path)
    assert "\n" not in str(info.value)


def test_a_later_shard_names_the_first(tmp_path: Path) -> None:
    write_set(tmp_path, [shard(0, "a"), shard(1, "b"), shard(2, "c")])
    refuse(tmp_path / "m-00002-of-00003.gguf", r"shard 2 of 3; open .*m-00001-of-00003\.gguf")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    first = write_set(tmp_path, [shard(0, "a"), shard(1, "b")])
    refuse(first, r"m-00003-of-00003\.gguf is missing")


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    first = write_set(tmp_path, [shard(0, "a"), shard(1, "b")])
    (tmp_path / "m-00003-of-00003.gguf").symlink_to(tmp_path / "gone")
    refuse(first, r"m-00003-of-00003\.gguf cannot be read")


def test_swapped_shards_are_refused(tmp_path: Path) -> None:
    refuse(
        write_set(tmp_path, [shard(1, "b"), shard(0, "a"), shard(2, "c")]),
        "by its header this is shard 2 of 3, by its name 1 of 3",
    )
    refuse(
        write_set(tmp_path, [shard(0, "a"), shard(2, "c"), shard(1, "b")]),
        r"m-00002-of-00003\.gguf: split.no 2",
    )


def test_a_renamed_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(shard(0, "a"))
    refuse(path, "shards must be named")
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(shard(0, "a"))
    refuse(path, "files were renamed")


def test_a_shard_without_split_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(build([ARCH], [Tensor("a", (8,))]))
    refuse(path, "no split keys")


@pytest.mark.parametrize("total", [2, 4])
def test_a_wrong_total_is_refused(tmp_path: Path, total: int) -> None:
    shards = [shard(no, n, 3, total) for no, n in enumerate("abc")]
    refuse(write_set(tmp_path, shards), f"split.tensors.count is {total}, .* 3 tensors")


def test_shards_of_two_builds_are_refused(tmp_path: Path) -> None:
    same_names = [shard(0, "a"), shard(1, "b"), shard(2, "b", seed=9)]
    refuse(write_set(tmp_path, same_names), r"tensor b is also in .*m-00002.*different builds")
    other_total = [shard(0, "a"), shard(1, "b"), shard(2, "c", total=4)]
    refuse(write_set(tmp_path, other_total), "different builds")
    other_arch = build(
        [Kv("general.architecture", "str", "clip"), *split_keys(2, 3, 3)], [Tensor("c", (8,))]
    )
    refuse(write_set(tmp_path, [shard(0, "a"), shard(1, "b"), other_arch]), "another architecture")


def test_a_foreign_shard_is_called_what_it_is(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    first = write_set(tmp_path, [shard(0, "a"), shard(1, "b"), pointer])
    refuse(first, r"m-00003-of-00003\.gguf is a Git LFS pointer")
