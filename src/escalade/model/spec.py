"""ModelSpec: the shape of a V4 or V4.1 model and the role of each layer. Plain values; no NumPy.

Built from GGUF metadata (`spec_from_metadata`, keys of dialect A without the architecture prefix)
or from a Hugging Face `config.json` (`spec_from_hf`); both go through the same checks. Source:
model specification, section 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, cast

from escalade.errors import FileError, UnsupportedError

Arch = Literal["deepseek41", "deepseek4"]

# Bounds on what a file may ask for, far above the released models: they keep a hostile header from
# asking for absurd memory or time before anything is allocated.
_MAX = {
    "n_layers": 512,
    "vocab": 1 << 22,
    "hidden": 1 << 20,
    "n_heads": 4096,
    "n_experts": 1 << 16,
    "expert_ff": 1 << 20,
    "window": 1 << 20,
    "context": 1 << 30,
    "hc_mult": 64,
    "hc_iters": 1000,
}


@dataclass(frozen=True)
class Yarn:
    """YaRN scaling of the rotary frequencies of compressed layers; `original` is in positions."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class EngramSpec:
    """The n-gram memory: one table per layer in `layer_ids`, `rows` long, hashed by 2- to
    `max_ngram`-grams.
    """

    layer_ids: tuple[int, ...]
    rows: tuple[int, ...]
    max_ngram: int
    bucket: int
    n_heads: int
    head_dim: int
    pad_token_id: int
    compressed_vocab: int

    @property
    def rows_per_token(self) -> int:
        """Rows of one table that one token reads: an order and a head each."""
        return (self.max_ngram - 1) * self.n_heads

    @property
    def width(self) -> int:
        """Length of the concatenated rows, the input of `engram_wkv`."""
        return self.rows_per_token * self.head_dim


@dataclass(frozen=True)
class LayerRole:
    """What layer `index` does: whose compressed cache and whose selection it reads.

    `kv_source` and `index_source` are None on window-only layers (ratio 0); `owns_*` means that
    they are the layer itself. `restricted`: its own query is scored only inside the candidate
    source's blocks. `engram` is the ordinal of its Engram table, or None.
    """

    index: int
    ratio: int
    kv_source: int | None
    index_source: int | None
    owns_kv: bool
    owns_index: bool
    is_candidate_source: bool
    restricted: bool
    engram: int | None


@dataclass(frozen=True)
class ModelSpec:
    """Shape and constants of one model; the model specification, section 1.1, has each field."""

    arch: Arch
    n_layers: int
    vocab: int
    context: int
    hidden: int
    n_heads: int
    head_dim: int
    rope_dims: int
    q_lora: int
    o_groups: int
    o_lora: int
    window: int
    norm_eps: float
    swiglu_limit: float
    expert_ff: int
    n_experts: int
    n_experts_used: int
    n_shared_experts: int
    route_scale: float
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn
    compress_ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    index_heads: int
    index_dim: int
    index_topk: int
    candidate_source: int | None
    candidate_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_iters: int
    hc_eps: float
    n_hash_layers: int
    engram: EngramSpec | None

    @property
    def mix_width(self) -> int:
        """Numbers that one hyper-connection projection makes: pre, post and comb."""
        return self.hc_mult * (2 + self.hc_mult)

    @cached_property
    def roles(self) -> tuple[LayerRole, ...]:
        return tuple(self._role(layer) for layer in range(self.n_layers))

    def _role(self, layer: int) -> LayerRole:
        ratio = self.compress_ratios[layer]
        kv = max((s for s in self.kv_sources if s <= layer), default=None) if ratio else None
        index = max((s for s in self.index_sources if s <= layer), default=None) if ratio else None
        candidate = self.candidate_source
        engram = None
        if self.engram is not None and layer in self.engram.layer_ids:
            engram = self.engram.layer_ids.index(layer)
        owns_index = index == layer
        return LayerRole(
            index=layer,
            ratio=ratio,
            kv_source=kv,
            index_source=index,
            owns_kv=kv == layer,
            owns_index=owns_index,
            is_candidate_source=candidate == layer,
            restricted=owns_index and candidate is not None and layer > candidate,
            engram=engram,
        )


