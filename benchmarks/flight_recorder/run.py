"""Measures the flight-recorder rules on dump sets with known culprits, also when evidence is missing.

    python benchmarks/flight_recorder/run.py DIR [--torchfrtrace PATH] [--random N]

DIR holds one folder for each name in `KNOWN` (dumps of 16 ranks, files named by rank, from nvidia-resiliency-ext,
tests/attribution/unit/fr_traces, Apache-2.0). Prints a Markdown table: accused culprits found, innocents accused.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from analyzers.case import Case
from analyzers.detectors.collectives import detect
from collector.model import Artifact, ArtifactKind, Origin
from collector.readers.flight_recorder import read

KNOWN = {"gpu_error_1st": {12, 14}, "lock_gil_1st": {9, 14}}
Dumps = dict[int, bytes]


def variants(dumps: Dumps, culprits: set[int], random_trials: int) -> Iterator[tuple[str, Dumps]]:
    """(name, dumps that are left)."""

    def without(gone: set[int]) -> Dumps:
        return {rank: data for rank, data in dumps.items() if rank not in gone}

    yield "complete", dumps
    for rank in sorted(set(dumps) - culprits):
        yield "one healthy dump missing", without({rank})
    for rank in sorted(culprits):
        yield "one culprit's dump missing", without({rank})
    yield "both culprits' dumps missing", without(culprits)
    for start in (0, 8):
        yield f"node {start // 8} (8 ranks) missing", without(set(range(start, start + 8)))
    for rank in sorted(dumps):
        yield "one dump truncated", {**dumps, rank: dumps[rank][: len(dumps[rank]) // 2]}
    for trial in range(random_trials):
        yield "random half missing", without(set(random.Random(trial).sample(sorted(dumps), len(dumps) // 2)))


def ours(dumps: Dumps) -> set[int]:
    """Ranks accused by the detector. File names tell nothing: the rank must come from the content."""
    rows: list[dict[str, Any]] = []
    for rank, data in dumps.items():
        name = f"host-{rank * 7 % 16:x}.dump"
        artifact = Artifact(ArtifactKind.FLIGHT_RECORDER, name, Origin(), len(data), lambda data=data: BytesIO(data))
        rows += read(artifact)
    found = detect(Case("benchmark", tables={"collectives": rows}))
    return {rank for o in found if o.role == "initiating" for rank in o.detail["ranks"]}


def torchfrtrace(executable: Path, dumps: Dumps) -> list[set[int]] | None:
    """Ranks that each message of PyTorch's analyser names; None if it stops with an error."""
    folder = Path(tempfile.mkdtemp())
    try:
        for rank, data in dumps.items():
            (folder / f"{rank}").write_bytes(data)
        command = [executable, "--prefix", "", "--allow-incomplete-ranks", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        shutil.rmtree(folder)
    if done.returncode:
        return None
    named = re.findall(r"(?:missing ranks: \{|Culprit rank )([\d, ]+)", done.stdout + done.stderr)
    return [{int(number) for number in re.findall(r"\d+", found)} for found in named]


@dataclass
class Total:
    """Sums over the trials of one kind. Pairs are culprits found, innocents accused."""

    trials: int = 0
    readable: int = 0
    ours: tuple[int, int] = (0, 0)
    first: tuple[int, int] = (0, 0)
    union: tuple[int, int] = (0, 0)
    stopped: int = 0


def _add(pair: tuple[int, int], accused: set[int], culprits: set[int]) -> tuple[int, int]:
    return pair[0] + len(accused & culprits), pair[1] + len(accused - culprits)


def measure(dumps: Dumps, culprits: set[int], trials: int, executable: Path | None) -> dict[str, Total]:
    """Totals by kind of evidence."""
    totals: dict[str, Total] = {}
    for name, left in variants(dumps, culprits, trials):
        total = totals.setdefault(name, Total())
        total.trials += 1
        total.readable += sum(left.get(rank) == dumps[rank] for rank in culprits)
        total.ours = _add(total.ours, ours(left), culprits)
        if executable and not name.startswith("random"):
            messages = torchfrtrace(executable, left)
            total.stopped += messages is None
            total.first = _add(total.first, next(iter(messages or ()), set()), culprits)
            total.union = _add(total.union, set().union(*(messages or ())), culprits)
    return totals


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torchfrtrace", type=Path, help="path of PyTorch's torchfrtrace")
    parser.add_argument("--random", type=int, default=200, metavar="N", help="trials with a random half missing")
    options = parser.parse_args()
    print("| case | evidence | trials | culprits with a readable dump | found | innocents accused |", end="")
    print(" torchfrtrace, first message | all messages | stopped |" if options.torchfrtrace else "")
    print("|---" * (9 if options.torchfrtrace else 6) + "|")
    for case, culprits in KNOWN.items():
        dumps = {int(path.name): path.read_bytes() for path in (options.folder / case).iterdir() if path.name.isdigit()}
        for name, total in measure(dumps, culprits, options.random, options.torchfrtrace).items():
            cells = [case, name, total.trials, total.readable, *total.ours]
            if options.torchfrtrace:
                ran = not name.startswith("random")
                cells += [f"{a}, {b}" if ran else "-" for a, b in (total.first, total.union)] + [
                    total.stopped if ran else "-"
                ]
            print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
