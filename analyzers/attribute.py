"""Whose failure is it, where the line does not say? Inference from the whole picture, each step with its reason.

An unmarked traceback belongs to a rank only if everything else rules the others out: the ranks' own copies of the same
text, as many copies as there are ranks, or just as many ranks as there are copies whose end nothing else explains. If
none of these holds, the rank stays unknown; a guess would be a false accusation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from analyzers.case import Case, Observation
from analyzers.fates import Fate, fates
from collector.readers.roster import progress_step, says_finished

_SIGABRT = 6


def attribute(case: Case, observations: Sequence[Observation]) -> None:
    """Fill in ranks of rank-scope observations that carry none, in place; note how in `detail["attributed"]`."""
    _copies(case, observations)
    _own_end(case, observations)
    _waiting_ends(observations)


def mark_progress(case: Case, observations: Sequence[Observation]) -> None:
    """Set `detail["progressed"]` where the same writer went on training after the event, in place.

    Needs two later progress lines of the same writer in the same file, because a buffered stream can deliver a line
    late; and never for a rank that printed nothing else and then ended with an error. The last repeat of a failure
    that training survived before needs only one.
    """
    later = _progress(case)
    ranks = fates(case)
    failed: set[int | None] = {rank for rank, fate in ranks.items() if fate.code or fate.signal is not None}
    if failed:
        failed.add(None)
    errors = [o for o in observations if o.role in ("initiating", "cascade") and o.line is not None]
    last_error: dict[tuple[str | None, int | None], int] = {}
    for seen in errors:
        last_error[(seen.path, seen.rank)] = max(last_error.get((seen.path, seen.rank), 0), seen.line or 0)
    survived: set[tuple[object, ...]] = set()
    for wanted in (2, 1):
        for seen in errors:
            if seen.detector not in ("exceptions", "signatures", "error_lines"):
                continue
            same = (seen.path, seen.rank, seen.signature, seen.detail.get("type"), seen.detail.get("frame"))
            if wanted == 1 and same not in survived:
                continue
            steps = _steps_after(later, seen)
            followed = last_error[(seen.path, seen.rank)] > (seen.line or 0)
            if len(steps) >= wanted and (followed or seen.rank not in failed):
                seen.detail["progressed"] = True
                survived.add(same)
            elif seen.rank is not None and _ended_well(ranks.get(seen.rank)):
                seen.detail["progressed"] = True


def _progress(case: Case) -> dict[tuple[str | None, int | None], list[tuple[int, int]]]:
    """(File, writer) -> (line number, step) of its progress lines."""
    later: dict[tuple[str | None, int | None], list[tuple[int, int]]] = defaultdict(list)
    for line in case.lines:
        step = progress_step(line.text)
        if step is not None and line.issuer != "launcher":
            later[(line.path, line.rank)].append((line.line, step))
    return later


def _steps_after(later: Mapping[tuple[str | None, int | None], list[tuple[int, int]]], seen: Observation) -> set[int]:
    """The steps that the writer (anybody in the file, if it is unknown) printed behind the event."""
    writers = [key for key in later if key[0] == seen.path and (seen.rank is None or key[1] == seen.rank)]
    return {step for key in writers for number, step in later.get(key, ()) if number > (seen.line or 0)}


def _ended_well(fate: Fate | None) -> bool:
    """True for a rank whose last word is that it finished and whose process nobody reports as failed or ended."""
    if fate is None or fate.code or fate.signal is not None or fate.terminated:
        return False
    return says_finished(str(fate.row.get("last_text") or ""))


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
        and (seen.scope == "rank" or seen.role == "cascade" or seen.detector == "exceptions")
        and seen.role in ("initiating", "cascade")
        and not seen.detail.get("ranks")
        and seen.detector in ("exceptions", "signatures")
        and seen.issuer not in ("launcher", "scheduler", "kernel")
    ]


def _copies(case: Case, observations: Sequence[Observation]) -> None:
    """As many copies of one failure as there are ranks: every rank had it."""
    world = len(fates(case))
    if world < 2:
        return
    for group in _alike(_unmarked(observations)):
        count = sum(int(seen.detail.get("count") or 1) for seen in group)
        if count == world:
            for seen in group:
                seen.detail["ranks"] = list(range(world))
                seen.detail["attributed"] = f"{count} copies of it for {world} ranks"


def _waiting_ends(observations: Sequence[Observation]) -> None:
    """A rank whose stack shows it waiting for a peer, and that then ended, was ended by its own watchdog: an echo."""
    waiting: set[int] = set()
    for seen in observations:
        if seen.detector in ("stacks", "collectives") and seen.role == "cascade":
            waiting.update(seen.detail.get("ranks") or ([seen.rank] if seen.rank is not None else []))
    for seen in observations:
        if seen.signature == "exit/failed-silently" and seen.rank in waiting:
            seen.role = "cascade"


def _alike(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Unmarked initiating observations of one file that are the same failure."""
    groups: dict[str, list[Observation]] = defaultdict(list)
    for seen in observations:
        if seen.role == "initiating" and not seen.detail.get("ranks"):
            groups[f"{seen.path}|{seen.signature}|{seen.detail.get('type')}|{seen.detail.get('frame')}"].append(seen)
    return list(groups.values())


def _own_end(case: Case, observations: Sequence[Observation]) -> None:
    """The ranks that ended by themselves without an error of their own are the writers of the unmarked failure."""
    ranks = fates(case)
    own = [
        rank
        for rank, fate in ranks.items()
        if (fate.signal is not None or (fate.code and not fate.terminated)) and not fate.failed
    ]
    if not own:
        return
    unmarked = _unmarked(observations)
    for group in _alike(unmarked):
        count = sum(int(seen.detail.get("count") or 1) for seen in group)
        if len(own) == 1:
            for seen in group:
                seen.rank, seen.node = own[0], seen.node or ranks[own[0]].node
                seen.detail["attributed"] = "it is the only rank whose end nothing else explains"
        elif count == len(own):
            for seen in group:
                seen.detail["ranks"] = own
                seen.detail["attributed"] = f"{count} copies of it, and {count} ranks whose end nothing else explains"
    if len(own) == 1 and ranks[own[0]].signal == _SIGABRT:
        _echo_of_abort(own[0], unmarked, observations)


def _echo_of_abort(rank: int, unmarked: Sequence[Observation], observations: Sequence[Observation]) -> None:
    """An unmarked echo just before the one abort of the job is that rank's: its abort is an echo too."""
    echoes = [seen for seen in unmarked if seen.role == "cascade"]
    if not echoes or any(seen.rank == rank and seen.role == "initiating" for seen in unmarked):
        return
    for seen in echoes:
        seen.rank = rank
    for seen in observations:
        if seen.detector == "exits" and seen.rank == rank:
            seen.role = "cascade"
