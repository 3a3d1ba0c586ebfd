"""What each rank was doing in each process group when it was last seen, built from rows of the `collectives` table.

Decision: dumps and log lines are brought to one picture (`Group` > `Seat` > `Call`) before any rule looks at them, so
that the quirks of the sources are handled here once:

* several dumps of one rank: counters are the largest seen, a call is pending if no dump saw it completed;
* a dump from an earlier run, hours away from all others, is left out;
* counters of a group that also carries sends and receives count both and compare with nothing: they are dropped;
* gloo never updates states and counts a failed call as completed: there the rank's latest call is where it stands.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]

_SAME_RUN_US = 6 * 3600 * 1_000_000
_PIPELINE = re.compile(r"pipeline|(?:^|[_\-. ])pp(?:$|[_\-. ])", re.IGNORECASE)
_P2P = re.compile(r"\b(?:send|recv)\b")
_NOISE = re.compile(r"intotensor|tensor|coalesced|base$|oop$")
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "alltoall"})


@dataclass(slots=True)
class Call:
    """One collective (or send, receive) as one rank sees it."""

    seq: int
    op: str
    pending: bool
    firm: bool
    """True if `pending` is the recorder's statement, False where it is only the latest call of a gloo rank."""
    row: Row

    @property
    def family(self) -> str:
        """The operation without backend and variant: `nccl:_all_gather_base` and `all_gather_into_tensor` are one."""
        bare = _NOISE.sub("", self.op.lower().split(":")[-1].replace("_", ""))
        return {"allreducebarrier": "barrier"}.get(bare, bare) or self.op.lower()

    @property
    def rooted(self) -> bool:
        """True if one rank can complete it before another: then completion elsewhere proves nothing about this rank."""
        return self.family in _ROOTED

    @property
    def volume(self) -> tuple[Any, ...] | None:
        """What must be equal on all ranks (elements and types), None where ranks may differ or nothing is known.

        all_to_all, gather, scatter and lists of tensors may be uneven; an all_gather's list of outputs must agree.
        """
        if self.family not in ("allreduce", "broadcast", "reduce", "allgather", "reducescatter"):
            return None
        listed = self.op.lower().split(":")[-1] in ("all_gather", "reduce_scatter", "allgather")
        side = "out" if listed else "in"
        sizes, types = _side(self.row.get("sizes"), side), _side(self.row.get("dtypes"), side)
        if sizes is None or (listed and self.family == "reducescatter"):
            return None
        return (sum(_product(shape) for shape in sizes), tuple(sorted({str(kind) for kind in types or ()})))


@dataclass(slots=True)
class Seat:
    """One rank's place in one process group."""

    enqueued: int | None = None
    """Highest sequence number it enqueued, None if unknown."""
    completed: int | None = None
    calls: dict[int, Call] = field(default_factory=dict)
    p2p: list[Call] = field(default_factory=list)
    """Pending sends and receives."""

    def first_pending(self) -> Call | None:
        """The pending collective with the lowest number: the one it is stuck in, as far as this group goes."""
        return min((call for call in self.calls.values() if call.pending), key=lambda call: call.seq, default=None)

    def has_enqueued(self, seq: int) -> bool | None:
        """Whether the rank came to collective `seq`; None if unknown."""
        if seq in self.calls:
            return True
        return None if self.enqueued is None else self.enqueued >= seq

    def frontier(self) -> int:
        """The highest sequence number up to which everything is completed, -1 if unknown."""
        first = self.first_pending()
        return first.seq - 1 if first else max(self.completed if self.completed is not None else -1, *self.calls, -1)


@dataclass(slots=True)
class Group:
    """One process group."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    """Global ranks: the declared members, or those seen where nothing declares them."""
    declared: bool
    seats: dict[int, Seat] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How to name it to a person."""
        if self.name.startswith("("):  # collective_lines' names for groups that the log does not name
            return "the default process group"
        return self.desc if self.desc and self.desc != "undefined" else f"process group {self.name}"


@dataclass(slots=True)
class State:
    """All groups, and which ranks left any evidence."""

    groups: list[Group]
    present: frozenset[int]
    rows: dict[int, Row]
    """For each rank a row to cite: its latest one."""

    def idle(self, rank: int) -> bool:
        """True if the rank has nothing pending in any group."""
        seats = [group.seats[rank] for group in self.groups if rank in group.seats]
        return bool(seats) and not any(seat.first_pending() or seat.p2p for seat in seats)


def _side(text: Any, side: str) -> list[Any] | None:
    if not text:
        return None
    value = json.loads(text).get(side)
    return value if isinstance(value, list) else None


