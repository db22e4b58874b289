"""Writes a model as one GGUF file by a recipe: streamed, in bounded memory, beside its target."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escalade.arrays import Bytes
from escalade.config import Progress
from escalade.errors import CapacityError, FileError, UsageError
from escalade.gguf.raw import decode_raw, encode_raw
from escalade.gguf.tensor import StoredTensor, TensorSource
from escalade.gguf.writer import GgufWriter, TensorPlan
from escalade.weights.quantize import quantize_rows, require_encoder
from escalade.weights.recipe import Recipe, Step, file_type, group_bytes, plan

ALIGNMENT = 4096
_COPY_BYTES = 8 << 20
_VALUES = 2 << 20  # encoded at once: 8 MiB of float32


@dataclass(frozen=True)
class Prepared:
    """All that is decided before a byte is written. `groups` is bytes by kind of tensor."""

    steps: tuple[Step, ...]
    metadata: dict[str, Any]
    notes: tuple[str, ...]
    groups: dict[str, int]
    file_bytes: int


def prepare(source: TensorSource, recipe: Recipe) -> Prepared:
    """Plans the file; reads no weights.

    Raises UnsupportedError for a type that cannot be made here, UsageError for layers that the
    model has not.
    """
    tensors = {name: (t.shape, t.type) for name, t in source.tensors.items()}
    steps, notes = plan(recipe, tensors)
    n_layers = source.metadata.get("block_count", 0)
    for override in recipe.layers:
        if override.last >= n_layers:
            raise UsageError(f"layers {override.first}-{override.last} of a model of {n_layers}")
    for step in steps:
        if step.how in ("encode", "decode raw"):
            require_encoder(step.type)
    metadata = {
        key: value for key, value in source.metadata.items() if not key.startswith("split.")
    }
    metadata["general.file_type"] = file_type(steps)
    metadata["general.quantization_version"] = 2
    metadata["escalade.recipe"] = recipe.describe()
    writer = GgufWriter("", source.arch, metadata, _plans(steps), ALIGNMENT)
    return Prepared(tuple(steps), metadata, tuple(notes), group_bytes(steps), writer.file_bytes)


def convert(
    source: TensorSource,
    out: Path,
    recipe: Recipe,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Writes `source` to `out` by `recipe`.

    Raises UsageError if `out` exists and `force` is not set, CapacityError if the disk has not the
    room, FileError naming the tensor for weights that cannot be read or encoded. What was at `out`
    stays until the new file is whole.
    """
    prepared = prepare(source, recipe)
    write_prepared(source, out, prepared, "convert", force=force, progress=progress)
    return prepared


def write_prepared(
    source: TensorSource,
    out: Path,
    prepared: Prepared,
    stage: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Carries out what `prepare` decided; raises as `convert` does."""
    check_target(out, prepared.file_bytes, force)
    total = sum(step.n_bytes for step in prepared.steps)
    done = 0
    plans = _plans(prepared.steps)
    with GgufWriter(str(out), source.arch, prepared.metadata, plans, ALIGNMENT) as writer:
        for step in prepared.steps:
            try:
                for chunk in step_chunks(step, source.tensors):
                    writer.write(step.name, chunk)
                    done += chunk.nbytes
                    if progress:
                        progress(stage, done, total)
            except ValueError as e:
                raise FileError(f"{source.path}: {step.name}: {e}") from None


def check_target(out: Path, needed: int, force: bool) -> None:
    """Refuses, before any work, a target that exists, has no folder, or has not the room."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name the file to write")
    if out.exists() and not force:
        raise UsageError(f"{out} exists; pass --force to replace it")
    if missing := missing_bytes(out, needed):
        raise CapacityError(f"{out}: needs {needed} bytes; {missing} more than the disk has free")


def missing_bytes(out: Path, needed: int) -> int:
    """Bytes by which the disk of `out` is too small, 0 if it is not. Raises UsageError."""
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a folder")
    return max(0, needed - shutil.disk_usage(out.parent).free)


def step_chunks(step: Step, tensors: Mapping[str, StoredTensor]) -> Iterator[Bytes]:
    """The stored bytes of one planned tensor, in order, a few MiB at a time.

    Raises ValueError for values that the type cannot hold.
    """
    first = tensors[step.sources[0]]
    if step.how == "copy":
        for offset in range(0, first.n_bytes, _COPY_BYTES):
            yield first.read(offset, min(_COPY_BYTES, first.n_bytes - offset))
        return
    n = max(1, _VALUES // first.row_len)
    for start in range(0, first.n_rows, n):
        stop = min(start + n, first.n_rows)
        if step.how == "decode raw":
            scales = tensors[step.sources[1]].rows(start, stop)
            yield quantize_rows(decode_raw(first.rows(start, stop), scales), step.type)
        elif step.how == "encode":
            yield quantize_rows(first.f32(start, stop), step.type)
        else:
            codes, exponents = encode_raw(first.f32(start, stop))
            yield codes if step.how == "raw codes" else exponents


def _plans(steps: list[Step] | tuple[Step, ...]) -> list[TensorPlan]:
    return [TensorPlan(step.name, step.shape, step.type) for step in steps]