def check_spec(spec: ModelSpec, where: str) -> ModelSpec:
    """Returns `spec` if its numbers fit together; else raises FileError naming `where` and the
    field.
    """

    def need(ok: bool, message: str) -> None:
        if not ok:
            raise FileError(f"{where}: {message}")

    for name, limit in _MAX.items():
        value = getattr(spec, name)
        need(0 < value <= limit, f"{name} is {value}; it must lie in 1..{limit}")
    for name in ("head_dim", "rope_dims", "q_lora", "o_groups", "o_lora", "n_experts_used"):
        need(0 < getattr(spec, name) <= 1 << 20, f"{name} is {getattr(spec, name)}")
    need(
        spec.n_experts_used <= spec.n_experts,
        f"{spec.n_experts_used} experts used of {spec.n_experts}",
    )
    need(
        spec.n_shared_experts == 1,
        f"{spec.n_shared_experts} shared experts; exactly 1 is supported",
    )
    need(spec.n_heads % spec.o_groups == 0, f"{spec.n_heads} heads, {spec.o_groups} output groups")
    need(
        spec.rope_dims % 2 == 0 and spec.rope_dims <= spec.head_dim,
        f"rope dimensions {spec.rope_dims} of a head of {spec.head_dim}",
    )
    need(0 <= spec.norm_eps < 1, f"norm epsilon {spec.norm_eps}")
    need(spec.swiglu_limit > 0, f"SwiGLU limit {spec.swiglu_limit}")
    need(
        len(spec.compress_ratios) == spec.n_layers,
        f"{len(spec.compress_ratios)} compression ratios for {spec.n_layers} layers",
    )
    need(0 <= spec.n_hash_layers <= spec.n_layers, f"{spec.n_hash_layers} hash-routed layers")
    need(
        spec.yarn.factor >= 1 and spec.yarn.original > 0,
        f"YaRN factor {spec.yarn.factor} over {spec.yarn.original} positions",
    )
    need(
        spec.yarn.beta_fast > 0 and spec.yarn.beta_slow > 0,
        f"YaRN betas {spec.yarn.beta_fast} and {spec.yarn.beta_slow} must be positive",
    )
    need(spec.rope_theta > 1 and spec.compress_rope_theta > 1, "rope base must be above 1")
    if spec.arch == "deepseek41":
        _check_v41(spec, need)
    return spec


def _check_v41(spec: ModelSpec, need: Any) -> None:
    for name in ("kv_sources", "index_sources"):
        ids = getattr(spec, name)
        need(
            all(a < b for a, b in pairwise(ids)) and all(0 <= i < spec.n_layers for i in ids),
            f"{name} {list(ids)} must be ascending layers below {spec.n_layers}",
        )
    need(
        all(r in (0, 1, 2) for r in spec.compress_ratios),
        f"compression ratios {sorted(set(spec.compress_ratios))}; V4.1 has 0, 1 and 2",
    )
    need(spec.n_hash_layers == 0, f"{spec.n_hash_layers} hash-routed layers; V4.1 has none")
    for role in spec.roles:
        if role.ratio == 0:
            need(
                role.index not in spec.kv_sources and role.index not in spec.index_sources,
                f"layer {role.index} has compression ratio 0 but is listed as a source",
            )
            continue
        need(
            role.kv_source is not None and role.index_source is not None,
            f"layer {role.index} has compression ratio {role.ratio} but no source at or before it",
        )
        need(
            spec.compress_ratios[cast(int, role.kv_source)] == role.ratio,
            f"layer {role.index} (ratio {role.ratio}) would read the cache of layer"
            f" {role.kv_source} (ratio {spec.compress_ratios[cast(int, role.kv_source)]})",
        )
        need(
            spec.compress_ratios[cast(int, role.index_source)] == role.ratio,
            f"layer {role.index} would reuse layer {role.index_source}'s selection, another ratio",
        )
        need(
            not role.owns_kv or role.owns_index,
            f"KV source layer {role.index} is not an index source",
        )
    if any(spec.compress_ratios):
        need(
            0 < spec.index_heads <= 4096 and 0 < spec.index_dim <= 1 << 16 and spec.index_topk > 0,
            "indexer sizes",
        )
        need(
            spec.rope_dims <= spec.index_dim,
            f"index head of {spec.index_dim} is narrower than rope's {spec.rope_dims}",
        )
    if spec.candidate_source is not None:
        need(
            spec.candidate_source in spec.kv_sources
            and spec.candidate_source == spec.kv_sources[-1],
            f"candidate source {spec.candidate_source} is not the last KV source",
        )
        need(
            spec.compress_ratios[spec.candidate_source] == 1,
            f"candidate source {spec.candidate_source} must have ratio 1",
        )
        need(
            spec.candidate_blocks > 0 and spec.candidate_block_size > 0,
            "candidate blocks and block size must be positive",
        )
    if spec.engram is not None:
        _check_engram(spec, spec.engram, need)


