"""Who waits for whom in collectives, and who keeps everybody waiting: rules over `analyzers.collective_state`.

Decision: a rank is accused only for what its own evidence shows, never for evidence that is missing.

* `odd`: at one sequence number the ranks of a group run different operations or sizes; the minority left the common
  program, if the majority is one even when every unseen rank sided with the minority.
* `stalled`: a rank has not completed a collective that a peer completed. The peer could not have, had the rank not
  joined; so what keeps it is its own GPU, link or process. Not for rooted operations and all_to_all, where a peer can
  be served earlier. If a member is unseen, or one rank stands against many (it could have died before it passed data
  on), the proof needs that a peer completed the NEXT collective, which the rank had enqueued too: calls of a group run
  one after the other, so a rank that gave its part of the next one had done with this one.
* `outside`: peers wait in a collective that a rank never enqueued, and the rank has nothing pending anywhere. A rank
  that has something pending is waiting itself: the chain of waits is followed to its end.
* `deadlock`: ranks that wait for each other in different groups, and for nobody else.

If more ranks are "outside" (or "stalled") than wait for them, it is the waiting ones that may have called too much:
then the finding names no rank. Counters must be possible: a rank that is said to be behind must have enqueued what its
peers completed, otherwise the numbers do not belong together.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analyzers.collective_state import Call, Group, State

_LARGEST_GAP = 100
"""Sequence numbers that a rank may lag if nothing tells how many it had enqueued."""
_UNSEEN = -1
_INDEX = re.compile(r"\b(?:send|recv) (\d+)(?:->|<-)(\d+)")


@dataclass(slots=True)
class Finding:
    """One conclusion. `ranks` are accused; empty if the finding is joint."""

    kind: str
    """op-mismatch | size-mismatch | stalled | outside | deadlock | waiting | inside."""
    group: Group
    ranks: list[int]
    others: list[int]
    """The majority, the waiting or the completed ones; for a joint finding all who are involved."""
    call: Call
    """The collective that the others are in."""
    own: dict[int, Call] = field(default_factory=dict)
    """What the accused are in, if anything."""
    sure: bool = True
    """False if unseen ranks could change it."""
    unseen: list[int] = field(default_factory=list)


def analyze(state: State) -> list[Finding]:
    """All findings of `state`: accusations first, then at most one that says who waits."""
    found = [finding for group in state.groups if (finding := odd_one_out(state, group))]
    taken = {rank for finding in found for rank in finding.ranks or finding.others}
    groups = {id(finding.group) for finding in found}
    rest = [group for group in state.groups if id(group) not in groups]
    found += _merge(finding for group in rest if (finding := stalled(state, group, taken)))
    taken |= {rank for finding in found for rank in finding.ranks}
    found += _merge(finding for group in rest if (finding := outside(state, group, taken)))
    if not any(finding.ranks for finding in found):
        found += _merge(finding for group in rest if (finding := outside_p2p(state, group)))
    if not found:
        found += deadlocks(state)
    return found + _waiting(state, found)


def _unseen(state: State, group: Group) -> list[int]:
    return [rank for rank in group.ranks if rank not in state.present or rank not in group.seats]


def _merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each rank: the one with the most witnesses. Joint findings only if nobody is accused."""
    listed = sorted(findings, key=lambda finding: (-len(finding.others), finding.call.row.get("at_lo") or 0))
    kept: list[Finding] = []
    seen: set[int] = set()
    for finding in listed:
        fresh = [rank for rank in finding.ranks if rank not in seen]
        if fresh:
            finding.ranks = fresh
            seen |= set(fresh)
            kept.append(finding)
    return kept or [finding for finding in listed if not finding.ranks][:1]


# Different operations or sizes at one point.


def odd_one_out(state: State, group: Group) -> Finding | None:
    """The first sequence number that is still open somewhere and at which the group's ranks disagree."""
    if group.name == "(fingerprint)":  # each rank's call at one common point, numbers may differ
        calls = {
            rank: max(seat.calls.values(), key=lambda c: c.seq) for rank, seat in group.seats.items() if seat.calls
        }
        kind = "op-mismatch" if len({call.family for call in calls.values()}) > 1 else "size-mismatch"
        return _disagreement(state, group, calls, kind, lambda call: (call.family, call.volume))
    open_at = sorted({call.seq for seat in group.seats.values() for call in seat.calls.values() if call.pending})
    for seq in open_at:
        calls = {rank: seat.calls[seq] for rank, seat in group.seats.items() if seq in seat.calls}
        finding = _disagreement(state, group, calls, "op-mismatch", lambda call: call.family) or _disagreement(
            state, group, {r: c for r, c in calls.items() if c.volume}, "size-mismatch", lambda call: call.volume
        )
        if finding:
            return finding
    return _diverged(state, group)


