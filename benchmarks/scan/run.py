"""Scanning speed against ripgrep, and the cost of `diagnose` as ranks grow. See README.md beside this file.

    python benchmarks/scan/run.py rg                 # 700 MB, all signature patterns, five pairs A B A B ...
    python benchmarks/scan/run.py diagnose 128 256 512 1024
    python benchmarks/scan/run.py small              # a ten-line log, cold and warm cache

Every measurement is a process of its own, from start to exit, with its CPU time and peak memory from wait4.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FAILURES = [
    "[rank3]:[E1231 23:59:59.000000000 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600032 "
    "milliseconds before timing out.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB "
    "of which 1.50 GiB is free.",
    "OSError: [Errno 28] No space left on device",
    "node-003:4711:4790 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.4<47110> with error 12, opcode 0, len 0",
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
]


class Run(NamedTuple):
    """One finished process."""

    wall: float
    cpu: float
    rss_mb: float
    code: int
    out: str


def measured(command: list[str], env: dict[str, str] | None = None) -> Run:
    """Run `command` to its end."""
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode(errors="replace")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, child.returncode, text)


def log_lines(rng: random.Random, rank: int, failures: bool) -> Iterator[str]:
    """An endless rank log in the form of Megatron-LM under NCCL_DEBUG=INFO, seconds apart."""
    step, clock = 0, 1_767_225_600
    while True:
        step += 1
        clock += 1
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(clock))
        yield (
            f" [{stamp}] iteration {step:8d}/ 9999999 | consumed samples: {step * 1024:12d} | elapsed time per "
            f"iteration (ms): {rng.uniform(900, 1200):.1f} | learning rate: {3e-4:.6E} | global batch size:  1024 | lm "
            f"loss: {rng.uniform(1.5, 3):.6E} | loss scale: 1.0 | grad norm: {rng.uniform(0.1, 2):.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if step % 5 == 0:
            peer = rng.randrange(8)
            me = f"{rank % 8}[{rank % 8}]"
            yield (
                f"node-{rank // 8:03d}:4711:4790 [{rank % 8}] NCCL INFO Channel {step % 16:02d}/0 : "
                f"{me} -> {peer}[{peer}] via P2P/CUMEM/read"
            )
        if step % 3 == 0:
            yield (
                f"[{stamp},{step % 1000:03d}] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
                f"RunningAvgSamplesPerSec={rng.uniform(30, 40):.4f}, MemAllocated=12.3GB, MaxMemAllocated=45.6GB"
            )
        if step % 997 == 0:
            yield f"{stamp} - WARNING - data loading took {rng.uniform(1, 9):.1f} s, longer than the step itself"
        if failures and rng.random() < 4e-6:
            yield rng.choice(FAILURES)


def write_log(path: Path, size: int, rank: int = 3, failures: bool = True, last: str = "") -> None:
    """Write about `size` bytes of log; the same for the same arguments."""
    written = 0
    rng = random.Random(rank)
    with path.open("w") as file:
        for line in log_lines(rng, rank, failures):
            written += file.write(line) + file.write("\n") if line else 0
            if written >= size:
                break
        file.write(last)


def load_patterns(catalogue: Path | None) -> list[str]:
    """The patterns of the signatures, or those of another folder of YAML files (keys `regex`)."""
    if catalogue is None:
        from analyzers import signatures

        return list(signatures.load().patterns)
    found = []
    for path in sorted(catalogue.glob("**/*.yaml")):
        found += re.findall(r"^\s*(?:- )?regex: (.+)$", path.read_text(), re.MULTILINE)
    import yaml

    return [str(yaml.safe_load(text)) for text in found]


def for_ripgrep(pattern: str) -> str:
    """The same pattern for Rust's regex: no duplicate group names across patterns, no needless escapes."""
    plain = re.sub(r"\(\?P<\w+>", "(?:", pattern)
    return re.sub(r"\\(.)", lambda m: m[0] if m[1].isalnum() or m[1] in r"\.+*?()|[]{}^$#&-~" else m[1], plain)


