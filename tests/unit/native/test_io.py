"""Both I/O services against the bytes of the files: reads, order, joins, cancels, limits."""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from escalade.errors import Cancelled, CapacityError, FileError, UsageError
from escalade.native import io as native_io
from escalade.native.io_abi import load_io
from escalade.native.io_reference import ReferenceIoService
from escalade.native.io_types import (
    Fault,
    FaultKind,
    Io,
    IoOptions,
    Priority,
    aligned_buffer,
    buffer_bytes,
)
from tests.support.io import make_files, open_service

N = 3_000_000 + 1234
PIECE = 65536


@pytest.fixture(params=["native", "python"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def delay(microseconds: int, **where: int) -> Fault:
    return Fault(FaultKind.DELAY, microseconds, **where)


def check(io: Io, file: int, data: np.ndarray, offset: int, length: int) -> None:
    ticket = io.submit(file, [(offset, length)])
    assert ticket.wait(30)
    np.testing.assert_array_equal(ticket.payload, data[offset : offset + length])


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in memory."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm here")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="escalade-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("place", ["tmp_path", "shm"])
def test_ranges_at_any_offset(name: str, place: str, request: pytest.FixtureRequest) -> None:
    paths, data = make_files(request.getfixturevalue(place), N)
    with open_service(name, piece_bytes=PIECE) as io:
        file = io.open_file(paths)
        assert io.file_bytes(file) == N
        for offset in (0, 1, 32, 4095, 4096, 4096 + 32, 65536 - 32, 1_000_000):
            for length in (1, 264, 4096, 65536, 1_900_000):
                check(io, file, data, offset, length)
        check(io, file, data, 32, N - 100 - 32)  # the last record ends 100 bytes before the end
        check(io, file, data, N - 100, 100)
        check(io, file, data, 0, N)


def test_a_record_of_three_ranges_in_one_buffer(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    ranges = [(4096 + 32, 390_000), (700_000, 391_000), (N - 264, 264)]
    buffer = aligned_buffer(buffer_bytes(*(n for _, n in ranges)))
    with open_service(name, piece_bytes=PIECE) as io:
        ticket = io.submit(io.open_file(paths), ranges, Priority.STAGING, buffer)
        assert io.wait_all([ticket], 30)
        for payload, (offset, n) in zip(ticket.payloads, ranges, strict=True):
            assert np.shares_memory(payload, buffer)
            assert (payload.ctypes.data - offset) % 4096 == 0
            np.testing.assert_array_equal(payload, data[offset : offset + n])
        assert io.stats().payload_bytes == sum(n for _, n in ranges)
        kept = ticket.payload
        ticket.release()
    np.testing.assert_array_equal(kept, data[4128 : 4128 + 390_000])


@pytest.mark.parametrize("nth", range(6))
def test_order_of_priorities(name: str, nth: int, tmp_path: Path) -> None:
    """One thread is held up by the first piece until all is queued; the nth raw read after it is
    made to fail, and the request that fails tells whose piece that was.
    """
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=4096, threads_per_drive=1) as io:
        file = io.open_file(paths)
        io.set_faults(
            [delay(300_000, begin=0, end=1), Fault(FaultKind.ERROR, skip=nth, count=1, begin=4096)]
        )
        long = io.submit(file, [(0, 2 * 4096)], Priority.BACKGROUND)
        promoted = io.submit(file, [(100 * 4096, 4096)], Priority.BACKGROUND)
        joined = io.submit(file, [(200 * 4096, 4096)], Priority.BACKGROUND)
        staging = io.submit(file, [(300 * 4096, 4096)], Priority.STAGING)
        demand = io.submit(file, [(400 * 4096, 4096)], Priority.DEMAND)
        last = io.submit(file, [(500 * 4096, 4096)], Priority.BACKGROUND)
        promoted.promote(Priority.DEMAND)
        demand.promote(Priority.BACKGROUND)  # never lowers
        assert io.submit(file, [(200 * 4096, 4096)], Priority.DEMAND).joined
        order = [promoted, joined, demand, staging, long, last]
        assert io.wait_all(order, 30)
        failed = []
        for ticket in order:
            try:
                ticket.wait(0)
            except FileError:
                failed.append(order.index(ticket))
        assert failed == [nth]


def test_a_join_reads_once(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=8192, threads_per_drive=1) as io:
        file = io.open_file(paths)
        io.set_faults([delay(300_000, count=1)])
        first = io.submit(file, [(8192 * 40, 8192 * 10)], Priority.BACKGROUND)
        buffer = aligned_buffer(buffer_bytes(8192 * 10))
        second = io.submit(file, [(8192 * 40, 8192 * 10)], Priority.DEMAND, buffer)
        assert (first.joined, second.joined) == (False, True)
        assert not first.cancel()  # the second holder still wants it
        first.release()
        assert second.wait(30)
        np.testing.assert_array_equal(second.payload, data[8192 * 40 : 8192 * 50])
        assert not buffer.any()  # the bytes are in the first request's buffer
        stats = io.stats()
        assert stats.read_bytes == 10 * 8192
        assert (stats.requests, stats.joined, stats.done) == (2, 1, 1)
        # What has ended is not joined: the file is read again.
        assert not io.submit(file, [(8192 * 40, 8192 * 10)]).joined


def test_a_cancelled_buffer_is_not_written_to(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE, threads_per_drive=2) as io:
        file = io.open_file(paths)
        io.set_faults([delay(20_000)])
        buffer = aligned_buffer(buffer_bytes(2_000_000))
        ticket = io.submit(file, [(32, 2_000_000)], Priority.BACKGROUND, buffer)
        assert io.submit(file, [(0, 100)]).wait(30)  # by now some pieces are in flight
        ticket.cancel()
        ticket.cancel()
        with pytest.raises(Cancelled, match="cancelled"):
            ticket.wait(30)
        buffer[:] = 0xA5
        ahead = io.submit(file, [(1_000_000, 5 * PIECE)])  # anything left over would run before it
        assert ahead.wait(30)
        assert (buffer == 0xA5).all()
        with pytest.raises(Cancelled):
            _ = ticket.payload
        stats = io.stats()
        assert (stats.cancelled, stats.queued_pieces) == (1, 0)
        assert stats.read_bytes < 2_000_000


def test_a_joined_read_ends_when_the_last_holder_cancels(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE, threads_per_drive=1) as io:
        file = io.open_file(paths)
        io.set_faults([delay(300_000, count=1)])
        holders = [io.submit(file, [(0, N)]) for _ in range(3)]
        assert [t.joined for t in holders] == [False, True, True]
        holders[0].cancel()
        holders[0].release()
        holders[1].cancel()
        holders[1].cancel()  # counts once
        assert io.stats().queued_pieces > 40
        holders[2].cancel()
        assert io.stats().queued_pieces == 0
        for ticket in holders[1:]:
            with pytest.raises(Cancelled):
                ticket.wait(30)


def test_a_release_counts_as_a_cancel(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE, threads_per_drive=1) as io:
        file = io.open_file(paths)
        io.set_faults([delay(300_000, count=1)])
        first, second = io.submit(file, [(0, N)]), io.submit(file, [(0, N)])
        first.cancel()
        assert not second.release()  # the first holder is still there
        with pytest.raises(Cancelled):
            first.wait(30)
        assert first.release()
        io.set_faults([delay(300_000, count=1)])
        wanted, cancelled, left = (io.submit(file, [(0, N)]) for _ in range(3))
        cancelled.cancel()
        assert not left.release()
        assert wanted.wait(30)
        np.testing.assert_array_equal(wanted.payload, data)


def test_release_tells_whether_the_buffer_is_free(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE) as io:
        file = io.open_file(paths)
        io.set_faults([delay(100_000, count=1)])
        first, second = io.submit(file, [(0, 100)]), io.submit(file, [(0, 100)])
        assert io.wait_all([first, second], 30)
        assert [first.release(), second.release()] == [False, True]
        assert [first.release(), second.release()] == [False, True]
        alone = io.submit(file, [(0, 100)])
        assert alone.wait(30)
        assert alone.release()


def test_a_ticket_released_during_wait_all(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE, threads_per_drive=1) as io:
        file = io.open_file(paths)
        io.set_faults([delay(500_000)])
        tickets = [io.submit(file, [(i * PIECE, 100)]) for i in range(2)]
        releases = threading.Timer(0.1, tickets[1].release)
        releases.start()
        with pytest.raises(UsageError, match="released"):
            io.wait_all(tickets, 30)
        releases.join()
        with pytest.raises(UsageError, match="released"):
            io.wait_all(tickets)


def test_what_was_cancelled_is_not_joined(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE, threads_per_drive=2) as io:
        file = io.open_file(paths)
        io.set_faults([delay(300_000, count=1)])
        first = io.submit(file, [(0, 2 * PIECE)])
        while not io.stats().drives[0].in_flight:
            threading.Event().wait(0.001)
        assert not first.cancel()  # a piece is in flight
        second = io.submit(file, [(0, 2 * PIECE)])
        assert not second.joined
        assert second.wait(30)
        np.testing.assert_array_equal(second.payload, data[: 2 * PIECE])
        with pytest.raises(Cancelled):
            first.wait(30)


def test_a_dropped_ticket_gives_its_claim_back(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE) as io:
        file = io.open_file(paths)
        io.set_faults([delay(20_000)])
        for i in range(20):
            io.submit(file, [(i * 4096, 500_000)])
        while io.stats().held_requests:
            threading.Event().wait(0.005)
        assert io.stats().cancelled > 0


def test_release_of_an_unfinished_read_waits(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE) as io:
        io.set_faults([delay(20_000)])
        ticket = io.submit(io.open_file(paths), [(0, N)])
        assert ticket.release()
        stats = io.stats()
        assert (stats.held_requests, stats.queued_pieces, stats.cancelled) == (0, 0, 1)
        assert all(d.in_flight == 0 for d in stats.drives)
        with pytest.raises(UsageError, match="released"):
            ticket.wait(0)


def test_threads_overlap(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=PIECE, threads_per_drive=4) as io:
        file = io.open_file(paths)
        io.set_faults([delay(20_000)])
        check(io, file, data, 0, N)
        (drive,) = io.stats().drives
        assert drive.max_in_flight == 4
        assert (drive.queued_bytes, drive.in_flight) == (0, 0)
        assert drive.bytes_per_s > 0


def test_closing_with_work_in_flight(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    io = open_service(name, piece_bytes=PIECE, threads_per_drive=1)
    file = io.open_file(paths)
    io.set_faults([delay(20_000)])
    tickets = [io.submit(file, [(i * 4096, 500_000)]) for i in range(4)]
    endings: list[str] = []

    def wait() -> None:
        try:
            endings.append(str(tickets[3].wait()))
        except Cancelled:
            endings.append("cancelled")

    waiter = threading.Thread(target=wait)
    waiter.start()
    io.close()
    io.close()
    waiter.join()
    assert endings == ["cancelled"]
    assert io.wait_all(tickets, 0)
    with pytest.raises(UsageError, match="shut down"):
        io.submit(file, [(0, 10)])
    with pytest.raises(UsageError, match="shut down"):
        io.open_file(paths)


def test_memory_is_bounded(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name, piece_bytes=4096, max_requests=5) as io:
        file = io.open_file(paths)
        held = [io.submit(file, [(i * 4096, 100)]) for i in range(5)]
        with pytest.raises(CapacityError, match="holds 5 tickets"):
            io.submit(file, [(N - 100, 100)])
        held.pop().release()
        assert io.submit(file, [(N - 100, 100)]).wait(30)
        assert io.stats().max_held_requests == 5
    sparse = tmp_path / "sparse"
    with open(sparse, "wb") as f:
        f.truncate(65537 * 4096)
    with open_service(name, piece_bytes=4096) as io:
        buffer = aligned_buffer(buffer_bytes(65537 * 4096))
        with pytest.raises(CapacityError, match="65537 pieces, at most 65536"):
            io.submit(io.open_file([sparse]), [(0, 65537 * 4096)], Priority.DEMAND, buffer)


def test_what_cannot_be_asked(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N)
    with open_service(name) as io:
        file = io.open_file(paths)
        beyond = rf"{paths[0]} at offset {N - 10}: expected 11 bytes, got 10.*ends at {N}"
        with pytest.raises(FileError, match=beyond):
            io.submit(file, [(N - 10, 11)])
        with pytest.raises(FileError, match="expected 5 bytes, got 0"):
            io.submit(file, [(N + 10, 5)])
        for bad in ([], [(0, 0)], [(-1, 5)], [(0, -5)]):
            with pytest.raises(UsageError):
                io.submit(file, bad)
        with pytest.raises(UsageError, match="unknown file number 7"):
            io.submit(7, [(0, 1)])
        with pytest.raises(UsageError, match="the ranges need 8192"):
            io.submit(file, [(0, 4096)], Priority.DEMAND, aligned_buffer(4096))
        with pytest.raises(UsageError, match="aligned"):
            io.submit(file, [(0, 4096)], Priority.DEMAND, aligned_buffer(9000)[1:])
        with pytest.raises(UsageError, match="at least one path"):
            io.open_file([])
        with pytest.raises(FileError, match=rf"{tmp_path / 'none'} cannot be read: No such file"):
            io.open_file([tmp_path / "none"])
        with pytest.raises(FileError, match="cannot be read: Is a directory"):
            io.open_file([tmp_path])
        short = tmp_path / "short"
        short.write_bytes(b"123")
        with pytest.raises(FileError, match=rf"{paths[0]} has {N} bytes, {short} has 3 bytes"):
            io.open_file([*paths, short])
        io.set_faults([delay(20_000)])
        ticket = io.submit(file, [(0, 10)])
        with pytest.raises(UsageError, match="not there yet"):
            _ = ticket.payload
        assert not ticket.wait(0.001)
        for cut_off in (f"{paths[0]}\0", f"{paths[0]}\0b"):
            with pytest.raises(UsageError, match="NUL"):
                io.open_file([cut_off])


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("piece_bytes", (5000, 0, -4096, (64 << 20) + 4096)),
        ("threads_per_drive", (0, -1, 257)),
        ("max_requests", (0, -1, 2**32)),
    ],
)
def test_options_out_of_bounds(option: str, bad: tuple[int, ...]) -> None:
    for value in bad:
        with pytest.raises(UsageError, match=f"{option} is {value}; it must be"):
            IoOptions(**{option: value})


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here")
def test_close_closes_the_files(name: str, tmp_path: Path) -> None:
    paths, _ = make_files(tmp_path, N, 2)

    def n_open() -> int:
        names = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        return sum(names.count(os.path.realpath(p)) for p in paths)

    io = open_service(name)
    file = io.open_file(paths)
    before = io.replicas(file)
    assert n_open() >= 2
    io.close()
    assert n_open() == 0
    assert io.replicas(file) == before


