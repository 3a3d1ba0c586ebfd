"""Time, memory and bytes of the fleet report over synthetic lakes.

    python benchmarks/fleet/run.py DIR [--incidents 10000 100000 1000000] [--nodes 20000]

Lakes are made below DIR where they are missing (see generate.py). Each report runs in a process of its own, so that its
peak memory is its own; time includes the start of Python. Bytes are what the process read from files, as Linux counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SPANS = {"week": ("weekly", "2026-11-23", "2026-11-30"), "year": ("weekly", "2025-11-30", "2026-11-30")}


def main() -> None:
    """Print a table, one row per lake and span."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--incidents", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--nodes", type=int, default=20_000)
    given = parser.parse_args()
    print(f"{'incidents':>10} {'lake MB':>8} {'span':>5} {'seconds':>8} {'CPU s':>6} {'peak MB':>8} {'read MB':>8}")
    for count in given.incidents:
        lake = given.folder / f"{count}"
        if not lake.exists():
            command = [sys.executable, str(HERE / "generate.py"), str(lake), "--incidents", str(count)]
            subprocess.run([*command, "--nodes", str(given.nodes)], check=True, stdout=subprocess.DEVNULL)
        size = sum(path.stat().st_size for path in lake.rglob("*.parquet")) / 1e6
        for name, (kind, since, until) in SPANS.items():
            seconds, cpu, peak, read = measure(lake, kind, since, until)
            print(f"{count:>10,} {size:>8,.0f} {name:>5} {seconds:>8.1f} {cpu:>6.1f} {peak:>8,.0f} {read:>8,.0f}")


def measure(lake: Path, kind: str, since: str, until: str) -> tuple[float, float, float, float]:
    """(seconds, CPU seconds, peak MB, MB read) of one report."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "analyzers.cli", "report", kind, "--store", str(lake), "--since", since,
         "--until", until, "--format", "html"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    # stopped before it is reaped, because its counters go with it
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    seconds = time.perf_counter() - started
    read = _read_bytes(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the report failed with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3, read


def _read_bytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return float("nan")
    return int(dict(line.split(": ") for line in lines)["rchar"]) / 1e6


if __name__ == "__main__":
    main()
