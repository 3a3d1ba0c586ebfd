"""Which rank keeps the others waiting in a collective? From flight-recorder dumps and from the watchdog's own lines.

Decision: two witnesses, one set of rules (`analyzers.collective_waits`). Dumps state every group of a rank, so they can
follow a chain of waits to its end; log lines state only what a rank happened to print, so they say less, and nothing
about a rank that a dump already accuses. A waiting rank is an echo (`cascade`); a missing dump or a silent log never
accuses, except as a hint when every other rank of a known world timed out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analyzers.case import Case, Observation
from analyzers.collective_state import Call, State, build
from analyzers.collective_waits import Finding, analyze
from collector.model import LogLine
from collector.readers.collective_lines import UNNAMED, counters

DETECTOR = "collectives"

_SIGNATURE = {
    "op-mismatch": "collectives/op-mismatch",
    "size-mismatch": "collectives/size-mismatch",
    "stalled": "collectives/rank-behind",
    "outside": "collectives/outside-collective",
    "deadlock": "collectives/deadlock",
    "waiting": "collectives/waiting",
    "inside": "collectives/all-inside",
}
_CAUSE = {"op-mismatch": "user_code", "size-mismatch": "user_code"}
_ROLE = {"waiting": "cascade", "inside": "context"}


def detect(case: Case) -> Iterator[Observation]:
    """Observations `collectives/...`: who left the others waiting, and who waited."""
    rows = case.rows("collectives")
    world = _world(case)
    accused: set[int] = set()
    for observation in _observations(build([row for row in rows if row.get("line") is None], world), None):
        accused |= set(observation.detail["ranks"]) if observation.role == "initiating" else set()
        yield observation
    for attempt, stated in _stated(case, rows):
        state = build(stated, world)
        texts = _texts(case.lines, state)
        for observation in (*_observations(state, attempt), *_silent(case, state, world, attempt)):
            if observation.rank is None or observation.rank not in accused:
                observation.text = texts.get((observation.path, observation.line), observation.text)
                yield observation


def _world(case: Case) -> list[int]:
    """The global ranks, if the world size is known: stated for the incident, else a gapless roster of ranks."""
    stated = next((row["world_size"] for row in case.rows("incidents") if row.get("world_size")), None)
    if stated:
        return list(range(int(stated)))
    seen = {int(row["rank"]) for row in case.rows("ranks") if row.get("rank") is not None}
    return sorted(seen) if len(seen) > 1 and seen == set(range(len(seen))) else []


def _stated(case: Case, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int | None, Sequence[Mapping[str, Any]]]]:
    """Rows that log lines state, by attempt: a restarted job counts from the beginning again."""
    if not case.lines:  # a lake may hold the rows without the lines
        yield None, [row for row in rows if row.get("line") is not None]
        return
    attempts: dict[int | None, list[LogLine]] = {}
    for line in case.lines:
        attempts.setdefault(line.attempt, []).append(line)
    for attempt, lines in attempts.items():
        yield attempt, counters(lines)


def _texts(lines: Sequence[LogLine], state: State) -> dict[tuple[str | None, int | None], str]:
    wanted = {(row.get("path"), row.get("line")) for row in state.rows.values()}
    for group in state.groups:
        for seat in group.seats.values():
            wanted |= {(call.row.get("path"), call.row.get("line")) for call in seat.calls.values()}
    return {(line.path, line.line): line.text for line in lines if (line.path, line.line) in wanted} if wanted else {}


def _observations(state: State, attempt: int | None) -> Iterator[Observation]:
    for finding in analyze(state):
        single = finding.kind not in ("waiting", "inside")
        ranks: list[int | None] = [*finding.ranks] if single and finding.ranks else [None]
        for rank in ranks:
            yield _observation(state, finding, rank, attempt)


def _observation(state: State, finding: Finding, rank: int | None, attempt: int | None) -> Observation:
    """One accusation (or one joint statement) with the row that shows it: the accused rank's own, else a witness's."""
    own = finding.own.get(rank) if rank is not None else None
    witness = finding.call.row
    row = own.row if own else state.rows.get(rank, witness) if rank is not None else witness
    began = witness.get("at_lo")
    at = own.row.get("at_lo") if own and own.row.get("at_lo") is not None else began
    title = _title(finding)
    accuses = finding.others[0] if finding.kind == "waiting" and len(finding.others) == 1 else None
    return Observation(
        detector=DETECTOR,
        signature=_SIGNATURE[finding.kind],
        role=_ROLE.get(finding.kind, "initiating"),
        cause=_CAUSE.get(finding.kind, "unknown"),
        title=title,
        text=title,
        scope="rank" if finding.ranks else "job",
        strength=_strength(state, finding),
        attempt=attempt,
        rank=rank,
        node=row.get("node") if rank is not None else None,
        accuses_rank=accuses,
        at_lo=at,
        at_hi=at,
        source="rank_log" if row.get("line") is not None else "flight_recorder",
        path=row.get("path"),
        line=row.get("line"),
        offset=row.get("offset"),
        detail=_detail(finding),
    )


def _strength(state: State, finding: Finding) -> int:
    """3: many peers contradict the accused, none unseen; 1: joint, or unseen ranks could turn it round; else 2."""
    if not finding.ranks or finding.kind == "inside":
        return 1
    from_log = finding.call.row.get("line") is not None
    if from_log and len(state.groups) > 1 and finding.kind == "outside":
        return 1  # it may wait in a group about which it printed nothing
    if not finding.sure:
        return 1
    many = len(finding.others) >= 3 * len(finding.ranks)
    vague = finding.kind == "stalled" and not finding.call.firm
    return 3 if many and not from_log and not vague and not finding.unseen else 2


def _detail(finding: Finding) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "ranks": finding.ranks,
        "group": finding.group.label,
        "op": finding.call.op,
        "seq": finding.call.seq,
    }
    if finding.kind == "waiting":
        detail["waits_for"] = finding.others or finding.unseen
    elif finding.others:
        detail["others" if finding.ranks else "between"] = finding.others
    frames = next((call.row["frames"] for call in finding.own.values() if call.row.get("frames")), None)
    if frames:
        detail["frames"] = frames
    if finding.unseen:
        detail["missing"] = [f"flight-recorder dump or log of {_ranks(finding.unseen)}"]
    elif finding.kind in ("outside", "stalled", "deadlock", "inside"):
        who = finding.ranks or finding.others
        detail["missing"] = [f"stack dump (py-spy) of {_ranks(who)}"]
    return detail


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _where(call: Call) -> str:
    return f"{call.op} (sequence {call.seq})"


def _title(finding: Finding) -> str:
    """One sentence for a person. Says what was seen, not more."""
    ranks, others, call = _ranks(finding.ranks), _ranks(finding.others), finding.call
    subject = ranks[:1].upper() + ranks[1:]
    verb = "is" if len(finding.ranks) == 1 else "are"
    own = next(iter(finding.own.values()), None)
    if not finding.ranks and finding.kind not in ("waiting", "inside"):
        return _joint_title(finding)
    match finding.kind:
        case "op-mismatch" if own and own.family != call.family:
            alone = "alone in" if len(finding.ranks) == 1 else "in"
            return (
                f"{subject} {verb} {alone} {_where(own)} while {others} are in {_where(call)} of {finding.group.label}"
            )
        case "op-mismatch" | "size-mismatch":
            return (
                f"{subject} {verb} in {call.op} with another tensor size or type than {others}"
                f" (sequence {call.seq} of {finding.group.label})"
            )
        case "stalled" if own and not own.firm:
            return f"{subject} stopped at {_where(own)} of {finding.group.label}, while {others} went on"
        case "stalled" if own:
            return f"{subject} did not complete {_where(own)} of {finding.group.label}, which {others} completed"
        case "outside":
            return f"{subject} never came to {_where(call)} of {finding.group.label}, where {others} waited"
        case "waiting":
            for_whom = _ranks(finding.others or finding.unseen)
            why = "" if finding.others else ", of which there is no evidence"
            return f"{subject} waited for {for_whom}{why}; first in {_where(call)} of {finding.group.label}"
        case _:
            return (
                f"All {len(finding.ranks)} ranks of {finding.group.label} are inside {_where(call)}; it did not finish"
            )


def _joint_title(finding: Finding) -> str:
    others, where = _ranks(finding.others), f"{_where(finding.call)} of {finding.group.label}"
    if finding.kind == "deadlock":
        ways = "; ".join(
            f"rank {rank} in {_where(call)} of group {call.row.get('pg_desc') or ''} {call.row.get('pg')}".replace(
                "  ", " "
            )
            for rank, call in sorted(finding.own.items())[:4]
        )
        return f"{others[:1].upper() + others[1:]} wait for each other in different process groups: {ways}"
    if finding.kind in ("op-mismatch", "size-mismatch"):
        return f"{others[:1].upper() + others[1:]} disagree about {where}, without a majority"
    return f"{others[:1].upper() + others[1:]} are at different points around {where}; too few wait to say who is wrong"


def _silent(case: Case, state: State, world: Sequence[int], attempt: int | None) -> Iterator[Observation]:
    """A hint: every other rank of the world timed out in one collective, this one printed nothing of the kind."""
    for group in state.groups:
        calls = {rank: call for rank, seat in group.seats.items() if (call := seat.first_pending())}
        silent = sorted(set(world) - set(state.present))
        whole = group.desc == "default_pg" or group.name == UNNAMED
        if not whole or len(silent) != 1 or len(calls) != len(world) - 1 or len(calls) < 2:
            continue
        if len({(call.seq, call.family) for call in calls.values()}) != 1:
            continue
        first = min(calls.values(), key=lambda call: call.row.get("at_lo") or 0)
        finding = Finding("outside", group, silent, sorted(calls), first, sure=False)
        yield _observation(state, finding, silent[0], attempt)
