"""The timeline as geometry: which lanes, where each mark stands. Drawing it is the template's work.

Failures spread over very different times: a connection reset follows within seconds, a watchdog after half an hour. A
linear axis would press everything that matters into one column, so the axis is logarithmic in both directions around
the first failure once the whole takes more than half a minute. A thousand ranks have few fates: where there are more
than a few ranks, those with the same fate share a lane.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from analyzers.report import wording
from analyzers.report.plain import cells, cut, inline, shorten
from analyzers.report.view import Event, RankEnd, View

WIDTH = 1000
LEFT = 224  # where the time axis begins; lane labels stand before it
RIGHT = 976
TOP = 54  # of the first lane, below the axis
LANE = 42
_EACH = 8  # up to so many ranks have a lane of their own
_MOST_LANES = 14
_MOST_NODES = 6
_LINEAR = 30.0  # seconds that a linear axis still shows well
_APART = 17.0  # between the centres of two marks of one lane
_CHAR = 6.6  # width of a character of the labels, by eye on the sans-serif fonts of three systems
_TICKS = (
    (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (36_000.0, "10 h"),
    (86_400.0, "1 d"), (864_000.0, "10 d"),
)  # fmt: skip


@dataclass(slots=True)
class Mark:
    """An event, or the same event on several ranks of a lane."""

    x: float
    until: float
    """Where the last of them happened; equal to `x` for one."""
    role: str
    text: str
    """All of it, for the tooltip."""
    name: str
    label: str = ""
    """Short text beside the mark, where there is room."""
    leftwards: bool = False
    """True if the label stands before the mark."""


@dataclass(slots=True)
class Lane:
    """One rank, ranks with the same fate, a node, or the job."""

    label: str
    sub: str
    state: str
    y: float
    alive: float | None
    """Until where the lane's first rank was seen, None if no time is known."""
    alive_last: float | None
    """Until where its last rank was seen."""
    marks: list[Mark] = field(default_factory=list)


@dataclass(slots=True)
class Chart:
    """Everything that the template draws. Lengths in units of the SVG's view box."""

    lanes: list[Lane]
    ticks: list[tuple[float, str]]
    zero: float | None
    """Where the first failure stands; None if nothing tells its time."""
    clock: str
    scale: str
    """"linear", "stretched" around the first failure, or "order" where no event has a time."""
    untimed: float | None
    """Where events without a time stand, None if all have one."""
    height: float
    roles: list[str]

    width: int = WIDTH
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP


def chart(view: View) -> Chart | None:
    """The swim lanes of a diagnosis; None if there is no event to show."""
    if not view.timeline:
        return None
    times = [event.at for event in view.timeline if event.at] + [row.last_at for row in view.ranks if row.last_at]
    first = _first(view)
    untimed = any(event.at is None for event in view.timeline) and any(event.at for event in view.timeline)
    left = LEFT + (40 if untimed else 12)
    place, ticks, scale = _axis(times, first, left)
    order = {id(event): n for n, event in enumerate(view.timeline)}
    step = (RIGHT - left) / max(len(order), 1)

    def at(event: Event) -> float:
        if event.at is not None:
            return place(event.at)
        return LEFT + 16 if untimed else left + step * (order[id(event)] + 0.5)

    lanes = [_lane(y, *group, at, place) for y, group in enumerate(_groups(view))]
    return Chart(
        lanes=lanes,
        ticks=ticks,
        zero=place(first) if first and times else None,
        clock=f"{first:%H:%M:%S} UTC" if first and times else "",
        scale=scale,
        untimed=LEFT + 16 if untimed else None,
        height=TOP + LANE * len(lanes) + 10,
        roles=[role for role in _ROLES if any(event.role == role for event in view.timeline)],
    )


_ROLES = ("initiating", "cascade", "confirmation", "teardown", "wrapper", "context")