def compare(options: argparse.Namespace) -> None:
    """A B A B: firstfault and ripgrep in turn on the same file, five times."""
    if shutil.which("rg") is None:
        sys.exit("ripgrep is not installed: `apt-get install ripgrep` or see its own page, then run this again")
    patterns = load_patterns(options.catalogue)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        log, ours, theirs = Path(folder, "rank3.log"), Path(folder, "patterns.json"), Path(folder, "patterns.txt")
        write_log(log, options.size << 20)
        ours.write_text(json.dumps(patterns))
        theirs.write_text("\n".join(map(for_ripgrep, patterns)) + "\n")
        size = log.stat().st_size / 1e6
        a = [sys.executable, str(Path(__file__).with_name("count.py")), str(log), str(ours)]
        # The patterns mean ASCII here. With Unicode, ripgrep is slower, and crawls where a log holds a progress bar.
        dialect = [] if options.unicode else ["--no-unicode"]
        b = ["rg", "-j1", "-n", "-a", *dialect, "-f", str(theirs), str(log)]
        measured(a)  # fills the page cache and the database cache
        pairs = [(measured(a), measured(b)) for _ in range(options.pairs)]
    if any(run.code for pair in pairs for run in pair):
        sys.exit(f"a process failed: {[run.code for pair in pairs for run in pair]}")
    found = {tuple(line.split(":")[0] for line in run.out.splitlines()) for pair in pairs for run in pair}
    print(f"{len(patterns)} patterns, {size:.0f} MB, lines with a match: {sorted(found)}")
    if len(found) > 1:
        sys.exit("they do not find the same lines")
    for name, seconds in (("wall", lambda run: run.wall), ("CPU", lambda run: run.cpu)):
        speeds = [(size / seconds(x), size / seconds(y)) for x, y in pairs]
        ratios = [x / y for x, y in speeds]
        print(
            f"{name}: firstfault {statistics.median(x for x, _ in speeds):.0f} MB/s, "
            f"rg -j1 {statistics.median(y for _, y in speeds):.0f} MB/s, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(
        f"peak memory: firstfault {max(x.rss_mb for x, _ in pairs):.0f} MB, rg {max(y.rss_mb for _, y in pairs):.0f} MB"
    )


def diagnose_command(folder: Path) -> list[str]:
    """`firstfault diagnose FOLDER --json` with this interpreter."""
    return [sys.executable, "-c", "from analyzers.cli import main; main()", "diagnose", str(folder), "--json"]


def scale(options: argparse.Namespace) -> None:
    """`diagnose` over many ranks. Files are copies of sixteen different logs; one rank fails."""
    print("| ranks | MB | seconds | CPU s | MB/s | peak MB | exit | verdict |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as base:
        sources = []
        for number in range(16):
            sources.append(Path(base, f"source{number}"))
            write_log(sources[-1], options.rank_mb << 20, rank=number, failures=False)
        failing = Path(base, "failing")
        write_log(failing, options.rank_mb << 20, rank=99, failures=False, last=FAILURES[3] + "\n")
        for ranks in options.ranks:
            folder = Path(base, f"ranks{ranks}")
            folder.mkdir()
            for rank in range(ranks):
                shutil.copyfile(failing if rank == ranks // 2 else sources[rank % 16], folder / f"rank{rank}.log")
            size = ranks * options.rank_mb
            run = measured(diagnose_command(folder))
            shutil.rmtree(folder)
            verdict = json.loads(run.out)["verdict"] if run.code in (0, 3) else {}
            print(
                f"| {ranks} | {size} | {run.wall:.1f} | {run.cpu:.1f} | {size / run.wall:.0f} | {run.rss_mb:.0f} "
                f"| {run.code} | {verdict.get('signature')} ranks {verdict.get('ranks')} |",
                flush=True,
            )


def small(options: argparse.Namespace) -> None:
    """`diagnose` of a ten-line log with an empty and with a filled cache: CPU seconds of the process, best of five."""
    with tempfile.TemporaryDirectory(dir=options.folder) as base:
        folder = Path(base, "logs")
        folder.mkdir()
        lines = [line for line, _ in zip(log_lines(random.Random(1), 0, False), range(9), strict=False)]
        (folder / "rank0.log").write_text("\n".join([*lines, FAILURES[3]]) + "\n")
        cold = [measured(diagnose_command(folder), {"XDG_CACHE_HOME": f"{base}/cache{n}"}) for n in range(5)]
        warm = [measured(diagnose_command(folder)) for _ in range(5)]
    for name, runs in (("cold", cold), ("warm", warm)):
        best = min(runs, key=lambda run: run.cpu)
        print(f"{name}: {best.cpu:.2f} s CPU, {best.wall:.2f} s wall, {best.rss_mb:.0f} MB, exit {best.code}")


def main() -> None:
    """Parse the command line and run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the logs are generated (default: the temporary folder)")
    commands = parser.add_subparsers(required=True)
    rg = commands.add_parser("rg")
    rg.add_argument("--size", type=int, default=700, help="MiB of log")
    rg.add_argument("--pairs", type=int, default=5)
    rg.add_argument("--unicode", action="store_true", help="ripgrep as it comes: \\w, \\d, \\b mean Unicode")
    rg.add_argument("--catalogue", type=Path, help="another folder of YAML files with `regex:` keys")
    rg.set_defaults(run=compare)
    many = commands.add_parser("diagnose")
    many.add_argument("ranks", type=int, nargs="*", default=[128, 256, 512, 1024])
    many.add_argument("--rank-mb", type=int, default=10)
    many.set_defaults(run=scale)
    commands.add_parser("small").set_defaults(run=small)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
