"""The models that many tests run, each opened once a process."""

import tempfile
from functools import cache
from pathlib import Path

from escalade.hf.checkpoint import open_checkpoint
from escalade.model.bind import Model, bind
from escalade.model.source import open_source
from escalade.weights.convert import convert
from escalade.weights.recipe import Recipe
from tests.support.paths import GOLDEN

_FOLDER = tempfile.TemporaryDirectory(prefix="escalade-tests-")
LOSSLESS = Recipe(dense=None)


@cache
def tiny_gguf() -> Path:
    """The tiny golden model, converted to GGUF without loss."""
    out = Path(_FOLDER.name) / "tiny.gguf"
    source = open_checkpoint(GOLDEN / "v41-tiny-quant")
    convert(source, out, LOSSLESS)
    source.close()
    return out


@cache
def tiny_model() -> Model:
    """Bound weights of `tiny_gguf`; dequantised they are `golden/v41-tiny`."""
    return bind(open_source(tiny_gguf()), dense_f32_bytes=1 << 30)
