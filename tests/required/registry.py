"""The composed cases by name, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from building import Run

CASES: dict[str, tuple[Callable[[Run], dict[str, Any]], dict[str, Any]]] = {}
SURE = ["established", "supported"]
KEY_ERROR = "KeyError: 'attention_mask'"
COLLATE = "batch = collate(records)"


def case(name: str, **layout: Any) -> Callable[[Callable[[Run], dict[str, Any]]], Callable[[Run], dict[str, Any]]]:
    """Register a function that composes one run and returns what must be said of it."""

    def register(compose: Callable[[Run], dict[str, Any]]) -> Callable[[Run], dict[str, Any]]:
        CASES[name] = (compose, layout)
        return compose

    return register


def seconds(number: float) -> timedelta:
    """So many seconds."""
    return timedelta(seconds=number)


def others_time_out(run: Run, culprit: int, began: timedelta) -> None:
    """All ranks but one run into the collective timeout."""
    for rank in range(run.size):
        if rank != culprit:
            run.watchdog(rank, began)


def key_error(run: Run, rank: int, last: timedelta) -> dict[str, Any]:
    """A plain exception on one rank, the others lose the connection; what must be said of it."""
    run.traceback(rank, KEY_ERROR, COLLATE)
    for other in range(run.size):
        if other != rank:
            run.lost_peer(other, last + seconds(4 + 0.1 * other), rank)
    return {"status": SURE, "signature": "python/uncaught-exception", "cause": "user_code", "ranks": [rank]}
