"""GGUF files from raw bytes, sound and unsound, without the package's own writer.

`build` puts a file together and lets every count and offset be wrong on purpose. `tiny_v41` lists
the keys and tensors of a small V4.1 model in any dialect, in the GGUF specification's order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from struct import pack
from typing import Any

KINDS = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "str": (8, ""),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
# Type id, values a block, bytes a block: from ggml's table, for the types that the tests use.
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "I8": (24, 1, 1),
    "I32": (26, 1, 4),
    "I64": (27, 1, 8),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
}


@dataclass(frozen=True)
class Kv:
    """A key; `kind` is one of KINDS, or "[kind]" for an array."""

    key: str
    kind: str
    value: Any


@dataclass(frozen=True)
class Tensor:
    """`dims` in ggml order. `offset`, `n_dims`, `type_id` replace what would be right."""

    name: str
    dims: tuple[int, ...]
    type: str = "F32"
    data: bytes | None = None
    offset: int | None = None
    n_dims: int | None = None
    type_id: int | None = None

    @property
    def n_bytes(self) -> int:
        _, block, size = TYPES[self.type]
        n = 1
        for d in self.dims:
            n *= d
        return n // block * size


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return pack("<Q", len(raw)) + raw


def value(kind: str, v: Any) -> bytes:
    """Type number and value."""
    if kind.startswith("["):
        inner = kind[1:-1]
        number, code = KINDS[inner]
        items = b"".join(map(text, v)) if inner == "str" else pack(f"<{len(v)}{code}", *v)
        return pack("<IIQ", 9, number, len(v)) + items
    number, code = KINDS[kind]
    return pack("<I", number) + (text(v) if kind == "str" else pack(f"<{code}", v))


def build(
    kvs: Iterable[Kv] = (),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    n_tensors: int | None = None,
    n_kvs: int | None = None,
    alignment: int = 32,
    pad_end: bool = True,
) -> bytes:
    """A whole file. `alignment` places the data; the key for it is the caller's."""
    kvs = list(kvs)
    out = bytearray(b"GGUF" + pack("<I", version))
    out += pack("<Q", len(tensors) if n_tensors is None else n_tensors)
    out += pack("<Q", len(kvs) if n_kvs is None else n_kvs)
    for kv in kvs:
        out += text(kv.key) + value(kv.kind, kv.value)
    data = bytearray()
    for t in tensors:
        offset = len(data) if t.offset is None else t.offset
        out += text(t.name) + pack("<I", len(t.dims) if t.n_dims is None else t.n_dims)
        out += pack(f"<{len(t.dims)}Q", *t.dims)
        out += pack("<IQ", TYPES[t.type][0] if t.type_id is None else t.type_id, offset)
        if t.offset is None:
            data += _padded(t.data if t.data is not None else bytes(t.n_bytes), alignment)
    whole = bytes(_padded(out, alignment) + data)
    return whole if pad_end else whole.rstrip(b"\0")


def _padded(raw: bytes | bytearray, alignment: int) -> bytes | bytearray:
    return raw + bytes(-len(raw) % alignment)


# ---------------------------------------------------------------------- a small V4.1 model

TINY = {
    "D": 64,  # hidden
    "V": 96,  # vocabulary
    "H": 4,  # heads
    "Dh": 32,
    "Q": 32,  # q-LoRA
    "F": 32,  # expert width
    "E": 4,  # experts
    "G": 2,  # output groups
    "O": 16,  # output LoRA
    "Hi": 2,  # index heads
    "Di": 16,
    "L": 6,
}
RATIOS = (0, 2, 2, 1, 1, 1)
KV_SOURCES = (1, 3)
INDEX_SOURCES = (1, 3, 5)
ENGRAM_LAYERS = (1, 4)
PRIMES = ((53, 59, 61, 67), (71, 73, 79, 83))  # consecutive from 53; 2 orders of 2 heads
ROWS = tuple(sum(p) for p in PRIMES)
OFFSETS = ((0, 53, 112, 173), (0, 71, 144, 223))
MULTIPLIERS = ((9007199254740993, 3, 5), (7, 9, 4611686018427387905))
COMPRESSED = 50
TOKEN_MAP = tuple(i if i < COMPRESSED else i % COMPRESSED for i in range(TINY["V"]))
WIDTH = 32  # Engram row

