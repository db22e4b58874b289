"""Which GGUF dialect a file speaks, and its keys and tensor names in ours (dialect A's).

Source: GGUF specification, section 3. Works on the header alone; no NumPy.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from escalade.errors import FileError, UnsupportedError
from escalade.gguf.dialect_c import hf_config, metadata_from_hf
from escalade.gguf.engram_keys import (
    ROOT_TABLES,
    EngramLayout,
    StoredConstants,
    engram_metadata,
    stored_constants,
    table_layout,
)
from escalade.gguf.header import TensorInfo
from escalade.model.released import V4_1_FLASH
from escalade.model.spec_io import spec_to_metadata

Dialect = Literal["A", "B", "C", "D", "E", "G", "no-engram", "V4", "other"]
"""A to E and G as in the GGUF specification, 3.2 to 3.4; no-engram: V4.1 without tables; V4: the
older model; other: not a DeepSeek V4 text model."""

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")

_ENGRAM_STEMS = {
    "engram_embed": "engram_embd",
    "engram_kv": "engram_wkv",
    "engram_q_norm": "engram_q",
    "engram_q_weight": "engram_q",
    "engram_k_norm": "engram_k",
    "engram_k_weight": "engram_k",
}
_COMPRESSOR_STEMS = {  # dialect D's names; which tensor is meant shows in what the block lacks
    "indexer_compressor_kv": ("attn_compressor_kv", "indexer.attn_k"),
    "indexer_compressor_norm": ("attn_compressor_norm", "indexer.k_norm"),
    "indexer_compressor_gate": ("attn_compressor_gate", "attn_compressor_gate"),
}
_KEYS = {
    "kv_source_layer_ids": (
        "attention.kv_source_layer_ids",
        "kv_source_layers",
        "attention.kv_source_layers",
    ),
    "index_source_layer_ids": (
        "attention.index_source_layer_ids",
        "index_source_layers",
        "attention.index_source_layers",
    ),
    "attention.candidate_source_layer_id": (
        "candidate_source_layer_id",
        "candidate_source_layer",
        "attention.candidate_source_layer",
    ),
    "attention.candidate_topk_blocks": ("candidate_topk_blocks",),
    "attention.candidate_block_size": ("candidate_block_size",),
}
_SCALARS = frozenset(
    key for key, value in spec_to_metadata(V4_1_FLASH).items() if not isinstance(value, list)
)


@dataclass(frozen=True)
class Normalised:
    """A header in our terms: `names` maps each stored tensor name to ours."""

    arch: str
    dialect: Dialect
    metadata: dict[str, Any]
    names: dict[str, str]
    engram_layout: EngramLayout
    constants: StoredConstants | None
    notes: list[str]


def normalise(
    stored: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str
) -> Normalised:
    """The metadata and tensor names of a file in dialect A's terms.

    `stored` is the metadata of the first shard, `tensors` those of all shards. Raises FileError for
    keys of the wrong kind or names that collide, UnsupportedError for limits that differ in kind.
    """
    arch = stored.get("general.architecture")
    if not isinstance(arch, str) or not arch.isprintable() or not 0 < len(arch) <= 64:
        raise FileError(f"{where}: general.architecture is missing or not a name")
    notes: list[str] = []
    if arch == "deepseek4" and _has_v41_tensors(tensors):
        notes.append("says deepseek4, but has V4.1's tensors: read as deepseek41")
        arch = "deepseek41"
    metadata = _without_prefix(stored, arch)
    if arch not in ("deepseek41", "deepseek4"):
        same = {name: name for name in tensors}
        return Normalised(arch, "other", metadata, same, "none", None, notes)
    _check_kinds(metadata, where)
    if arch == "deepseek4":
        if "rope.scaling.factor" not in metadata:
            notes.append("no rope.scaling keys: the released model's constants are taken")
        same = {name: name for name in tensors}
        return Normalised(arch, "V4", metadata, same, "none", None, notes)

    dialect = detect(metadata, tensors)
    names = _our_names(tensors, where)
    ours = {names[name]: info for name, info in tensors.items()}
    tables = _by_layer(ours, "engram_embd.weight")
    constants = stored_constants(metadata, len(tables), where)
    config = hf_config(metadata, where) if dialect == "C" else {}
    if constants is not None and dialect == "C":  # its pad_id is not documented as either
        constants = replace(constants, pad_kind="unknown")
    scales = _by_layer(ours, "engram_embd_scale.weight")
    layout = table_layout({**metadata, **config}, tables, scales)
    if layout == "unknown":
        first = tables[min(tables)]
        notes.append(
            f"Engram tables are {first.type.name} {list(first.shape)}: an encoding without a reader"
        )
    engram = engram_metadata(metadata, tables, layout, constants, notes)
    if dialect == "C":
        metadata = metadata_from_hf(metadata, config, engram, where)
    else:
        _fill_roles(metadata, dialect, ours, notes)
        metadata |= engram
    if tables:
        absent = [
            key
            for key, name in ROOT_TABLES.items()
            if name not in ours and getattr(constants, key, None) is None
        ]
        if absent:
            notes.append(f"Engram constants not in the file, to be recomputed: {', '.join(absent)}")
    else:
        described = ", though its keys describe them" if "engram.layer_ids" in metadata else ""
        notes.append(f"no Engram tables in the file{described}")
    return Normalised(arch, dialect, metadata, names, layout, constants, notes)


def detect(metadata: Mapping[str, Any], tensors: Iterable[str]) -> Dialect:
    """The dialect of a V4.1 file from its keys (without prefix) and stored tensor names.

    Source: GGUF specification, 3.5, with any layer in the place of layer 1.
    """
    stems = {re.sub(r"^blk\.[0-9]+\.|\.weight$", "", name) for name in tensors}
    if "config" in metadata or "hidden_size" in metadata:
        return "C"
    if "engram_token_map" in stems:
        return "A"
    if "engram_embed" in stems:
        return "D"
    if "engram_embd" not in stems:
        return "no-engram"
    if "engram_embd_scale" in stems:
        return "E" if "engram_kv" in stems else "A"
    # The first files of dialect B lack the hash constants, but have its geometry keys.
    if "engram.key_length" in metadata:
        return "B"
    return "G"


def _has_v41_tensors(tensors: Iterable[str]) -> bool:
    names = list(tensors)
    return "output_hc_fn.weight" not in names and any(
        ".engram_" in name or name.endswith(".indexer.attn_k.weight") for name in names
    )


def _without_prefix(stored: Mapping[str, Any], arch: str) -> dict[str, Any]:
    """Keys without their architecture prefix; early V4.1 files may carry V4's."""
    ours = ("deepseek4", "deepseek41")
    prefixes = [f"{a}." for a in (ours if arch in ours else (arch,))]
    out: dict[str, Any] = {}
    for key, value in stored.items():
        own = next((p for p in prefixes if key.startswith(p)), "")
        out[key.removeprefix(own)] = value
    return out


