"""The story around the verdict: what became of each rank, and what happened in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analyzers.case import Case, Observation
from analyzers.fates import Fate, fates
from collector.readers.times import iso

_MOST_EVENTS = 400


def ranks(case: Case, verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per rank: state (initiated, echo, terminated, silent, finished, unknown), last step, end, last line."""
    guilty = set(verdict["ranks"])
    return [_row(fate, guilty) for fate in list(fates(case).values())[:4096]]


def _row(fate: Fate, guilty: set[int]) -> dict[str, Any]:
    row = fate.row
    if fate.rank in guilty:
        state = "initiated"
    elif fate.failed:
        state = "echo"
    elif fate.terminated:
        state = "terminated"
    elif row.get("finished"):
        state = "finished"
    else:
        state = "silent" if fate.lines else "unknown"
    end = None
    if fate.signal is not None:
        end = f"signal {fate.signal}"
    elif fate.code is not None:
        end = f"exit code {fate.code}"
    elif fate.terminated:
        end = "ended by the launcher"
    return {
        "rank": fate.rank,
        "node": fate.node,
        "state": state,
        "last_step": row.get("step"),
        "last_at": iso(row.get("last_line_at")),
        "end": end,
        "evidence": {"path": row.get("last_path"), "line": row.get("last_line"), "text": row.get("last_text")}
        if row.get("last_path")
        else None,
    }


def timeline(observations: Sequence[Observation]) -> list[dict[str, Any]]:
    """Events in order of time, those without time at their place in their file."""
    told = [o for o in observations if o.role not in ("context",)]
    placed: list[tuple[int, int, Observation]] = []
    last = 0
    for seen in sorted(told, key=lambda o: (o.path or "", o.seq if o.seq is not None else 1 << 40)):
        last = seen.at_lo if seen.at_lo is not None else last
        placed.append((last, len(placed), seen))
    placed.sort(key=lambda item: item[:2])
    return [
        {
            "at": iso(seen.at_lo),
            "rank": seen.rank,
            "node": seen.node,
            "role": seen.role,
            "signature": seen.signature,
            "title": seen.title,
            "path": seen.path,
            "line": seen.line,
            "text": seen.text,
        }
        for _, _, seen in placed[:_MOST_EVENTS]
    ]


def first_difference(observations: Sequence[Observation]) -> dict[str, Any] | None:
    """The first line that a known-good run never printed, if a control was given."""
    for seen in observations:
        if seen.signature == "control/first-difference":
            return {"path": seen.path, "line": seen.line, "rank": seen.rank, "text": seen.text, "why": seen.title}
    return None