def _diverged(state: State, group: Group) -> Finding | None:
    """Ranks stuck at different numbers in different operations, the lower one rooted: its root may have run ahead."""
    calls = {rank: call for rank, seat in group.seats.items() if (call := seat.first_pending())}
    lowest = min(calls.values(), key=lambda call: call.seq, default=None)
    if lowest is None or not lowest.rooted or len({call.family for call in calls.values()}) < 2:
        return None
    if max(call.seq for call in calls.values()) - lowest.seq > _LARGEST_GAP:
        return None
    return _disagreement(state, group, calls, "op-mismatch", lambda call: (call.seq, call.family))


def _disagreement(
    state: State, group: Group, calls: Mapping[int, Call], kind: str, what: Callable[[Call], Hashable]
) -> Finding | None:
    votes = Counter(what(call) for call in calls.values())
    if len(votes) < 2:
        return None
    winner, most = votes.most_common(1)[0]
    minority = sorted(rank for rank, call in calls.items() if what(call) != winner)
    majority = sorted(set(calls) - set(minority))
    unseen = _unseen(state, group)
    if most > len(minority):
        sure = most > len(minority) + len(unseen)
        own = {rank: calls[rank] for rank in minority}
        return Finding(kind, group, minority, majority, calls[majority[0]], own, sure, unseen)
    return Finding(kind, group, [], sorted(calls), calls[majority[0]], dict(calls), False, unseen)


# Behind what peers completed.


def stalled(state: State, group: Group, taken: set[int]) -> Finding | None:
    """Ranks inside a collective that peers of the same group have completed."""
    whole = not _unseen(state, group) or not group.declared
    behind: dict[int, Call] = {}
    proven: set[int] = set()
    ahead: set[int] = set()
    passes, possible = _Frontiers(group), _possible(group)
    for rank, seat in group.seats.items():
        call = seat.first_pending()
        if call is None or call.rooted or rank in taken or not possible(rank):
            continue
        after = seat.calls.get(call.seq + 1)
        beyond = set() if after is None or after.rooted else passes.by(after.seq)
        passed = beyond or (passes.by(call.seq) if whole else set())
        if passed:
            behind[rank] = call
            ahead |= passed
        if beyond:
            proven.add(rank)
    ahead -= behind.keys()
    if not behind or all(state.idle(rank) for rank in ahead):  # nobody waits: only seen a moment earlier
        return None
    latest = max((c for r in ahead if (c := group.seats[r].first_pending())), key=lambda c: c.seq, default=None)
    latest = latest or next(iter(behind.values()))
    if len(behind) > len(ahead):  # one rank against many: it may have died before it passed on what they lack
        behind = {rank: call for rank, call in behind.items() if rank in proven} or behind
        if not proven:
            return Finding("stalled", group, [], sorted({*behind, *ahead}), latest, behind, False)
    return Finding("stalled", group, sorted(behind), sorted(ahead), latest, behind, group.declared)


class _Frontiers:
    """How far each rank of a group has completed."""

    def __init__(self, group: Group) -> None:
        self.reached = {rank: seat.frontier() for rank, seat in group.seats.items()}
        self.furthest = max(self.reached.values(), default=-1)

    def by(self, seq: int) -> set[int]:
        """Ranks that completed `seq`; nobody else than others, if it is pending on the rank that asks."""
        return {rank for rank, upto in self.reached.items() if upto >= seq} if self.furthest >= seq else set()


def _possible(group: Group) -> Callable[[int], bool]:
    """A test that is false for a rank whose peers completed what it never enqueued: numbers of different sequences."""
    counts = sorted(((s.completed, rank) for rank, s in group.seats.items() if s.completed is not None), reverse=True)[
        :2
    ]
    firsts = [call.seq for seat in group.seats.values() if (call := seat.first_pending())]

    def possible(rank: int) -> bool:
        floor = next((count for count, other in counts if other != rank), None)
        seat = group.seats[rank]
        if floor is not None:
            return seat.enqueued is not None and seat.enqueued >= floor
        own = seat.first_pending()  # old log lines have no counters
        return max(firsts, default=0) - (own.seq if own else seat.frontier()) <= _LARGEST_GAP

    return possible


# Not there while peers wait.


def outside(state: State, group: Group, taken: set[int]) -> Finding | None:
    """Ranks with nothing pending anywhere that did not come to a collective in which peers wait."""
    waiting = {r: call for r, seat in group.seats.items() if r not in taken and (call := seat.first_pending())}
    if not waiting:
        return None
    last = max(waiting.values(), key=lambda call: call.seq)
    possible = _possible(group)
    absent = sorted(
        rank
        for rank, seat in group.seats.items()
        if rank not in waiting
        and rank not in taken
        and seat.has_enqueued(last.seq) is False
        and state.idle(rank)
        and possible(rank)
    )
    if not absent:
        return None
    first = min(waiting.values(), key=lambda call: call.seq)
    if len(absent) > len(waiting):
        return Finding("outside", group, [], sorted({*absent, *waiting}), first, dict(waiting), False)
    return Finding("outside", group, absent, sorted(waiting), first)


