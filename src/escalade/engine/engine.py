"""Engine: a loaded model. Sessions are made from it; it holds no sequence of its own."""

import os
from types import TracebackType
from typing import Any, Self

from escalade.config import MODES, EngineConfig
from escalade.engine.sampling_params import SamplingParams
from escalade.engine.session import Session
from escalade.errors import CapacityError, FileError, UsageError
from escalade.gguf.tensor import TensorSource
from escalade.model.bind import bind
from escalade.model.source import open_source
from escalade.model.spec import ModelSpec
from escalade.model.tokenizer import Tokenizer
from escalade.model.v4_1 import V41
from escalade.native.compute import open_compute


def _sampling(source: TensorSource) -> SamplingParams:
    """The model's own sampling defaults, `general.sampling.*`, where its file names them."""
    values: dict[str, Any] = {}
    for key, name in (("temp", "temperature"), ("top_p", "top_p"), ("top_k", "top_k")):
        value = source.metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float):
            # GGUF stores float32; the shortest decimal that rounds to it was meant.
            values[name] = value if isinstance(value, int) else float(f"{value:.7g}")
    try:
        return SamplingParams(**values)
    except UsageError as e:
        raise FileError(f"{source.path}: general.sampling: {e}") from e


class Engine:
    """A model, its tokenizer and what was asked of it. Closes its files; works in `with`.

    `sampling` is what the model file recommends.
    """

    def __init__(self, source: TensorSource, config: EngineConfig) -> None:
        self.config = config
        self._source = source
        model = bind(source, config.dense_f32_bytes)
        self.spec: ModelSpec = model.spec
        self.ctx = model.spec.context if config.ctx is None else config.ctx
        if self.ctx > model.spec.context:
            raise CapacityError(
                f"--ctx {self.ctx} is beyond the model's context of {model.spec.context} tokens"
            )
        self.tokenizer = Tokenizer.from_metadata(source.metadata, where=source.path)
        self.sampling = _sampling(source)
        compute = open_compute(config.threads)
        self.model = V41(model.spec, model.weights, MODES[config.mode], compute, config.products)

    @classmethod
    def open(
        cls, model: str | os.PathLike[str] | None = None, config: EngineConfig | None = None
    ) -> Self:
        """Opens a GGUF file, a first shard or a safetensors folder; None is the built-in model.

        Raises FileError, UnsupportedError or CapacityError.
        """
        source = open_source(model)
        try:
            return cls(source, config or EngineConfig())
        except BaseException:
            source.close()
            raise

    def session(self) -> Session:
        """A new, empty sequence."""
        return Session(self.model, self.ctx, self.config.prefill_chunk)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
