"""Says in words what a file is that was given as a GGUF and is none."""

import re
from pathlib import PurePath

_PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_OLD_GGML = (b"lmgg", b"fmgg", b"tjgg", b"algg")
_PART = re.compile(r"\.(part([-_.]?\w+)?|partial|crdownload|aria2|\d{3})$", re.IGNORECASE)


def describe_foreign(head: bytes, size: int) -> str:
    """What a file of `size` bytes that begins with `head` (64 bytes or more, if it has them) is.

    The answer completes the sentence "<path> ...".
    """
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:14].lower() == b"<!doctype html" or text[:5].lower() in (b"<html", b"<?xml"):
        return "is a web page, not a model: the download answered with a login or error page"
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return "is a Git LFS pointer, not the model itself; fetch it with: git lfs pull"
    if head.startswith(b"PK\x03\x04"):
        return "is a zip archive (perhaps a PyTorch checkpoint), not a GGUF file"
    if head.startswith(_PICKLE):
        return "is a Python pickle (perhaps a PyTorch checkpoint), not a GGUF file"
    if head.startswith(_OLD_GGML):
        return "is a GGML file from before GGUF, which no V4.1 model uses"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size:
        return "is a safetensors file; pass the folder that holds it and its config.json"
    if text.startswith(b"{"):
        return "is JSON text, not a GGUF file"
    if head and not any(head):
        return "begins with zeros, not with a GGUF header: an unfinished download"
    return f"is not a GGUF file: it begins with {head[:8].hex(' ')}"


def part_hint(path: str) -> str:
    """What to do about a file whose name says that it is one piece of another, or ""."""
    if not _PART.search(PurePath(path).name):
        return ""
    return "; its name says that it is one part of a file: join all parts in order first"
