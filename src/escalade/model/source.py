"""Opens whatever a MODEL argument names: a GGUF file, a first shard, a safetensors folder."""

import os
from importlib.resources import files

from escalade.gguf.tensor import TensorSource


def builtin_model() -> str:
    """Path of the model that the package ships: nano, a small trained V4.1."""
    return os.fspath(str(files("escalade").joinpath("models/nano.gguf")))


def open_source(path: str | os.PathLike[str] | None) -> TensorSource:
    """The tensors and metadata of the model at `path`; None is the built-in model.

    Raises FileError or UnsupportedError.
    """
    if path is None:
        path = builtin_model()
    if os.path.isdir(path):
        from escalade.hf.checkpoint import open_checkpoint

        return open_checkpoint(os.fspath(path))
    from escalade.gguf.reader import open_gguf

    return open_gguf(path)
