"""Who fell silent, who left early, and did the whole job hang before somebody stopped it?

Silence accuses only next to speech: a rank (or all ranks of a node) that has a log of its own, printed no error, and
was not ended by the launcher, while every other rank reports that a peer is gone or does not answer. A rank without any
log never accuses; it is listed as missing evidence instead.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analyzers.case import Case, Observation
from analyzers.fates import Fate, fates, nodes_of
from collector.readers.roster import progress_step

_SIGINT = 2
_STOPPED = ("cancelled", "time_limit", "preempted")
_ALARMS = ("error", "exception", "timed out", "timeout", "failed", "failure", "abort", "killed", "signal", "traceback")
_LONG_SILENCE = 30 * 60 * 1_000_000
"""Microseconds of heartbeats without any progress that are called a hang although nothing ended the job."""
_NONSENSE = 30 * 86_400_000_000
"""Microseconds beyond which a pause is a misread date."""
_MIN_GAP = 5_000_000
"""A pause shorter than 5 s is no hang, whatever the cadence."""
_CADENCES = 8
"""How many typical pauses between lines make a hang."""


def detect(case: Case) -> Iterator[Observation]:
    """Observations silence/node-lost, rank-stopped, finished-early, hang."""
    ranks = fates(case)
    yield from _silent(case, ranks)
    yield from _hang(case)
    yield from _heartbeats_only(case)


def _silent(case: Case, ranks: dict[int, Fate]) -> Iterator[Observation]:
    speaking = [fate for fate in ranks.values() if fate.failed]
    if len(ranks) < 2 or not speaking or not all(fate.only_echoes for fate in speaking):
        return
    quiet = [f for f in ranks.values() if not f.failed and f.signal is None and not f.stopped_from_outside]
    # a rank of which no line is known but that the launcher had to end was there, silent among unmarked lines
    blind = [fate for fate in quiet if not fate.lines and not fate.ends]
    told = any(fate.ends for fate in ranks.values())
    gone = [fate for fate in quiet if fate.lines and not fate.terminated and not fate.code]
    waiting = [fate for fate in quiet if fate.terminated]
    if any(_alarmed(fate) for fate in (*gone, *waiting)):
        return  # not silent: its last line reports something that no signature knows
    if blind or not any(_peer_gone(fate) for fate in speaking):
        return
    if any(fate.mismatched for fate in speaking) and not told:
        return  # a rank that aborted over mismatched data explains the lost connections as well as a silent one
    if gone and (told or len(gone) == 1 or _whole_nodes(gone, ranks)):
        # the launcher's teardown explains who else is quiet; whoever it did not even have to end was gone before.
        # Without the launcher's word several quiet ranks cannot be told apart.
        yield from _gone(gone, ranks)
    elif len(waiting) == 1 and len(speaking) == len(ranks) - 1 and all(fate.timed_out for fate in speaking):
        # it was alive to the end, so only peers that ran out of patience point at it; peers that lost a connection
        # point at a process that was gone
        yield _observe(
            "silence/rank-stopped", waiting, "unknown", 2 if len(ranks) > 2 else 1,
            f"Rank {waiting[0].rank} printed no error and nothing more, while every other rank reported a failed "
            "collective",
        )  # fmt: skip


def _whole_nodes(gone: Sequence[Fate], ranks: dict[int, Fate]) -> bool:
    """True if the quiet ranks are exactly the ranks of some nodes, and not of all."""
    places = nodes_of(ranks)
    nodes = {places[fate.rank] for fate in gone}
    members = {rank for rank, node in places.items() if node in nodes}
    return None not in nodes and members == {fate.rank for fate in gone} and len(members) < len(ranks)


def _gone(gone: Sequence[Fate], ranks: dict[int, Fate]) -> Iterator[Observation]:
    by_node: dict[str | None, list[Fate]] = defaultdict(list)
    nodes_by_rank = nodes_of(ranks)
    for fate in ranks.values():
        by_node[nodes_by_rank[fate.rank]].append(fate)
    numbers = {fate.rank for fate in gone}
    lost = [
        node
        for node, members in by_node.items()
        if node is not None and len(by_node) > 1 and {m.rank for m in members} <= numbers
    ]
    if lost and {m.rank for node in lost for m in by_node[node]} == numbers:
        nodes = ", ".join(sorted(str(node) for node in lost))
        found = _observe(
            "silence/node-lost", gone, "node", 2,
            f"Node {nodes} fell silent: its log stops without an error while the other ranks report that their peers "
            "are gone",
        )  # fmt: skip
        found.scope = "node"
        found.node = str(lost[0])
        found.detail["nodes"] = sorted(str(node) for node in lost)
        yield found
        return
    finished = [fate for fate in gone if fate.row.get("finished") or _steps_short(fate, ranks)]
    if finished and len(finished) == len(gone):
        yield _observe(
            "silence/finished-early", gone, "data", 2,
            f"{_ranks(gone)} ended early and without an error (uneven inputs) while the other ranks still waited in a "
            "collective",
        )  # fmt: skip
    elif len(gone) < len(ranks) - 1 or len(ranks) == 2:
        launcher_spoke = any(fate.ends for fate in ranks.values())
        yield _observe(
            "silence/finished-early" if launcher_spoke else "silence/rank-stopped", gone,
            "data" if launcher_spoke else "unknown", 2 if launcher_spoke else 1,
            f"{_ranks(gone)} ended without an error and without being terminated (left early, uneven inputs) while "
            "every other rank reported that a peer is gone"
            if launcher_spoke
            else f"{_ranks(gone)} fell silent without an error while every other rank reported that a peer is gone",
        )  # fmt: skip


def _peer_gone(fate: Fate) -> bool:
    """True if one of its errors says that a collective failed because of a peer."""
    return any(error.role == "cascade" for error in fate.errors) or bool(fate.echoes) or bool(fate.words)


def _alarmed(fate: Fate) -> bool:
    """True if its last line sounds like an error."""
    last = str(fate.row.get("last_text") or "").lower()
    return any(word in last for word in _ALARMS)


def _steps_short(fate: Fate, ranks: dict[int, Fate]) -> bool:
    """True if it printed an end-like line although its step counter is not ahead of its peers'."""
    last = str(fate.row.get("last_text") or "").lower()
    return any(word in last for word in ("done", "finished", "complete", "end of", "exiting", "no more"))


