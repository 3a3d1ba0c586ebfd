"""Which ranks ended on an error in their own words?

Programs catch what goes wrong and say it in a sentence that no signature knows. Such a line counts if its own logger
calls it an error, it stands at the end of the rank's log, and no training progress follows. It is weaker than a known
line: it vetoes "no failure" and names a suspect where nothing better does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from analyzers.case import Case, Observation
from analyzers.classify import covered
from analyzers.fates import Fate, fates
from analyzers.templates import Templates
from collector.data import data_dir
from collector.model import LogLine
from collector.readers.roster import progress_step

_HEAD = 90
_TAIL = 8
"""A rank's last words: how many of its last lines are looked at."""


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    import yaml

    path = data_dir("signatures") / "_formats" / "levels.yaml"
    data: Any = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return re.compile("|".join(f"(?:{pattern})" for pattern in data["error"])), re.compile(data["elsewhere"])


def is_error(text: str) -> bool:
    """True if the line's own logger calls it an error."""
    return _patterns()[0].search(text[:_HEAD]) is not None


def speaks_of_others(text: str) -> bool:
    """True if the line reports a failure of somebody else."""
    return _patterns()[1].search(text) is not None


def detect(case: Case) -> Iterator[Observation]:
    """At most one observation log/error-line per writer: the first error of its last words."""
    known = covered(case) | {hit.index for hit in case.hits if case.signatures[hit.signature].role != "context"}
    lines: dict[tuple[str, int | None], list[tuple[int, LogLine]]] = defaultdict(list)
    for index, line in enumerate(case.lines):
        if line.issuer in ("rank", "unknown") and line.text.strip():
            lines[(line.path, line.rank)].append((index, line))
    ranks = fates(case)
    templates: Templates | None = None
    for (_, rank), own in lines.items():
        found = _last_words(own, known)
        if found is None:
            continue
        templates = templates or Templates()
        yield _observe(found[1], found[0], ranks.get(rank) if rank is not None else None, templates)


def _last_words(own: list[tuple[int, LogLine]], known: set[int]) -> tuple[int, LogLine] | None:
    """The first unknown error line near the end that training did not go on after.

    One later step is no progress: programs report the step at which they saved or gave up.
    """
    tail = own[-_TAIL:]
    steps = [progress_step(line.text) for _, line in tail]
    for place, (index, line) in enumerate(tail):
        later = {step for step in steps[place + 1 :] if step is not None}
        if index not in known and len(later) < 2 and is_error(line.text):
            return index, line
    return None


def _observe(line: LogLine, index: int, fate: Fate | None, templates: Templates) -> Observation:
    echo = speaks_of_others(line.text)
    ended = fate is not None and (bool(fate.code) or fate.signal is not None)
    text = line.text.strip()
    return Observation(
        detector="error_lines",
        signature="log/error-line",
        role="cascade" if echo else "initiating",
        cause="unknown",
        title=f"An error in the program's own words: {text[:160]}",
        text=text,
        strength=2 if ended and not echo else 1,
        attempt=line.attempt,
        rank=line.rank,
        node=line.node,
        at_lo=line.at_lo,
        at_hi=line.at_hi,
        seq=index,
        issuer=line.issuer,
        path=line.path,
        line=line.line,
        offset=line.offset,
        detail={"same": f"log/error-line|{text[:300]}", "kind": str(templates.add(text)), "pid": line.pid},
    )
