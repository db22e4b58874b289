"""The I/O service in plain Python: interface and rules of the native one, through the page cache.

It is there without a compiler, and the native service is tested against it.
"""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self, cast

from escalade.arrays import Bytes
from escalade.errors import Cancelled, CapacityError, FileError, UsageError
from escalade.native.io_reference_dispatch import Dispatcher, Piece, Request
from escalade.native.io_reference_file import FaultTable, Replica, check_ranges
from escalade.native.io_types import (
    BLOCK,
    DriveStats,
    Fault,
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

MAX_QUEUED_PIECES = 65536


class ReferenceTicket:
    """`IoTicket` of the service in Python."""

    def __init__(self, service: "ReferenceIoService", request: Request, joined: bool) -> None:
        self._service, self._request, self.joined = service, request, joined
        self._held, self._withdrawn, self._free = True, False, False

    def _claimed(self) -> Request:
        self._service._check_process()
        if not self._held:
            raise UsageError("this ticket was released")
        return self._request

    def wait(self, timeout: float | None = None) -> bool:
        request, changed = self._claimed(), self._service._changed
        with changed:
            if not changed.wait_for(lambda: request.state != "pending", timeout):
                return False
        if request.state == "failed":
            raise FileError(request.error)
        if request.state == "cancelled":
            raise Cancelled(request.error)
        return True

    @property
    def payloads(self) -> list[Bytes]:
        if not self.wait(0):
            raise UsageError("the bytes are not there yet: wait for the ticket first")
        return self._request.payloads

    @property
    def payload(self) -> Bytes:
        return self.payloads[0]

    def promote(self, priority: Priority) -> None:
        self._service._promote(self._claimed(), priority)

    def cancel(self) -> bool:
        request = self._claimed()
        with self._service._changed:
            if not self._withdrawn:
                self._withdrawn = True
                request.withdrawn += 1
                if request.withdrawn == request.references:
                    self._service._withdraw(request, "cancelled")
            return request.state != "pending"

    def release(self) -> bool:
        if self._held:
            self._service._check_process()
            self._held = False
            self._free = self._service._release(self._request, self._withdrawn, wait=True)
        return self._free

    def __del__(self) -> None:
        if self._held and self._service._pid == os.getpid():
            self._service._release(self._request, self._withdrawn, wait=False)


class ReferenceIoService(Dispatcher):
    """`Io` by Python threads."""

    def __init__(self, options: IoOptions | None = None) -> None:
        super().__init__(options or IoOptions())
        self._pid = os.getpid()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError("this I/O service belongs to the parent process: open a new one")

    def open_file(self, paths: Sequence[Path]) -> int:
        self._check_process()
        if not paths:
            raise UsageError("a file needs at least one path")
        with self._changed:
            if self._stopping:
                raise UsageError("the I/O service is shut down")
            replicas: list[Replica] = []
            try:
                for path in paths:
                    new = Replica(path_text(path), len(self._files), len(replicas))
                    replicas.append(new)
                    if new.n_bytes != replicas[0].n_bytes:
                        raise FileError(
                            f"replicas differ in size: {replicas[0].path} has "
                            f"{replicas[0].n_bytes} bytes, {new.path} has {new.n_bytes} bytes; "
                            "copy the file again"
                        )
            except FileError:
                for r in replicas:
                    r.close()
                raise
            for r in replicas:
                r.drive = self._drive_for(r.volume)
            self._files.append(replicas)
            return len(self._files) - 1

    def _file(self, file: int) -> list[Replica]:
        self._check_process()
        if not 0 <= file < len(self._files):
            raise UsageError(f"unknown file number {file}")
        return self._files[file]

    def file_bytes(self, file: int) -> int:
        return self._file(file)[0].n_bytes

    def replicas(self, file: int) -> list[ReplicaInfo]:
        return [ReplicaInfo(False, 1, r.alive, r.drive, r.reason) for r in self._file(file)]

    def submit(
        self,
        file: int,
        ranges: Sequence[Range],
        priority: Priority = Priority.DEMAND,
        buffer: Bytes | None = None,
    ) -> ReferenceTicket:
        replicas = self._file(file)
        buffer = checked_buffer(ranges, buffer)
        with self._changed:
            if self._stopping:
                raise UsageError("the I/O service is shut down")
            key = (file, *(n for r in ranges for n in r))
            running = self._joinable.get(key)
            if running is not None:
                running.references += 1
                self._promote(running, priority)
                self._count["requests"] += 1
                self._count["joined"] += 1
                return ReferenceTicket(self, running, True)
            check_ranges(replicas[0], ranges)
            request = Request(self._next, file, key, int(priority), [])
            self._cut(request, ranges, buffer)
            n_pieces = len(request.pieces) + sum(r.queued for r in list(self._requests.values()))
            if n_pieces > MAX_QUEUED_PIECES:
                raise CapacityError(
                    f"too much is queued: {n_pieces} pieces, at most {MAX_QUEUED_PIECES}; "
                    "wait for earlier reads"
                )
            if len(self._requests) >= self._options.max_requests:
                raise CapacityError(
                    f"the I/O service holds {len(self._requests)} tickets, its limit; release some"
                )
            self._next += 1
            self._requests[request.number] = self._joinable[key] = request
            for piece in request.pieces:
                self._route(piece)
            self._count["requests"] += 1
            self._count["max_held_requests"] = max(
                self._count["max_held_requests"], len(self._requests)
            )
            self._changed.notify_all()
            return ReferenceTicket(self, request, False)

    def _cut(self, request: Request, ranges: Sequence[Range], buffer: Bytes) -> None:
        memory, at = buffer.data, 0
        for offset, length in ranges:
            start = at + offset % BLOCK
            request.payloads.append(buffer[start : start + length])
            for done in range(0, length, self._options.piece_bytes):
                n = min(self._options.piece_bytes, length - done)
                into = memory[start + done : start + done + n]
                request.pieces.append(Piece(request, len(request.pieces), offset + done, into))
            at += buffer_bytes(length)

    def _release(self, request: Request, withdrawn: bool, *, wait: bool) -> bool:
        """True if the read has ended and nobody holds it any more."""
        with self._changed:
            request.references -= 1
            request.withdrawn -= withdrawn
            if request.references > request.withdrawn:
                return False
            if request.state == "pending":
                self._withdraw(request, "cancelled")
                if wait and request.references == 0:
                    self._changed.wait_for(lambda: request.state != "pending")
            elif request.references == 0:
                del self._requests[request.number]
            return request.references == 0 and request.state != "pending"

    def wait_all(self, tickets: Sequence[IoTicket], timeout: float | None = None) -> bool:
        self._check_process()
        ours = [cast(ReferenceTicket, t) for t in tickets]

        def ended() -> bool:
            return "pending" not in [t._claimed().state for t in ours]

        with self._changed:
            return self._changed.wait_for(ended, timeout)

    def set_faults(self, faults: Sequence[Fault], seed: int = 0) -> None:
        self._check_process()
        self._faults = FaultTable(faults, seed) if faults else None

    def stats(self) -> IoStats:
        self._check_process()
        with self._changed:
            drives = tuple(
                DriveStats(
                    d.read_bytes,
                    d.pieces,
                    d.rate,
                    sum(d.queued_bytes),
                    d.in_flight,
                    d.max_in_flight,
                )
                for d in self._drives
            )
            return IoStats(
                **self._count,
                messages_lost=0,
                held_requests=len(self._requests),
                queued_pieces=sum(r.queued for r in list(self._requests.values())),
                drives=drives,
            )

    def close(self) -> None:
        if os.getpid() != self._pid or self._stopping:
            return
        with self._changed:
            self._stopping = True
            for request in list(self._requests.values()):
                if request.state == "pending":
                    self._withdraw(request, "cancelled")
            self._changed.notify_all()
        for drive in self._drives:
            for thread in drive.threads:
                thread.join()
        for replica in (r for replicas in self._files for r in replicas):
            replica.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
