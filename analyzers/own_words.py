"""The last words of a writer: an error line that no signature knows, near the end of its log.

Shared by the detector that reports such lines and by the fates that reason about who spoke and who was silent.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from typing import Any, NamedTuple

from analyzers.case import Case
from analyzers.classify import covered
from collector.data import data_dir
from collector.model import LogLine
from collector.readers.roster import progress_step

_HEAD = 90
_TAIL = 8
"""How many of a writer's last lines are looked at."""


class Words(NamedTuple):
    """An error in the program's own words."""

    place: int
    """Index of the line in `Case.lines`."""
    line: LogLine
    elsewhere: bool
    """True if it reports a failure of somebody else."""
    patient: bool
    """True if it says that a peer did not come, not that one was lost."""


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    import yaml

    path = data_dir("signatures") / "_formats" / "levels.yaml"
    data: Any = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {
        "error": re.compile("|".join(f"(?:{pattern})" for pattern in data["error"])),
        "elsewhere": re.compile(data["elsewhere"]),
        "patient": re.compile(data["patient"]),
    }


def is_error(text: str) -> bool:
    """True if the line's own logger calls it an error, or it is an exception's last line."""
    return _patterns()["error"].search(text[:_HEAD]) is not None


def speaks_of_others(text: str) -> bool:
    """True if the line reports a failure of somebody else."""
    return _patterns()["elsewhere"].search(text) is not None


def last_words(case: Case) -> list[Words]:
    """At most one per file and writer: the first unknown error of its last lines that training did not go on after.

    One later step is no progress: programs report the step at which they saved or gave up.
    """
    known = covered(case) | {hit.index for hit in case.hits if case.signatures[hit.signature].role != "context"}
    writers: dict[tuple[str, int | None], list[tuple[int, LogLine]]] = defaultdict(list)
    for index, line in enumerate(case.lines):
        if line.issuer in ("rank", "unknown") and line.text.strip():
            writers[(line.path, line.rank)].append((index, line))
    found = []
    for own in writers.values():
        tail = own[-_TAIL:]
        steps = [progress_step(line.text) for _, line in tail]
        for place, (index, line) in enumerate(tail):
            later = {step for step in steps[place + 1 :] if step is not None}
            if index not in known and len(later) < 2 and is_error(line.text):
                patient = _patterns()["patient"].search(line.text) is not None
                found.append(Words(index, line, speaks_of_others(line.text), patient))
                break
    return found
