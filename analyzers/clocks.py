"""Clock offsets between the nodes of a job, estimated from what several nodes saw at the same moment.

A synchronous job makes the same step on all ranks within one step's time, so the times at which two nodes print one
step differ by the offset of their clocks and less than a step. An offset is trusted (and taken off) only if it is
constant over the steps and either larger than any lag between ranks can be, or the same at the start of the process
group. A constant difference that a lag could explain as well only widens the intervals: then the order between these
nodes stays open instead of being decided by a clock that may be wrong.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Any, NamedTuple

from collector.model import LedgerEntry, LogLine, Origin, Outcome
from collector.readers.roster import progress_step

Row = Mapping[str, Any]
Tables = dict[str, list[dict[str, Any]]]

_SECOND = 1_000_000
_LEAST = 2 * _SECOND
"""Smaller offsets are not told from lags, and NTP keeps clocks far closer."""
_STEPS = 4
"""Common steps below which nothing is estimated."""
_SPREAD = 0.2
"""How much the differences may vary, as a share of the offset: a clock that is off is off by the same all the time."""
_LAGS = 2
"""An offset of so many times the pause between two printed steps is no lag: ranks that wait for each other in every
step cannot be that far apart."""
_START_AGREES = 1.5 * _SECOND
_START = re.compile(r"\bworld[_ ]?size\b", re.IGNORECASE)
_TIMES = {
    "kernel_events": ("at_lo", "at_hi"),
    "scheduler_events": ("at_lo", "at_hi"),
    "collectives": ("at_lo", "at_hi"),
    "ranks": ("first_line_at", "last_line_at", "step_at", "exited_at"),
}


class Offset(NamedTuple):
    """What a node's clock is ahead of the others, microseconds."""

    ahead: int
    spread: int
    steps: int
    sure: bool
    """True if it is a clock and cannot be a lag."""


def align(lines: Sequence[LogLine], tables: Tables) -> tuple[Sequence[LogLine], Tables, list[LedgerEntry]]:
    """Lines and tables with the offsets of clocks taken off, and a ledger row for each node that it concerns.

    Without an offset the arguments themselves come back.
    """
    nodes = {row["rank"]: _short(row["node"]) for row in tables.get("ranks", ()) if row.get("node")}
    if len(set(nodes.values())) < 2:
        return lines, tables, []
    found = offsets(lines, nodes)
    if not found:
        return lines, tables, []
    aligned = [_line(line, found.get(_place(line.rank, line.node, nodes))) for line in lines]
    moved = {name: _rows(rows, _TIMES[name], found, nodes) if name in _TIMES else rows for name, rows in tables.items()}
    return aligned, moved, [_note(node, offset) for node, offset in sorted(found.items())]


def _short(node: str) -> str:
    """Logs and kernels spell one host with and without its domain."""
    return node.split(".")[0].lower()


def _place(rank: int | None, node: str | None, nodes: Mapping[int, str]) -> str:
    """The node of a line or row: of its rank, else as it says itself; empty if unknown."""
    return (nodes.get(rank) if rank is not None else None) or _short(node or "")


def offsets(lines: Sequence[LogLine], nodes: Mapping[int, str]) -> dict[str, Offset]:
    """Node -> offset of its clock, for nodes whose clock may be off. `nodes`: rank -> node."""
    steps: dict[str, dict[int, int]] = defaultdict(dict)
    starts: dict[str, int] = {}
    for line in lines:
        node = nodes.get(line.rank) if line.rank is not None else None
        if node is None or line.at_lo is None:
            continue
        step = progress_step(line.text)
        if step is not None:
            steps[node].setdefault(step, line.at_lo)
        elif node not in starts and "orld" in line.text.casefold() and _START.search(line.text):
            starts[node] = line.at_lo
    if len(steps) < 2:
        return {}
    reference = nodes[min(rank for rank, node in nodes.items() if node in steps)]
    against = {node: _compare(reference, node, steps, starts) for node in steps if node != reference}
    known = {node: offset for node, offset in against.items() if offset is not None}
    return _centred(reference, known)