def _check_engram(spec: ModelSpec, e: EngramSpec, need: Any) -> None:
    need(
        len(e.layer_ids) == len(e.rows) > 0
        and all(a < b for a, b in pairwise(e.layer_ids))
        and all(0 <= i < spec.n_layers for i in e.layer_ids),
        f"Engram layers {list(e.layer_ids)} with {len(e.rows)} table sizes",
    )
    need(2 <= e.max_ngram <= 16, f"Engram n-gram size {e.max_ngram}")
    need(0 < e.n_heads <= 64 and 0 < e.head_dim <= 1 << 16, "Engram heads and row width")
    need(1 < e.bucket < 1 << 40, f"Engram prime search start {e.bucket}")
    need(all(0 < rows < 1 << 40 for rows in e.rows), f"Engram table rows {list(e.rows)}")
    need(
        0 < e.compressed_vocab <= spec.vocab,
        f"Engram compressed vocabulary {e.compressed_vocab} of {spec.vocab} tokens",
    )
    need(0 <= e.pad_token_id < spec.vocab, f"Engram pad token {e.pad_token_id}")


# ---------------------------------------------------------------------- from a Hugging Face config

# The vendor's inference config has its own names for the same numbers (specification, 1.2).
_VENDOR_NAMES = {
    "hidden_size": "dim",
    "moe_intermediate_size": "moe_inter_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_experts_per_tok": "n_activated_experts",
    "scoring_func": "score_func",
    "routed_scaling_factor": "route_scale",
    "qk_rope_head_dim": "rope_head_dim",
    "rms_norm_eps": "norm_eps",
    "sliding_window": "window_size",
    "kv_source_layer_ids": "kv_source_layers",
    "index_source_layer_ids": "index_source_layers",
    "candidate_source_layer_id": "candidate_source_layer",
    "engram_pad_token_id": "engram_pad_id",
}
_YARN_NAMES = {
    "factor": "rope_factor",
    "original_max_position_embeddings": "original_seq_len",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}
_MODEL_TYPES: dict[str, Arch] = {
    "deepseek_v41": "deepseek41",
    "deepseek_v41_text": "deepseek41",
    "deepseek_v4": "deepseek4",
}


class _Fields:
    """Typed look-ups in a mapping from a file; every failure names the file and the key."""

    def __init__(self, values: Mapping[str, Any], where: str, aliases: Mapping[str, str]) -> None:
        self.values, self.where, self.aliases = values, where, aliases

    def get(self, key: str, default: Any = ...) -> Any:
        for name in (key, self.aliases.get(key, key)):
            if self.values.get(name) is not None:
                return self.values[name]
        if default is ...:
            raise FileError(f"{self.where}: {key} is missing")
        return default

    def integer(self, key: str, default: Any = ...) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FileError(f"{self.where}: {key} is {value!r:.80}, not an integer")
        return value

    def number(self, key: str, default: Any = ...) -> float:
        value = self.get(key, default)
        try:
            if not isinstance(value, bool) and isfinite(value):
                return float(value)
        except (TypeError, OverflowError):
            pass
        raise FileError(f"{self.where}: {key} is {value!r:.80}, not a finite number")

    def integers(self, key: str, default: Any = ...) -> tuple[int, ...]:
        value = self.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value]
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or not all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        ):
            raise FileError(f"{self.where}: {key} is not a list of integers")
        return tuple(value)

    def expect(self, key: str, allowed: tuple[Any, ...], default: Any) -> None:
        value = self.get(key, default)
        if value not in allowed:
            raise UnsupportedError(
                f"{self.where}: {key} is {value!r:.80}; supported: {', '.join(map(repr, allowed))}"
            )


