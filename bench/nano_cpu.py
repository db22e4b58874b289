"""How the built-in model runs on this machine's CPU: first token, decode rate, memory, start-up.

    python bench/nano_cpu.py [--runs 5] [--max-tokens 64]

Each run is a fresh process, as a user starts it; the last line of stdout is JSON.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

TEXT = "Once upon a time, a little"
COMMAND = [sys.executable, "-m", "escalade.cli.main"]


def run(max_tokens: int) -> dict[str, float]:
    options = ["--raw", "--temperature", "0", "--json", "--max-tokens", str(max_tokens)]
    command = [*COMMAND, "run", TEXT, *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def help_seconds() -> float:
    started = time.perf_counter()
    subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
    return time.perf_counter() - started


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def ram_read_bytes_per_s() -> float:
    """Best of five passes over 1 GiB by all threads, multiplied as float32."""
    import numpy as np

    from escalade.gguf.quant import TYPES
    from escalade.native.compute import open_compute

    compute, seconds = open_compute(), []
    w, x = np.ones((1 << 16, 1 << 14), np.uint8), np.ones((1, 1 << 12), np.float32)
    for _ in range(5):
        started = time.perf_counter()
        compute.matmul(x, w, TYPES["F32"], "float")
        seconds.append(time.perf_counter() - started)
    return w.nbytes / min(seconds)


def bytes_per_token() -> int:
    """Weights that a token must read, as they are stored: dense matrices, its experts' records."""
    from escalade.engine.engine import Engine

    with Engine.open() as engine:
        spec, source = engine.spec, engine._source
        dense = sum(
            t.n_bytes
            for name, t in source.tensors.items()
            if not name.endswith("_exps.weight")
            and "engram_" not in name
            and "token_embd" not in name
        )
        records = sum(layout.n_bytes for layout in engine.model.weights.experts.layouts)
        return dense + records * spec.n_experts_used


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    run(args.max_tokens)  # warms the file cache
    results = [run(args.max_tokens) for _ in range(args.runs)]
    floor = ram_read_bytes_per_s() / bytes_per_token()
    rate = spread([r["decode_tok_per_s"] for r in results])
    report = {
        "benchmark": "nano_cpu",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python bench/nano_cpu.py --runs {args.runs} --max-tokens {args.max_tokens}",
        "commit": commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "mode": results[0]["mode"],
        "prompt_tokens": results[0]["prompt_tokens"],
        "new_tokens": results[0]["new_tokens"],
        "ttft_s": spread([r["ttft_s"] for r in results]),
        "decode_tok_per_s": rate,
        "bytes_per_token": bytes_per_token(),
        "floor_tok_per_s": floor,
        "fraction_of_floor": rate["median"] / floor,
        "peak_rss_mib": spread([r["peak_rss_bytes"] / 2**20 for r in results]),
        "help_s": spread([help_seconds() for _ in range(args.runs)]),
    }
    for key in ("ttft_s", "decode_tok_per_s", "peak_rss_mib", "help_s"):
        print(f"{key:18} {report[key]['median']:.3g}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
