"""What is the first line that a known-good run of the same job never printed?

L4 (Huawei Cloud, FSE 2025) found that lines whose template the last successful run also printed are noise, whatever
their level. The difference is context for a person; it never wins against a known signature.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyzers.case import Case, Observation
from analyzers.templates import Templates

_MOST = 200_000


def detect(case: Case) -> Iterator[Observation]:
    """One context observation control/first-difference, if `case.control` is given and something differs."""
    if case.control is None or not case.control.lines:
        return
    templates = Templates()
    normal = templates.learn(line.text for line in case.control.lines[:_MOST])
    for index, line in enumerate(case.lines[:_MOST]):
        if not line.text.strip() or templates.add(line.text) in normal:
            continue
        yield Observation(
            detector="control",
            signature="control/first-difference",
            role="context",
            cause="unknown",
            title="First line whose like the known-good run never printed",
            text=line.text.strip(),
            strength=1,
            attempt=line.attempt,
            rank=line.rank,
            node=line.node,
            at_lo=line.at_lo,
            at_hi=line.at_hi,
            seq=index,
            path=line.path,
            line=line.line,
            offset=line.offset,
        )
        return
