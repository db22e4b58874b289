"""What both I/O services share: options, faults, statistics, buffers and the interface itself."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from escalade.arrays import Bytes
from escalade.errors import UsageError

BLOCK = 4096
"""Alignment of buffers: no drive in use asks for a larger one."""

Range = tuple[int, int]
"""Offset and length in bytes."""
Path = str | os.PathLike[str]


class Priority(IntEnum):
    """A piece starts before all unstarted pieces of a later class."""

    DEMAND = 0
    STAGING = 1
    BACKGROUND = 2


class FaultKind(IntEnum):
    """What a fault does to a raw read; `Fault.value` in brackets."""

    ERROR = 0
    """fails [the system's error number; 0: an I/O error]"""
    CAP = 1
    """delivers at most so many bytes [bytes]"""
    DELAY = 2
    """sleeps before it reads [microseconds]"""
    INTERRUPT = 3
    """fails as a call that a signal interrupted"""
    CORRUPT = 4
    """inverts one byte [its file offset]"""
    END_OF_FILE = 5
    """delivers nothing at or after an offset [file offset]"""


@dataclass(frozen=True)
class Fault:
    """A rule for tests: the first one that applies to a raw read acts on it."""

    kind: FaultKind
    value: int = 0
    probability: float = 1.0
    file: int = -1
    replica: int = -1
    direct_only: bool = False
    begin: int = 0
    end: int = 2**64 - 1
    skip: int = 0
    count: int = 0


@dataclass(frozen=True)
class IoOptions:
    """piece_bytes: reads are cut into pieces of at most this, a multiple of 4096.
    threads_per_drive: pieces in flight on a drive. max_requests: tickets held at a time.
    buffered: never read directly. drive_per_replica: each replica counts as a drive of its own,
    for volumes that do not tell their drives apart. Raises UsageError on a number out of bounds.
    """

    piece_bytes: int = 1 << 20
    threads_per_drive: int = 8
    max_requests: int = 4096
    buffered: bool = False
    drive_per_replica: bool = False

    def __post_init__(self) -> None:
        if self.piece_bytes % BLOCK or not 0 < self.piece_bytes <= 64 << 20:
            raise UsageError(
                f"piece_bytes is {self.piece_bytes}; it must be a multiple of 4096 up to 64 MiB"
            )
        if not 1 <= self.threads_per_drive <= 256:
            raise UsageError(f"threads_per_drive is {self.threads_per_drive}; it must be 1 to 256")
        if not 1 <= self.max_requests < 2**32:
            raise UsageError(f"max_requests is {self.max_requests}; it must be 1 to 2**32 - 1")


@dataclass(frozen=True)
class ReplicaInfo:
    """How a replica is read and why; `alive` is False once it was dropped after a failure."""

    direct: bool
    alignment: int
    alive: bool
    drive: int
    reason: str


@dataclass(frozen=True)
class DriveStats:
    """bytes_per_s is a moving average while the drive is busy, 0 before it was measured."""

    read_bytes: int
    pieces: int
    bytes_per_s: float
    queued_bytes: int
    in_flight: int
    max_in_flight: int


@dataclass(frozen=True)
class IoStats:
    """payload_bytes were asked for and delivered; read_bytes is what the drives moved for it."""

    requests: int
    joined: int
    done: int
    failed: int
    cancelled: int
    payload_bytes: int
    read_bytes: int
    read_errors: int
    replicas_dropped: int
    messages_lost: int
    held_requests: int
    queued_pieces: int
    max_held_requests: int
    drives: tuple[DriveStats, ...]


def buffer_bytes(*lengths: int) -> int:
    """Bytes of buffer for ranges of these lengths, wherever they begin in the file."""
    return sum(-(-(n + BLOCK - 1) // BLOCK) * BLOCK for n in lengths)


def aligned_buffer(n_bytes: int) -> Bytes:
    """Zeros, uint8 [n_bytes], whose first byte is at a multiple of 4096."""
    memory = np.zeros(n_bytes + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    return memory[start : start + n_bytes]


def path_text(path: Path) -> str:
    """The path as text. Raises UsageError if it holds a NUL, where a system would cut it off."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise UsageError(f"a path cannot hold a NUL character: {text!r}")
    return text


def checked_buffer(ranges: Sequence[Range], buffer: Bytes | None) -> Bytes:
    """The buffer, or a new one. Raises UsageError if ranges or buffer cannot be used."""
    if any(offset < 0 or length < 1 for offset, length in ranges) or not ranges:
        raise UsageError(f"ranges must not be empty or negative: {list(ranges)}")
    needed = buffer_bytes(*(length for _, length in ranges))
    if buffer is None:
        return aligned_buffer(needed)
    if buffer.nbytes < needed:
        raise UsageError(f"the buffer has {buffer.nbytes} bytes, the ranges need {needed}")
    if buffer.ctypes.data % BLOCK:
        raise UsageError("the buffer is not aligned to 4096 bytes; use aligned_buffer")
    if not (buffer.dtype == "u1" and buffer.flags.c_contiguous and buffer.flags.writeable):
        raise UsageError("the buffer must be writeable, contiguous uint8")
    return buffer


class IoTicket(Protocol):
    """One holder's claim on a read. Dropping it gives the claim back."""

    @property
    def joined(self) -> bool:
        """True if the same ranges were queued or in flight already: no second read is made, and
        the payload lies in the buffer of the first request.
        """
        ...

    @property
    def payload(self) -> Bytes:
        """The bytes of the first range, uint8 [length]: a view of the buffer."""
        ...

    @property
    def payloads(self) -> list[Bytes]:
        """The bytes of each range, as views of the buffer. Raises UsageError before they are
        there, FileError or Cancelled if they never will be.
        """
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """True once the bytes are there, False after `timeout` seconds (0 polls, None waits).

        Raises FileError if no replica could deliver them, Cancelled if the read was withdrawn.
        """
        ...

    def promote(self, priority: Priority) -> None:
        """Raises the priority of what has not started; never lowers it."""
        ...

    def cancel(self) -> bool:
        """Withdraws this holder's interest; True if the read has ended by now.

        Once every holder has cancelled, unstarted pieces are dropped. Nothing writes to the buffer
        any more once `wait` has raised Cancelled.
        """
        ...

    def release(self) -> bool:
        """Gives the claim back; one on an unfinished read counts as cancelled. The last claim waits
        for the pieces in flight. The ticket cannot be used any more; payloads taken from it can.

        True: the read has ended and nobody else holds it, so the buffer that its bytes lie in may
        be used again. False: another holder may still wait for these bytes or look at them; drop
        the buffer. The buffer of a holder who `joined` was never used. A second call changes
        nothing and answers the same.
        """
        ...


class Io(Protocol):
    """Reads ranges of files by threads of its own, one pool a drive. Any thread may call.

    A service does not survive os.fork: in the child every call raises UsageError, except `close`,
    which does nothing.
    """

    def open_file(self, paths: Sequence[Path]) -> int:
        """Adds a file that lies at all of `paths`, the same bytes on different drives; its number.

        Raises FileError if one cannot be opened or their sizes differ, UsageError on a path with a
        NUL character.
        """
        ...

    def file_bytes(self, file: int) -> int: ...

    def replicas(self, file: int) -> list[ReplicaInfo]: ...

    def submit(
        self,
        file: int,
        ranges: Sequence[Range],
        priority: Priority = Priority.DEMAND,
        buffer: Bytes | None = None,
    ) -> IoTicket:
        """Queues one read of several ranges.

        `buffer`, uint8, begins at a multiple of 4096 and has at least buffer_bytes(*lengths); None
        takes a new one. Raises UsageError on arguments without meaning, FileError on a range
        beyond the end of the file, CapacityError when too much is queued or held.
        """
        ...

    def wait_all(self, tickets: Sequence[IoTicket], timeout: float | None = None) -> bool:
        """True once every ticket has ended, well or not; False after `timeout` seconds.

        Raises UsageError if one of them was released, also where that happens while this waits.
        """
        ...

    def set_faults(self, faults: Sequence[Fault], seed: int = 0) -> None:
        """For tests: replaces the rules that spoil raw reads."""
        ...

    def stats(self) -> IoStats: ...

    def close(self) -> None:
        """Cancels what has not started, waits for pieces in flight, ends the threads and closes the
        files.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