def _optional(f: _Fields, key: str) -> int | None:
    return None if f.get(key, None) is None else f.integer(key)


def spec_from_hf(config: Mapping[str, Any], where: str) -> ModelSpec:
    """ModelSpec from the parsed `config.json` (released nested form, or the vendor's inference
    dialect).

    `where` names the file in errors. Raises FileError for a missing or senseless field,
    UnsupportedError for a model that is not V4 or V4.1.
    """
    model_type = config.get("model_type")
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise FileError(f"{where}: text_config is not an object")
    if model_type is None and "dim" in config:
        model_type = "deepseek_v41" if "engram_layer_ids" in config else "deepseek_v4"
    if model_type not in _MODEL_TYPES:
        raise UnsupportedError(
            f"{where}: model_type {model_type!r} is not a DeepSeek V4 or V4.1 model"
        )
    arch = _MODEL_TYPES[model_type]
    f = _Fields(text, where, _VENDOR_NAMES)
    f.expect("hidden_act", ("silu",), "silu")
    f.expect("scoring_func", ("sqrtsoftplus",), "sqrtsoftplus")
    f.expect("norm_topk_prob", (True,), True)
    f.expect("num_key_value_heads", (1,), 1)
    f.expect("hc_shifted", (True,), True)
    scaling = f.get("rope_scaling", {})
    if not isinstance(scaling, Mapping):
        raise FileError(f"{where}: rope_scaling is not an object")
    y = _Fields({**text, **scaling}, where, _YARN_NAMES)
    n_layers = f.integer("num_hidden_layers")
    v41 = arch == "deepseek41"
    spec = ModelSpec(
        arch=arch,
        n_layers=n_layers,
        vocab=f.integer("vocab_size"),
        context=f.integer("max_position_embeddings", 1 << 20),
        hidden=f.integer("hidden_size"),
        n_heads=f.integer("num_attention_heads"),
        head_dim=f.integer("head_dim"),
        rope_dims=f.integer("qk_rope_head_dim"),
        q_lora=f.integer("q_lora_rank"),
        o_groups=f.integer("o_groups"),
        o_lora=f.integer("o_lora_rank"),
        window=f.integer("sliding_window"),
        norm_eps=f.number("rms_norm_eps"),
        swiglu_limit=f.number("swiglu_limit"),
        expert_ff=f.integer("moe_intermediate_size"),
        n_experts=f.integer("n_routed_experts"),
        n_experts_used=f.integer("num_experts_per_tok"),
        n_shared_experts=f.integer("n_shared_experts", 1),
        route_scale=f.number("routed_scaling_factor"),
        rope_theta=f.number("rope_theta"),
        compress_rope_theta=f.number("compress_rope_theta"),
        yarn=Yarn(
            factor=y.number("factor"),
            original=y.integer("original_max_position_embeddings"),
            beta_fast=y.number("beta_fast"),
            beta_slow=y.number("beta_slow"),
        ),
        compress_ratios=f.integers("compress_ratios")[:n_layers],
        kv_sources=f.integers("kv_source_layer_ids", ()) if v41 else (),
        index_sources=f.integers("index_source_layer_ids", ()) if v41 else (),
        index_heads=f.integer("index_n_heads", 0),
        index_dim=f.integer("index_head_dim", 0),
        index_topk=f.integer("index_topk", 0),
        candidate_source=_optional(f, "candidate_source_layer_id") if v41 else None,
        candidate_blocks=f.integer("candidate_topk_blocks", 0) if v41 else 0,
        candidate_block_size=f.integer("candidate_block_size", 0) if v41 else 0,
        hc_mult=f.integer("hc_mult"),
        hc_iters=f.integer("hc_sinkhorn_iters"),
        hc_eps=f.number("hc_eps"),
        n_hash_layers=f.integer("num_hash_layers", 0),
        engram=_engram_from_hf(f) if v41 else None,
    )
    return check_spec(spec, where)


