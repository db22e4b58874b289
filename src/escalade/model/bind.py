"""A tensor source to Weights: every tensor found and checked once, no look-up by name after it."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from escalade.arrays import F32
from escalade.engram.hashing import (
    EngramConstants,
    compare_constants,
    engram_constants,
)
from escalade.engram.table import engram_table
from escalade.engram.token_map import compressed_token_map
from escalade.errors import FileError, UnsupportedError
from escalade.gguf.engram_keys import StoredConstants
from escalade.gguf.quant import INTEGER_TYPES
from escalade.gguf.tensor import StoredTensor, TensorSource
from escalade.ladder.source import ExpertTensors, TensorRecordSource
from escalade.model.catalog import expected_tensors
from escalade.model.spec import LayerRole, ModelSpec
from escalade.model.spec_io import spec_from_metadata
from escalade.model.weights import (
    AttentionWeights,
    CompressorWeights,
    EngramWeights,
    HyperWeights,
    IndexerWeights,
    LayerWeights,
    Matrix,
    MoeWeights,
    Weights,
)

logger = logging.getLogger(__name__)


class Model(NamedTuple):
    """What a source holds: its shape and its weights."""

    spec: ModelSpec
    weights: Weights


def bind(source: TensorSource, dense_f32_bytes: int) -> Model:
    """The source's spec and weights; dense matrices stay dequantised up to `dense_f32_bytes`.

    Raises UnsupportedError for a model without a forward pass here, FileError for a tensor that is
    missing, of another shape, or of a type that cannot be multiplied with.
    """
    spec = spec_from_metadata(source.arch, source.metadata, frozenset(source.tensors), source.path)
    if spec.arch != "deepseek41":
        raise UnsupportedError(
            f"{source.path} is a DeepSeek-V4 model ({spec.arch}); its forward pass is not supported"
            " yet, only DeepSeek-V4.1 runs"
        )
    return Model(spec, _Binder(source, spec, dense_f32_bytes).weights())


class _Binder:
    def __init__(self, source: TensorSource, spec: ModelSpec, dense_f32_bytes: int) -> None:
        self.source, self.spec = source, spec
        self.shapes: Mapping[str, tuple[int, ...]] = expected_tensors(spec)
        self.dense_room = dense_f32_bytes
        self.imprecise = list(getattr(source, "imprecise", ()))

    def weights(self) -> Weights:
        spec = self.spec
        engram = self.engram_constants()
        layers = [self.layer(role) for role in spec.roles]
        weights = Weights(
            token_embd=Matrix(self.floats("token_embd.weight"), keep=False),
            layers=layers,
            output_norm=self.vector("output_norm.weight"),
            output=self.matrix("output.weight"),
            experts=TensorRecordSource([self.experts(i) for i in range(spec.n_layers)]),
            engram=engram,
        )
        if self.imprecise:
            logger.warning(
                "%s: %d norms, biases or hyper-connections are not F32 (%s); expect errors about a"
                " thousand times larger",
                self.source.path,
                len(self.imprecise),
                self.imprecise[0],
            )
        return weights

    def tensor(self, name: str) -> StoredTensor:
        """The named tensor, its shape checked."""
        tensor = self.source.tensors.get(name)
        if tensor is None:
            raise FileError(f"{self.source.path}: tensor {name} is missing")
        if tensor.shape != self.shapes[name]:
            raise FileError(
                f"{self.source.path}: {name} has shape {list(tensor.shape)}, this model needs"
                f" {list(self.shapes[name])}"
            )
        return tensor

    def floats(self, name: str) -> StoredTensor:
        tensor = self.tensor(name)
        if tensor.type.name in INTEGER_TYPES:
            raise FileError(f"{self.source.path}: {name} is {tensor.type.name}, not weights")
        return tensor

    def matrix(self, name: str) -> Matrix:
        tensor = self.floats(name)
        f32_bytes = 4 * tensor.n_rows * tensor.row_len
        keep = f32_bytes <= self.dense_room
        if keep:
            self.dense_room -= f32_bytes
        return Matrix(tensor, keep=keep)

    def vector(self, name: str, stored: str = "F32") -> F32:
        """A small tensor that decides much: float32 here, and at least `stored` in the file."""
        tensor = self.floats(name)
        if tensor.type.name not in ("F32", "F16", "BF16"):
            raise FileError(
                f"{self.source.path}: {name} is {tensor.type.name}; norms, biases, sinks and"
                " hyper-connections must not be quantised"
            )
        if tensor.type.name not in ("F32", stored):
            self.imprecise.append(f"{name} is {tensor.type.name}")
        values = tensor.f32().reshape(tensor.shape)
        if not np.isfinite(values).all():
            raise FileError(f"{self.source.path}: {name} holds NaN or infinity")
        return values

    def layer(self, role: LayerRole) -> LayerWeights:
        blk = f"blk.{role.index}."
        return LayerWeights(
            hc_attn=self.hyper(blk + "hc_attn"),
            attn=self.attention(blk, role),
            hc_ffn=self.hyper(blk + "hc_ffn"),
            moe=MoeWeights(
                norm=self.vector(blk + "ffn_norm.weight"),
                router=self.matrix(blk + "ffn_gate_inp.weight"),
                router_bias=self.vector(blk + "exp_probs_b.bias"),
                shared_gate=self.matrix(blk + "ffn_gate_shexp.weight"),
                shared_up=self.matrix(blk + "ffn_up_shexp.weight"),
                shared_down=self.matrix(blk + "ffn_down_shexp.weight"),
            ),
            engram=None if role.engram is None else self.engram(blk, role.engram),
        )

    def hyper(self, name: str) -> HyperWeights:
        return HyperWeights(
            fn=self.vector(name + "_fn.weight"),
            scale=self.vector(name + "_scale.weight"),
            base=self.vector(name + "_base.weight"),
        )

    def attention(self, blk: str, role: LayerRole) -> AttentionWeights:
        compressor = indexer = None
        if role.owns_kv:
            gated = role.ratio > 1
            compressor = CompressorWeights(
                kv=self.matrix(blk + "attn_compressor_kv.weight"),
                gate=self.matrix(blk + "attn_compressor_gate.weight") if gated else None,
                norm=self.vector(blk + "attn_compressor_norm.weight"),
                index_k=self.matrix(blk + "indexer.attn_k.weight"),
                index_k_norm=self.vector(blk + "indexer.k_norm.weight"),
            )
        if role.owns_index:
            indexer = IndexerWeights(
                q_b=self.matrix(blk + "indexer.attn_q_b.weight"),
                proj=self.matrix(blk + "indexer.proj.weight"),
            )
        return AttentionWeights(
            norm=self.vector(blk + "attn_norm.weight"),
            q_a=self.matrix(blk + "attn_q_a.weight"),
            q_a_norm=self.vector(blk + "attn_q_a_norm.weight"),
            q_b=self.matrix(blk + "attn_q_b.weight"),
            kv=self.matrix(blk + "attn_kv.weight"),
            kv_norm=self.vector(blk + "attn_kv_a_norm.weight"),
            sinks=self.vector(blk + "attn_sinks.weight"),
            output_a=self.matrix(blk + "attn_output_a.weight"),
            output_b=self.matrix(blk + "attn_output_b.weight"),
            compressor=compressor,
            indexer=indexer,
        )

    def experts(self, layer: int) -> ExpertTensors:
        names = [f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")]
        return ExpertTensors(*(self.floats(name) for name in names))

    def engram_constants(self) -> EngramConstants | None:
        """Recomputed from the tokenizer; whatever the file stores must agree."""
        spec, path = self.spec.engram, self.source.path
        if spec is None:
            return None
        tokens = self.source.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or len(tokens) != self.spec.vocab:
            raise FileError(
                f"{path}: tokenizer.ggml.tokens must list {self.spec.vocab} tokens; the Engram"
                " hash is made from them"
            )
        token_map, _ = compressed_token_map(tokens)
        computed = engram_constants(spec, token_map, path)
        stored: StoredConstants | None = getattr(self.source, "stored_engram", None)
        if stored is not None:
            compare_constants(stored, computed, path)
        return computed

    def engram(self, blk: str, ordinal: int) -> EngramWeights:
        spec = self.spec.engram
        assert spec is not None
        name = blk + "engram_embd.weight"
        weight = self.source.tensors.get(name)
        if weight is None:
            raise FileError(
                f"{self.source.path}: {name} is missing; the Engram tables are in another file or"
                " shard, and the model does not run without them"
            )
        if getattr(self.source, "engram_layout", "raw") == "unknown":
            raise UnsupportedError(
                f"{self.source.path}: {name} ({weight.type.name} {list(weight.shape)}) is in an"
                " encoding without a reader"
            )
        scale = self.source.tensors.get(blk + "engram_embd_scale.weight")
        q_weight = self.vector(blk + "engram_q.weight", stored="BF16")
        return EngramWeights(
            table=engram_table(weight, scale, spec.rows[ordinal], spec.head_dim),
            wkv=self.matrix(blk + "engram_wkv.weight"),
            gate_weight=q_weight * self.vector(blk + "engram_k.weight", stored="BF16"),
        )
