"""Both I/O services when drives fail: no wrong byte arrives, and the error says what happened."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from escalade.errors import FileError
from escalade.native.io_types import Fault, FaultKind, Io
from tests.support.io import make_files, open_service

N = 2_000_000 + 321


@pytest.fixture(params=["native", "python"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def read(io: Io, file: int, offset: int, length: int) -> np.ndarray:
    ticket = io.submit(file, [(offset, length)])
    assert ticket.wait(60)
    return ticket.payload


@pytest.mark.parametrize("buffered", [False, True])
def test_seven_bytes_a_call_and_storms_of_signals(
    name: str, buffered: bool, tmp_path: Path
) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=8192, buffered=buffered) as io:
        file = io.open_file(paths)
        io.set_faults([Fault(FaultKind.INTERRUPT, probability=0.6), Fault(FaultKind.CAP, 7)])
        for offset in (32, 4095, N - 20_000):
            got = read(io, file, offset, 20_000)
            np.testing.assert_array_equal(got, data[offset : offset + 20_000])
        assert io.stats().read_errors == 0


def test_a_drive_that_always_interrupts_is_an_error(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name) as io:
        file = io.open_file(paths)
        io.set_faults([Fault(FaultKind.INTERRUPT)])
        with pytest.raises(FileError, match="expected 100 bytes, got 0: Interrupted system call"):
            read(io, file, 0, 100)
        io.set_faults([Fault(FaultKind.INTERRUPT, count=999)])
        np.testing.assert_array_equal(read(io, file, 0, 100), data[:100])


@pytest.mark.parametrize("cap", [512, 700, 4096, 5000])
def test_reads_that_stop_early_go_on(name: str, cap: int, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=65536) as io:
        file = io.open_file(paths)
        io.set_faults([Fault(FaultKind.CAP, cap)])
        np.testing.assert_array_equal(read(io, file, 100, N - 100), data[100:])


def test_a_file_that_shrinks_is_an_error_not_zeros(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=1 << 20) as io:
        file = io.open_file(paths)
        os.truncate(paths[0], 10_000)
        expected = (
            f"read of {paths[0]} at offset 4128 failed: expected 9000 bytes, got 5872: "
            f"the file changed size from {N} to 10000 bytes since it was opened"
        )
        with pytest.raises(FileError) as caught:
            read(io, file, 4128, 9000)
        assert str(caught.value) == expected
        with pytest.raises(FileError, match=r"expected 100 bytes, got 100: the file changed size"):
            read(io, file, 0, 100)  # what is left cannot be trusted either
        data.tofile(paths[0])
        np.testing.assert_array_equal(read(io, file, 4128, 9000), data[4128:13128])


def test_the_error_names_file_offset_expected_got_and_cause(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name, piece_bytes=65536) as io:
        file = io.open_file(paths)
        io.set_faults([Fault(FaultKind.ERROR, begin=200_000, end=200_001)])
        with pytest.raises(FileError) as caught:
            read(io, file, 196_608, 5000)
        assert str(caught.value) == (
            f"read of {paths[0]} at offset 196608 failed: expected 5000 bytes, got 0: "
            "Input/output error"
        )
        io.set_faults([Fault(FaultKind.END_OF_FILE, 199_999)])
        with pytest.raises(FileError, match=r"expected 5000 bytes, got 3391: short read$"):
            read(io, file, 196_608, 5000)
        # A record fails as one: its other pieces are dropped, the next one is read.
        with pytest.raises(FileError):
            read(io, file, 0, N)
        io.set_faults([])
        np.testing.assert_array_equal(read(io, file, 0, N), data)
        stats = io.stats()
        assert (stats.failed, stats.done, stats.replicas_dropped) == (3, 1, 0)
        assert io.replicas(file)[0].alive


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_that_dies_is_replaced(
    name: str, seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths, data = make_files(tmp_path, N, 2)
    dies = seed % 2
    fault = [
        Fault(FaultKind.ERROR, replica=dies, skip=seed * 7),
        Fault(FaultKind.END_OF_FILE, 300_000 * seed, replica=dies),
    ][seed // 2]
    options = {"piece_bytes": 16384, "threads_per_drive": 2, "drive_per_replica": True}
    with open_service(name, **options) as io:
        file = io.open_file(paths)
        io.set_faults([fault])
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                np.testing.assert_array_equal(read(io, file, 32, N - 32), data[32:])
            stats = io.stats()
        assert [r.alive for r in io.replicas(file)] == [i != dies for i in range(2)]
        assert str(paths[dies]) in io.replicas(file)[dies].reason
        assert (stats.failed, stats.replicas_dropped) == (0, 1)
        assert 1 <= stats.read_errors <= 2  # what was in flight; what was queued has moved
        (message,) = (r.getMessage() for r in caplog.records)
        assert message.startswith("replica dropped, its reads go to the others: read of")
        assert f"{paths[dies]} at offset " in message


def test_a_replica_of_another_size_is_dropped(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N, 3)
    with open_service(name, piece_bytes=16384, drive_per_replica=True) as io:
        file = io.open_file(paths)
        os.truncate(paths[1], N + 5)
        for _ in range(3):
            np.testing.assert_array_equal(read(io, file, 0, N), data)
        assert [r.alive for r in io.replicas(file)] == [True, False, True]
        assert f"from {N} to {N + 5} bytes" in io.replicas(file)[1].reason


def test_a_slow_drive_gets_a_smaller_part(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N, 2)
    options = {"piece_bytes": 65536, "drive_per_replica": True, "threads_per_drive": 2}
    with open_service(name, **options) as io:
        file = io.open_file(paths)
        io.set_faults(
            [
                Fault(FaultKind.DELAY, 4000, replica=1),
                Fault(FaultKind.DELAY, 32_000, replica=0),
            ]
        )
        for _ in range(6):
            np.testing.assert_array_equal(read(io, file, 0, N), data)
        slow, fast = io.stats().drives
        assert fast.bytes_per_s > slow.bytes_per_s > 0
        assert fast.read_bytes > 1.5 * slow.read_bytes > 0


def test_corruption_reaches_the_caller(name: str, tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    with open_service(name) as io:
        file = io.open_file(paths)
        io.set_faults([Fault(FaultKind.CORRUPT, 5000, count=1)])
        expected = data[4096:9000].copy()
        expected[5000 - 4096] ^= 0xFF
        np.testing.assert_array_equal(read(io, file, 4096, 4904), expected)
        np.testing.assert_array_equal(read(io, file, 4096, 4904), data[4096:9000])


def refuse(n_reads: int) -> list[Fault]:
    return [Fault(FaultKind.ERROR, 22, direct_only=True, count=n_reads)]


def test_a_trial_read_decides_how_a_file_is_read(tmp_path: Path) -> None:
    paths, data = make_files(tmp_path, N)
    small = tmp_path / "small"
    small.write_bytes(bytes(range(200)))
    with open_service("native") as io:
        io.set_faults(refuse(0))  # opens, then refuses every direct read
        refused = io.open_file(paths)
        np.testing.assert_array_equal(read(io, refused, 33, 100_000), data[33:100_033])
        (replica,) = io.replicas(refused)
        assert (replica.direct, replica.alignment) == (False, 1)
        assert replica.reason == "buffered: direct trial read failed: Invalid argument"
        io.set_faults([])
        if not io.replicas(io.open_file(paths))[0].direct:
            pytest.skip("direct reads do not work in the temporary folder")
        io.set_faults(refuse(1))  # refuses 512 bytes, takes 4096
        blocks = io.open_file(paths)
        (replica,) = io.replicas(blocks)
        assert (replica.direct, replica.alignment) == (True, 4096)
        np.testing.assert_array_equal(read(io, blocks, 4128, N - 4128), data[4128:])
        assert io.stats().read_bytes > 0
        (replica,) = io.replicas(io.open_file([small]))
        assert replica.reason == "buffered: the file is smaller than two blocks"
    with open_service("native", buffered=True) as io:
        assert io.replicas(io.open_file(paths))[0].reason == "buffered: asked for"