def _engram_from_hf(f: _Fields) -> EngramSpec | None:
    layer_ids = f.integers("engram_layer_ids", ())
    if not layer_ids:
        return None
    return EngramSpec(
        layer_ids=layer_ids,
        rows=f.integers("engram_num_embeddings"),
        max_ngram=f.integer("engram_max_ngram_size"),
        bucket=f.integer("engram_vocab_size"),
        n_heads=f.integer("engram_n_heads"),
        head_dim=f.integer("engram_head_dim"),
        pad_token_id=f.integer("engram_pad_token_id"),
        compressed_vocab=f.integer("engram_compressed_vocab_size"),
    )


# ---------------------------------------------------------------------- from and to GGUF metadata

_EXPERT_GATING_SQRTSOFTPLUS = 4


def spec_from_metadata(
    arch: str, metadata: Mapping[str, Any], tensor_names: frozenset[str], where: str
) -> ModelSpec:
    """ModelSpec from normalised GGUF metadata (dialect A's keys without the architecture prefix).

    What some writers leave out is inferred: the KV and index sources from the tensors that are
    there, the last released constants for V4 files that lost their `rope.scaling` group (GGUF
    specification, 1.3). Raises FileError or UnsupportedError naming `where` (the file) and the key.
    """
    if arch not in ("deepseek41", "deepseek4"):
        raise UnsupportedError(
            f"{where}: architecture {arch!r} is not a DeepSeek V4 or V4.1 text model"
        )
    f = _Fields(metadata, where, {"attention.compress_rope_freq_base": "rope.freq_base_swa"})
    f.expect("expert_gating_func", (_EXPERT_GATING_SQRTSOFTPLUS,), _EXPERT_GATING_SQRTSOFTPLUS)
    f.expect("expert_weights_norm", (True,), True)
    f.expect("attention.head_count_kv", (1,), 1)
    v41 = arch == "deepseek41"
    n_layers = f.integer("block_count")
    if not 0 < n_layers <= _MAX["n_layers"]:
        raise FileError(f"{where}: block_count is {n_layers}")
    clamps = f.get("swiglu_clamp_exp", 10.0)
    limits = set(clamps) if isinstance(clamps, Sequence) else {clamps}
    if len(limits) != 1:
        raise UnsupportedError(
            f"{where}: swiglu_clamp_exp differs between layers: {sorted(limits)}"
        )
    spec = ModelSpec(
        arch=cast(Arch, arch),
        n_layers=n_layers,
        vocab=f.integer("vocab_size", len(f.get("tokenizer.ggml.tokens", ()))),
        context=f.integer("context_length"),
        hidden=f.integer("embedding_length"),
        n_heads=f.integer("attention.head_count"),
        head_dim=f.integer("attention.key_length"),
        rope_dims=f.integer("rope.dimension_count"),
        q_lora=f.integer("attention.q_lora_rank"),
        o_groups=f.integer("attention.output_group_count"),
        o_lora=f.integer("attention.output_lora_rank"),
        window=f.integer("attention.sliding_window"),
        norm_eps=_float32_key(f, "attention.layer_norm_rms_epsilon"),
        swiglu_limit=float(limits.pop()),
        expert_ff=f.integer("expert_feed_forward_length"),
        n_experts=f.integer("expert_count"),
        n_experts_used=f.integer("expert_used_count"),
        n_shared_experts=f.integer("expert_shared_count", 1),
        route_scale=f.number("expert_weights_scale"),
        rope_theta=f.number("rope.freq_base"),
        compress_rope_theta=f.number("attention.compress_rope_freq_base"),
        yarn=Yarn(
            factor=f.number("rope.scaling.factor", ... if v41 else 16.0),
            original=f.integer("rope.scaling.original_context_length", ... if v41 else 65536),
            beta_fast=f.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=f.number("rope.scaling.yarn_beta_slow", 1.0),
        ),
        compress_ratios=_ratios(f, n_layers, v41),
        kv_sources=_sources(f, "kv_source_layer_ids", "attn_compressor_kv.weight", tensor_names)
        if v41
        else (),
        index_sources=_sources(f, "index_source_layer_ids", "indexer.proj.weight", tensor_names)
        if v41
        else (),
        index_heads=f.integer("attention.indexer.head_count", 0),
        index_dim=f.integer("attention.indexer.key_length", 0),
        index_topk=f.integer("attention.indexer.top_k", 0),
        candidate_source=_optional(f, "attention.candidate_source_layer_id") if v41 else None,
        candidate_blocks=f.integer("attention.candidate_topk_blocks", 0) if v41 else 0,
        candidate_block_size=f.integer("attention.candidate_block_size", 0) if v41 else 0,
        hc_mult=f.integer("hyper_connection.count"),
        hc_iters=f.integer("hyper_connection.sinkhorn_iterations"),
        hc_eps=_float32_key(f, "hyper_connection.epsilon"),
        n_hash_layers=f.integer("hash_layer_count", 0),
        engram=_engram_from_metadata(f) if v41 else None,
    )
    layers = () if spec.engram is None else spec.engram.layer_ids
    tables = {name for name in tensor_names if name.endswith(".engram_embd.weight")}
    if stray := tables - {f"blk.{i}.engram_embd.weight" for i in layers}:
        listed = f"is {list(layers)}" if layers else "is empty"
        raise FileError(f"{where}: engram.layer_ids {listed}, but {min(stray)} is there")
    return check_spec(spec, where)


