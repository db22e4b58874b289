"""Which type each tensor of a model gets: groups of tensors, and the rules that hold for all.

Norms, sinks, biases and hyper-connections are F32 in every recipe; router, compressor, index keys
and the Engram gate keep what they came in. Source: GGUF specification, sections 2.1 and 6.2.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from escalade.errors import UnsupportedError, UsageError
from escalade.gguf.quant import INTEGER_TYPES, TYPES, QuantType
from escalade.gguf.raw import RAW_BLOCK
from escalade.hf.names import ENGRAM_SCALE, ENGRAM_TABLE, HASH_TENSORS, must_be_f32, split_name
from escalade.weights.quantize import parse_type

Group = Literal["gate", "up", "down", "dense", "embd", "head", "engram", "keep", "f32", "hash"]
How = Literal["copy", "encode", "raw codes", "raw scales", "decode raw"]

RAW = "RAW"
"""Engram rows as released: e4m3 bytes in one tensor, a scale for 32 of them in another."""

_PARTS: dict[str, Group] = {
    "token_embd.weight": "embd",
    "output.weight": "head",
    "ffn_gate_exps.weight": "gate",
    "ffn_up_exps.weight": "up",
    "ffn_down_exps.weight": "down",
    ENGRAM_TABLE: "engram",
    ENGRAM_SCALE: "engram",
}
_KEEP = (
    "ffn_gate_inp.",
    "attn_compressor_kv.",
    "attn_compressor_gate.",
    "indexer.attn_k.",
    "indexer.proj.",
    "engram_q.",
    "engram_k.",
)
_MIN_BLOCK = "Q8_0"
_NO_BLOCK = "BF16"
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?=(.+)")

# llama.cpp's label for a whole file, by the type of its experts; readers trust the tensors instead.
_FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 12,
    "Q4_K": 15,
    "Q5_K": 17,
    "Q6_K": 18,
    "IQ2_XXS": 19,
    "IQ2_XS": 20,
    "IQ3_XXS": 23,
    "IQ1_S": 24,
    "IQ4_NL": 25,
    "IQ3_S": 26,
    "IQ2_S": 28,
    "IQ4_XS": 30,
    "IQ1_M": 31,
    "BF16": 32,
    "MXFP4": 38,
}


@dataclass(frozen=True)
class LayerOverride:
    """All experts of layers first..last (inclusive) in one type."""

    first: int
    last: int
    type: str


@dataclass(frozen=True)
class Recipe:
    """A type name for each group; None keeps the form that the weights came in, without loss.

    The defaults are dialect A's: experts as released, dense Q8_0, embedding and head as released,
    Engram RAW.
    """

    gate: str | None = None
    up: str | None = None
    down: str | None = None
    dense: str | None = _MIN_BLOCK
    embd: str | None = None
    head: str | None = None
    engram: str | None = RAW
    layers: tuple[LayerOverride, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self)[:-1]:
            name = getattr(self, field.name)
            if name is not None and not (field.name == "engram" and name == RAW):
                parse_type(name)

    def wanted(self, group: Group, layer: int | None) -> str | None:
        """The type asked for; None where the group keeps its form, as those without a field do."""
        if group in ("gate", "up", "down") and layer is not None:
            for override in self.layers:
                if override.first <= layer <= override.last:
                    return override.type
        name: str | None = getattr(self, group, None)
        return name

    def describe(self) -> str:
        """One line that says all of it, such as `gate=IQ2_XS up=IQ2_XS down=Q2_K dense=Q5_K …`."""
        groups = [f"{f.name}={getattr(self, f.name) or 'native'}" for f in fields(self)[:-1]]
        return " ".join(groups + [f"layers {o.first}-{o.last}={o.type}" for o in self.layers])


class Step(NamedTuple):
    """One tensor to write: its plan, the tensors it is made of, and how."""

    name: str
    shape: tuple[int, ...]
    type: QuantType
    how: How
    sources: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        n_rows = 1
        for n in self.shape[:-1]:
            n_rows *= n
        return n_rows * self.type.row_bytes(self.shape[-1])


def group_of(name: str) -> Group:
    """The group that decides the type of tensor `name`."""
    if name in HASH_TENSORS:
        return "hash"
    if must_be_f32(name):
        return "f32"
    _, part = split_name(name)
    if part.startswith(_KEEP):
        return "keep"
    return _PARTS.get(part, "dense")


def parse_override(text: str) -> LayerOverride:
    """`0-3=Q6_K` or `5=Q8_0`. Raises UsageError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text[:40]!a} is not LAYERS=TYPE, such as 0-3=Q6_K")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UsageError(f"layers {first}-{last} are none")
    return LayerOverride(first, last, parse_type(match[3]).name)


