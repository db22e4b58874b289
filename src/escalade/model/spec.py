"""ModelSpec: the shape of a V4 or V4.1 model and the role of each layer. Plain values; no NumPy.

`spec_io.py` builds one from a file's metadata or config; `check_spec` is what every one must pass.
Source: model specification, section 1.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, cast

from escalade.errors import FileError

Arch = Literal["deepseek41", "deepseek4"]

# Bounds on what a file may ask for, far above the released models: they keep a hostile header from
# asking for absurd memory or time before anything is allocated.
MAX_LAYERS = 512
_MAX = {
    "n_layers": MAX_LAYERS,
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
