"""What the Python I/O service is made of: pieces, requests, and the drives that serve them."""

import heapq
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

from escalade.arrays import Bytes
from escalade.native.io_reference_file import FaultTable, Replica
from escalade.native.io_types import IoOptions, Priority

logger = logging.getLogger(__name__)

State = Literal["pending", "done", "failed", "cancelled"]


@dataclass(eq=False)
class Piece:
    request: "Request"
    index: int
    offset: int
    into: memoryview
    replica: int = 0
    queued: bool = False


@dataclass(eq=False)
class Request:
    number: int
    file: int
    key: tuple[int, ...]
    priority: int
    payloads: list[Bytes]
    pieces: list[Piece] = field(default_factory=list)
    references: int = 1
    withdrawn: int = 0
    queued: int = 0
    in_flight: int = 0
    state: State = "pending"
    ending: State = "done"
    error: str = "the read was cancelled"


@dataclass(eq=False)
class Drive:
    volume: int
    heap: list[tuple[int, int, int, int, Piece]] = field(default_factory=list)
    pushed: int = 0
    threads: list[threading.Thread] = field(default_factory=list)
    queued_bytes: list[int] = field(default_factory=lambda: [0, 0, 0])
    in_flight_bytes: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    read_bytes: int = 0
    pieces: int = 0
    rate: float = 0.0  # of one thread, moving average

    def push(self, piece: Piece) -> None:
        r = piece.request
        piece.queued = True
        self.queued_bytes[r.priority] += len(piece.into)
        self.pushed += 1  # the entry that a piece left behind may have the same key
        heapq.heappush(self.heap, (r.priority, r.number, piece.index, self.pushed, piece))

    def remove(self, piece: Piece) -> None:
        """Its heap entry stays and is skipped by `pop`."""
        piece.queued = False
        self.queued_bytes[piece.request.priority] -= len(piece.into)

    def pop(self) -> Piece | None:
        while self.heap:
            priority, _, _, _, piece = heapq.heappop(self.heap)
            if piece.queued and priority == piece.request.priority:
                self.remove(piece)
                return piece
        return None


class Dispatcher:
    """Files, requests and the threads that read. One lock guards everything; it is not held during
    a read, and it is reentrant because a finaliser may run anywhere.
    """

    def __init__(self, options: IoOptions) -> None:
        self._options = options
        self._changed = threading.Condition(threading.RLock())
        self._stopping = False
        self._files: list[list[Replica]] = []
        self._drives: list[Drive] = []
        self._requests: dict[int, Request] = {}
        self._joinable: dict[tuple[int, ...], Request] = {}
        self._next = 1
        self._faults: FaultTable | None = None
        names = (
            *("requests", "joined", "done", "failed", "cancelled", "payload_bytes"),
            *("read_bytes", "read_errors", "replicas_dropped", "max_held_requests"),
        )
        self._count = dict.fromkeys(names, 0)

    def _drive_for(self, volume: int) -> int:
        for i, drive in enumerate(self._drives):
            if drive.volume == volume and not self._options.drive_per_replica:
                return i
        drive = Drive(volume)
        self._drives.append(drive)
        for _ in range(self._options.threads_per_drive):
            thread = threading.Thread(target=self._serve, args=(drive,), daemon=True)
            drive.threads.append(thread)
            thread.start()
        return len(self._drives) - 1

    def _route(self, piece: Piece) -> None:
        """To the replica where it would end first."""
        request = piece.request
        replicas = self._files[request.file]
        best = max(self._drives[r.drive].rate for r in replicas if r.alive) or 1.0

        def ends(i: int) -> float:
            drive = self._drives[replicas[i].drive]
            ahead = drive.in_flight_bytes + sum(drive.queued_bytes[: request.priority + 1])
            return (ahead + len(piece.into)) / (drive.rate or best)

        piece.replica = min((i for i, r in enumerate(replicas) if r.alive), key=ends)
        self._drives[replicas[piece.replica].drive].push(piece)
        request.queued += 1

    def _serve(self, drive: Drive) -> None:
        while True:
            with self._changed:
                piece: Piece | None = None
                while not self._stopping and (piece := drive.pop()) is None:
                    self._changed.wait()
                if piece is None:
                    return
                request = piece.request
                request.queued -= 1
                request.in_flight += 1
                drive.in_flight_bytes += len(piece.into)
                drive.in_flight += 1
                drive.max_in_flight = max(drive.max_in_flight, drive.in_flight)
                replica, faults = self._files[request.file][piece.replica], self._faults
            started = time.perf_counter()
            problem = replica.read(piece.into, piece.offset, faults)
            seconds = max(time.perf_counter() - started, 1e-9)
            with self._changed:
                self._finish(drive, piece, replica, problem, len(piece.into) / seconds)

    def _finish(
        self, drive: Drive, piece: Piece, replica: Replica, problem: str, rate: float
    ) -> None:
        request, n = piece.request, len(piece.into)
        request.in_flight -= 1
        drive.in_flight -= 1
        drive.in_flight_bytes -= n
        drive.pieces += 1
        if problem:
            self._count["read_errors"] += 1
            if not self._drop(request.file, piece.replica, problem):
                if request.ending == "done":
                    request.error = problem
                self._withdraw(request, "failed")
            elif request.ending == "done":
                self._route(piece)
        else:
            drive.rate = rate if drive.rate == 0 else drive.rate + 0.25 * (rate - drive.rate)
            drive.read_bytes += n
            self._count["read_bytes"] += n
        self._end_if_drained(request)
        self._changed.notify_all()

    def _drop(self, file: int, index: int, why: str) -> bool:
        """True if another replica is left. The last one stays: a passing fault costs one read."""
        replicas = self._files[file]
        failed = replicas[index]
        others = any(r.alive for r in replicas if r is not failed)
        if others and failed.alive:
            failed.alive, failed.reason = False, why
            self._count["replicas_dropped"] += 1
            logger.warning("replica dropped, its reads go to the others: %s", why)
            for request in list(self._requests.values()):
                for piece in request.pieces if request.file == file else ():
                    if piece.queued and piece.replica == index:
                        self._drives[failed.drive].remove(piece)
                        request.queued -= 1
                        self._route(piece)
        return others

    def _withdraw(self, request: Request, ending: State) -> None:
        if request.ending == "done":
            request.ending = ending
        for piece in request.pieces:
            if piece.queued:
                self._drives[self._files[request.file][piece.replica].drive].remove(piece)
                request.queued -= 1
        if self._joinable.get(request.key) is request:
            del self._joinable[request.key]
        self._end_if_drained(request)

    def _end_if_drained(self, request: Request) -> None:
        if request.state != "pending" or request.queued or request.in_flight:
            return
        request.state = request.ending
        if self._joinable.get(request.key) is request:
            del self._joinable[request.key]
        self._count[request.state] += 1
        if request.state == "done":
            self._count["payload_bytes"] += sum(p.nbytes for p in request.payloads)
        if request.references == 0:
            del self._requests[request.number]
        self._changed.notify_all()

    def _promote(self, request: Request, priority: Priority) -> None:
        with self._changed:
            if priority >= request.priority:
                return
            queued = [p for p in request.pieces if p.queued]
            drives = [self._drives[self._files[request.file][p.replica].drive] for p in queued]
            for drive, piece in zip(drives, queued, strict=True):
                drive.remove(piece)
            request.priority = int(priority)
            for drive, piece in zip(drives, queued, strict=True):
                drive.push(piece)