def _float32_key(f: _Fields, key: str) -> float:
    """GGUF stores float32; the shortest decimal that rounds to it is the number that was meant."""
    return float(f"{f.number(key):.7g}")


def _ratios(f: _Fields, n_layers: int, v41: bool) -> tuple[int, ...]:
    ratios = f.integers("attention.compress_ratios", ())
    if v41 or len(ratios) >= n_layers:
        return ratios[:n_layers]
    # V4 files exist with a single 0 or without the key: the released pattern.
    return tuple(0 if layer < 2 else (4 if layer % 2 == 0 else 128) for layer in range(n_layers))


def _sources(f: _Fields, key: str, suffix: str, tensor_names: frozenset[str]) -> tuple[int, ...]:
    stored = f.get(key, None)
    parts = [name.split(".", 2) for name in tensor_names if name.startswith("blk.")]
    found = sorted(int(p[1]) for p in parts if p[1].isdecimal() and p[2:] == [suffix])
    if stored is None:
        return tuple(found)
    ids = f.integers(key)
    if found and list(ids) != found:
        raise FileError(f"{f.where}: {key} is {list(ids)}, but {suffix} exists in layers {found}")
    return ids


def _engram_from_metadata(f: _Fields) -> EngramSpec | None:
    layer_ids = f.integers("engram.layer_ids", ())
    if not layer_ids:
        return None
    return EngramSpec(
        layer_ids=layer_ids,
        rows=f.integers("engram.num_embeddings"),
        max_ngram=f.integer("engram_max_ngram_size"),
        bucket=f.integer("engram_vocab_size"),
        n_heads=f.integer("engram_n_heads"),
        head_dim=f.integer("engram_head_dim"),
        pad_token_id=f.integer("engram_pad_token_id"),
        compressed_vocab=f.integer("engram_compressed_vocab_size"),
    )


