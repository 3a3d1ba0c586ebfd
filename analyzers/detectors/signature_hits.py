"""Which known lines did the logs print outside of tracebacks?

Repeats of one signature by one writer are one observation with a count: the first is the event, the rest is its noise.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyzers.case import Case, Hit, Observation
from analyzers.classify import accused_ranks, covered, pid_ranks


def detect(case: Case) -> Iterator[Observation]:
    """One observation per (signature, writer, blamed rank); `detail.count` tells how often."""
    inside = covered(case)
    pids = pid_ranks(case)
    seen: dict[tuple[object, ...], Observation] = {}
    for hit in case.hits:
        if hit.index in inside or case.signatures[hit.signature].role == "context":
            continue
        observation = _observe(case, hit, pids)
        key = (
            hit.signature, observation.rank, hit.line.path if observation.rank is None else None,
            observation.accuses_rank, hit.line.attempt, hit.captures.get("pid"), hit.captures.get("local_rank"),
        )  # fmt: skip
        first = seen.setdefault(key, observation)
        first.detail["count"] = first.detail.get("count", 0) + 1
    yield from seen.values()


def _observe(case: Case, hit: Hit, pids: dict[int, int]) -> Observation:
    signature = case.signatures[hit.signature]
    line = hit.line
    captures = dict(hit.captures)
    rank = line.rank
    if rank is None and line.pid is not None:
        rank = pids.get(line.pid)
    if rank is None and signature.role != "wrapper":
        rank = _number(captures.get("rank"))
    accused = accused_ranks(captures)
    accusing = bool(accused) and signature.role == "cascade"
    return Observation(
        detector="signatures",
        signature=hit.signature,
        role="initiating" if accusing else signature.role,
        cause=signature.cause,
        title=signature.title,
        text=line.text.strip(),
        scope=signature.scope,
        strength=signature.strength,
        attempt=line.attempt,
        rank=rank,
        node=captures.get("node") or line.node,
        device=captures.get("pci") or captures.get("device"),
        accuses_rank=accused[0] if accused else None,
        accuses_node=captures.get("accused_node"),
        entity=captures.get("entity"),
        at_lo=_started(line.at_lo, captures),
        at_hi=line.at_hi,
        seq=hit.index,
        issuer=line.issuer,
        path=line.path,
        line=line.line,
        offset=line.offset,
        detail={
            "ranks": accused if len(accused) > 1 else [],
            "captures": captures,
            "pid": line.pid,
            "same": f"{hit.signature}|{line.text.strip()[:300]}",
        },
    )


def _started(at: int | None, captures: dict[str, str]) -> int | None:
    """A watchdog reports long after the wait began: the event may be as old as what it `ran for`."""
    ran = captures.get("ran_ms")
    if at is None or not ran or not ran.isdigit():
        return at
    return at - int(ran) * 1000


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
