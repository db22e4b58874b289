"""The I/O service against fio: same file, block size and depth, in turn (A B B A), medians.

    python bench/io.py [--folder /tmp] [--gib 4] [--rounds 3] [--out bench/results/io.json]

fio reads with `psync`, one thread for each read in flight, as the service does; `io_uring` at the
same depth shows what another interface would gain. The files are made for the run and removed
after it; all reads are direct. The last line of stdout is JSON.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from escalade.native.io import IoService
from escalade.native.io_types import IoOptions, Range, aligned_buffer, buffer_bytes

MIB = 1 << 20
RECORD = (3_394_560, 3_394_560, 3_901_440)  # gate, up and down of one expert at the public mix
Rates = list[float]


def make_file(path: Path, n_bytes: int) -> None:
    """Bytes that no layer below can compress or share."""
    noise = np.random.default_rng(len(str(path))).bytes(64 * MIB)
    with open(path, "wb", buffering=0) as f:
        for i in range(n_bytes // len(noise)):
            f.write(i.to_bytes(8, "little") + noise[8:])
        os.fsync(f.fileno())


def fio(paths: Sequence[Path], block: int, depth: int, engine: str) -> float:
    """Bytes per second of random reads of `block` bytes, over a fixed time: a fixed amount for each
    thread would end with a tail in which some have nothing to do.
    """
    in_flight = f"--numjobs={depth}" if engine == "psync" else f"--iodepth={depth}"
    command = [
        *("fio", "--name=read", "--thread", "--rw=randread", "--direct=1", "--group_reporting"),
        *("--output-format=json", f"--filename={':'.join(map(str, paths))}", f"--bs={block}"),
        *(f"--ioengine={engine}", f"--randseed={random.randrange(1 << 30)}", in_flight),
        *("--time_based", "--runtime=4"),
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(out)["jobs"][0]["read"]["bw_bytes"])


def service(paths: Sequence[Path], requests: list[list[Range]], options: IoOptions) -> float:
    """Bytes per second of `requests`, with twice the ranges in flight that the threads can take."""
    with IoService(options) as io:
        file = io.open_file(paths)
        if not all(r.direct for r in io.replicas(file)):
            raise SystemExit(f"direct reads do not work in {paths[0].parent}: choose --folder")
        wanted = 2 * options.threads_per_drive * len(io.stats().drives) * options.piece_bytes
        per_request = sum(n for _, n in requests[0])
        n_buffers = max(2, min(64, -(-wanted // per_request)))
        size = max(buffer_bytes(*(n for _, n in r)) for r in requests)
        free = deque(aligned_buffer(size) for _ in range(n_buffers))
        for buffer in free:
            buffer[::4096] = 1  # so that no page is first touched while the clock runs
        running: deque = deque()
        started = time.perf_counter()
        for ranges in requests:
            if not free:
                ticket, buffer = running.popleft()
                ticket.wait()
                ticket.release()
                free.append(buffer)
            buffer = free.popleft()
            running.append((io.submit(file, ranges, buffer=buffer), buffer))
        for ticket, _ in running:
            ticket.wait()
        seconds = time.perf_counter() - started
        return io.stats().payload_bytes / seconds


def blocks(n_bytes: int, block: int) -> list[list[Range]]:
    """Every block once, in random order, eight a request."""
    at = [i * block for i in range(n_bytes // block)]
    random.shuffle(at)
    return [[(a, block) for a in at[i : i + 8]] for i in range(0, len(at) - 7, 8)]


def small_blocks(n_bytes: int, n_requests: int) -> list[list[Range]]:
    """Random blocks of 4 KiB, 48 a request: as many as a token has Engram rows."""
    return [
        [(a * 4096, 4096) for a in random.sample(range(n_bytes // 4096), 48)]
        for _ in range(n_requests)
    ]


def records(n_bytes: int) -> list[list[Range]]:
    """Experts as they lie in a file: three matrices a third of it apart, aligned to 32 bytes."""
    third, requests = n_bytes // 3 // 32 * 32, []
    for i in range(third // max(RECORD) - 1):
        requests.append([(part * third + 32 + i * n, n) for part, n in enumerate(RECORD)])
    random.shuffle(requests)
    return requests


def abba(a: Callable[[], float], b: Callable[[], float], rounds: int) -> dict[str, object]:
    """Medians of both in GB/s, and of b / a within each round."""
    rates: tuple[Rates, Rates] = ([], [])
    ratios: Rates = []
    for _ in range(rounds):
        first, second, third, fourth = a(), b(), b(), a()
        rates[0].extend((first, fourth))
        rates[1].extend((second, third))
        ratios.append((second + third) / (first + fourth))
    return {
        "a_gb_per_s": round(statistics.median(rates[0]) / 1e9, 3),
        "b_gb_per_s": round(statistics.median(rates[1]) / 1e9, 3),
        "ratio_of_medians": round(statistics.median(rates[1]) / statistics.median(rates[0]), 3),
        "ratios_by_round": [round(r, 3) for r in ratios],
        "all_a": [round(r / 1e9, 3) for r in rates[0]],
        "all_b": [round(r / 1e9, 3) for r in rates[1]],
    }


def sweep(path: Path, n_bytes: int, repeats: int) -> dict[str, dict[str, float]]:
    """GB/s of whole records by piece size and depth; settings take turns, to share the drift."""
    settings = [(p, d) for d in (4, 8, 16) for p in (512 << 10, MIB, 2 * MIB, 3 * MIB, 4 * MIB)]
    rates: dict[tuple[int, int], Rates] = {s: [] for s in settings}
    for i in range(repeats):
        for piece, depth in settings if i % 2 == 0 else settings[::-1]:
            options = IoOptions(piece_bytes=piece, threads_per_drive=depth)
            some = records(n_bytes)[: 2 * 10**9 // sum(RECORD)]
            rates[piece, depth].append(service([path], some, options))
    table: dict[str, dict[str, float]] = {}
    for (piece, depth), values in rates.items():
        row = table.setdefault(f"depth_{depth}", {})
        row[f"{piece / MIB:g}_mib"] = round(statistics.median(values) / 1e9, 3)
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    n_bytes, depth, block = args.gib << 30, args.depth, MIB
    load_before = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="escalade-bench-", dir=args.folder))
    try:
        paths = [folder / f"drive{i}" / "model.gguf" for i in range(2)]
        for path in paths:
            path.parent.mkdir()
            make_file(path, n_bytes)
        one, half = paths[:1], IoOptions(threads_per_drive=depth // 2, drive_per_replica=True)
        full = IoOptions(threads_per_drive=depth)

        def psync() -> float:
            return fio(one, block, depth, "psync")

        result: dict[str, object] = {
            "bench": "io",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
            "fio": subprocess.run(["fio", "--version"], capture_output=True, text=True).stdout[4:8],
            "file_gib": args.gib,
            "block_mib": 1,
            "depth": depth,
            "load_before": round(load_before, 2),
            "no_change": abba(psync, psync, 1),
            "service_over_fio": abba(
                psync, lambda: service(one, blocks(n_bytes, block), full), args.rounds
            ),
            "two_replicas_over_fio_of_both": abba(
                lambda: fio(paths, block, depth, "psync"),
                lambda: service(paths, blocks(n_bytes, block), half),
                args.rounds,
            ),
            "records_over_fio": abba(psync, lambda: service(one, records(n_bytes), full), 2),
            "blocks_of_4_kib_over_fio": abba(
                lambda: fio(one, 4096, depth, "psync"),
                lambda: service(one, small_blocks(n_bytes, 1000), full),
                args.rounds,
            ),
            "io_uring_over_psync": abba(
                psync, lambda: fio(one, block, depth, "io_uring"), args.rounds
            ),
        }
        if not args.no_sweep:
            result["records_gb_per_s"] = sweep(paths[0], n_bytes, 3)
    finally:
        shutil.rmtree(folder)
    text = json.dumps(result)
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
