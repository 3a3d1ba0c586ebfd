"""What kind of failure an exception is: shared by the detectors, so that they agree without calling each other.

A chain counts once. The telling element is the one with the strongest signature; without any signature it is the first
cause that is not a wrapper, classified by its type (`signatures/_lookup/exceptions.yaml`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from analyzers.case import Case, Hit
from collector.data import lookup
from collector.readers import exits
from collector.readers.tracebacks import PyException

_ROLE_WEIGHT = {"initiating": 3, "cascade": 2, "teardown": 1, "wrapper": 0}


@dataclass(frozen=True, slots=True)
class Classified:
    """One exception chain, judged."""

    outer: PyException
    """The exception as it ended the rank (the last of the chain)."""
    element: PyException
    """The element to cite."""
    hit: Hit | None
    role: str
    cause: str
    scope: str
    strength: int
    title: str | None
    """Headline of the signature, None if no signature matched."""
    rank: int | None


def classify_all(case: Case) -> list[Classified]:
    """Every exception chain of the case, judged, in reading order."""
    by_line: dict[int, list[Hit]] = defaultdict(list)
    for hit in case.hits:
        by_line[hit.index].append(hit)
    pids = pid_ranks(case)
    quoted = {id(element) for exception in case.exceptions for element in exception.chain()[:-1]}
    return [_classify(case, e, by_line, pids) for e in case.exceptions if id(e) not in quoted and not e.ignored]


def pid_ranks(case: Case) -> dict[int, int]:
    """Process id -> global rank, as far as the roster knows."""
    return {row["pid"]: row["rank"] for row in case.rows("ranks") if row.get("pid") is not None}


def accused_ranks(captures: Mapping[str, str]) -> list[int]:
    """The ranks that a line blames, from its captures accused_rank or accused_ranks (a list such as `3, 7`)."""
    text = captures.get("accused_ranks") or captures.get("accused_rank") or ""
    return [int(part) for part in text.replace(" ", "").split(",") if part.isdigit()]


def covered(case: Case) -> set[int]:
    """Indexes of lines that belong to a traceback or its message: hits there are not events of their own."""
    return {index for exception in case.exceptions for index in exception.members}


def _classify(
    case: Case, exception: PyException, by_line: Mapping[int, list[Hit]], pids: Mapping[int, int]
) -> Classified:
    chain = exception.chain()
    graded = [(element, _best_hit(element, by_line, case)) for element in chain]
    element, hit = _decisive(graded, case)
    kind = _kind(element)
    signature = case.signatures.get(hit.signature) if hit else None
    if _lone_service(chain, element, hit):
        kind, signature = {**kind, "role": "initiating"}, None
    role = signature.role if signature else str(kind["role"])
    if any(e.by_launcher for e in chain) and element is exception and exception.cause is None and role == "initiating":
        role = "wrapper" if signature is None else role
    return Classified(
        outer=exception,
        element=element,
        hit=hit,
        role=role,
        cause=signature.cause if signature else str(kind["cause"]),
        scope=signature.scope if signature else "rank",
        strength=signature.strength if signature else 2,
        title=signature.title if signature else None,
        rank=_whose(exception, element, pids),
    )


_TALKS_TO_RANKS = (
    "torch/distributed/distributed_c10d", "torch/distributed/rendezvous", "torch/distributed/checkpoint",
    "torch/distributed/elastic/rendezvous", "torch/autograd/", "deepspeed/", "multiprocessing/connection",
    "multiprocessing/queues", "multiprocessing/managers", "/ray/", "gloo", "nccl", "jax/",
)  # fmt: skip
_NETWORK = (
    "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "ConnectionError", "TimeoutError", "timeout",
    "ConnectTimeout", "ReadTimeout", "ConnectionAbortedError", "NewConnectionError", "MaxRetryError",
)  # fmt: skip


def _lone_service(chain: Sequence[PyException], exception: PyException, hit: Hit | None) -> bool:
    """A network error outside of everything that ranks use to talk to one another: a service failed, not a peer."""
    if exception.short_type not in _NETWORK or (hit is not None and not hit.signature.startswith("python/")):
        return False
    files = [frame.file for element in chain for frame in element.frames]
    return any(e.has_user_frame for e in chain) and not any(part in f for f in files for part in _TALKS_TO_RANKS)


def _kind(exception: PyException) -> Mapping[str, Any]:
    """Role and cause by the exception's type."""
    known: Mapping[str, Mapping[str, Any]] = lookup("exceptions")
    row = known.get(exception.short_type)
    if row is None:
        return {"role": "initiating", "cause": "user_code" if exception.has_user_frame else "unknown"}
    return {"role": row.get("role") or "initiating", "cause": row.get("cause") or "unknown"}


def _best_hit(exception: PyException, by_line: Mapping[int, list[Hit]], case: Case) -> Hit | None:
    """The signature that says most about this exception: strongest first, then the one nearest to its last line."""
    best: tuple[tuple[int, int, int], Hit] | None = None
    for index in exception.members:
        for hit in by_line.get(index, ()):
            signature = case.signatures[hit.signature]
            if signature.role in ("context", "confirmation"):
                continue
            if signature.role in ("wrapper", "teardown") and index != exception.index:
                continue  # what a dying process prints after its traceback is not the traceback's kind
            key = (signature.strength, _ROLE_WEIGHT.get(signature.role, 0), -abs(index - exception.index))
            if best is None or key > best[0]:
                best = (key, hit)
    return best[1] if best else None


def _decisive(graded: Sequence[tuple[PyException, Hit | None]], case: Case) -> tuple[PyException, Hit | None]:
    """Which exception of a chain to cite: one with a telling signature, else the first that is no wrapper."""
    for wanted in ("initiating", "cascade"):
        same = [(e, h) for e, h in graded if h is not None and case.signatures[h.signature].role == wanted]
        if same:
            return max(same, key=lambda pair: case.signatures[pair[1].signature].strength if pair[1] else 0)
    for element, hit in graded:
        if hit is None and _kind(element)["role"] in ("initiating", "cascade") and not element.by_launcher:
            return element, hit
    return graded[0]


@cache
def _announcements() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in exits.formats()["announce"])


def _whose(exception: PyException, element: PyException, pids: Mapping[int, int]) -> int | None:
    """The rank that raised it: the line's own, else the one that a wrapper's message announces."""
    for source in (element, exception):
        if source.line.rank is not None:
            return source.line.rank
    for outer in reversed(exception.chain()):
        text = f"{outer.line.text}\n{outer.message}"
        for pattern in _announcements():
            match = pattern.search(text)
            if match and match.groupdict().get("rank"):
                return int(match["rank"])
            if match and int(match["pid"]) in pids:
                return pids[int(match["pid"])]
    pid = element.line.pid
    if pid is not None and pid in pids:
        return pids[pid]
    return element.announced_rank