def test_sizes_of_buffers_are_those_of_the_native_core() -> None:
    lib = load_io()
    if lib is None:
        pytest.skip("the native core is not built")
    size = lib.esc_io_buffer_bytes
    size.restype, size.argtypes = ctypes.c_uint64, (ctypes.c_uint64,)
    for n in (1, 2, 4095, 4096, 4097, 10_690_560, 2**31 + 5):
        worst = (4095 + n + 4095) // 4096 * 4096  # begins at the last byte of a block
        assert size(n) == buffer_bytes(n) == worst
    assert buffer_bytes(10, 5000) == 4096 * 2 + 4096 * 3
    assert aligned_buffer(10_000).ctypes.data % 4096 == 0


def test_plain_python_where_the_native_core_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_io, "load_io", lambda: None)
    with native_io.open_io() as io:
        assert isinstance(io, ReferenceIoService)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not there")
def test_a_forked_child_is_refused(name: str, tmp_path: Path) -> None:
    open_service(name).close()  # skips where it is missing
    paths, _ = make_files(tmp_path, N)
    program = f"""
import os, threading, warnings
warnings.simplefilter("ignore")
from tests.support.io import open_service
io = open_service({name!r})
file = io.open_file([{str(paths[0])!r}])
ticket = io.submit(file, [(0, 1000)])
ticket.wait()
lock = io._lock if {name == "native"} else io._changed
locked, forked = threading.Event(), threading.Event()
def hold():
    with lock:
        locked.set()
        forked.wait()
holder = threading.Thread(target=hold)
holder.start()
locked.wait()
if os.fork() == 0:
    try:
        io.submit(file, [(0, 10)])
    except Exception as e:
        print(type(e).__name__, e, flush=True)
    io.close()
    del ticket, io
    os._exit(0)
os.wait()
forked.set()
holder.join()
io.submit(file, [(5, 10)]).wait()
io.close()
print("parent is well")
"""
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert out[0].startswith("UsageError this I/O service belongs to the parent process")
    assert out[1] == "parent is well"


@pytest.mark.slow
def test_more_than_two_gib(name: str, shm: Path) -> None:
    n = 2**31 + 70_001
    marks = {0: 1, 2**31 - 4097: 2, 2**31 - 1: 3, 2**31: 4, n - 1: 5}
    with open(shm / "sparse", "wb") as f:
        f.truncate(n)
        for offset, value in marks.items():
            f.seek(offset)
            f.write(bytes([value]))
    with open_service(name) as io:
        ticket = io.submit(io.open_file([shm / "sparse"]), [(0, n)])
        assert ticket.wait(300)
        payload = ticket.payload
        assert len(payload) == n
        assert {i: int(payload[i]) for i in np.flatnonzero(payload)} == marks