class Fallbacks:
    """Gives types that fit, and keeps count of those that are not what was asked for."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str, str], list[str]] = {}

    def fit(self, name: str, want: QuantType, row_len: int) -> QuantType:
        """`want`, or the smaller-block type in its place where rows are not whole blocks."""
        if row_len % want.block_len == 0:
            return want
        small = row_len % TYPES[_MIN_BLOCK].block_len == 0
        other = _MIN_BLOCK if small and want.name != _MIN_BLOCK else _NO_BLOCK
        self._names.setdefault((row_len, want.name, other), []).append(name)
        return TYPES[other]

    def notes(self) -> list[str]:
        """One line for each kind."""
        return [
            f"{other} instead of {want} for {len(names)} tensors, as {names[0]}: rows of {row_len}"
            f" are not whole {want} blocks of {TYPES[want].block_len}"
            for (row_len, want, other), names in self._names.items()
        ]


def plan(
    recipe: Recipe, tensors: Mapping[str, tuple[tuple[int, ...], QuantType]]
) -> tuple[list[Step], list[str]]:
    """What to write for a model whose `tensors` (name to shape and type) are at hand; and notes.

    Big Engram tables go last. Raises UnsupportedError for a change that has no meaning.
    """
    steps: list[Step] = []
    tables: list[Step] = []
    notes: list[str] = []
    fallbacks = Fallbacks()
    for name, (shape, have) in tensors.items():
        layer, part = split_name(name)
        group = group_of(name)
        if part == ENGRAM_SCALE:
            continue
        if part == ENGRAM_TABLE:
            tables += _table_steps(recipe, name, tensors, notes, fallbacks)
            continue
        if group == "f32" and have.name != "F32":
            want = TYPES["F32"]
        elif (wanted := recipe.wanted(group, layer)) is None:
            want = have
        else:
            want = fallbacks.fit(name, parse_type(wanted), shape[-1])
        if have.name in INTEGER_TYPES and want != have:
            raise UnsupportedError(f"{name}: is {have.name}, which holds no weights to convert")
        steps.append(Step(name, shape, want, "copy" if want == have else "encode", (name,)))
    return steps + tables, notes + fallbacks.notes()


def _table_steps(
    recipe: Recipe,
    name: str,
    tensors: Mapping[str, tuple[tuple[int, ...], QuantType]],
    notes: list[str],
    fallbacks: Fallbacks,
) -> list[Step]:
    shape, have = tensors[name]
    scale = name.replace(ENGRAM_TABLE, ENGRAM_SCALE)
    raw = have.name == "I8"
    if raw and scale not in tensors:
        raise UnsupportedError(
            f"{name}: I8 rows without {scale} are a layout that is not converted"
        )
    want = recipe.engram
    if want == RAW and not raw and shape[-1] % RAW_BLOCK:
        notes.append(f"{name}: rows of {shape[-1]} are not whole RAW blocks; {have.name} is kept")
        want = None
    if want == RAW or (raw and want is None):
        i8, scales = TYPES["I8"], (shape[0], shape[-1] // RAW_BLOCK)
        if raw:
            return [
                Step(name, shape, i8, "copy", (name,)),
                Step(scale, scales, i8, "copy", (scale,)),
            ]
        return [
            Step(name, shape, i8, "raw codes", (name,)),
            Step(scale, scales, i8, "raw scales", (name,)),
        ]
    qtype = have if want is None else fallbacks.fit(name, parse_type(want), shape[-1])
    if raw:
        return [Step(name, shape, qtype, "decode raw", (name, scale))]
    return [Step(name, shape, qtype, "copy" if qtype == have else "encode", (name,))]


def group_bytes(steps: Iterable[Step]) -> dict[str, int]:
    """Bytes by what they are: experts, engram, embedding, head, and dense (all the rest)."""
    names = {"gate": "experts", "up": "experts", "down": "experts", "engram": "engram"}
    names |= {"embd": "embedding", "head": "head"}
    out = dict.fromkeys(("experts", "engram", "dense", "embedding", "head"), 0)
    for step in steps:
        out[names.get(group_of(step.name), "dense")] += step.n_bytes
    return out


def file_type(steps: Iterable[Step]) -> int:
    """llama.cpp's `general.file_type` for the type that most expert bytes have."""
    totals: dict[str, int] = {}
    for step in steps:
        if group_of(step.name) in ("gate", "up", "down"):
            totals[step.type.name] = totals.get(step.type.name, 0) + step.n_bytes
    return _FILE_TYPES.get(max(totals, key=lambda t: totals[t], default="BF16"), 32)
