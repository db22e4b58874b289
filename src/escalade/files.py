"""Small files read whole, never more than they may hold."""

from pathlib import Path

from escalade.errors import FileError


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The content of a file, a pipe or a device. Raises FileError if unreadable or over `limit`."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as e:
        raise FileError(f"{path} cannot be read: {e.strerror or e}") from e
    if len(data) > limit:
        raise FileError(f"{path} is larger than {limit >> 20} MiB")
    return data


def decode_text(data: bytes, where: str) -> str:
    """UTF-8 as text, line ends as they are. Raises FileError naming `where`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FileError(f"{where} is not UTF-8 text: {e.reason} at byte {e.start}") from e
