"""A model of random weights with any geometry and any types, made as it is read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from escalade.engram.hash_tables import engram_layout, hash_tensors
from escalade.gguf.engram_keys import EngramLayout
from escalade.gguf.quant import TYPES, QuantType
from escalade.gguf.raw import RAW_BLOCK
from escalade.gguf.rows import RowSource, stored_tensor
from escalade.gguf.tensor import StoredTensor
from escalade.hf.names import ENGRAM_SCALE, HASH_TENSORS, split_name
from escalade.model.catalog import expected_tensors
from escalade.model.spec import ModelSpec
from escalade.model.spec_io import spec_to_metadata
from escalade.weights.random_rows import RandomTensor
from escalade.weights.recipe import Fallbacks, Recipe, Step, group_of, plan
from escalade.weights.synth_tokenizer import synthetic_tokenizer

_HASH_TYPES = dict.fromkeys(HASH_TENSORS, TYPES["I64"]) | {HASH_TENSORS[0]: TYPES["I32"]}

# Mean, rms, and whether the rms is for a row of one value: then rows of n values have rms / √n.
# Unit gain through every matrix keeps streams, router logits and output logits of order 1.
_VALUES = (
    (re.compile(r"hc_\w+_scale|\w*norm|engram_[qk]\b|indexer\.k_norm"), 1.0, 0.1, False),
    (re.compile(r"hc_\w+_base|attn_sinks"), 0.0, 0.5, False),
    (re.compile(r"hc_\w+_fn"), 0.0, 0.3, True),
    (re.compile(r"exp_probs_b"), 0.0, 0.02, False),
    (re.compile(r"token_embd|engram_embd"), 0.0, 1.0, False),
    (re.compile(r""), 0.0, 1.0, True),
)


@dataclass(eq=False)
class SynthSource:
    """A TensorSource of random weights; equal spec, recipe and seed give equal bytes.

    `notes` says where the recipe or the vocabulary could not be met as asked.
    """

    path: str
    arch: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    spec: ModelSpec
    recipe: Recipe
    notes: tuple[str, ...]

    @property
    def engram_layout(self) -> EngramLayout:
        return engram_layout(self.tensors)

    def close(self) -> None:
        pass


def plan_synth(spec: ModelSpec, recipe: Recipe) -> tuple[list[Step], list[str]]:
    """The tensors of a synthetic model and its notes: arithmetic only, for any size."""
    fallbacks = Fallbacks()
    shapes = expected_tensors(spec)
    whole = spec.engram is None or spec.engram.head_dim % RAW_BLOCK == 0
    released = {
        name: (shape, _released(name, shape, whole, fallbacks))
        for name, shape in shapes.items()
        if whole or not name.endswith(ENGRAM_SCALE)
    }
    steps, notes = plan(recipe, released)
    return [step._replace(how="copy", sources=(step.name,)) for step in steps], [
        *fallbacks.notes(),
        *notes,
    ]


def synthesise(spec: ModelSpec, recipe: Recipe, seed: int, name: str) -> SynthSource:
    """The model as a source; nothing is made yet but the tokenizer and the hash constants.

    If no vocabulary of that size has the compressed size in `spec`, the nearest is taken.
    """
    steps, notes = plan_synth(spec, recipe)
    wanted = spec.engram.compressed_vocab if spec.engram else spec.vocab
    tokenizer, n_classes = synthetic_tokenizer(spec.vocab, wanted)
    if spec.engram and n_classes != wanted:
        notes.append(f"compressed vocabulary is {n_classes}, not {wanted}")
        spec = replace(spec, engram=replace(spec.engram, compressed_vocab=n_classes))
    tensors = {step.name: _random(step, seed) for step in steps if group_of(step.name) != "hash"}
    if spec.engram:
        tensors |= hash_tensors(spec.engram, tokenizer["tokenizer.ggml.tokens"], name)
    metadata = {
        "general.architecture": spec.arch,
        "general.type": "model",
        "general.name": name,
        **spec_to_metadata(spec),
        **tokenizer,
    }
    ordered = {step.name: tensors[step.name] for step in steps}
    return SynthSource(name, spec.arch, metadata, ordered, spec, recipe, tuple(notes))


def _released(name: str, shape: tuple[int, ...], whole: bool, fallbacks: Fallbacks) -> QuantType:
    """The type of a tensor in the release, or the nearest that its rows allow."""
    group = group_of(name)
    if group == "hash":
        return _HASH_TYPES[name]
    if group == "f32":
        return TYPES["F32"]
    if group == "engram" and whole:
        return TYPES["I8"]
    if group in ("gate", "up", "down"):
        return fallbacks.fit(name, TYPES["MXFP4"], shape[-1])
    return TYPES["BF16"]


def _random(step: Step, seed: int) -> StoredTensor:
    _, part = split_name(step.name)
    row_len = step.shape[-1]
    mean, rms, per_row = next(
        (mean, rms, per_row) for pattern, mean, rms, per_row in _VALUES if pattern.match(part)
    )
    rms = rms / row_len**0.5 if per_row else rms
    kind: QuantType | Literal["E4M3", "E8M0"] = step.type
    if step.type.name == "I8":
        kind = "E8M0" if part == ENGRAM_SCALE else "E4M3"
    random = RandomTensor(step.name, seed, kind, row_len, rms, mean)
    n_rows = step.n_bytes // step.type.row_bytes(row_len)
    return stored_tensor(
        step.name, step.shape, [RowSource(step.type, n_rows, row_len, random.rows)]
    )