def _product(shape: Any) -> int:
    total = 1
    for size in shape if isinstance(shape, list) else [shape]:
        total *= size if isinstance(size, int) else 1
    return total


def build(rows: Iterable[Row], world: Sequence[int] = ()) -> State:
    """The picture that `rows` (of one attempt) give. `world` are the ranks of the default group, if known elsewhere."""
    usable = _one_run([row for row in rows if row.get("rank") is not None and row.get("pg") is not None])
    by_group: dict[tuple[str, tuple[int, ...]], list[Row]] = defaultdict(list)
    declared = _declared(usable)
    for row in usable:
        name = str(row["pg"])
        members = tuple(row["pg_ranks"]) if row.get("pg_ranks") else ()
        options = declared.get(name, set())
        by_group[name, members or (next(iter(options)) if len(options) == 1 else ())].append(row)
    groups = [_group(name, members, found, world) for (name, members), found in by_group.items()]
    state = State(groups, frozenset(int(row["rank"]) for row in usable), {})
    for row in usable:
        rank = int(row["rank"])
        if rank not in state.rows or (row.get("at_lo") or 0) >= (state.rows[rank].get("at_lo") or 0):
            state.rows[rank] = row
    _place_gloo(state)
    return state


def _declared(rows: Iterable[Row]) -> dict[str, set[tuple[int, ...]]]:
    declared: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for row in rows:
        if row.get("pg_ranks"):
            declared[str(row["pg"])].add(tuple(row["pg_ranks"]))
    return declared


def _one_run(rows: list[Row]) -> list[Row]:
    """Without files whose newest entry is hours older than the newest of all: leftovers of an earlier run."""
    newest: dict[Any, int] = {}
    for row in rows:
        if row.get("at_lo") is not None and row.get("line") is None:
            newest[row.get("path")] = max(newest.get(row.get("path"), 0), row["at_lo"])
    limit = max(newest.values(), default=0) - _SAME_RUN_US
    return [row for row in rows if newest.get(row.get("path"), limit) >= limit]


def _group(name: str, members: tuple[int, ...], rows: Sequence[Row], world: Sequence[int]) -> Group:
    desc = next((str(row["pg_desc"]) for row in rows if row.get("pg_desc")), "")
    seen = tuple(sorted({int(row["rank"]) for row in rows}))
    if not members and world and (desc == "default_pg" or name == "(unnamed)"):
        members = tuple(world)
    counted = not _PIPELINE.search(desc) and not any(row.get("is_p2p") for row in rows)
    group = Group(name, desc, members or seen, bool(members))
    by_rank: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_rank[int(row["rank"])].append(row)
    for rank, own in by_rank.items():
        group.seats[rank] = _seat(own, counted)
    return group


def _seat(rows: Sequence[Row], counted: bool) -> Seat:
    seat = Seat()
    if counted:
        seat.enqueued = _most(rows, "last_enqueued")
        seat.completed = _most(rows, "last_completed")
    p2p: dict[int, Call] = {}
    for row in rows:
        if row.get("op") is None or row.get("seq") is None:
            continue
        seq, into = int(row["seq"]), p2p if row.get("is_p2p") else seat.calls
        done = row.get("state") == "completed" or (
            into is seat.calls and seat.completed is not None and seq <= seat.completed and not _gloo(row)
        )
        if seq not in into or done:
            into[seq] = Call(seq, str(row["op"]), not done, True, row)
    seat.p2p = [call for call in p2p.values() if call.pending and _P2P.search(call.op)]
    if seat.calls:
        seat.enqueued = max(seat.enqueued if seat.enqueued is not None else -1, *seat.calls)
    return seat


def _most(rows: Iterable[Row], name: str) -> int | None:
    return max((int(row[name]) for row in rows if row.get(name) is not None), default=None)


def _gloo(row: Row) -> bool:
    return str(row.get("op")).startswith("gloo:")


def _place_gloo(state: State) -> None:
    """A gloo rank stands in its latest call; what it called before is over, whatever the recorder says of it."""
    latest: dict[int, Call] = {}
    for group in state.groups:
        for rank, seat in group.seats.items():
            for call in seat.calls.values():
                best = latest.get(rank)
                if best is None or (call.row.get("at_lo") or 0) >= (best.row.get("at_lo") or 0):
                    latest[rank] = call
    for group in state.groups:
        for rank, seat in group.seats.items():
            gloo = [call for call in seat.calls.values() if _gloo(call.row)]
            for call in gloo:
                call.pending, call.firm = call is latest[rank], False
            if gloo and seat.enqueued is not None:
                seat.completed = seat.enqueued - (1 if latest[rank] is seat.calls.get(seat.enqueued) else 0)
