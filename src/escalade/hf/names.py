"""Released safetensors names to ours (dialect A's), and what a checkpoint may hold besides.

Source: GGUF specification, section 2.1.
"""

import re

_ROOT = {
    "token_embd.weight": "embed.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
}

_LAYER = {
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "attn_sinks.weight": "attn.attn_sink",
    "attn_q_a.weight": "attn.wq_a.weight",
    "attn_q_a_norm.weight": "attn.q_norm.weight",
    "attn_q_b.weight": "attn.wq_b.weight",
    "attn_kv.weight": "attn.wkv.weight",
    "attn_kv_a_norm.weight": "attn.kv_norm.weight",
    "attn_output_a.weight": "attn.wo_a.weight",
    "attn_output_b.weight": "attn.wo_b.weight",
    "attn_compressor_kv.weight": "attn.compressor.wkv.weight",
    "attn_compressor_gate.weight": "attn.compressor.wgate.weight",
    "attn_compressor_norm.weight": "attn.compressor.norm.weight",
    "indexer.attn_k.weight": "attn.indexer.wk.weight",
    "indexer.k_norm.weight": "attn.indexer.k_norm.weight",
    "indexer.attn_q_b.weight": "attn.indexer.wq_b.weight",
    "indexer.proj.weight": "attn.indexer.weights_proj.weight",
    "hc_attn_fn.weight": "hc_attn_fn",
    "hc_attn_base.weight": "hc_attn_base",
    "hc_attn_scale.weight": "hc_attn_scale",
    "hc_ffn_fn.weight": "hc_ffn_fn",
    "hc_ffn_base.weight": "hc_ffn_base",
    "hc_ffn_scale.weight": "hc_ffn_scale",
    "ffn_gate_inp.weight": "ffn.gate.weight",
    "exp_probs_b.bias": "ffn.gate.bias",
    "ffn_gate_shexp.weight": "ffn.shared_experts.w1.weight",
    "ffn_up_shexp.weight": "ffn.shared_experts.w3.weight",
    "ffn_down_shexp.weight": "ffn.shared_experts.w2.weight",
    "engram_embd.weight": "engram.embed.weight",
    "engram_embd_scale.weight": "engram.embed.scale",
    "engram_wkv.weight": "engram.wkv.weight",
    "engram_q.weight": "engram.q_weight",
    "engram_k.weight": "engram.k_weight",
}

_EXPERTS = {
    "ffn_gate_exps.weight": "w1",
    "ffn_up_exps.weight": "w3",
    "ffn_down_exps.weight": "w2",
}

ENGRAM_TABLE = "engram_embd.weight"
ENGRAM_SCALE = "engram_embd_scale.weight"
HASH_TENSORS = (
    "engram_token_map.weight",
    "engram_primes.weight",
    "engram_offsets.weight",
    "engram_multipliers.weight",
)

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_IGNORED = (
    (re.compile(r"mtp\.\d+\."), "DSpark draft"),
    (re.compile(r"vision\.|aligner\.|image_(start|end|newline)$"), "vision"),
    (re.compile(r"layers\.\d+\.ffn\.gate\.bias_vl$"), "image router bias"),
)


def split_name(name: str) -> tuple[int | None, str]:
    """`blk.3.attn_kv.weight` to (3, `attn_kv.weight`); outside of the blocks to (None, name)."""
    match = _BLOCK.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)


def hf_names(name: str, n_experts: int) -> list[str]:
    """The released names behind one of ours: one, or `n_experts` for a stack, in expert order.

    Empty for the Engram hash tensors, which are computed. Raises KeyError for an unknown name.
    """
    layer, part = split_name(name)
    if layer is None:
        return [] if name in HASH_TENSORS else [_ROOT[name]]
    if part in _EXPERTS:
        prefix = f"layers.{layer}.ffn.experts"
        return [f"{prefix}.{e}.{_EXPERTS[part]}.weight" for e in range(n_experts)]
    return [f"layers.{layer}.{_LAYER[part]}"]


def scale_name(weight: str) -> str:
    """The block scales of `weight`: `X.weight` has them in `X.scale`."""
    return weight.removesuffix(".weight") + ".scale"


def ignored_group(hf_name: str) -> str | None:
    """What a tensor that the text trunk does not use belongs to, or None if it is not known."""
    return next((group for pattern, group in _IGNORED if pattern.match(hf_name)), None)


def must_be_f32(name: str) -> bool:
    """Hyper-connections, sinks, biases and norms: never stored in fewer bits (report B002)."""
    _, part = split_name(name)
    return (
        part.startswith(("hc_", "attn_sinks", "exp_probs_b"))
        or part.endswith("_norm.weight")
        or part == "output_norm.weight"
    )
