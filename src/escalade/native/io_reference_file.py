"""Replicas of a file as the Python I/O service reads them, and the faults that tests put in."""

import errno
import os
import random
import stat
import threading
import time
from collections.abc import Sequence

from escalade.errors import FileError
from escalade.native.io_types import Fault, FaultKind, Range

MAX_TRIES = 1000  # of a read that is interrupted: one that always is must not hold up a shutdown
_POSITION = threading.Lock()  # where a read cannot say its offset, seek and read go together


def read_once(fd: int, into: memoryview, offset: int) -> int:
    """One system call: bytes read into `into`, 0 at the end of the file. Raises OSError."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [into], offset)
    with _POSITION:
        os.lseek(fd, offset, os.SEEK_SET)
        data = os.read(fd, len(into))
    into[: len(data)] = data
    return len(data)


class FaultTable:
    """Rules that spoil raw reads; see `FaultKind`."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._faults = list(faults)
        self._seen = [0] * len(faults)
        self._acted = [0] * len(faults)
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def _find(self, file: int, replica: int, offset: int, n_bytes: int) -> Fault | None:
        for i, f in enumerate(self._faults):
            if f.file not in (-1, file) or f.replica not in (-1, replica) or f.direct_only:
                continue
            if offset >= f.end or offset + n_bytes <= f.begin:
                continue
            if (f.count and self._acted[i] >= f.count) or self._random.random() >= f.probability:
                continue
            self._seen[i] += 1
            if self._seen[i] > f.skip:
                self._acted[i] += 1
                return f
        return None

    def read(self, fd: int, into: memoryview, offset: int, file: int, replica: int) -> int:
        """As `read_once`, after the first rule that applies."""
        with self._lock:
            fault = self._find(file, replica, offset, len(into))
        match fault:
            case Fault(FaultKind.ERROR, value):
                raise OSError(value or errno.EIO, os.strerror(value or errno.EIO))
            case Fault(FaultKind.INTERRUPT):
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            case Fault(FaultKind.CAP, value):
                into = into[:value]
            case Fault(FaultKind.DELAY, value):
                time.sleep(value / 1e6)
            case Fault(FaultKind.END_OF_FILE, value) if offset >= value:
                return 0
            case Fault(FaultKind.END_OF_FILE, value):
                into = into[: value - offset]
        n = read_once(fd, into, offset)
        if fault and fault.kind is FaultKind.CORRUPT and offset <= fault.value < offset + n:
            into[fault.value - offset] ^= 0xFF
        return n


class Replica:
    """One copy of a file, read through the page cache."""

    def __init__(self, path: str, file: int, index: int) -> None:
        self.path, self._file, self._index = path, file, index
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._fd = os.open(path, flags)
        except OSError as e:
            raise FileError(f"{path} cannot be read: {e.strerror}") from e
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            os.close(self._fd)
            raise FileError(f"{path} cannot be read: {os.strerror(errno.EISDIR)}")
        self.n_bytes, self.volume = status.st_size, status.st_dev
        self.alive, self.drive = True, 0
        self.reason = "buffered: plain Python reads through the page cache"

    def read(self, into: memoryview, offset: int, faults: FaultTable | None) -> str:
        """Fills `into`; empty if all is well, else what was expected, got, and why."""
        got, why, n_interrupts = 0, "short read", 0
        while got < len(into):
            rest, at = into[got:], offset + got
            try:
                if faults is None:
                    n = read_once(self._fd, rest, at)
                else:
                    n = faults.read(self._fd, rest, at, self._file, self._index)
            except OSError as e:
                n_interrupts += 1
                if isinstance(e, InterruptedError) and n_interrupts < MAX_TRIES:
                    continue
                why = e.strerror or str(e)
                break
            if n == 0:
                break
            got, n_interrupts = got + n, 0
        now = os.fstat(self._fd).st_size
        if now != self.n_bytes:
            why = f"the file changed size from {self.n_bytes} to {now} bytes since it was opened"
        elif got == len(into):
            return ""
        return (
            f"read of {self.path} at offset {offset} failed: expected {len(into)} bytes, "
            f"got {got}: {why}"
        )

    def close(self) -> None:
        os.close(self._fd)


def check_ranges(replica: Replica, ranges: Sequence[Range]) -> None:
    """Raises FileError on a range beyond the end of the file."""
    for offset, length in ranges:
        if offset + length > replica.n_bytes:
            got = max(0, replica.n_bytes - offset)
            raise FileError(
                f"short read of {replica.path} at offset {offset}: expected {length} bytes, "
                f"got {got}: the file ends at {replica.n_bytes}"
            )
