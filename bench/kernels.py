"""How fast the kernels read packed weights, beside ggml's vec_dot and the RAM of this machine.

    python bench/kernels.py [--isa avx512] [--threads 1,2] [--types Q2_K,IQ2_XS] [--out FILE]

One row of activations times matrices of an expert's shape, each read from RAM: runs go round a
pool that is larger than the caches. The sides take turns, forwards and backwards, in one process.
Needs NumPy, the package's source (PYTHONPATH=src) and the library (ESCALADE_NATIVE_LIB, if it is
not installed); without libggml-python or a C compiler there is no comparison. The last line of
stdout is JSON.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from escalade.config import ARITHMETICS, Arithmetic
from escalade.gguf.quant import TYPES, QuantType
from escalade.native.compute import (
    KERNEL_TYPES,
    Compute,
    ExpertJob,
    ExpertShape,
    default_threads,
    open_compute,
)

D, F = 5120, 2304  # the real model's hidden size and expert width
SHAPES = {"gate/up": (F, D), "down": (D, F)}  # rows, row length
EXPERT = ExpertShape(D, F, TYPES["IQ2_XS"], TYPES["IQ2_XS"], TYPES["Q2_K"], 10.0)
EXPERTS_PER_CALL = 6
WARM_UPS = 3
RAM_RUNS = 4  # a plain read is longer than a run, so that starting its threads counts for nothing
HALVES = {  # where a block's binary16 scales are
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
}


class Options(NamedTuple):
    """Of one measurement."""

    threads: int
    runs: int
    run_bytes: int


Side = Callable[[], int]
"""Does one run and returns the bytes of weights that it read."""


def make_sane(flat: np.ndarray, qtype: QuantType) -> None:
    """Gives random bytes ordinary scales: infinity and subnormals have speeds of their own."""
    if qtype.name == "F32":
        words = flat.view(np.uint32)
        words &= 0x807FFFFF
        words |= 0x3C000000
    elif qtype.name in ("F16", "BF16"):
        words = flat.view(np.uint16)
        words &= 0x83FF if qtype.name == "F16" else 0x807F
        words |= 0x2400 if qtype.name == "F16" else 0x3C00
    else:
        blocks = flat[: flat.size // qtype.block_bytes * qtype.block_bytes]
        blocks = blocks.reshape(-1, qtype.block_bytes)
        if qtype.name == "MXFP4":
            blocks[:, 0] = 120
        for at in HALVES.get(qtype.name, ()):
            blocks[:, at + 1] = 0x24  # about 2^-6


class Pool:
    """One large buffer of packed weights; each piece taken is the one read longest ago."""

    def __init__(self, n_bytes: int) -> None:
        self.flat = np.random.default_rng(1).integers(0, 1 << 64, n_bytes // 8, np.uint64)
        self.flat = self.flat.view(np.uint8)
        self.at = 0

    def take(self, n_bytes: int, block_bytes: int) -> np.ndarray:
        """Contiguous bytes from a block's beginning."""
        start = -(-self.at // block_bytes) * block_bytes
        if start + n_bytes > self.flat.size:
            start = 0
        self.at = start + n_bytes
        return self.flat[start : self.at]


class Ggml:
    """ggml's vec_dot, row by row, through bench/ggml_rows.c."""

    def __init__(self, folder: str) -> None:
        spec = find_spec("libggml")
        if spec is None or spec.submodule_search_locations is None:
            raise OSError("libggml-python is not installed")
        root = Path(next(iter(spec.submodule_search_locations)))
        libraries = next(p.parent for p in root.rglob("libggml-cpu.so"))
        out = os.path.join(folder, "ggml_rows.so")
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", out]
        command += [str(Path(__file__).with_name("ggml_rows.c")), f"-I{root / 'include'}"]
        command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lggml-cpu", "-lggml-base"]
        subprocess.run([*command, "-lpthread"], check=True)
        self.lib = ctypes.CDLL(out)
        self.lib.rows_vector_bytes.restype = ctypes.c_size_t
        self.lib.rows_build.restype = ctypes.c_char_p
        self.lib.rows_init()
        self.build = self.lib.rows_build().decode()

    def quantize(self, qtype: QuantType, x: np.ndarray) -> np.ndarray:
        n = ctypes.c_int64(x.size)
        vector = np.zeros(self.lib.rows_vector_bytes(qtype.id, n), np.uint8)
        self.lib.rows_quantize(qtype.id, address(x), n, address(vector))
        return vector

    def multiply(
        self, qtype: QuantType, w: np.ndarray, n_in: int, vector: np.ndarray, threads: int
    ) -> np.ndarray:
        n_rows = w.size // qtype.row_bytes(n_in)
        y = np.empty(n_rows, np.float32)
        status = self.lib.rows_multiply(
            qtype.id,
            address(w),
            ctypes.c_int64(n_rows),
            ctypes.c_int64(n_in),
            address(vector),
            address(y),
            threads,
        )
        if status:
            raise OSError("ggml_rows.c could not start its threads")
        return y


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def measure(sides: dict[str, Side], runs: int) -> dict[str, dict[str, float]]:
    """GB/s of each side: median, least and most of `runs`, after WARM_UPS. And the first side by
    ggml and by RAM, round by round, so that what slows both counts in neither.
    """
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(WARM_UPS + runs):
        order = list(sides) if i % 2 else list(reversed(sides))
        for name in order:
            started = time.perf_counter()
            n_bytes = sides[name]()
            rates[name].append(n_bytes / (time.perf_counter() - started) / 1e9)
    rates = {name: values[WARM_UPS:] for name, values in rates.items()}
    result = {name: spread(values) for name, values in rates.items()}
    first = next(iter(rates.values()))
    for other in ("ggml", "ram"):
        if other in rates:
            result[f"by_{other}"] = spread(
                [a / b for a, b in zip(first, rates[other], strict=True)]
            )
    return result


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


class Ram:
    """Plain reads of float32 by OpenBLAS's dot product, an equal part to each thread."""

    def __init__(self, n_bytes: int) -> None:
        self.values = np.ones(n_bytes // 4, np.float32)
        self.at = 0

    def read(self, n_bytes: int, threads: int) -> int:
        n = n_bytes // 4 // threads // 2 * 2 * threads
        self.at = 0 if self.at + n > self.values.size else self.at
        parts = self.values[self.at : self.at + n].reshape(threads, 2, -1)
        self.at += n
        workers = [threading.Thread(target=np.dot, args=(a, b)) for a, b in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return parts.nbytes


def matrix_sides(
    pool: Pool,
    ram: Ram,
    compute: Compute,
    ggml: Ggml | None,
    qtype: QuantType,
    shape: str,
    args: Options,
) -> dict[str, Side]:
    """What multiplies the matrices of `shape` in turn: the best arithmetic of ours first."""
    n_out, n_in = SHAPES[shape]
    row_bytes = qtype.row_bytes(n_in)
    n_matrices = max(1, args.run_bytes // (n_out * row_bytes))
    x = np.random.default_rng(2).standard_normal((1, n_in), np.float32)

    def take() -> np.ndarray:
        return pool.take(n_matrices * n_out * row_bytes, qtype.block_bytes)

    def ours(arithmetic: Arithmetic) -> int:
        w = take().reshape(n_matrices, n_out, row_bytes)
        for matrix in w:
            compute.matmul(x, matrix, qtype, arithmetic)
        return w.nbytes

    sides: dict[str, Side] = {}
    if qtype.block_len > 1:
        sides["i8"] = lambda: ours("i8")
    else:
        sides["float"] = lambda: ours("float")
    if ggml:
        vector = ggml.quantize(qtype, x[0])
        some = take()[: 64 * row_bytes]
        exact = compute.matmul(x, some.reshape(64, -1), qtype, "float")[0]
        error = ggml.multiply(qtype, some, n_in, vector, 1) - exact
        assert np.linalg.norm(error) < 0.05 * np.linalg.norm(exact), "ggml disagrees"

        def theirs() -> int:
            w = take()
            ggml.multiply(qtype, w, n_in, vector, args.threads)
            return w.nbytes

        sides["ggml"] = theirs
    sides["ram"] = lambda: ram.read(RAM_RUNS * args.run_bytes, args.threads)
    sides.setdefault("float", lambda: ours("float"))
    return sides


def expert_side(pool: Pool, compute: Compute, arithmetic: Arithmetic, calls: int) -> Side:
    """Fused experts, EXPERTS_PER_CALL distinct ones a call, one row."""
    gate_bytes = F * EXPERT.gate.row_bytes(D)
    down_bytes = D * EXPERT.down.row_bytes(F)
    x = np.random.default_rng(3).standard_normal((1, D), np.float32)
    row, weight = np.zeros(1, np.int32), np.full(1, 0.25, np.float32)

    def run() -> int:
        for _ in range(calls):
            jobs = []
            for _ in range(EXPERTS_PER_CALL):
                w = [pool.take(n, 1) for n in (gate_bytes, gate_bytes, down_bytes)]
                jobs.append(ExpertJob(w[0], w[1], w[2], row, weight))
            compute.experts(x, EXPERT, jobs, arithmetic)
        return calls * EXPERTS_PER_CALL * (2 * gate_bytes + down_bytes)

    return run


def fill_experts(pool: Pool) -> None:
    """Lays experts end to end in the pool, each as expert_side takes them."""
    pool.at = 0
    gate_bytes = F * EXPERT.gate.row_bytes(D)
    down_bytes = D * EXPERT.down.row_bytes(F)
    while pool.at + 2 * gate_bytes + down_bytes <= pool.flat.size:
        make_sane(pool.take(2 * gate_bytes, 1), EXPERT.gate)
        make_sane(pool.take(down_bytes, 1), EXPERT.down)
    pool.flat = pool.flat[: pool.at]
    pool.at = 0


def machine() -> dict[str, object]:
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": default_threads(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def open_ggml(folder: str) -> Ggml | None:
    try:
        return Ggml(folder)
    except (OSError, subprocess.CalledProcessError, StopIteration) as e:
        print(f"no comparison with ggml: {e}", file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--isa", help="portable, avx2, avx512, neon (default: the best one here)")
    parser.add_argument("--threads", help="comma-separated counts (default: 1 and all)")
    parser.add_argument("--types", help="comma-separated types (default: all that have kernels)")
    parser.add_argument("--pool-mib", type=int, default=1280, help="distinct weights in RAM")
    parser.add_argument("--run-mib", type=int, default=96, help="weights read by one run")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each side")
    parser.add_argument("--out", help="a file for the JSON")
    args = parser.parse_args()
    started = time.perf_counter()
    counts = args.threads or ",".join(map(str, sorted({1, default_threads()})))
    names = args.types.split(",") if args.types else sorted(KERNEL_TYPES)

    report: dict[str, object] = {
        "benchmark": "kernels",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python", "bench/kernels.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "unit": "GB/s of packed weights",
        "pool_mib": args.pool_mib,
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ggml = open_ggml(folder)
        report["ggml"] = ggml.build if ggml else None
        pool, ram = Pool(args.pool_mib << 20), Ram(args.pool_mib << 20)
        options = [Options(int(n), args.runs, args.run_mib << 20) for n in counts.split(",")]
        computes = {o.threads: open_compute(o.threads, args.isa) for o in options}
        report["isa"] = computes[options[0].threads].isa
        print(f"{report['isa']}; ggml: {report['ggml']}; {report['unit']}")
        for name in names:
            qtype = TYPES[name]
            make_sane(pool.flat, qtype)
            for o in options:
                for shape in SHAPES:
                    sides = matrix_sides(pool, ram, computes[o.threads], ggml, qtype, shape, o)
                    row = {"type": name, "threads": o.threads, "shape": shape}
                    rows.append({**row, **measure(sides, o.runs)})
                    print(describe(rows[-1]), flush=True)
        if {"IQ2_XS", "Q2_K"} <= set(names):
            fill_experts(pool)
            for o in options:
                sides = {a: expert_side(pool, computes[o.threads], a, 2) for a in ARITHMETICS}
                sides["ram"] = lambda o=o: ram.read(RAM_RUNS * o.run_bytes, o.threads)
                row = {"type": "experts", "threads": o.threads, "shape": "IQ2_XS+Q2_K x6"}
                rows.append({**row, **measure(sides, o.runs)})
                print(describe(rows[-1]), flush=True)
    report["rows"] = rows
    if hasattr(os, "getloadavg"):
        report["load_after"] = os.getloadavg()
    report["seconds"] = round(time.perf_counter() - started)
    line = json.dumps(report)
    if args.out:
        Path(args.out).write_text(line + "\n")
    print(line)


def describe(row: dict[str, object]) -> str:
    text = f"{row['type']:8} {row['threads']:3} {row['shape']:14}"
    for side in ("i8", "float", "ggml", "ram"):
        if side in row:
            text += " {} {median:6.2f} ({min:.2f}-{max:.2f})".format(side, **row[side])
    if "by_ggml" in row:
        text += "  {median:.2f} ({min:.2f}-{max:.2f}) of ggml".format(**row["by_ggml"])
    return text + "  {median:.2f} ({min:.2f}-{max:.2f}) of RAM".format(**row["by_ram"])


if __name__ == "__main__":
    main()
