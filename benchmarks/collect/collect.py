"""Bytes of a log to Parquet on a local store (read as its user, masked, split, written), beside `zstd -1` of the file.

    python benchmarks/collect/collect.py [--mib 256] [--ranks 1]

Peak memory is that of this process (ru_maxrss); the reading child is another. Needs root to become the user.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import zstandard

from collector.collect import Masking, collect
from collector.model import Budget, RunRef
from collector.sources.rank_logs import RankLogs
from collector.store import LocalStore
from collector.user_files import Limits, Wanted, copy

LINE = (
    "[rank{r}]: 2026-12-01 05:{m:02d}:{s:02d},{ms:03d} INFO trainer.py:{k}] step {n}/500000 loss {x:.4f} "
    "lr 3.0e-05 tokens/s {t}\n"
)
WARNING = "[rank{r}]: WARNING: gradient norm {k}.5 clipped, export HF_TOKEN=hf_aB3dE5gH7jK9aB3dE5gH7jK9aB3dE5gH7jK9\n"


def log(path: Path, size: int, rank: int) -> None:
    """A training log: progress lines with a time and a rank, now and then a secret, a traceback at the end."""
    with path.open("w") as out:
        written = n = 0
        while written < size:
            form = WARNING if n % 50_000 == 7 else LINE
            written += out.write(
                form.format(
                    r=rank, m=n // 60 % 60, s=n % 60, ms=n % 1000, k=n % 400, n=n, x=2 + n % 97 / 100, t=12000 + n % 999
                )
            )
            n += 1
        out.write('Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nRuntimeError: boom\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="of all ranks together")
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    size = args.mib << 20
    with tempfile.TemporaryDirectory(prefix="ff-collect-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        for rank in range(args.ranks):
            log(root / f"r-{rank}.log", size // args.ranks, rank)
        total = sum(path.stat().st_size for path in root.glob("*.log"))

        started = time.perf_counter()
        packed = 0
        for path in sorted(root.glob("*.log")):
            with path.open("rb") as source, (root / "out.zst").open("wb") as target:
                packed += zstandard.ZstdCompressor(level=1).copy_stream(source, target)[1]
        zstd = time.perf_counter() - started

        started = time.perf_counter()
        limits = Limits(seconds=3600, bytes=1 << 40, file_bytes=1 << 40)
        regex = rf"{root}/r-(?P<rank>\d+)\.log"
        copies = copy(root / "copies", os.getuid(), [Wanted(f"{root}/r-*.log", label={"regex": regex})], limits)
        copied = time.perf_counter()
        source = RankLogs(root / "copies", copies, str(root))
        budget = Budget(seconds=3600, lines=1 << 31)
        store = LocalStore(root / "store")
        collect(RunRef("bench"), [source], budget, store, origin="o", masking=Masking(done=True), adjust=source.adjust)
        ended = time.perf_counter()
        stored = sum(item.size for item in store.list("raw/"))

        mib = total / (1 << 20)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print("| step | s | MiB/s | bytes out / in |\n|---|---|---|---|")
        print(f"| zstd -1 | {zstd:.2f} | {mib / zstd:.0f} | {packed / total:.3f} |")
        print(f"| read as the user and mask | {copied - started:.2f} | {mib / (copied - started):.0f} | 1 |")
        print(
            f"| split and write Parquet | {ended - copied:.2f} | {mib / (ended - copied):.0f} | {stored / total:.3f} |"
        )
        print(f"\n{mib:.0f} MiB in {args.ranks} files; peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
