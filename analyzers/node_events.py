"""Merges `kernel_events` rows into events: copies of one log count once, repetitions become one event with a count.

The same kernel ring buffer is often collected twice (`dmesg` and `dmesg -T`, or dmesg and the journal). A message that
is in several files is taken from the file that tells the time. Whether an event lies inside the job's time is decided
before repetitions are merged, so that an old fault does not hide a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analyzers.placement import Placement, same_node

Row = Mapping[str, Any]

BEFORE = 600 * 1_000_000
AFTER = 300 * 1_000_000
"""A cause is looked for from ten minutes before the job's first line to five minutes after its last, microseconds.

Meta's attribution window, as reported in "Revisiting Reliability in Large-Scale Machine Learning Research Clusters".
"""

_PER_PID = frozenset({"oom_kill", "segfault", "trap", "memory_failure", "amd_fault"})
_PER_NODE = frozenset({"hung_task", "lockup", "boot", "mce", "mce_corrected", "thermal"})


@dataclass(slots=True)
class Event:
    """One thing that happened on a node, once or many times. Place, time and text are those of its first line."""

    event: str
    code: int | None
    node: str | None
    device: str | None
    pid: int | None
    process: str | None
    at_lo: int | None
    at_hi: int | None
    path: str
    line: int
    offset: int | None
    text: str
    inside: bool | None
    """Within the job's time and on a node that took part; None if the event or the job has no time."""
    count: int = 1
    pids: list[int] = field(default_factory=list)
    """All processes named, in order of appearance."""

    def before(self, other: Event) -> bool:
        """Whether this event came before `other`: by line in the same file, else unless their times say otherwise."""
        if self.path == other.path:
            return self.line <= other.line
        return self.at_lo is not None and other.at_hi is not None and self.at_lo <= other.at_hi


def merge(rows: Iterable[Row], placement: Placement) -> list[Event]:
    """Events of all nodes, ordered by file and line."""
    merged: dict[tuple[Any, ...], Event] = {}
    for row in _one_copy(list(rows), placement):
        event = _event(row, placement)
        key = _key(event)
        known = merged.get(key)
        if known is None:
            merged[key] = known = event
        else:
            known.count += 1
        if event.pid is not None and event.pid not in known.pids:
            known.pids.append(event.pid)
    return sorted(merged.values(), key=lambda event: (event.path, event.line))


def _event(row: Row, placement: Placement) -> Event:
    lo, hi = _micros(row.get("at_lo")), _micros(row.get("at_hi"))
    return Event(
        event=str(row["event"]),
        code=row.get("code"),
        node=row.get("node") or placement.only_node,
        device=row.get("device"),
        pid=row.get("pid"),
        process=row.get("process"),
        at_lo=lo,
        at_hi=hi if hi is not None else lo,
        path=str(row.get("path") or ""),
        line=int(row.get("line") or 0),
        offset=row.get("offset"),
        text=str(row.get("text") or ""),
        inside=False
        if placement.foreign(row.get("node"))
        else _inside(lo, hi if hi is not None else lo, placement.window),
    )


def _key(event: Event) -> tuple[Any, ...]:
    base = (event.event, event.node, event.inside)
    if event.event in _PER_PID:
        return (*base, event.pid, event.device)
    if event.event in _PER_NODE:
        return base
    return (*base, event.code, event.device)


def _one_copy(rows: list[Row], placement: Placement) -> list[Row]:
    """Each message from one file only: the one that has its time, then the one that has most of its repetitions."""
    groups: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        key = (row.get("event"), row.get("code"), row.get("device"), row.get("pid"), row.get("text"))
        groups.setdefault(key, {}).setdefault(str(row.get("path") or ""), []).append(row)
    kept: list[Row] = []
    for by_path in groups.values():
        chosen: list[list[Row]] = []
        ranked = sorted(by_path.items(), key=lambda item: (not _timed(item[1]), -len(item[1]), item[0]))
        for _, copies in ranked:
            node = copies[0].get("node") or placement.only_node
            if not any(same_node(known[0].get("node") or placement.only_node, node) for known in chosen):
                chosen.append(copies)
        kept += [row for copies in chosen for row in copies]
    return sorted(kept, key=lambda row: (str(row.get("path") or ""), int(row.get("line") or 0)))


def _timed(rows: list[Row]) -> bool:
    return any(row.get("at_lo") is not None for row in rows)


def _inside(lo: int | None, hi: int | None, window: tuple[int, int] | None) -> bool | None:
    if window is None or lo is None or hi is None:
        return None
    return hi >= window[0] - BEFORE and lo <= window[1] + AFTER


def _micros(value: Any) -> int | None:
    return value if isinstance(value, int) else None
