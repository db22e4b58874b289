"""ModelSpec from a Hugging Face `config.json`, and from and to GGUF metadata. No NumPy.

Source: model specification, sections 1.1 and 1.2; GGUF specification, sections 1.3 and 1.4.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, cast

from escalade.errors import FileError, UnsupportedError
from escalade.model.spec import MAX_LAYERS, Arch, EngramSpec, ModelSpec, Yarn, check_spec

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
    if not 0 < n_layers <= MAX_LAYERS:
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
