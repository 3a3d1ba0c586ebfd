"""What a reader without firstfault would say: three naive answers, in the shape of firstfault's verdict.

Decision: they are measured in the same run on the same views, so that the number beside them means something.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from scoring import Run

RANK = re.compile(r"\[?rank[ =:]?(\d+)\b|\[default(\d+)\]|^(\d+): |pid=\d+\)\s+rank (\d+)", re.IGNORECASE)
ERROR = re.compile(r"error|exception|traceback", re.IGNORECASE)
EXCEPTION = re.compile(r"^(\[\w+\]:?|\d+: |\s?\(\w+ pid=\d+\) )*\s?[A-Za-z_][\w.]*(Error|Exception|Interrupt)\b")
BLOCK_RANK = re.compile(r"^\s*rank\s+: (\d+)")
Verdict = Mapping[str, Any]


def torchrun_root_cause(folder: Path) -> Verdict:
    """Believe torchrun's block "Root Cause (first observed failure)"; the last one if there are several."""
    ranks: list[int] = []
    cause = ""
    for text in _texts(folder):
        _, found, block = text.rpartition("Root Cause (first observed failure)")
        if found:
            lines = block.splitlines()
            ranks = [int(m[1]) for m in map(BLOCK_RANK.match, lines) if m][:1]
            cause = " ".join(lines)
    return _verdict(ranks, cause) if cause else {"status": "undetermined"}


def first_error_line(folder: Path) -> Verdict:
    """Believe the first line with the word error, exception or traceback; its rank is the nearest mark before it."""
    for text in _texts(folder):
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if ERROR.search(line):
                return _verdict(_nearest_rank(lines, number), _message(lines, number))
    return {"status": "no_failure"}


def best_constant(runs: Iterable[Run]) -> Callable[[Path], Verdict]:
    """Always say the same: the most frequent set of ranks of these very runs. No cause is named."""
    ranks = Counter(run.ranks for run in runs if not run.healthy).most_common(1)[0][0]
    return lambda _folder: _verdict(list(ranks), "")


def _texts(folder: Path) -> Iterable[str]:
    for path in sorted(folder.rglob("*.log")) + sorted(folder.rglob("*.err")):
        yield path.read_text(encoding="utf-8", errors="replace")


def _nearest_rank(lines: list[str], number: int) -> list[int]:
    for line in reversed(lines[: number + 1]):
        if match := RANK.search(line):
            return [int(next(group for group in match.groups() if group))]
    return []


def _message(lines: list[str], number: int) -> str:
    """The line itself, or for a traceback's head the line that names the exception."""
    if "Traceback (most recent call last)" not in lines[number]:
        return lines[number]
    for line in lines[number + 1 :]:
        if EXCEPTION.match(line):
            return line
    return lines[number]


def _verdict(ranks: list[int], cause: str) -> Verdict:
    return {"status": "suspected", "ranks": ranks, "title": cause, "evidence": []}