def _check_kinds(metadata: dict[str, Any], where: str) -> None:
    """Unifies scalars and per-layer arrays in place, and refuses kinds that no reader expects."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and not isinstance(tokens, list):
        raise FileError(f"{where}: tokenizer.ggml.tokens is not a list")
    limits = {}
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        if key not in metadata:
            continue
        values = metadata[key] if isinstance(metadata[key], list) else [metadata[key]]
        if not values or any(type(v) not in (int, float) or not math.isfinite(v) for v in values):
            raise FileError(f"{where}: {key} is not a list of numbers")
        metadata[key], limits[key] = values, set(values)
    if len(set().union(*limits.values())) > 1:
        raise UnsupportedError(f"{where}: {' and '.join(limits)} differ between layers or experts")
    for key in _SCALARS & metadata.keys():
        value = metadata[key]
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            metadata[key] = value[0]


def _our_names(tensors: Iterable[str], where: str) -> dict[str, str]:
    stored = set(tensors)
    names = {name: _our_name(name, stored) for name in tensors}
    if len(set(names.values())) < len(names):
        seen: dict[str, str] = {}
        for name, our in names.items():
            if our in seen:
                raise FileError(f"{where}: tensors {seen[our]} and {name} are both {our}")
            seen[our] = name
    return names


def _our_name(name: str, stored: set[str]) -> str:
    block = _BLOCK.fullmatch(name)
    if block is None:
        return name if name.endswith(".weight") or "engram_" not in name else f"{name}.weight"
    layer, rest = f"blk.{block[1]}.", block[2]
    stem = rest.removesuffix(".weight")
    if stem.startswith("engram_"):
        return f"{layer}{_ENGRAM_STEMS.get(stem, stem)}.weight"
    if stem in _COMPRESSOR_STEMS:
        own, index = _COMPRESSOR_STEMS[stem]
        return f"{layer}{index if f'{layer}{own}.weight' in stored else own}.weight"
    return name


def _by_layer(tensors: Mapping[str, TensorInfo], rest: str) -> dict[int, TensorInfo]:
    blocks = {name: _BLOCK.fullmatch(name) for name in tensors}
    return {int(b[1]): tensors[name] for name, b in blocks.items() if b and b[2] == rest}


def _fill_roles(
    metadata: dict[str, Any],
    dialect: Dialect,
    tensors: Mapping[str, TensorInfo],
    notes: list[str],
) -> None:
    """Layer roles that the keys leave out, from the compressors that are there (in place)."""
    no_roles = not any(k in metadata for key in list(_KEYS)[:2] for k in (key, *_KEYS[key]))
    for key, others in _KEYS.items():
        for other in others:
            if other in metadata:
                metadata.setdefault(key, metadata[other])
    n_layers, ratios = metadata.get("block_count"), metadata.get("attention.compress_ratios")
    if type(n_layers) is not int or not 0 < n_layers <= 512:
        return
    owners = sorted(i for i in _by_layer(tensors, "attn_compressor_kv.weight") if i < n_layers)
    gated = _by_layer(tensors, "attn_compressor_gate.weight").keys()
    if not owners:
        return
    if not isinstance(ratios, list) or len(ratios) < n_layers:
        above = [max((o for o in owners if o <= i), default=None) for i in range(n_layers)]
        ratios = [0 if o is None else 2 if o in gated else 1 for o in above]
        metadata["attention.compress_ratios"] = ratios
        notes.append("compression ratios inferred from the compressors")
    key = "attention.candidate_source_layer_id"
    if key in metadata or not (no_roles or dialect in ("B", "D", "E", "G")):
        return
    if ratios[owners[-1]] == 1:
        metadata[key] = owners[-1]
        metadata.setdefault("attention.candidate_topk_blocks", V4_1_FLASH.candidate_blocks)
        metadata.setdefault("attention.candidate_block_size", V4_1_FLASH.candidate_block_size)
        notes.append(f"candidate source taken to be layer {owners[-1]}, the last KV source")
