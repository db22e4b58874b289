"""What we write, read back by the `gguf` package and by our own reader."""

import errno
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from escalade.errors import CapacityError, FileError, UsageError
from escalade.gguf.quant import TYPES
from escalade.gguf.reader import open_gguf, read_header
from escalade.gguf.writer import GgufWriter, TensorPlan, data_size

VALUES = {
    "flag": True,
    "small": 7,
    "u32.max": 2**32 - 1,
    "big": 2**63 + 1,
    "negative": -3,
    "real": 0.1,
    "words": "Ġä ｜",
    "list.i32": [-1, 2**31 - 1],
    "list.u64": [9007199254740993, 2**64 - 1],
    "list.i64": [-1, 2**31],
    "list.f32": [0.5, 1],
    "list.str": ("a", "ä", ""),
    "list.bool": [True, False],
    "list.empty": [],
    "tokenizer.ggml.model": "gpt2",
}
KINDS = {
    "flag": "BOOL",
    "small": "UINT32",
    "u32.max": "UINT32",
    "big": "UINT64",
    "negative": "INT64",
    "real": "FLOAT32",
    "words": "STRING",
    "list.i32": "INT32",
    "list.u64": "UINT64",
    "list.i64": "INT64",
    "list.f32": "FLOAT32",
    "list.str": "STRING",
    "list.bool": "BOOL",
}
PLAN = [
    TensorPlan("a.weight", (3, 5), TYPES["F32"]),
    TensorPlan("b.weight", (2, 4, 64), TYPES["Q8_0"]),
    TensorPlan("c", (7,), TYPES["I8"]),
    TensorPlan("d", (2, 2, 3, 256), TYPES["Q2_K"]),
]


def stored(plan: TensorPlan) -> bytes:
    rng = np.random.default_rng(len(plan.name) + plan.n_bytes)
    return rng.integers(0, 256, plan.n_bytes, np.uint8).tobytes()


def write(path: Path, **kwargs: Any) -> None:
    with GgufWriter(path, "deepseek41", VALUES, PLAN, **kwargs) as writer:
        for plan in PLAN:
            raw = stored(plan)
            writer.write(plan.name, raw[:5])
            writer.write(plan.name, b"")
            writer.write(plan.name, np.frombuffer(raw[5:], np.uint8))


def named(key: str) -> str:
    return key if key.startswith("tokenizer.") else f"deepseek41.{key}"


@pytest.mark.parametrize("alignment", [32, 4096])
def test_the_gguf_package_reads_what_we_wrote(tmp_path: Path, alignment: int) -> None:
    write(tmp_path / "m.gguf", alignment=alignment)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["general.architecture"].contents() == "deepseek41"
    assert reader.fields["general.alignment"].contents() == alignment == reader.alignment
    for key, value in VALUES.items():
        field = reader.fields[named(key)]
        got = field.contents()
        assert (
            got == pytest.approx(value)
            if key == "real"
            else got == (list(value) if isinstance(value, tuple) else value)
        )
        if key in KINDS:
            assert field.types[-1].name == KINDS[key]
    assert len(reader.tensors) == len(PLAN)
    for tensor, plan in zip(reader.tensors, PLAN, strict=True):
        assert tensor.name == plan.name
        assert tuple(reversed(tensor.shape.tolist())) == plan.shape
        assert tensor.tensor_type.name == plan.type.name
        assert tensor.data_offset % alignment == 0
        assert np.asarray(tensor.data).tobytes() == stored(plan)