def _peer(group: Group, rank: int, call: Call) -> int | None:
    """The global rank at the other end of a send or receive."""
    match = _INDEX.search(call.op)
    if not match or not group.declared or int(match[2]) >= len(group.ranks) or int(match[1]) >= len(group.ranks):
        return None
    peer = group.ranks[int(match[2])]
    return peer if group.ranks[int(match[1])] == rank and peer != rank else None


def outside_p2p(state: State, group: Group) -> Finding | None:
    """Ranks with nothing pending anywhere to whom a peer sends or from whom it waits to receive."""
    blamed: dict[int, list[tuple[int, Call]]] = defaultdict(list)
    for rank, seat in group.seats.items():
        for call in seat.p2p:
            peer = _peer(group, rank, call)
            if peer is not None and state.idle(peer):
                blamed[peer].append((rank, call))
    if not blamed:
        return None
    witnesses = sorted({rank for found in blamed.values() for rank, _ in found})
    first = min((call for found in blamed.values() for _, call in found), key=lambda c: c.row.get("at_lo") or 0)
    return Finding("outside", group, sorted(blamed), witnesses, first)


# Circles, and who merely waits.


def _edges(state: State) -> dict[int, dict[int, tuple[Group, Call]]]:
    """For each waiting rank the ranks that did not come to the collective it waits in; `_UNSEEN` for all unseen."""
    edges: dict[int, dict[int, tuple[Group, Call]]] = defaultdict(dict)
    for group in state.groups:
        unseen = any(rank not in state.present for rank in group.ranks)
        last = sorted((seat.enqueued, rank) for rank, seat in group.seats.items() if seat.enqueued is not None)
        for rank, seat in group.seats.items():
            call = seat.first_pending()
            if call is None:
                continue
            for _, other in last[: bisect_left(last, (call.seq,))]:
                edges[rank][other] = (group, call)
            if unseen:
                edges[rank][_UNSEEN] = (group, call)
    return edges


def deadlocks(state: State) -> list[Finding]:
    """Ranks that wait for each other in different groups and for nobody outside the circle."""
    edges = _edges(state)
    done: set[int] = set()
    for rank in sorted(edges):
        if rank in done:
            continue
        circle = _last_circle(rank, edges)
        done |= circle | {rank}
        if len(circle) > 1:
            own = {member: next(iter(edges[member].values()))[1] for member in sorted(circle)}
            group, call = next(iter(edges[min(circle)].values()))
            return [Finding("deadlock", group, [], sorted(circle), call, own)]
    return []


def _last_circle(start: int, edges: Mapping[int, Mapping[int, object]]) -> set[int]:
    """Where all waits that begin at `start` can end: ranks that reach each other and nobody else."""
    while True:
        reached = _reachable(start, edges)
        back: dict[int, dict[int, object]] = defaultdict(dict)
        for rank in reached:
            for other in edges.get(rank, ()):
                back[other][rank] = None
        astray = reached - _reachable(start, back)
        if not astray:
            return reached
        start = min(astray)  # it cannot come back here, so it reaches fewer


def _reachable(start: int, edges: Mapping[int, Mapping[int, object]]) -> set[int]:
    reached: set[int] = set()
    todo = [start]
    while todo:
        fresh = [other for other in edges.get(todo.pop(), ()) if other not in reached]
        reached.update(fresh)
        todo.extend(fresh)
    return reached


def _waiting(state: State, found: Sequence[Finding]) -> list[Finding]:
    """Who waits for the accused, or (nobody accused) for ranks that left no evidence, or is inside with everybody."""
    accused = {rank for finding in found for rank in finding.ranks or finding.others}
    pending = [
        (group, rank, call)
        for group in state.groups
        for rank, seat in group.seats.items()
        if rank not in accused and (call := seat.first_pending() or next(iter(seat.p2p), None)) is not None
    ]
    if not pending:
        return []
    ranks = sorted({rank for _, rank, _ in pending})
    group, _, call = min(pending, key=lambda item: item[2].row.get("at_lo") or 0)
    if found:
        return [Finding("waiting", group, ranks, sorted(accused), call)]
    waited_in = [group for group in state.groups if any(seat.first_pending() for seat in group.seats.values())]
    unseen = sorted({rank for group in waited_in for rank in group.ranks if rank not in state.present})
    if unseen:
        return [Finding("waiting", group, ranks, [], call, sure=False, unseen=unseen)]
    for group in state.groups:
        calls = {rank: call for rank, seat in group.seats.items() if (call := seat.first_pending()) and call.firm}
        if group.declared and len(calls) == len(group.ranks) > 1 and len({call.seq for call in calls.values()}) == 1:
            return [Finding("inside", group, sorted(calls), [], next(iter(calls.values())))]
    return []