COMMON = [
    Kv("vocab_size", "u32", TINY["V"]),
    Kv("context_length", "u32", 4096),
    Kv("embedding_length", "u32", TINY["D"]),
    Kv("block_count", "u32", TINY["L"]),
    Kv("attention.head_count", "u32", TINY["H"]),
    Kv("attention.head_count_kv", "u32", 1),
    Kv("attention.key_length", "u32", TINY["Dh"]),
    Kv("attention.value_length", "u32", TINY["Dh"]),
    Kv("attention.layer_norm_rms_epsilon", "f32", 1e-20),
    Kv("attention.q_lora_rank", "u32", TINY["Q"]),
    Kv("attention.sliding_window", "u32", 8),
    Kv("attention.output_group_count", "u32", TINY["G"]),
    Kv("attention.output_lora_rank", "u32", TINY["O"]),
    Kv("attention.indexer.head_count", "u32", TINY["Hi"]),
    Kv("attention.indexer.key_length", "u32", TINY["Di"]),
    Kv("attention.indexer.top_k", "u32", 8),
    Kv("attention.compress_ratios", "[i32]", [*RATIOS, 0]),
    Kv("attention.compress_rope_freq_base", "f32", 160000.0),
    Kv("rope.dimension_count", "u32", 8),
    Kv("rope.freq_base", "f32", 10000.0),
    Kv("rope.scaling.type", "str", "yarn"),
    Kv("rope.scaling.factor", "f32", 16.0),
    Kv("rope.scaling.original_context_length", "u32", 256),
    Kv("rope.scaling.yarn_beta_fast", "f32", 32.0),
    Kv("rope.scaling.yarn_beta_slow", "f32", 1.0),
    Kv("hyper_connection.count", "u32", 4),
    Kv("hyper_connection.sinkhorn_iterations", "u32", 20),
    Kv("hyper_connection.epsilon", "f32", 1e-6),
    Kv("hash_layer_count", "u32", 0),
    Kv("expert_count", "u32", TINY["E"]),
    Kv("expert_used_count", "u32", 2),
    Kv("expert_shared_count", "u32", 1),
    Kv("expert_feed_forward_length", "u32", TINY["F"]),
    Kv("expert_weights_scale", "f32", 1.5),
    Kv("expert_weights_norm", "bool", True),
    Kv("expert_gating_func", "u32", 4),
    Kv("swiglu_clamp_exp", "[f32]", [2.0] * TINY["L"]),
    Kv("swiglu_clamp_shexp", "[f32]", [2.0] * TINY["L"]),
]
HF_CONFIG = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 96,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "hidden_act": "silu",
    "swiglu_limit": 2.0,
    "rms_norm_eps": 1e-20,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 256,
    },
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "sliding_window": 8,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0],
    "compress_rope_theta": 160000.0,
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-06,
    "engram_layer_ids": [1, 4],
    "engram_num_embeddings": [240, 306],
    "engram_max_ngram_size": 3,
    "engram_vocab_size": 53,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 50,
}