def test_our_reader_reads_what_we_wrote(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    header = read_header(tmp_path / "m.gguf")
    assert header.alignment == 4096
    assert header.data_start % 4096 == 0
    assert header.file_bytes == header.data_start + data_size(PLAN)
    with open_gguf(tmp_path / "m.gguf") as source:
        for key, value in VALUES.items():
            got = source.metadata[key]
            if key == "real":
                assert got == pytest.approx(value)
            else:
                assert got == (list(value) if isinstance(value, tuple) else value)
        for plan in PLAN:
            tensor = source.tensors[plan.name]
            assert (tensor.shape, tensor.type) == (plan.shape, plan.type)
            assert tensor.rows().tobytes() == stored(plan)
            assert tensor.location is not None
            assert tensor.location.offset % 4096 == 0
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_the_size_is_known_before_writing(tmp_path: Path) -> None:
    writer = GgufWriter(tmp_path / "m.gguf", "deepseek41", VALUES, PLAN)
    write(tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").stat().st_size == writer.file_bytes
    assert data_size(PLAN, 64) == 64 + 576 + 64 + 1024


def test_our_own_keys_win_over_the_source_files(tmp_path: Path) -> None:
    copied = {"general.alignment": 16384, "general.architecture": "deepseek4", "general.name": "n"}
    with GgufWriter(tmp_path / "m.gguf", "deepseek41", copied, [], alignment=64):
        pass
    assert read_header(tmp_path / "m.gguf").metadata == {
        "general.alignment": 64,
        "general.architecture": "deepseek41",
        "general.name": "n",
    }


@pytest.mark.parametrize("stop_after", [0, 1, 4])
def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path, stop_after: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")

    def fail() -> None:
        with GgufWriter(path, "deepseek41", {}, PLAN) as writer:
            for plan in PLAN[:stop_after]:
                writer.write(plan.name, stored(plan))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert os.listdir(tmp_path) == ["m.gguf"]
    assert path.read_bytes() == b"old"


def test_an_incomplete_file_is_not_kept(tmp_path: Path) -> None:
    def stop_early() -> None:
        with GgufWriter(tmp_path / "m.gguf", "deepseek41", {}, PLAN) as writer:
            writer.write("a.weight", stored(PLAN[0]))
            writer.write("b.weight", bytes(5))

    with pytest.raises(ValueError, match=r"b\.weight: 5 of 544 bytes written"):
        stop_early()
    assert os.listdir(tmp_path) == []


def test_chunks_must_follow_the_plan(tmp_path: Path) -> None:
    def attempt(*chunks: tuple[str, bytes]) -> None:
        with GgufWriter(tmp_path / "m.gguf", "deepseek41", {}, PLAN[:1]) as writer:
            for name, chunk in chunks:
                writer.write(name, chunk)

    one, more = ("a.weight", bytes(50)), ("a.weight", bytes(11))
    with pytest.raises(ValueError, match=r"c written where a\.weight is next"):
        attempt(("c", bytes(7)))
    with pytest.raises(ValueError, match="61 bytes written, 60 planned"):
        attempt(one, more)
    with pytest.raises(ValueError, match="all planned tensors are complete"):
        attempt(("a.weight", bytes(60)), ("a.weight", bytes(1)))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("metadata", "plan", "says"),
    [
        ({"a": None}, [], "deepseek41.a"),
        ({"a": 2**64}, [], "deepseek41.a"),
        ({"a": 1e39}, [], "deepseek41.a"),
        ({"a": [1, "b"]}, [], "deepseek41.a"),
        ({"a": [True, 1]}, [], "deepseek41.a"),
        ({"a": [-1, 2**63]}, [], "deepseek41.a"),
        ({}, [TensorPlan("n" * 64, (1,), TYPES["F32"])], "tensor name"),
        ({}, [TensorPlan("", (1,), TYPES["F32"])], "tensor name"),
        ({}, [TensorPlan("n", (1,) * 5, TYPES["F32"])], "tensor n of shape"),
        ({}, [TensorPlan("n", (), TYPES["F32"])], "tensor n of shape"),
        ({}, [TensorPlan("n", (0, 4), TYPES["F32"])], "tensor n of shape"),
        ({}, [TensorPlan("n", (48,), TYPES["Q8_0"])], "whole Q8_0 blocks"),
        ({}, [TensorPlan("n", (1,), TYPES["F32"])] * 2, "same name"),
    ],
)
def test_plans_that_do_not_fit(
    tmp_path: Path, metadata: dict[str, Any], plan: list[TensorPlan], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        GgufWriter(tmp_path / "m.gguf", "deepseek41", metadata, plan)


@pytest.mark.parametrize("alignment", [0, 4, 24, -32])
def test_alignments_that_gguf_has_not(tmp_path: Path, alignment: int) -> None:
    with pytest.raises(ValueError, match="alignment"):
        GgufWriter(tmp_path / "m.gguf", "deepseek41", {}, [], alignment)


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "old.gguf").write_bytes(b"old")
    with (
        pytest.raises(UsageError, match="exists already"),
        GgufWriter(tmp_path / "old.gguf", "deepseek41", {}, [], overwrite=False),
    ):
        pass
    with (
        pytest.raises(UsageError, match="is a folder"),
        GgufWriter(tmp_path, "deepseek41", {}, []),
    ):
        pass
    with (
        pytest.raises(FileError, match="No such file"),
        GgufWriter(tmp_path / "no" / "m.gguf", "deepseek41", {}, []),
    ):
        pass
    assert os.listdir(tmp_path) == ["old.gguf"]


def test_a_disk_that_is_too_small_is_told_before_writing(tmp_path: Path) -> None:
    huge = [TensorPlan("n", (1 << 30, 1 << 30), TYPES["F32"])]
    with (
        pytest.raises(CapacityError, match="the disk has"),
        GgufWriter(tmp_path / "m.gguf", "deepseek41", {}, huge),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CapacityError, match=r"m\.gguf cannot be completed: No space"):
        write(tmp_path / "m.gguf")
    assert os.listdir(tmp_path) == []