def _compare(
    reference: str, node: str, steps: Mapping[str, Mapping[int, int]], starts: Mapping[str, int]
) -> Offset | None:
    """How far `node` is ahead of `reference`; None without enough common steps or if the difference is not constant."""
    common = sorted(steps[reference].keys() & steps[node].keys())
    if len(common) < _STEPS:
        return None
    differences = [steps[node][step] - steps[reference][step] for step in common]
    ahead = int(median(differences))
    low, *_, high = quantiles(differences, n=10)
    spread = int(high - low)
    if abs(ahead) >= _LEAST and spread > max(_SECOND, _SPREAD * abs(ahead)):
        return None
    moments = sorted(steps[reference][step] for step in common)
    pause = median(later - earlier for earlier, later in pairwise(moments))
    begun = starts.get(node), starts.get(reference)
    agrees = begun[0] is not None and begun[1] is not None and abs(begun[0] - begun[1] - ahead) <= _START_AGREES
    return Offset(ahead, spread, len(common), abs(ahead) > _LAGS * pause or agrees)


def _centred(reference: str, known: Mapping[str, Offset]) -> dict[str, Offset]:
    """Offsets against the clock that most nodes share; of two nodes, against the reference."""
    if not known:
        return {}
    usual = int(median([0, *(offset.ahead for offset in known.values())])) if len(known) > 1 else 0
    everybody = {**known, reference: Offset(0, 0, max(o.steps for o in known.values()), True)}
    sure = all(offset.sure for offset in known.values() if abs(offset.ahead) >= _LEAST)
    centred = {
        node: offset._replace(ahead=offset.ahead - usual, sure=offset.sure and sure)
        for node, offset in everybody.items()
    }
    return {node: offset for node, offset in centred.items() if abs(offset.ahead) >= _LEAST}


def _interval(lo: int | None, hi: int | None, offset: Offset) -> tuple[int | None, int | None]:
    """Where the event lies on the common clock: moved by a sure offset, else anywhere between both readings."""
    if offset.sure:
        down, up = offset.ahead + offset.spread, -offset.ahead + offset.spread
    else:
        down, up = max(offset.ahead, 0), max(-offset.ahead, 0)
    return None if lo is None else lo - down, None if hi is None else hi + up


def _line(line: LogLine, offset: Offset | None) -> LogLine:
    if offset is None or line.at_lo is None:
        return line
    lo, hi = _interval(line.at_lo, line.at_hi, offset)
    return line._replace(at_lo=lo, at_hi=hi)


def _rows(
    rows: Iterable[dict[str, Any]], fields: Sequence[str], found: Mapping[str, Offset], nodes: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Rows with their times moved; a single time of a row moves by sure offsets only."""
    moved = []
    for row in rows:
        offset = found.get(_place(row.get("rank"), row.get("node"), nodes))
        if offset is None:
            moved.append(row)
        elif "at_lo" in fields:
            lo, hi = _interval(row.get("at_lo"), row.get("at_hi"), offset)
            moved.append({**row, "at_lo": lo, "at_hi": hi})
        elif offset.sure:
            moved.append({**row, **{name: row[name] - offset.ahead for name in fields if row.get(name) is not None}})
        else:
            moved.append(row)
    return moved


def _note(node: str, offset: Offset) -> LedgerEntry:
    seconds, way = abs(offset.ahead) / _SECOND, "ahead of" if offset.ahead > 0 else "behind"
    what = "times were corrected" if offset.sure else "the order of events between the nodes was left open"
    detail = f"clock {seconds:.1f} s {way} the other nodes', from {offset.steps} steps that both printed; {what}"
    return LedgerEntry("clocks", "", Outcome.COLLECTED, Origin(node=node), detail=detail)
