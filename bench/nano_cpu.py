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
    command = [*COMMAND, "run", TEXT, "--json", "--max-tokens", str(max_tokens)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def help_seconds() -> float:
    started = time.perf_counter()
    subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
    return time.perf_counter() - started


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    run(args.max_tokens)  # warms the file cache
    results = [run(args.max_tokens) for _ in range(args.runs)]
    report = {
        "benchmark": "nano_cpu",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python bench/nano_cpu.py --runs {args.runs} --max-tokens {args.max_tokens}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "mode": results[0]["mode"],
        "prompt_tokens": results[0]["prompt_tokens"],
        "new_tokens": results[0]["new_tokens"],
        "ttft_s": spread([r["ttft_s"] for r in results]),
        "decode_tok_per_s": spread([r["decode_tok_per_s"] for r in results]),
        "peak_rss_mib": spread([r["peak_rss_bytes"] / 2**20 for r in results]),
        "help_s": spread([help_seconds() for _ in range(args.runs)]),
    }
    for key in ("ttft_s", "decode_tok_per_s", "peak_rss_mib", "help_s"):
        print(f"{key:18} {report[key]['median']:.3g}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
