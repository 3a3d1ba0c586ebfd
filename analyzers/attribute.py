"""Whose failure is it, where the line does not say? Inference from the whole picture, each step with its reason.

An unmarked traceback belongs to a rank only if everything else rules the others out: the ranks' own copies of the same
text, as many copies as there are ranks, or exactly one rank whose end is not explained otherwise. If none of these
holds,
the rank stays unknown; a guess would be a false accusation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from analyzers.case import Case, Observation
from analyzers.fates import fates
from collector.readers.roster import progress_step


def attribute(case: Case, observations: Sequence[Observation]) -> None:
    """Fill in ranks of rank-scope observations that carry none, in place; note how in `detail["attributed"]`."""
    _copies(case, observations)
    _only_unexplained_end(case, observations)


def mark_progress(case: Case, observations: Sequence[Observation]) -> None:
    """Set `detail["progressed"]` where the same writer went on training after the event, in place.

    Needs two later progress lines of the same writer in the same file, because a buffered stream can deliver a line
    late; and never for a rank that printed nothing else and then ended with an error.
    """
    later: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for line in case.lines:
        step = progress_step(line.text)
        if step is not None and line.issuer != "launcher":
            later[(line.path, line.rank)].append((line.line, step))
    failed = {rank for rank, fate in fates(case).items() if fate.code or fate.signal is not None}
    for seen in observations:
        if seen.role != "initiating" or seen.line is None or seen.detector not in ("exceptions", "signatures"):
            continue
        after = {step for number, step in later.get((seen.path, seen.rank), ()) if number > (seen.line or 0)}
        others = any(
            o is not seen and o.rank == seen.rank and o.role in ("initiating", "cascade") and (o.line or 0) > seen.line
            for o in observations
            if o.path == seen.path
        )
        if len(after) >= 2 and (others or seen.rank not in failed):
            seen.detail["progressed"] = True


def demote_stops(case: Case, observations: Sequence[Observation]) -> None:
    """A signal to the launcher is teardown where the scheduler had reported a failed task before, in place.

    srun ends the whole step when one task failed (--kill-on-bad-exit), and every launcher in it reports a SIGTERM.
    """
    failed = [
        end
        for end in case.rows("scheduler_events")
        if end["event"] in ("exit", "signal") and (end.get("code") or end.get("signal") not in (None, 15))
    ]
    for seen in observations:
        if seen.role != "initiating" or seen.cause != "scheduler" or seen.scope not in ("launcher", "job"):
            continue
        for end in failed:
            same_file = end["path"] == seen.path and (end["line"] or 0) < (seen.line or 0)
            earlier = end.get("at_hi") is not None and seen.at_lo is not None and end["at_hi"] < seen.at_lo
            if same_file or earlier:
                seen.role = "teardown"
                break


def _unmarked(observations: Sequence[Observation]) -> list[Observation]:
    return [
        seen
        for seen in observations
        if seen.rank is None
        and seen.accuses_rank is None
        and seen.scope == "rank"
        and seen.role in ("initiating", "cascade")
        and not seen.detail.get("ranks")
        and seen.detector in ("exceptions", "signatures")
        and seen.issuer not in ("launcher", "scheduler", "kernel")
    ]


def _copies(case: Case, observations: Sequence[Observation]) -> None:
    """As many copies of one failure as there are ranks: every rank had it."""
    world = case.world_size
    if not world or world < 2:
        return
    groups: dict[str, list[Observation]] = defaultdict(list)
    for seen in _unmarked(observations):
        if seen.role == "initiating":
            groups[f"{seen.path}|{seen.signature}|{seen.detail.get('type')}|{seen.detail.get('frame')}"].append(seen)
    for group in groups.values():
        count = sum(int(seen.detail.get("count") or 1) for seen in group)
        if count == world:
            for seen in group:
                seen.detail["ranks"] = list(range(world))
                seen.detail["attributed"] = f"{count} copies of it for {world} ranks"


def _only_unexplained_end(case: Case, observations: Sequence[Observation]) -> None:
    """One rank ended by itself without an error of its own, and one unmarked failure waits for an owner."""
    unmarked = [seen for seen in _unmarked(observations) if not seen.detail.get("ranks")]
    unmarked = [seen for seen in unmarked if seen.role == "initiating"]
    if not unmarked:
        return
    ranks = fates(case)
    own = [
        rank
        for rank, fate in ranks.items()
        if (fate.signal is not None or (fate.code and not fate.terminated)) and not fate.failed
    ]
    if len(own) != 1:
        return
    kinds = {seen.signature + str(seen.detail.get("type")) for seen in unmarked}
    if len(kinds) > 2:
        return
    for seen in unmarked:
        seen.rank = own[0]
        seen.node = seen.node or ranks[own[0]].node
        seen.detail["attributed"] = "the only rank whose end nothing else explains"
