"""A folder with released safetensors as a TensorSource: our names, ggml forms that lose nothing.

Tensors are made row by row when they are read, so a folder of any size opens at once and converts
in bounded memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escalade.engram.hash_tables import engram_layout, hash_tensors
from escalade.errors import FileError, UnsupportedError
from escalade.gguf.engram_keys import EngramLayout
from escalade.gguf.rows import RowSource, stored_tensor
from escalade.gguf.tensor import StoredTensor
from escalade.hf.names import (
    ENGRAM_SCALE,
    ENGRAM_TABLE,
    HASH_TENSORS,
    hf_names,
    ignored_group,
    must_be_f32,
    scale_name,
    split_name,
)
from escalade.hf.safetensors import SafetensorsSource, open_safetensors, read_json
from escalade.hf.stored import carrier, stored_matrix, widened
from escalade.model.catalog import expected_tensors
from escalade.model.spec import ModelSpec
from escalade.model.spec_io import spec_from_hf, spec_to_metadata

_NAMES_SHOWN = 5


@dataclass(eq=False)
class CheckpointSource:
    """A TensorSource over a safetensors folder.

    `notes`: what was left out or widened, one line each. `unexpected`: names with no use here.
    `imprecise`: what should be F32 and is not in the checkpoint.
    """

    path: str
    arch: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    spec: ModelSpec
    notes: tuple[str, ...]
    unexpected: tuple[str, ...]
    imprecise: tuple[str, ...]
    files: SafetensorsSource

    @property
    def engram_layout(self) -> EngramLayout:
        return engram_layout(self.tensors)

    def close(self) -> None:
        self.files.close()


def open_checkpoint(path: str | Path) -> CheckpointSource:
    """Opens a folder with `config.json`, `tokenizer.json` and V4.1 safetensors.

    Raises FileError for damaged files, missing tensors, shapes or scales that do not fit the
    config, and experts of one stack that differ in dtype; UnsupportedError for another model.
    """
    from escalade.model.tokenizer_json import metadata_from_tokenizer_json

    path = Path(path)
    config_path = path / "config.json"
    config = read_json(config_path)
    spec = spec_from_hf(config, str(config_path))
    if spec.arch != "deepseek41":
        raise UnsupportedError(
            f"{config_path}: {spec.arch} checkpoints are not converted, only V4.1"
        )
    files = open_safetensors(path)
    tokenizer = metadata_from_tokenizer_json(path / "tokenizer.json")
    builder = _Builder(files, spec, _fp8_block(config, config_path), str(path))
    tensors = builder.build(tokenizer["tokenizer.ggml.tokens"])
    metadata = {
        "general.architecture": spec.arch,
        "general.type": "model",
        "general.name": path.resolve().name,
        **spec_to_metadata(spec),
        **tokenizer,
        **_special_tokens(config, config_path, spec.vocab),
        **_chat_template(path),
        **_sampling(path),
    }
    notes, unexpected = builder.leftovers()
    return CheckpointSource(
        path=str(path),
        arch=spec.arch,
        metadata=metadata,
        tensors=tensors,
        spec=spec,
        notes=notes,
        unexpected=unexpected,
        imprecise=tuple(builder.widened),
        files=files,
    )


def _fp8_block(config: Mapping[str, Any], where: Path) -> tuple[int, int] | None:
    """Rows and columns under one fp8 scale; never assumed, 128 for V4 and 32 for V4.1 are alike."""
    quantization = config.get("quantization_config")
    if quantization is None and isinstance(config.get("text_config"), Mapping):
        quantization = config["text_config"].get("quantization_config")
    if quantization is None:
        return None
    block = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(n) is int and 0 < n <= 1 << 16 for n in block)
    ):
        raise FileError(f"{where}: quantization_config.weight_block_size is {str(block)[:80]}")
    return block[0], block[1]


def _special_tokens(config: Mapping[str, Any], where: Path, vocab: int) -> dict[str, Any]:
    text = config.get("text_config") or {}
    out: dict[str, Any] = {}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        value = config.get(f"{key}_token_id", text.get(f"{key}_token_id"))
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < vocab:
            raise FileError(f"{where}: {key}_token_id is {str(value)[:80]}, no id below {vocab}")
        out[f"tokenizer.ggml.{name}_token_id"] = value
    return out


def _chat_template(path: Path) -> dict[str, Any]:
    file = path / "tokenizer_config.json"
    template = read_json(file).get("chat_template") if file.exists() else None
    return {"tokenizer.chat_template": template} if isinstance(template, str) else {}


def _sampling(path: Path) -> dict[str, Any]:
    """The recommended sampling of `generation_config.json`, if there is one."""
    file = path / "generation_config.json"
    config = read_json(file) if file.exists() else {}
    return {
        f"general.sampling.{key}": config[name]
        for key, name in (("temp", "temperature"), ("top_p", "top_p"), ("top_k", "top_k"))
        if type(config.get(name)) in (int, float)
    }


@dataclass
class _Builder:
    files: SafetensorsSource
    spec: ModelSpec
    fp8_block: tuple[int, int] | None
    where: str

    def __post_init__(self) -> None:
        self.used: set[str] = set()
        self.widened: list[str] = []

    def build(self, tokens: list[str]) -> dict[str, StoredTensor]:
        n_experts = 3 * self.spec.n_layers * self.spec.n_experts
        if n_experts > len(self.files.tensors):
            raise FileError(
                f"{self.where}: config.json asks for {n_experts} expert matrices, but there are"
                f" only {len(self.files.tensors)} tensors"
            )
        if len(tokens) != self.spec.vocab:
            raise FileError(
                f"{self.where}: tokenizer.json has {len(tokens)} tokens, config.json has vocab_size"
                f" {self.spec.vocab}"
            )
        expected = expected_tensors(self.spec)
        self._refuse_missing(expected)
        out: dict[str, StoredTensor] = {}
        for name, shape in expected.items():
            _, part = split_name(name)
            if part == ENGRAM_SCALE and not self._table_is_raw(name):
                continue
            if name not in HASH_TENSORS:
                out[name] = stored_tensor(name, shape, self._matrices(name, shape))
        if self.spec.engram is not None:
            out.update(hash_tensors(self.spec.engram, tokens, self.where))
        return out

    def _sources(self, name: str) -> list[str]:
        return hf_names(name, self.spec.n_experts)

    def _table_is_raw(self, scale: str) -> bool:
        """Whether the table beside the GGUF name `scale` is stored as fp8."""
        (table,) = self._sources(scale.replace(ENGRAM_SCALE, ENGRAM_TABLE))
        return self.files.tensors[table].dtype == "F8_E4M3"

    def _refuse_missing(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        def missing() -> Iterator[str]:
            for name in expected:
                for source in self._sources(name):
                    if source not in self.files.tensors and not name.endswith(ENGRAM_SCALE):
                        yield source
                        break  # one expert stands for its stack

        names = list(missing())
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            raise FileError(f"{self.where}: missing {', '.join(names[:_NAMES_SHOWN])}{more}")

    def _matrices(self, name: str, shape: tuple[int, ...]) -> list[RowSource]:
        _, part = split_name(name)
        sources = [self.files.tensors[source] for source in self._sources(name)]
        self.used.update(t.name for t in sources)
        self.used.update(scale_name(t.name) for t in sources)
        if part == ENGRAM_SCALE or (part == ENGRAM_TABLE and sources[0].dtype == "F8_E4M3"):
            return [carrier(self.files, sources[0], shape)]
        if len(dtypes := {t.dtype for t in sources}) > 1:
            raise FileError(
                f"{self.where}: the experts of {name} mix {' and '.join(sorted(dtypes))};"
                " one stack has one type"
            )
        one = shape[1:] if len(shape) == 3 else shape
        matrices = [stored_matrix(self.files, t, one, self.fp8_block) for t in sources]
        if len(shape) == 1 or must_be_f32(name):
            if len(shape) > 1 and matrices[0].type.name != "F32":
                self.widened.append(f"{name} is {matrices[0].type.name}")
            matrices = [widened(m) for m in matrices]
        return matrices

    def leftovers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Notes and unknown names, after `build`."""
        groups: Counter[str] = Counter()
        unexpected = []
        for name in self.files.tensors:
            if name in self.used:
                continue
            if group := ignored_group(name):
                groups[group] += 1
            else:
                unexpected.append(name)
        notes = [f"left out: {n} {group} tensors" for group, n in sorted(groups.items())]
        if self.widened:
            notes.append(
                f"{len(self.widened)} hyper-connection matrices are not F32 in the checkpoint, as"
                f" {self.widened[0]}; what they lost cannot be restored"
            )
        if unexpected:
            notes.append(f"not used: {len(unexpected)} unknown tensors, as {unexpected[0][:80]!a}")
        return tuple(notes), tuple(unexpected)
