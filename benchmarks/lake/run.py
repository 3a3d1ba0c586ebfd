"""How many incidents per second go through the lake: publish raw parts, analyse, ask, compact, ask again.

    python benchmarks/lake/run.py [--incidents 1000] [--ranks 64] [--lines 40] [--store URI --option NAME=VALUE ...]

An incident is a job of `--ranks` ranks on nodes of 8: every rank prints its steps, one raises, the others report a lost
peer. Every node writes its parts (log_lines, ledger), the head the scheduler's facts. Times are wall clock of one
process; the store is a fresh folder unless named.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analyzers import compaction, lake_sql, lakehouse
from collector import lake
from collector.store import Store, open_store

PER_NODE = 8
START = 1_764_547_200_000_000
KINDS = (
    ("KeyError: 'labels'", "python/uncaught-exception"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "device memory"),
    ("OSError: [Errno 28] No space left on device", "storage"),
)


def rank_lines(rank: int, guilty: int, lines: int, started: int, kind: str) -> Iterator[dict[str, Any]]:
    """What one rank printed."""
    node = f"node{rank // PER_NODE:02d}"
    path = f"{node}/rank{rank}.log"
    texts = [f"step {step} loss {2.0 + rank / 1000:.4f} tokens/s 1234" for step in range(lines)]
    if rank == guilty:
        texts += ["Traceback (most recent call last):", '  File "/app/train.py", line 10, in step', "    run()", kind]
    else:
        texts += ["RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"]
    offset = 0
    for number, text in enumerate(texts, 1):
        at = started + number * 1_000_000 + (500_000 if rank != guilty else 0)
        yield {
            "attempt": 0, "path": path, "line": number, "offset": offset, "part": 0, "node": node, "rank": rank,
            "local_rank": rank % PER_NODE, "pid": 1000 + rank, "stream": "stderr", "issuer": "rank", "at_lo": at,
            "at_hi": at, "text": text,
        }  # fmt: skip
        offset += len(text) + 1


def publish(store: Store, number: int, ranks: int, lines: int) -> int:
    """All raw parts of one incident; returns the bytes."""
    incident = f"slurm-bench-{number}-0"
    started = START + number * 600_000_000
    guilty = (number * 7) % ranks
    kind = KINDS[number % len(KINDS)][0]
    nodes = [f"node{n:02d}" for n in range((ranks + PER_NODE - 1) // PER_NODE)]
    facts = {
        "scheduler": "slurm", "cluster": "bench", "job": str(number), "state": "FAILED", "exit_code": 1, "gpus": ranks,
        "world_size": ranks, "nodes": nodes, "started": started, "ended": started + 60_000_000,
    }  # fmt: skip
    written = lake.write_raw(store, "incidents", incident, "head", [facts])
    origins = [(f"node-{node}", node, None) for node in nodes]
    written += lake.write_raw(store, "ledger", incident, "head", lake.expected_rows(incident, origins))
    for index, node in enumerate(nodes):
        mine = range(index * PER_NODE, min((index + 1) * PER_NODE, ranks))
        rows = (row for rank in mine for row in rank_lines(rank, guilty, lines, started, kind))
        written += lake.write_raw(store, "log_lines", incident, f"node-{node}", rows)
        ledger = [
            {"source": "bench", "path": f"{node}/rank{r}.log", "node": node, "rank": r, "outcome": "collected"}
            for r in mine
        ]
        written += lake.write_raw(store, "ledger", incident, f"node-{node}", ledger)
    return written


def timed(label: str, count: int, unit: str, work: Any) -> Any:
    """Run and print one line of the table."""
    begun = time.perf_counter()
    answer = work()
    seconds = time.perf_counter() - begun
    print(f"| {label} | {seconds:.1f} s | {count / seconds:.1f} {unit}/s |", flush=True)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--store")
    parser.add_argument("--option", action="append", default=[])
    args = parser.parse_args()
    options = dict(pair.split("=", 1) for pair in args.option)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(args.store or str(Path(folder) / "lake"), options=options or None)
        run(store, args.incidents, args.ranks, args.lines)


def run(store: Store, incidents: int, ranks: int, lines: int) -> None:
    print(f"| {incidents} incidents of {ranks} ranks, {lines} lines each | time | rate |\n|---|---|---|")
    parts = incidents * (2 + 2 * ((ranks + PER_NODE - 1) // PER_NODE))
    timed("publish raw parts", parts, "parts", lambda: [publish(store, n, ranks, lines) for n in range(incidents)])
    waiting = timed("find what is pending", incidents, "incidents", lambda: lakehouse.pending(store))
    timed(
        "which of them are complete",
        incidents,
        "incidents",
        lambda: lakehouse.closed(store, waiting),
    )
    names = [one.incident for one in waiting]
    right = timed(
        "analyse", incidents, "incidents", lambda: sum(good(r, ranks) for r in lakehouse.analyze_many(store, names))
    )
    print(f"| right rank | {right} of {incidents} | |")
    asked = "SELECT count(*), count(DISTINCT incident) FROM observations"
    print(f"| rows of observations | {timed('ask', 1, 'queries', lambda: lake_sql.query(store, asked)).rows[0]} | |")
    files = sum(1 for _ in store.list("lake/"))
    timed("compact", files, "files", lambda: compaction.compact(store))
    print(f"| files | {files} before, {sum(1 for _ in store.list('lake/'))} after | |")
    timed("ask again", 1, "queries", lambda: lake_sql.query(store, asked))
    print(f"| checks | {lakehouse.check(store) or 'all hold'} | |")
    print(f"| peak memory | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB | |")


def good(result: Any, ranks: int) -> bool:
    """True if the verdict names the rank that raised."""
    number = int(result.incident.split("-")[2])
    return result.answer is not None and result.answer["verdict"]["ranks"] == [(number * 7) % ranks]


if __name__ == "__main__":
    main()
