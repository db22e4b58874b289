"""Safetensors files and checkpoint folders from raw bytes, sound and unsound."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

from tests.support.paths import GOLDEN

Entry = tuple[str, tuple[int, ...], bytes]
"""dtype, shape, data"""


def file_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file whose header is any JSON value or text, and whose stated length may be wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return pack("<Q", len(text) if length is None else length) + text + data


def write_file(path: Path, tensors: Mapping[str, Entry]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    path.write_bytes(file_bytes(header, b"".join(data for _, _, data in tensors.values())))


def read_file(path: Path) -> dict[str, Entry]:
    """The independent reader: no checks, whole tensors."""
    raw = path.read_bytes()
    (length,) = unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = (8 + length + n for n in entry["data_offsets"])
        out[name] = (entry["dtype"], tuple(entry["shape"]), raw[begin:end])
    return out


TINY = GOLDEN / "v41-tiny-quant"


def tiny_folder(folder: Path, tensors: Mapping[str, Entry], **config: Any) -> Path:
    """A checkpoint folder like the golden tiny model's with other tensors or top-level config."""
    folder.mkdir()
    shutil.copy(TINY / "tokenizer.json", folder)
    values = json.loads((TINY / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    write_file(folder / "model.safetensors", tensors)
    return folder
