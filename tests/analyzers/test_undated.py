from typing import Any

import pytest

from analyzers.case import Case, Observation
from analyzers.undated import doubt

RANKS = [{"rank": rank, "node": f"n{rank // 2}", "pid": 100 + rank} for rank in range(4)]


def kernel(cause: str = "gpu", rank: int | None = 3, pids: tuple[int, ...] = (), undated: bool = True) -> Observation:
    detail: dict[str, Any] = {"undated": undated, "pids": list(pids)}
    return Observation(
        "kernel", "gpu/xid-79", "initiating", cause, "t", rank=rank, node="n1", strength=3, detail=detail
    )


def failure(rank: int, cause: str, signature: str = "cuda/launch-failure", text: str = "") -> Observation:
    return Observation("exceptions", signature, "initiating", cause, "t", text, rank=rank, node=f"n{rank // 2}")


def strength(seen: Observation, *failures: Observation) -> int:
    doubt(Case("i", tables={"ranks": RANKS}), [seen, *failures])
    return seen.strength


def test_an_event_that_nothing_answers_to_is_a_hint() -> None:
    assert strength(kernel()) == 1
    assert strength(kernel(), failure(1, "user_code")) == 1


def test_a_failure_of_its_rank_answers_and_one_of_another_does_not() -> None:
    assert strength(kernel(), failure(3, "unknown")) == 3
    assert strength(kernel(), failure(2, "unknown")) == 1
    assert strength(kernel(rank=None), failure(2, "unknown")) == 3
    assert strength(kernel(rank=None), failure(1, "unknown")) == 1


def test_a_process_of_the_job_dates_the_event() -> None:
    assert strength(kernel(pids=(103,))) == 3
    assert strength(kernel(pids=(9999,))) == 1


def test_a_dated_event_is_left_alone() -> None:
    assert strength(kernel(undated=False)) == 3


@pytest.mark.parametrize(
    ("text", "role", "weight"), [("worker (pid 55) is killed", "context", 1), ("", "initiating", 3)]
)
def test_an_oom_kill_of_another_process_is_none_of_this_job(text: str, role: str, weight: int) -> None:
    seen = kernel("host_memory", rank=None, pids=(9999,))
    assert strength(seen, failure(2, "unknown", "dataloader/worker-killed", text)) == weight
    assert seen.role == role
