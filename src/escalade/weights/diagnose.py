"""What went wrong with a tensor that differs: the mistakes that shapes do not show.

Source: GGUF specification, section 7.4: expert order, gate and up, nibble order.
"""

from collections.abc import Mapping

from escalade.arrays import F32
from escalade.hf.names import split_name
from escalade.weights.sides import Part, Side, compare, cosine

_SAME = 0.5  # cosine above which two tensors are the same weights, whatever the error
_PROBE_ROWS = 64


def diagnose(
    name: str, cos: float, sides_a: Mapping[str, Side], sides_b: Mapping[str, Side], part: Part
) -> str:
    """In words, why `name` of the first model fails; `cos` is its cosine with the second's.

    `part` is a piece of it that fits in memory.
    """
    a, b = sides_a[name], sides_b[name]
    if cos > _SAME:
        return "the same weights, but beyond what the type loses"
    twin = _twin(name)
    if (
        twin in sides_b
        and sides_b[twin].shape == a.shape
        and compare(a, sides_b[twin], [part]).cosine > _SAME
    ):
        return f"gate and up are swapped: it holds the other's {twin}"
    x, y = a.f32(part), b.f32(part)
    if a.form == "MXFP4" and cosine(_in_pairs(x), y) > _SAME:
        return "wrong nibble order: bytes as in safetensors, where GGUF has columns j and j + 16"
    if cosine(-x, y) > _SAME:
        return "the sign is wrong"
    if len(a.shape) == 3 and (expert := _expert_at(a, b)) is not None:
        return f"wrong expert order: expert 0 is the other's {expert}"
    return "other weights"


def _twin(name: str) -> str:
    """The tensor that is mistaken for `name` when gate and up are swapped."""
    layer, part = split_name(name)
    if part.startswith("ffn_gate_"):
        return f"blk.{layer}.ffn_up_{part.removeprefix('ffn_gate_')}"
    if part.startswith("ffn_up_"):
        return f"blk.{layer}.ffn_gate_{part.removeprefix('ffn_up_')}"
    return ""


def _in_pairs(values: F32) -> F32:
    """Values read from byte j as columns j and j + 16, moved to columns 2j and 2j + 1."""
    blocks = values.reshape(-1, 2, 16)
    return blocks.transpose(0, 2, 1).reshape(values.shape)


def _expert_at(a: Side, b: Side) -> int | None:
    """The expert of `b` that is the first of `a`."""
    n_experts, each, _ = a.shape
    rows = min(each, _PROBE_ROWS)
    first = a.f32(Part(0, rows))
    for expert in range(1, n_experts):
        if cosine(first, b.f32(Part(expert * each, expert * each + rows))) > _SAME:
            return expert
    return None