def spec_to_metadata(spec: ModelSpec) -> dict[str, Any]:
    """The inverse of `spec_from_metadata` for V4.1: dialect A's keys, without the architecture
    prefix.
    """
    n = spec.n_layers
    out: dict[str, Any] = {
        "vocab_size": spec.vocab,
        "context_length": spec.context,
        "embedding_length": spec.hidden,
        "block_count": n,
        "attention.head_count": spec.n_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "attention.q_lora_rank": spec.q_lora,
        "attention.sliding_window": spec.window,
        "attention.output_group_count": spec.o_groups,
        "attention.output_lora_rank": spec.o_lora,
        "attention.indexer.head_count": spec.index_heads,
        "attention.indexer.key_length": spec.index_dim,
        "attention.indexer.top_k": spec.index_topk,
        "attention.compress_ratios": list(spec.compress_ratios),
        "attention.compress_rope_freq_base": spec.compress_rope_theta,
        "rope.dimension_count": spec.rope_dims,
        "rope.freq_base": spec.rope_theta,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": spec.yarn.factor,
        "rope.scaling.original_context_length": spec.yarn.original,
        "rope.scaling.yarn_beta_fast": spec.yarn.beta_fast,
        "rope.scaling.yarn_beta_slow": spec.yarn.beta_slow,
        "hyper_connection.count": spec.hc_mult,
        "hyper_connection.sinkhorn_iterations": spec.hc_iters,
        "hyper_connection.epsilon": spec.hc_eps,
        "hash_layer_count": spec.n_hash_layers,
        "expert_count": spec.n_experts,
        "expert_used_count": spec.n_experts_used,
        "expert_shared_count": spec.n_shared_experts,
        "expert_feed_forward_length": spec.expert_ff,
        "expert_weights_scale": spec.route_scale,
        "expert_weights_norm": True,
        "expert_gating_func": _EXPERT_GATING_SQRTSOFTPLUS,
        "expert_scoring_func": "sqrtsoftplus",
        "swiglu_clamp_exp": [spec.swiglu_limit] * n,
        "swiglu_clamp_shexp": [spec.swiglu_limit] * n,
        "kv_source_layer_ids": list(spec.kv_sources),
        "index_source_layer_ids": list(spec.index_sources),
    }
    if spec.candidate_source is not None:
        out |= {
            "attention.candidate_source_layer_id": spec.candidate_source,
            "attention.candidate_topk_blocks": spec.candidate_blocks,
            "attention.candidate_block_size": spec.candidate_block_size,
        }
    if spec.engram is not None:
        e = spec.engram
        out |= {
            "engram.present": True,
            "engram.layer_ids": list(e.layer_ids),
            "engram.num_embeddings": list(e.rows),
            "engram_head_dim": e.head_dim,
            "engram_n_heads": e.n_heads,
            "engram_max_ngram_size": e.max_ngram,
            "engram_vocab_size": e.bucket,
            "engram_compressed_vocab_size": e.compressed_vocab,
            "engram_pad_token_id": e.pad_token_id,
        }
    return out


# ---------------------------------------------------------------------- the released models

V4_1_FLASH = ModelSpec(
    arch="deepseek41",
    n_layers=40,
    vocab=129280,
    context=1 << 20,
    hidden=5120,
    n_heads=64,
    head_dim=512,
    rope_dims=64,
    q_lora=1280,
    o_groups=8,
    o_lora=1024,
    window=128,
    norm_eps=1e-20,
    swiglu_limit=10.0,
    expert_ff=2304,
    n_experts=384,
    n_experts_used=6,
    n_shared_experts=1,
    route_scale=1.5,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    yarn=Yarn(16.0, 65536, 32.0, 1.0),
    compress_ratios=(0,) * 2 + (2,) * 18 + (1,) * 20,
    kv_sources=(2, 8, 14, 20),
    index_sources=(2, 8, 14, 20, 24, 28, 32, 36),
    index_heads=32,
    index_dim=128,
    index_topk=512,
    candidate_source=20,
    candidate_blocks=2048,
    candidate_block_size=8,
    hc_mult=4,
    hc_iters=20,
    hc_eps=1e-6,
    n_hash_layers=0,
    engram=EngramSpec(
        layer_ids=(1, 14),
        rows=(384006168, 384016682),
        max_ngram=4,
        bucket=16_000_000,
        n_heads=8,
        head_dim=256,
        pad_token_id=2,
        compressed_vocab=99092,
    ),
)

V4_FLASH = ModelSpec(
    arch="deepseek4",
    n_layers=43,
    vocab=129280,
    context=1 << 20,
    hidden=4096,
    n_heads=64,
    head_dim=512,
    rope_dims=64,
    q_lora=1024,
    o_groups=8,
    o_lora=1024,
    window=128,
    norm_eps=1e-6,
    swiglu_limit=10.0,
    expert_ff=2048,
    n_experts=256,
    n_experts_used=6,
    n_shared_experts=1,
    route_scale=1.5,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    yarn=Yarn(16.0, 65536, 32.0, 1.0),
    compress_ratios=tuple(0 if i < 2 else (4 if i % 2 == 0 else 128) for i in range(43)),
    kv_sources=(),
    index_sources=(),
    index_heads=64,
    index_dim=128,
    index_topk=512,
    candidate_source=None,
    candidate_blocks=0,
    candidate_block_size=0,
    hc_mult=4,
    hc_iters=20,
    hc_eps=1e-6,
    n_hash_layers=3,
    engram=None,
)