def _first(view: View) -> datetime | None:
    """The time of the first failure: its event's, which may be finer than the verdict's, else the verdict's own."""
    times = [event.at for event in view.timeline if event.at]
    initiating = [event.at for event in view.timeline if event.at and event.role == "initiating"]
    return min(initiating, default=view.verdict.at or min(times, default=None))


def _axis(
    times: Sequence[datetime], first: datetime | None, left: float
) -> tuple[Callable[[datetime], float], list[tuple[float, str]], str]:
    """A function from time to x, the ticks as (x, label), and the name of the scale."""
    if first is None or not times:
        return (lambda _: left), [], "order"
    seconds = [(at - first).total_seconds() for at in (*times, first)]
    low, high = min(seconds), max(seconds)
    stretched = high - low > _LINEAR

    def bend(second: float) -> float:
        return math.copysign(math.log1p(abs(second)), second) if stretched else second

    start, end = bend(low), bend(high)
    room = (end - start) or 1.0
    start, end = start - room * 0.02, end + room * (0.10 if stretched else 0.06)

    def x(second: float) -> float:
        return round(left + (bend(second) - start) / (end - start) * (RIGHT - left), 1)

    if stretched:
        ticks = [(sign * s, f"{'+' if sign > 0 else '−'}{name}") for s, name in _TICKS for sign in (1, -1)]
    else:
        step = _nice((high - low or 1.0) / 5)
        ticks = [(n * step, f"{n * step:+.3g} s".replace("-", "−")) for n in range(-12, 13) if n]
    kept: list[tuple[float, str]] = []
    for second, label in ticks:
        spot = x(second) if low <= second <= high else None
        # The place of the first failure has a label of its own, which is wider.
        if spot is not None and abs(spot - x(0)) > 74 and all(abs(spot - other) > 52 for other, _ in kept):
            kept.append((spot, label))
    return (lambda at: x((at - first).total_seconds())), kept, "stretched" if stretched else "linear"


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)


_Group = tuple[str, str, str, list[RankEnd], list[Event]]  # label, sub-label, state, ranks, events


def _groups(view: View) -> list[_Group]:
    """What shares a lane: ranks, then nodes, then the job."""
    by_rank: dict[int, list[Event]] = {}
    elsewhere: dict[str, list[Event]] = {}
    for event in view.timeline:
        if event.rank is not None:
            by_rank.setdefault(event.rank, []).append(event)
        else:
            elsewhere.setdefault(event.node, []).append(event)
    ends = {row.rank: row for row in view.ranks}
    rows = [ends.get(rank) or _unknown(by_rank[rank][0], rank) for rank in sorted({*ends, *by_rank})]
    groups = [
        (
            wording.ranks([row.rank for row in group], view.world_size, limit=3),
            _sub(group),
            group[0].state,
            group,
            [event for row in group for event in by_rank.get(row.rank, ())],
        )
        for group in _same_fate(rows, by_rank)
    ]
    job = elsewhere.pop("", [])
    if len(elsewhere) > _MOST_NODES:
        together = [event for events in elsewhere.values() for event in events]
        groups.append((f"{len(elsewhere):,} nodes", "", "", [], together))
    else:
        groups += [(f"node {node}", "", "", [], events) for node, events in elsewhere.items()]
    return [*groups, ("job", "launcher, scheduler", "", [], job)] if job else groups


def _unknown(event: Event, rank: int) -> RankEnd:
    return RankEnd(rank, event.node, "unknown", None, None, "", event.cite)


def _sub(group: Sequence[RankEnd]) -> str:
    ends = {row.end for row in group}
    return ", ".join(filter(None, (wording.state(group[0].state), ends.pop() if len(ends) == 1 else "")))