def _ranks(gone: Sequence[Fate]) -> str:
    numbers = [str(fate.rank) for fate in gone]
    return f"Rank {numbers[0]}" if len(numbers) == 1 else f"Ranks {', '.join(numbers)}"


def _observe(signature: str, gone: Sequence[Fate], cause: str, strength: int, title: str) -> Observation:
    first = min(gone, key=lambda fate: fate.row.get("last_line_at") or 1 << 62)
    row = first.row
    return Observation(
        detector="silence",
        signature=signature,
        role="initiating",
        cause=cause,
        title=title,
        text=str(row.get("last_text") or ""),
        strength=strength,
        rank=first.rank,
        node=first.node,
        attempt=row.get("attempt"),
        at_lo=row.get("last_line_at"),
        at_hi=None,
        issuer="collector",
        source="ranks",
        path=row.get("last_path"),
        line=row.get("last_line"),
        detail={
            "ranks": [fate.rank for fate in gone],
            "missing": ["a py-spy dump of that rank while it hangs, its exit code, and its node's kernel log"],
        },
    )


def _untimed(case: Case, stop: Mapping[str, Any]) -> Iterator[Observation]:
    """Stopped from outside and no time stamps: a hang or a cancellation, nobody can tell."""
    steps = {row["rank"]: row["step"] for row in case.rows("ranks") if row.get("step") is not None}
    words = [line for line in case.lines if line.issuer in ("rank", "unknown") and line.text.strip()]
    words = [line for line in words if line.path != stop["path"] or line.line < stop["line"]]
    if not words:
        return
    last = words[-1]
    known = ""
    if len(set(steps.values())) > 1:
        low = min(steps.values())
        behind = ", ".join(str(rank) for rank, step in sorted(steps.items()) if step == low)
        known = f"; rank(s) {behind} had reached step {low}, others step {max(steps.values())}"
    yield Observation(
        detector="silence",
        signature="silence/hang",
        role="initiating",
        cause="unknown",
        title=f"Stopped from outside; no training line has a time, so a hang before it cannot be ruled out{known}",
        text=last.text.strip(),
        scope="job",
        strength=1,
        attempt=last.attempt,
        issuer="collector",
        path=last.path,
        line=last.line,
        offset=last.offset,
        detail={"missing": ["time stamps on the training lines", "a py-spy dump of every rank during the hang"]},
    )