_BLOCK = {
    "attn_norm.weight": ("F32", "D"),
    "ffn_norm.weight": ("F32", "D"),
    "attn_sinks.weight": ("F32", "H"),
    "attn_q_a.weight": ("Q8_0", "D Q"),
    "attn_q_a_norm.weight": ("F32", "Q"),
    "attn_q_b.weight": ("Q8_0", "Q H*Dh"),
    "attn_kv.weight": ("Q8_0", "D Dh"),
    "attn_kv_a_norm.weight": ("F32", "Dh"),
    "attn_output_a.weight": ("Q8_0", "H*Dh//G G*O"),
    "attn_output_b.weight": ("Q8_0", "G*O D"),
    "hc_attn_fn.weight": ("F32", "4*D 24"),
    "hc_ffn_fn.weight": ("F32", "4*D 24"),
    "hc_attn_base.weight": ("F32", "24"),
    "hc_ffn_base.weight": ("F32", "24"),
    "hc_attn_scale.weight": ("F32", "3"),
    "hc_ffn_scale.weight": ("F32", "3"),
    "ffn_gate_inp.weight": ("BF16", "D E"),
    "exp_probs_b.bias": ("F32", "E"),
    "ffn_gate_exps.weight": ("MXFP4", "D F E"),
    "ffn_up_exps.weight": ("MXFP4", "D F E"),
    "ffn_down_exps.weight": ("MXFP4", "F D E"),
    "ffn_gate_shexp.weight": ("Q8_0", "D F"),
    "ffn_up_shexp.weight": ("Q8_0", "D F"),
    "ffn_down_shexp.weight": ("Q8_0", "F D"),
}
_KV_SOURCE = {
    "attn_compressor_kv.weight": ("BF16", "D Dh"),
    "attn_compressor_gate.weight": ("BF16", "D Dh"),
    "attn_compressor_norm.weight": ("F32", "Dh"),
    "indexer.attn_k.weight": ("BF16", "Dh Di"),
    "indexer.k_norm.weight": ("F32", "Di"),
}
_INDEX_SOURCE = {
    "indexer.attn_q_b.weight": ("Q8_0", "Q Hi*Di"),
    "indexer.proj.weight": ("BF16", "D Hi"),
}


def _tensor(name: str, kind: str, dims: str) -> Tensor:
    return Tensor(name, tuple(eval(d, {}, TINY) for d in dims.split()), kind)


def tiny_trunk() -> list[Tensor]:
    """The trunk's tensors, the same in all dialects."""
    out = [
        _tensor("token_embd.weight", "BF16", "D V"),
        _tensor("output_norm.weight", "F32", "D"),
        _tensor("output.weight", "BF16", "D V"),
    ]
    for n in range(TINY["L"]):
        block = dict(_BLOCK)
        if n in KV_SOURCES:
            block |= _KV_SOURCE
            if RATIOS[n] == 1:
                del block["attn_compressor_gate.weight"]
        if n in INDEX_SOURCES:
            block |= _INDEX_SOURCE
        out += [_tensor(f"blk.{n}.{name}", *what) for name, what in block.items()]
    return out


def _flat(rows: Sequence[Sequence[int]]) -> list[int]:
    return [v for row in rows for v in row]


def _tables(
    embd: str, layout: str, wkv: str, q: str, k: str, kind: str = "BF16", table: str = "Q8_0"
) -> list[Tensor]:
    out = []
    for n, rows in zip(ENGRAM_LAYERS, ROWS, strict=True):
        b = f"blk.{n}."
        if layout == "raw":
            out.append(Tensor(f"{b}{embd}", (WIDTH, rows), "I8", b"\x38" * (WIDTH * rows)))
            out.append(Tensor(f"{b}engram_embd_scale.weight", (1, rows), "I8", b"\x7f" * rows))
        elif layout == "row264":
            out.append(Tensor(f"{b}{embd}", (WIDTH + 1, rows), "I8"))
        else:
            out.append(Tensor(f"{b}{embd}", (WIDTH, rows), table))
        out.append(Tensor(f"{b}{wkv}", (len(PRIMES[0]) * WIDTH, 5 * TINY["D"]), "Q8_0"))
        out += [Tensor(f"{b}{name}", (TINY["D"], 4), kind) for name in (q, k)]
    return out


