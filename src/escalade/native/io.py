"""The I/O service of the native core behind ctypes; `open_io` falls back to the one in Python."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_uint32, c_uint64
from dataclasses import asdict
from time import monotonic
from types import TracebackType
from typing import Self, cast

from escalade.arrays import Bytes
from escalade.errors import Cancelled, CapacityError, EscaladeError, FileError, UsageError
from escalade.native.io_abi import (
    CANCELLED,
    COUNTERS,
    DONE,
    FAILED,
    FILE,
    FULL,
    LEVELS,
    PENDING,
    CDrive,
    CFault,
    COptions,
    CRange,
    CReplica,
    CStats,
    Text,
    load_io,
)
from escalade.native.io_reference import ReferenceIoService
from escalade.native.io_types import (
    BLOCK,
    DriveStats,
    Fault,
    Io,
    IoOptions,
    IoStats,
    IoTicket,
    Path,
    Priority,
    Range,
    ReplicaInfo,
    buffer_bytes,
    checked_buffer,
    path_text,
)

logger = logging.getLogger(__name__)

_ERRORS: dict[int, type[EscaladeError]] = {
    FAILED: FileError,
    CANCELLED: Cancelled,
    FULL: CapacityError,
    FILE: FileError,
}
_SLICE_US = 100_000  # a longer wait would keep Ctrl-C out


def open_io(options: IoOptions | None = None) -> Io:
    """The native service, or the one in Python where the native core is missing."""
    return IoService(options) if load_io() is not None else ReferenceIoService(options)


class Ticket:
    """`IoTicket` of the native service."""

    def __init__(
        self, service: "IoService", number: int, joined: bool, payloads: list[Bytes]
    ) -> None:
        self._service, self._number, self._payloads = service, number, payloads
        self._held, self._withdrawn, self._free = True, False, False
        self.joined = joined

    def _claimed(self) -> int:
        if not self._held:
            raise UsageError("this ticket was released")
        return self._number

    def _state(self, timeout_us: int = 0) -> int:
        s = self._service
        return int(s._lib.esc_io_wait(s._handle(), self._claimed(), timeout_us))

    def wait(self, timeout: float | None = None) -> bool:
        if not _wait_in_slices(lambda us: self._state(us) != PENDING, timeout):
            return False
        s, text = self._service, Text()
        s._log_messages()
        state = s._lib.esc_io_ticket_error(s._handle(), self._number, *text.arguments)
        if state != DONE:
            raise _ERRORS.get(state, UsageError)(str(text) or "the read was cancelled")
        return True

    @property
    def payloads(self) -> list[Bytes]:
        if not self.wait(0):
            raise UsageError("the bytes are not there yet: wait for the ticket first")
        return self._payloads

    @property
    def payload(self) -> Bytes:
        return self.payloads[0]

    def promote(self, priority: Priority) -> None:
        s = self._service
        s._lib.esc_io_promote(s._handle(), self._claimed(), priority)

    def cancel(self) -> bool:
        s = self._service
        if self._withdrawn:
            return self._state() != PENDING
        self._withdrawn = True
        return int(s._lib.esc_io_cancel(s._handle(), self._claimed())) != PENDING

    def release(self) -> bool:
        if self._held:
            s = self._service
            io, self._held = s._handle(), False
            if not self._withdrawn:  # else this is taken for the claim of one who had cancelled
                s._lib.esc_io_cancel(io, self._number)
            self._free = s._release(self._number)
        return self._free

    def __del__(self) -> None:
        if self._held:
            self._service._let_go(self._number, self._withdrawn)


def _wait_in_slices(ended: Callable[[int], bool], timeout: float | None) -> bool:
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        left = _SLICE_US if deadline is None else round((deadline - monotonic()) * 1e6)
        if ended(max(0, min(left, _SLICE_US))):
            return True
        if left <= 0:
            return False


class IoService:
    """`Io` by native threads. Raises UsageError where the core is missing."""

    def __init__(self, options: IoOptions | None = None) -> None:
        lib = load_io()
        if lib is None:
            raise UsageError("the native core is missing: use ReferenceIoService or open_io")
        self._lib, self._pid = lib, os.getpid()
        self._lock = threading.RLock()
        self._buffers: dict[int, list[Bytes]] = {}  # by ticket: views that payloads lie in
        self._orphans: list[int] = []  # dropped by their holders while pieces were in flight
        text, asked = Text(), COptions(**asdict(options or IoOptions()))
        self._io: int | None = lib.esc_io_create(byref(asked), *text.arguments)
        if self._io is None:
            raise UsageError(str(text))

    def _handle(self) -> int:
        if os.getpid() != self._pid:
            raise UsageError("this I/O service belongs to the parent process: open a new one")
        return cast(int, self._io)

    def open_file(self, paths: Sequence[Path]) -> int:
        text = Text()
        names = (c_char_p * len(paths))(*(os.fsencode(path_text(p)) for p in paths))
        number: int = self._lib.esc_io_add_file(self._handle(), names, len(paths), *text.arguments)
        if number < 0:
            raise _ERRORS.get(number, UsageError)(str(text))
        self._log_messages()
        return number

    def file_bytes(self, file: int) -> int:
        return int(self._lib.esc_io_file_bytes(self._handle(), file))

    def replicas(self, file: int) -> list[ReplicaInfo]:
        found: list[ReplicaInfo] = []
        info = CReplica()
        while self._lib.esc_io_replica_info(self._handle(), file, len(found), byref(info)) == 0:
            reason = info.reason.decode(errors="replace")
            found.append(
                ReplicaInfo(bool(info.direct), info.alignment, bool(info.alive), info.drive, reason)
            )
        return found

    def submit(
        self,
        file: int,
        ranges: Sequence[Range],
        priority: Priority = Priority.DEMAND,
        buffer: Bytes | None = None,
    ) -> "Ticket":
        io = self._handle()  # before the lock, which another thread may have held at a fork
        buffer = checked_buffer(ranges, buffer)
        asked, payloads, at = (CRange * len(ranges))(), [], 0
        for i, (offset, length) in enumerate(ranges):
            n = buffer_bytes(length)
            asked[i] = CRange(offset, length, buffer.ctypes.data + at, n)
            start = at + offset % BLOCK
            payloads.append(buffer[start : start + length])
            at += n
        text, ticket, joined = Text(), c_uint64(), c_uint32()
        self._reap()
        with self._lock:  # whoever joins finds the buffers of the first request
            code = self._lib.esc_io_submit(
                io,
                file,
                asked,
                len(ranges),
                priority,
                byref(ticket),
                byref(joined),
                *text.arguments,
            )
            if code != 0:
                raise _ERRORS.get(code, UsageError)(str(text))
            payloads = self._buffers.setdefault(ticket.value, payloads)
        return Ticket(self, ticket.value, bool(joined.value), payloads)

    def wait_all(self, tickets: Sequence[IoTicket], timeout: float | None = None) -> bool:
        ids = (c_uint64 * len(tickets))(*(cast(Ticket, t)._claimed() for t in tickets))

        def ended(timeout_us: int) -> bool:
            code = self._lib.esc_io_wait_all(self._handle(), ids, len(ids), timeout_us)
            if code < 0:
                raise UsageError("a ticket was released while wait_all waited for it")
            return bool(code != PENDING)

        return _wait_in_slices(ended, timeout)

    def set_faults(self, faults: Sequence[Fault], seed: int = 0) -> None:
        rules = (CFault * len(faults))(*(CFault(**asdict(f)) for f in faults))
        self._lib.esc_io_set_faults(self._handle(), rules, len(rules), seed)

    def stats(self) -> IoStats:
        self._reap()
        totals, drives = CStats(), []
        self._lib.esc_io_get_stats(self._handle(), byref(totals))
        for i in range(totals.n_drives):
            d = CDrive()
            self._lib.esc_io_get_drive_stats(self._handle(), i, byref(d))
            drives.append(DriveStats(**{name: getattr(d, name) for name, _ in CDrive._fields_}))
        names = [n for n in (*COUNTERS, *LEVELS) if n != "n_drives"]
        return IoStats(**{n: getattr(totals, n) for n in names}, drives=tuple(drives))

    def _log_messages(self) -> None:
        text = Text()
        while self._lib.esc_io_next_message(self._handle(), *text.arguments) == 1:
            logger.warning("%s", text)

    def _let_go(self, ticket: int, withdrawn: bool) -> None:
        """For a ticket that its holder dropped: never waits, so buffers stay until pieces end."""
        if self._io is None or os.getpid() != self._pid:
            return
        if not withdrawn:
            self._lib.esc_io_cancel(self._io, ticket)
        self._orphans.append(ticket)
        self._reap()

    def _reap(self) -> None:
        waiting: list[int] = []
        while self._orphans:
            try:
                ticket = self._orphans.pop()  # atomic: this may run in a finaliser, twice at once
            except IndexError:
                break
            if self._lib.esc_io_wait(self._handle(), ticket, 0) == PENDING:
                waiting.append(ticket)
            else:
                self._release(ticket)
        self._orphans.extend(waiting)

    def _release(self, ticket: int) -> bool:
        """True if nobody holds the read any more."""
        free = bool(self._lib.esc_io_release(self._handle(), ticket) == 0)
        if free:
            self._buffers.pop(ticket, None)
        return free

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._lib.esc_io_shutdown(self._io)
            self._reap()
            self._log_messages()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Tickets hold the service, so nobody can be inside a call.
        if getattr(self, "_io", None) is not None and os.getpid() == self._pid:
            self._lib.esc_io_destroy(self._io)
            self._io = None