def _hang(case: Case) -> Iterator[Observation]:
    """A pause much longer than the usual one between the last word of the ranks and the signal from outside."""
    stops = [e for e in case.rows("scheduler_events") if e["event"] in _STOPPED and e.get("at_lo") is not None]
    own = [line for line in case.lines if line.issuer in ("rank", "unknown") and line.at_lo is not None]
    if stops and not own and stops[0]["event"] == "cancelled" and stops[0].get("signal") != _SIGINT:
        yield from _untimed(case, stops[0])
    if not stops or not own:
        return
    stop = min(stops, key=lambda e: e["at_lo"])
    before = [line for line in own if line.at_lo is not None and line.at_lo <= stop["at_lo"]]
    if len(before) < 4:
        return
    last = max(before, key=lambda line: line.at_lo or 0)
    gap = stop["at_lo"] - (last.at_hi or last.at_lo or 0)
    times = sorted({line.at_lo for line in before if line.at_lo is not None and progress_step(line.text) is not None})
    if len(times) < 3:
        times = sorted({line.at_lo for line in before if line.at_lo is not None})
    pauses = [b - a for a, b in itertools.pairwise(times) if b > a]
    usual = statistics.median(pauses) if pauses else 0
    # buffered output or a long first step also make pauses: only one that dwarfs the largest usual pause counts
    longest = sorted(pauses)[-2] if len(pauses) > 2 else max(pauses, default=0)
    if gap > _NONSENSE:
        return  # two clocks or two date orders, not a hang
    if gap < max(_MIN_GAP, _CADENCES * usual, 1.5 * longest):
        return
    seconds = gap / 1e6
    yield Observation(
        detector="silence",
        signature="silence/hang",
        role="initiating",
        cause="unknown",
        title=f"The job hung: no rank printed anything for {seconds:.0f} s before it was stopped from outside",
        text=last.text.strip(),
        scope="job",
        strength=1,
        attempt=last.attempt,
        at_lo=last.at_lo,
        at_hi=stop["at_lo"],
        issuer="collector",
        source="rank_log",
        path=last.path,
        line=last.line,
        offset=last.offset,
        detail={
            "seconds": round(seconds, 1),
            "missing": [
                "a py-spy dump of every rank taken during the hang (py-spy dump --pid PID on each node; "
                "firstfault stacks DIR compares them)",
                "NCCL flight-recorder dumps (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1)",
            ],
        },
    )


def _heartbeats_only(case: Case) -> Iterator[Observation]:
    """Something outside the ranks went on writing for a long time after the last training progress."""
    if any(end["event"] in _STOPPED or end.get("code") or end.get("signal") for end in case.rows("scheduler_events")):
        return
    last = -1
    for index, line in enumerate(case.lines):
        if line.issuer == "rank" or line.rank is not None or progress_step(line.text) is not None:
            last = index
    if last < 0:
        return
    after = [line for line in case.lines[last + 1 :] if line.at_lo is not None and line.path == case.lines[last].path]
    if len(after) < 2 or case.exceptions:
        return
    span = (after[-1].at_lo or 0) - (after[0].at_lo or 0)
    if span < _LONG_SILENCE:
        return
    seen = case.lines[last]
    yield Observation(
        detector="silence",
        signature="silence/hang",
        role="initiating",
        cause="unknown",
        title=f"The job hangs: no rank printed anything for at least {span / 3.6e9:.1f} h while the log went on",
        text=seen.text.strip(),
        scope="job",
        strength=1,
        attempt=seen.attempt,
        at_lo=seen.at_lo,
        issuer="collector",
        path=seen.path,
        line=seen.line,
        offset=seen.offset,
        detail={"missing": ["a py-spy dump of every rank while it hangs (firstfault stacks DIR compares them)"]},
    )