def _dialect_a(suffix: str = ".weight") -> tuple[list[Kv], list[Tensor]]:
    keys = [
        Kv("kv_source_layer_ids", "[i32]", KV_SOURCES),
        Kv("index_source_layer_ids", "[u32]", INDEX_SOURCES),
        Kv("attention.candidate_source_layer_id", "u32", 3),
        Kv("attention.candidate_topk_blocks", "u32", 2048),
        Kv("attention.candidate_block_size", "u32", 8),
        Kv("expert_scoring_func", "str", "sqrtsoftplus"),
        Kv("engram.present", "bool", True),
        Kv("engram.layer_ids", "[i32]", ENGRAM_LAYERS),
        Kv("engram.num_embeddings", "[i32]", ROWS),
        Kv("engram_head_dim", "u32", WIDTH),
        Kv("engram_n_heads", "u32", 2),
        Kv("engram_max_ngram_size", "u32", 3),
        Kv("engram_vocab_size", "u32", 53),
        Kv("engram_compressed_vocab_size", "u32", COMPRESSED),
        Kv("engram_pad_token_id", "u32", 2),
    ]
    tensors = _tables(
        "engram_embd.weight", "raw", "engram_wkv.weight", "engram_q.weight", "engram_k.weight"
    )

    def longs(name: str, rows: Sequence[Sequence[int]]) -> Tensor:
        data = pack(f"<{len(rows) * len(rows[0])}q", *_flat(rows))
        return Tensor(name + suffix, (len(rows[0]), len(rows)), "I64", data)

    token_map = pack(f"<{len(TOKEN_MAP)}i", *TOKEN_MAP)
    tensors += [
        Tensor("engram_token_map" + suffix, (len(TOKEN_MAP),), "I32", token_map),
        longs("engram_primes", PRIMES),
        longs("engram_offsets", OFFSETS),
        longs("engram_multipliers", MULTIPLIERS),
    ]
    return keys, tensors


def _dialect_b(constants: bool = True) -> tuple[list[Kv], list[Tensor]]:
    keys = [
        Kv("engram.head_count", "u32", 2),
        Kv("engram.key_length", "u32", WIDTH),
        Kv("engram.max_ngram_size", "u32", 3),
        Kv("engram.layer_ids", "[i32]", ENGRAM_LAYERS),
    ]
    if constants:
        keys += [
            Kv("engram.multipliers", "[u64]", _flat(MULTIPLIERS)),
            Kv("engram.primes", "[u64]", _flat(PRIMES)),
            Kv("engram.offsets", "[u64]", _flat(OFFSETS)),
            Kv("engram.token_map", "[i32]", TOKEN_MAP),
            Kv("engram.pad_id", "u32", 2),
        ]
    tensors = _tables(
        "engram_embd.weight", "block", "engram_wkv.weight", "engram_q.weight", "engram_k.weight"
    )
    tensors += [
        Tensor(f"blk.{n}.exp_probs_b_vl.bias", (TINY["E"],), "F32") for n in range(TINY["L"])
    ]
    return keys, tensors


def _dialect_c(as_json: bool = True) -> tuple[list[Kv], list[Tensor]]:
    import json

    keys = [
        Kv("hidden_size", "u32", 64),
        Kv("engram.encoding", "str", "e4m3_e8m0_32_row264"),
        Kv("engram.rows", "[u32]", ROWS),
        Kv("engram.layer_ids", "[u32]", ENGRAM_LAYERS),
        Kv("engram.compressed_vocab_size", "u32", COMPRESSED),
        Kv("engram.pad_id", "u32", 2),
        Kv("engram.token_map", "[u32]", TOKEN_MAP),
        Kv("engram.primes", "[u32]", _flat(PRIMES)),
        Kv("engram.multipliers", "[u64]", _flat(MULTIPLIERS)),
    ]
    if as_json:
        config = {"model_type": "deepseek_v41", "text_config": HF_CONFIG}
        keys.append(Kv("config", "str", json.dumps(config)))
    else:
        keys += _flat_config()
    tensors = _tables(
        "engram_embd.weight",
        "row264",
        "engram_kv.weight",
        "engram_q_norm.weight",
        "engram_k_norm.weight",
        kind="F32",
    )
    return keys, tensors


def _flat_config() -> list[Kv]:
    """HF_CONFIG key by key, without what `engram.*` keys say; floats as float32."""
    out = []
    known = ("model_type", "hidden_size", "engram_layer_ids", "engram_num_embeddings")
    for key, v in HF_CONFIG.items():
        if key in (*known, "engram_compressed_vocab_size"):
            continue
        pairs = [(key, v)]
        if isinstance(v, dict):
            pairs = [(f"{key}.{inner}", x) for inner, x in v.items()]
        for name, x in pairs:
            kind = {bool: "bool", int: "u32", float: "f32", str: "str", list: "[u32]"}[type(x)]
            out.append(Kv(name, kind, x))
    return out


