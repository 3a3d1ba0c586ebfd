"""Kernel events without a usable time: what `dmesg` prints by default says when, but since a boot that nobody knows.

Such an event may be from yesterday's job. It keeps its weight only where something in this job answers to it: the
process it names is one of the job, or a rank that it can have hit failed in a way that it can cause. Otherwise it is a
hint, which never outweighs a failure that the job itself states.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from analyzers.case import Case, Observation
from analyzers.placement import Placement, same_node

_PID = re.compile(r"\bpid\W{0,6}s?\W{0,4}(\d{2,10})\b")
_OTHER_REASONS = ("user_code", "data", "scheduler", "environment", "framework")
_KILLED = re.compile(r"exit/(?:killed|failed-silently)|silence/rank-stopped|dataloader/.*|launcher/.*")


def doubt(case: Case, observations: Sequence[Observation]) -> None:
    """Lower undated initiating kernel events that nothing in the job answers to, in place, to a hint."""
    undated = [o for o in observations if o.detector == "kernel" and o.detail.get("undated") and o.role == "initiating"]
    if not undated:
        return
    placement = Placement(case)
    failures = [o for o in observations if o.detector != "kernel" and o.role == "initiating"]
    for seen in undated:
        pids = seen.detail.get("pids") or ()
        named = any(placement.rank_of_pid(pid, seen.node) is not None for pid in pids) or (
            seen.rank is not None and any(placement.rank_that_mentions(pid, seen.node) is not None for pid in pids)
        )
        if not named and not any(_answers(failure, seen) for failure in failures):
            seen.strength = 1
            seen.detail["doubt"] = "it carries no time, so it may be older than the job"
            if seen.cause == "host_memory" and any(_names_another(failure, pids) for failure in failures):
                seen.role = "context"


def _answers(failure: Observation, seen: Observation) -> bool:
    """True if a failure that the job states is where and what the event can have caused."""
    if failure.detail.get("progressed") or failure.cause in _OTHER_REASONS:
        return False
    here = _ranks(failure)
    if seen.rank is not None and here:
        if seen.rank not in here:
            return False
    elif not same_node(failure.node, seen.node) and seen.cause != "fabric":
        return False
    if seen.cause == "host_memory":
        told = _PID.search(failure.text)
        pids = seen.detail.get("pids") or ()
        return _KILLED.fullmatch(failure.signature) is not None and (told is None or int(told[1]) in pids)
    return failure.cause in (seen.cause, "unknown") or seen.cause in ("unknown", "user_code")


def _names_another(failure: Observation, pids: Sequence[int]) -> bool:
    """True if a process of the job died whose pid is known and is not one of these."""
    told = _PID.search(failure.text)
    return _KILLED.fullmatch(failure.signature) is not None and told is not None and int(told[1]) not in pids


def _ranks(failure: Observation) -> set[int]:
    rank = failure.accuses_rank if failure.accuses_rank is not None else failure.rank
    return {*(failure.detail.get("ranks") or ()), *([] if rank is None else [rank])}
