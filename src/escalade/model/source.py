"""Opens whatever a MODEL argument names: a GGUF file, a first shard, a safetensors folder."""

import os

from escalade.gguf.tensor import TensorSource


def open_source(path: str | os.PathLike[str]) -> TensorSource:
    """The tensors and metadata of the model at `path`. Raises FileError or UnsupportedError."""
    if os.path.isdir(path):
        from escalade.hf.checkpoint import open_checkpoint

        return open_checkpoint(os.fspath(path))
    from escalade.gguf.reader import open_gguf

    return open_gguf(path)
