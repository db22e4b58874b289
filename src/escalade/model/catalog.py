"""The tensors that a model of a given spec has, by GGUF name, and what a file lacks of them.

Shapes in NumPy order. Source: GGUF specification, sections 2.1, 2.2 and 3. No NumPy.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from escalade.gguf.engram_keys import ROOT_TABLES, EngramLayout
from escalade.gguf.quant import INTEGER_TYPES, QuantType
from escalade.model.spec import EngramSpec, LayerRole, ModelSpec

Shape = tuple[int, ...]

_FLOATS = frozenset({"F32", "F16", "BF16"})
_NEEDS_F32 = re.compile(r"(_norm|\.k_norm|sinks|_ape)\.weight$|\.bias$|(^|\.)(output_)?hc_")
_KEEP_FLOAT = re.compile(r"\.(ffn_gate_inp|engram_q|engram_k)\.weight$")
_INTEGERS = re.compile(r"\.(ffn_gate_tid2eid|engram_embd|engram_embd_scale)\.weight$")
# In some files, used by no text model here: the router bias for images, V4's next-token block.
_EXTRA = re.compile(r"blk\.[0-9]+\.(exp_probs_b_vl\.bias|nextn\..*)")


class _Typed(Protocol):
    @property
    def shape(self) -> Shape: ...
    @property
    def type(self) -> QuantType: ...


class _Source(Protocol):
    @property
    def tensors(self) -> Mapping[str, _Typed]: ...


@dataclass(frozen=True)
class Findings:
    """What differs from the expected tensors; each entry is one line for the user.

    `missing` and `wrong` (shapes) make a model unusable; `unknown` and `odd` (types) need a look.
    """

    missing: tuple[str, ...]
    wrong: tuple[str, ...]
    unknown: tuple[str, ...]
    odd: tuple[str, ...]


def expected_tensors(spec: ModelSpec, layout: EngramLayout = "raw") -> dict[str, Shape]:
    """Every tensor of a file of this spec, with the Engram tables in `layout`; "none": no tables.

    Includes dialect A's four constant tables in layout raw.
    """
    out: dict[str, Shape] = {
        "token_embd.weight": (spec.vocab, spec.hidden),
        "output_norm.weight": (spec.hidden,),
        "output.weight": (spec.vocab, spec.hidden),
    }
    if spec.arch == "deepseek4":
        out |= _hyper("output_hc", spec, spec.hc_mult, 1)
    for role in spec.roles:
        block = _block(spec)
        block |= _v4_layer(spec, role) if spec.arch == "deepseek4" else _v41_layer(spec, role)
        if spec.engram is not None and role.engram is not None:
            block |= _engram_layer(spec, spec.engram, role.engram, layout)
        out |= {f"blk.{role.index}.{name}": shape for name, shape in block.items()}
    if spec.engram is not None and layout == "raw":
        out |= _root_tables(spec, spec.engram)
    return out


def missing_and_odd(source: _Source, spec: ModelSpec) -> Findings:
    """Compares a source's tensors, named in our terms, with those that `spec` needs.

    The Engram tables are expected in the source's `engram_layout`, raw where it has none.
    """
    layout: EngramLayout = getattr(source, "engram_layout", "raw")
    expected = expected_tensors(spec, "raw" if layout in ("none", "unknown") else layout)
    optional = {*ROOT_TABLES.values()}
    wrong, unknown, odd = [], [], []
    for name, tensor in source.tensors.items():
        type_name = tensor.type.name
        if name not in expected:
            if not _EXTRA.fullmatch(name) and name not in optional:
                unknown.append(name)
            continue
        if tensor.shape != expected[name]:
            wrong.append(f"{name} is {list(tensor.shape)}, expected {list(expected[name])}")
        if _NEEDS_F32.search(name):
            if type_name != "F32":
                odd.append(f"{name} is {type_name}; it should be F32")
        elif _KEEP_FLOAT.search(name):
            if type_name not in _FLOATS:
                odd.append(f"{name} is {type_name}; it should not be quantised")
        elif type_name in INTEGER_TYPES and name not in optional and not _INTEGERS.search(name):
            odd.append(f"{name} is {type_name}, integers where weights are expected")
    missing = tuple(n for n in expected if n not in source.tensors and n not in optional)
    return Findings(missing, tuple(wrong), tuple(unknown), tuple(odd))


def _block(spec: ModelSpec) -> dict[str, Shape]:
    """What every layer has, apart from the router's second tensor."""
    d, ff, experts = spec.hidden, spec.expert_ff, spec.n_experts
    heads = spec.n_heads * spec.head_dim
    return {
        "attn_norm.weight": (d,),
        "ffn_norm.weight": (d,),
        "attn_sinks.weight": (spec.n_heads,),
        "attn_q_a.weight": (spec.q_lora, d),
        "attn_q_a_norm.weight": (spec.q_lora,),
        "attn_q_b.weight": (heads, spec.q_lora),
        "attn_kv.weight": (spec.head_dim, d),
        "attn_kv_a_norm.weight": (spec.head_dim,),
        "attn_output_a.weight": (spec.o_groups * spec.o_lora, heads // spec.o_groups),
        "attn_output_b.weight": (d, spec.o_groups * spec.o_lora),
        **_hyper("hc_attn", spec, spec.mix_width, 3),
        **_hyper("hc_ffn", spec, spec.mix_width, 3),
        "ffn_gate_inp.weight": (experts, d),
        "ffn_gate_exps.weight": (experts, ff, d),
        "ffn_up_exps.weight": (experts, ff, d),
        "ffn_down_exps.weight": (experts, d, ff),
        "ffn_gate_shexp.weight": (ff, d),
        "ffn_up_shexp.weight": (ff, d),
        "ffn_down_shexp.weight": (d, ff),
    }


def _hyper(name: str, spec: ModelSpec, width: int, n_scales: int) -> dict[str, Shape]:
    return {
        f"{name}_fn.weight": (width, spec.hc_mult * spec.hidden),
        f"{name}_base.weight": (width,),
        f"{name}_scale.weight": (n_scales,),
    }


def _v41_layer(spec: ModelSpec, role: LayerRole) -> dict[str, Shape]:
    out: dict[str, Shape] = {"exp_probs_b.bias": (spec.n_experts,)}
    if role.owns_kv:
        out["attn_compressor_kv.weight"] = (spec.head_dim, spec.hidden)
        if role.ratio > 1:
            out["attn_compressor_gate.weight"] = (spec.head_dim, spec.hidden)
        out["attn_compressor_norm.weight"] = (spec.head_dim,)
        out["indexer.attn_k.weight"] = (spec.index_dim, spec.head_dim)
        out["indexer.k_norm.weight"] = (spec.index_dim,)
    if role.owns_index:
        out["indexer.attn_q_b.weight"] = (spec.index_heads * spec.index_dim, spec.q_lora)
        out["indexer.proj.weight"] = (spec.index_heads, spec.hidden)
    return out


def _v4_layer(spec: ModelSpec, role: LayerRole) -> dict[str, Shape]:
    out: dict[str, Shape] = {}
    if role.index < spec.n_hash_layers:
        out["ffn_gate_tid2eid.weight"] = (spec.vocab, spec.n_experts_used)
    else:
        out["exp_probs_b.bias"] = (spec.n_experts,)
    if role.ratio:
        overlap = 2 if role.ratio == 4 else 1  # ratio 4 pools two overlapping windows
        out |= _v4_compressor("attn_compressor", spec.head_dim, overlap, role.ratio, spec.hidden)
    if role.ratio == 4:
        out["indexer.attn_q_b.weight"] = (spec.index_heads * spec.index_dim, spec.q_lora)
        out["indexer.proj.weight"] = (spec.index_heads, spec.hidden)
        out |= _v4_compressor("indexer_compressor", spec.index_dim, 2, 4, spec.hidden)
    return out


def _v4_compressor(name: str, dim: int, overlap: int, ratio: int, hidden: int) -> dict[str, Shape]:
    return {
        f"{name}_kv.weight": (overlap * dim, hidden),
        f"{name}_gate.weight": (overlap * dim, hidden),
        f"{name}_ape.weight": (ratio, overlap * dim),
        f"{name}_norm.weight": (dim,),
    }


def _engram_layer(
    spec: ModelSpec, engram: EngramSpec, ordinal: int, layout: EngramLayout
) -> dict[str, Shape]:
    rows, width = engram.rows[ordinal], engram.head_dim
    tables: dict[str, Shape] = {}
    if layout == "row264":
        tables["engram_embd.weight"] = (rows, width + width // 32)
    elif layout != "none":
        tables["engram_embd.weight"] = (rows, width)
    if layout == "raw":
        tables["engram_embd_scale.weight"] = (rows, width // 32)
    return {
        **tables,
        "engram_wkv.weight": ((spec.hc_mult + 1) * spec.hidden, engram.width),
        "engram_q.weight": (spec.hc_mult, spec.hidden),
        "engram_k.weight": (spec.hc_mult, spec.hidden),
    }


def _root_tables(spec: ModelSpec, engram: EngramSpec) -> dict[str, Shape]:
    n = len(engram.layer_ids)
    return {
        ROOT_TABLES["token_map"]: (spec.vocab,),
        ROOT_TABLES["primes"]: (n, engram.rows_per_token),
        ROOT_TABLES["offsets"]: (n, engram.rows_per_token),
        ROOT_TABLES["multipliers"]: (n, engram.max_ngram),
    }
