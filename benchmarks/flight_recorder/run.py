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


def torchfrtrace(executable: Path, dumps: Dumps) -> set[int] | None:
    """Ranks named as culprits in the messages of PyTorch's analyser; None if it stops with an error."""
    folder = Path(tempfile.mkdtemp())
    try:
        for rank, data in dumps.items():
            (folder / f"{rank}").write_bytes(data)
        done = subprocess.run(
            [executable, "--prefix", "", "--allow-incomplete-ranks", str(folder)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        shutil.rmtree(folder)
    if done.returncode:
        return None
    text = done.stdout + done.stderr
    named = re.findall(r"(?:missing ranks|Culprit ranks?|ranks? .{0,20}did not)[^{\[\d]*[{\[]?([\d, ]+)", text)
    return {int(number) for found in named for number in re.findall(r"\d+", found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torchfrtrace", type=Path, help="path of PyTorch's torchfrtrace")
    parser.add_argument("--random", type=int, default=200, metavar="N", help="trials with a random half missing")
    options = parser.parse_args()
    print(
        "| case | evidence | trials | culprits with a dump | found | innocents accused | torchfrtrace: found, innocents, stopped |"
    )
    print("|---|---|---|---|---|---|---|")
    for case, culprits in KNOWN.items():
        dumps = {int(path.name): path.read_bytes() for path in (options.folder / case).iterdir() if path.name.isdigit()}
        totals: dict[str, list[int]] = {}
        for name, left in variants(dumps, culprits, options.random):
            row = totals.setdefault(name, [0] * 7)
            accused = ours(left)
            row[0] += 1
            row[1] += len(culprits & set(left))
            row[2] += len(accused & culprits)
            row[3] += len(accused - culprits)
            if options.torchfrtrace and name != "random half missing":
                theirs = torchfrtrace(options.torchfrtrace, left)
                row[4] += len((theirs or set()) & culprits)
                row[5] += len((theirs or set()) - culprits)
                row[6] += theirs is None
        for name, row in totals.items():
            other = ", ".join(map(str, row[4:])) if options.torchfrtrace and name != "random half missing" else "-"
            print("| " + " | ".join([case, name, *map(str, row[:4]), other]) + " |")


if __name__ == "__main__":
    main()