def _same_fate(rows: Sequence[RankEnd], events: dict[int, list[Event]]) -> list[list[RankEnd]]:
    """Ranks with a common lane: each alone while they are few, else by an ever coarser notion of the same fate."""
    if len(rows) <= _EACH:
        return [[row] for row in rows]
    fine: list[Callable[[RankEnd], object]] = [
        lambda row: (row.state, row.end, frozenset((e.role, e.signature) for e in events.get(row.rank, ()))),
        lambda row: (row.state, row.end),
        lambda row: row.state,
    ]
    groups: list[list[RankEnd]] = []
    for key in fine:
        found: dict[object, list[RankEnd]] = {}
        for row in rows:
            found.setdefault(key(row), []).append(row)
        groups = sorted(found.values(), key=lambda group: (wording.place(group[0].state), len(group)))
        if len(groups) <= _MOST_LANES:
            break
    return groups[: 2 * _MOST_LANES]


def _lane(
    index: int,
    label: str,
    sub: str,
    state: str,
    rows: Sequence[RankEnd],
    events: Sequence[Event],
    at: Callable[[Event], float],
    place: Callable[[datetime], float],
) -> Lane:
    seen = [place(row.last_at) for row in rows if row.last_at]
    lane = Lane(
        label=cut(label, 32),
        sub=cut(sub, 34),
        state=state,
        y=TOP + LANE * (index + 0.5),
        alive=min(seen, default=None),
        alive_last=max(seen, default=None),
        marks=_marks(events, at),
    )
    _spread(lane.marks)
    return lane


def _marks(events: Iterable[Event], at: Callable[[Event], float]) -> list[Mark]:
    """One mark per kind of event of a lane, from its first to its last time."""
    same: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        same.setdefault((event.role, event.signature or event.title), []).append(event)
    marks = []
    for (role, _), group in same.items():
        spots = [at(event) for event in group]
        first = group[spots.index(min(spots))]
        name = cut(first.title or first.signature or inline(first.cite.text) or role, 60)
        when = f"{first.at:%H:%M:%S.%f}"[:-3] + " UTC" if first.at else "no time"
        told = shorten(inline(first.cite.text), 300, name)
        often = f", {len(group):,} times" if len(group) > 1 else ""
        text = "\n".join(filter(None, (f"{role}: {name}{often}", when, first.cite.where, told)))
        marks.append(Mark(min(spots), max(spots), role, text, name + (f" ×{len(group):,}" if often else "")))
    return sorted(marks, key=lambda mark: (mark.x, _ROLES.index(mark.role) if mark.role in _ROLES else 9))


def _spread(marks: list[Mark]) -> None:
    """Moves marks of a lane apart where they would cover each other, and labels those that have room beside them."""
    for before, mark in itertools.pairwise(marks):
        mark.x = max(mark.x, round(before.x + _APART, 1))
    if marks and marks[-1].x > RIGHT - 8:
        marks[-1].x = RIGHT - 8
        for after, mark in itertools.pairwise(reversed(marks)):
            mark.x = min(mark.x, round(after.x - _APART, 1))
    for number, mark in enumerate(marks):
        _label(mark, marks[number - 1] if number else None, marks[number + 1] if number + 1 < len(marks) else None)


def _label(mark: Mark, before: Mark | None, after: Mark | None) -> None:
    """Gives a mark its name where there is room: behind it, or before it if there is more; context has none."""
    mark.until = max(mark.until, mark.x)
    # The label of a mark that lasts stands above its bar, and a neighbour's label takes its own place first.
    right = (after.x - 10 if after else RIGHT + 14) - mark.x - 14
    taken = 14 + (cells(before.label) * _CHAR if before and not before.leftwards else 0)
    left = mark.x - 14 - (max(before.x, before.until) + taken if before else LEFT + 20)
    wanted = cells(mark.name) * _CHAR
    mark.leftwards = right < wanted and left > right
    chars = int(max(left, right) / _CHAR if mark.leftwards else right / _CHAR)
    if mark.role != "context" and chars >= min(8, cells(mark.name)):
        mark.label = cut(mark.name, chars)