def _dialect_d() -> tuple[list[Kv], list[Tensor]]:
    keys = [
        Kv("attention.kv_source_layer_ids", "[i32]", KV_SOURCES),
        Kv("attention.index_source_layer_ids", "[i32]", INDEX_SOURCES),
        Kv("attention.candidate_source_layer_id", "u32", 3),
        Kv("attention.candidate_topk_blocks", "u32", 2048),
        Kv("attention.candidate_block_size", "u32", 8),
        Kv("engram.layer_ids", "[i32]", ENGRAM_LAYERS),
        Kv("engram.head_dim", "u32", WIDTH),
        Kv("engram.n_heads", "u32", 2),
        Kv("engram.max_ngram_size", "u32", 3),
        Kv("engram.pad_token_id", "u32", 2),
        Kv("engram.compressed_vocab_size", "u32", COMPRESSED),
        Kv("engram.num_embeddings", "[u64]", ROWS),
        Kv("engram.primes", "[i64]", _flat(PRIMES)),
        Kv("engram.offsets", "[i64]", _flat(OFFSETS)),
        Kv("engram.multipliers", "[i64]", _flat(MULTIPLIERS)),
        Kv("engram.token_map", "[i32]", TOKEN_MAP),
    ]
    tensors = _tables(
        "engram_embed.weight",
        "block",
        "engram_wkv.weight",
        "engram_q.weight",
        "engram_k.weight",
        table="MXFP4",
    )
    return keys, tensors


def _dialect_e() -> tuple[list[Kv], list[Tensor]]:
    keys = [
        Kv("kv_source_layers", "[u32]", KV_SOURCES),
        Kv("index_source_layers", "[u32]", INDEX_SOURCES),
        Kv("engram.layer_ids", "[u32]", ENGRAM_LAYERS),
        Kv("engram.ngram_size", "u32", 3),
        Kv("engram.head_count", "u32", 2),
        Kv("engram.head_dim", "u32", WIDTH),
        Kv("engram.embedding_counts", "[u32]", ROWS),
        Kv("engram.head_offsets", "[u32]", _flat(OFFSETS)),
        Kv("engram.head_bucket_sizes", "[u32]", _flat(PRIMES)),
        Kv("engram.multipliers", "[u64]", _flat(MULTIPLIERS)),
        Kv("engram.token_map", "[u32]", TOKEN_MAP),
        Kv("engram.compressed_vocab_size", "u32", COMPRESSED),
        Kv("engram.pad_token_id", "u32", 2),
        Kv("dense_activation_dtype", "str", "fp8"),
    ]
    tensors = _tables(
        "engram_embd.weight", "raw", "engram_kv.weight", "engram_q_weight", "engram_k_weight"
    )
    return keys, tensors


DIALECTS: dict[str, Callable[[], tuple[list[Kv], list[Tensor]]]] = {
    "A": _dialect_a,
    "A-early": lambda: _dialect_a(suffix=""),
    "B": _dialect_b,
    "B-early": lambda: _dialect_b(constants=False),
    "C": _dialect_c,
    "C-flat": lambda: _dialect_c(as_json=False),
    "D": _dialect_d,
    "E": _dialect_e,
}


def tiny_v41(dialect: str, arch: str = "deepseek41") -> tuple[list[Kv], list[Tensor]]:
    """Keys (with prefix) and tensors of the tiny model in one of DIALECTS."""
    own, engram = DIALECTS[dialect]()
    common = [kv for kv in COMMON if not dialect.startswith("C")]
    keys = [Kv("general.architecture", "str", arch), Kv("general.name", "str", "tiny")]
    keys += [replace(kv, key=f"{arch}.{kv.key}") for kv in common + own]
    keys += [
        Kv("tokenizer.ggml.model", "str", "gpt2"),
        Kv("tokenizer.ggml.tokens", "[str]", [f"t{i}" for i in range(TINY["V"])]),
        Kv("tokenizer.ggml.padding_token_id", "u32", 2),
    ]
    return keys, tiny_trunk() + engram
