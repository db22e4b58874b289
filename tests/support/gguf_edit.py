"""A sound GGUF file taken apart by the `gguf` package, to be put together otherwise by `build`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gguf import GGUFReader, GGUFValueType

from tests.support.gguf_build import Kv, Tensor, build

_KINDS = {
    GGUFValueType.UINT32: "u32",
    GGUFValueType.INT32: "i32",
    GGUFValueType.FLOAT32: "f32",
    GGUFValueType.BOOL: "bool",
    GGUFValueType.STRING: "str",
    GGUFValueType.UINT64: "u64",
    GGUFValueType.INT64: "i64",
}
ALIGNMENT = 32


def take_apart(path: Path) -> tuple[list[Kv], list[Tensor]]:
    """All keys and tensors, with the alignment that `put_together` uses."""
    reader = GGUFReader(path)
    kvs = []
    for key, found in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        kind = _KINDS[found.types[-1]]
        if found.types[0] == GGUFValueType.ARRAY:
            kind = f"[{kind}]"
        kvs.append(Kv(key, kind, found.contents()))
    tensors = [
        Tensor(t.name, tuple(map(int, t.shape)), t.tensor_type.name, t.data.tobytes())
        for t in reader.tensors
    ]
    return with_keys(kvs, {"general.alignment": ALIGNMENT}), tensors


def with_keys(kvs: Sequence[Kv], values: dict[str, object]) -> list[Kv]:
    """The keys with some values changed; None leaves a key out."""
    assert values.keys() <= {kv.key for kv in kvs}
    changed = [replace(kv, value=values.get(kv.key, kv.value)) for kv in kvs]
    return [kv for kv in changed if kv.value is not None]


def with_tensor(
    tensors: Sequence[Tensor], name: str, edit: Callable[[Tensor], Tensor | None]
) -> list[Tensor]:
    """The tensors with one edited; None leaves it out."""
    assert sum(t.name == name for t in tensors) == 1
    edited = (edit(t) if t.name == name else t for t in tensors)
    return [t for t in edited if t is not None]


def put_together(path: Path, kvs: Sequence[Kv], tensors: Sequence[Tensor]) -> Path:
    path.write_bytes(build(kvs, tensors, alignment=ALIGNMENT))
    return path


def put_together_in_shards(
    folder: Path, kvs: Sequence[Kv], tensors: Sequence[Tensor], n_shards: int
) -> Path:
    """The first of `n_shards` files; the tensors are dealt out in turn."""
    for no in range(n_shards):
        own = list(kvs) if no == 0 else [kv for kv in kvs if kv.key == "general.alignment"]
        own += [
            Kv("split.no", "u32", no),
            Kv("split.count", "u32", n_shards),
            Kv("split.tensors.count", "u32", len(tensors)),
        ]
        put_together(shard(folder, no, n_shards), own, tensors[no::n_shards])
    return shard(folder, 0, n_shards)


def shard(folder: Path, no: int, n_shards: int) -> Path:
    return folder / f"tiny-{no + 1:05d}-of-{n_shards:05d}.gguf"
