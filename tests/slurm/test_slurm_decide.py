"""What hooks and records of each kind of end add up to. The rows are what Slurm 22.05.8 showed on a real cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from collector.config import Config, SlurmConfig
from collector.slurm_decide import Decision, Known, decide, of_ticket, publish, published
from collector.slurm_record import JobRecord
from collector.slurm_ticket import JobEnd
from collector.store import LocalStore

SEEN = 1_796_101_900.0
START = 1_796_101_871
NODES = ("n1", "n2", "n3", "n4")


def end(code: int = 0, signal: int = 0, restart: int = 0, **more: Any) -> JobEnd:
    more.setdefault("nodes", "n[1-4]")
    return JobEnd("head", 60, restart, code, signal, SEEN, cluster="c", uid=1000, **more)


def record(state: str, **more: Any) -> JobRecord:
    more.setdefault("started", START)
    more.setdefault("restarts", 0)
    return JobRecord(60, state, more.pop("completing", state == "COMPLETING"), nodes="n[1-4]", **more)


def later(state: str = "PENDING", restarts: int = 1, **more: Any) -> JobRecord:
    """The record when Slurm runs the job again."""
    return record(state, restarts=restarts, started=int(SEEN) + 12, **more)


COMPLETING = record("COMPLETING")


@pytest.mark.parametrize(
    ("hook", "first", "latest", "state", "attempt", "collected"),
    [
        (end(), COMPLETING, record("COMPLETED"), "COMPLETED", 0, False),
        (end(1), record("COMPLETING", reason="NonZeroExitCode"), record("FAILED", code=1), "FAILED", 0, True),
        (end(), COMPLETING, record("CANCELLED", signal=15), "CANCELLED", 0, True),
        (end(), record("COMPLETING", reason="TimeLimit"), record("TIMEOUT", signal=15), "TIMEOUT", 0, True),
        (end(), record("COMPLETING", reason="NodeDown"), record("NODE_FAIL"), "NODE_FAIL", 0, True),
        (end(0, 125), record("COMPLETING"), record("OUT_OF_MEMORY", signal=125), "OUT_OF_MEMORY", 0, True),
        # a step failed and the script hid it
        (end(derived=1792), COMPLETING, record("COMPLETED", derived=7), "COMPLETED", 0, True),
        (end(derived=15), COMPLETING, record("COMPLETED", derived_signal=15), "COMPLETED", 0, True),
        # scontrol requeue and preemption count before the hooks run
        (end(restart=1), record("COMPLETING", restarts=1), later(), "REQUEUED", 0, True),
        (end(restart=1), None, later(), "REQUEUED", 0, True),
        (end(restart=1), None, later("FAILED", reason="NonZeroExitCode"), "REQUEUED", 0, True),
        (end(restart=2), record("COMPLETING", restarts=2), later("RUNNING", 2), "REQUEUED", 1, True),
        # node failure with --requeue and RequeueExit count after them
        (end(restart=0), record("COMPLETING", restarts=1), later(), "NODE_FAIL", 0, True),
        (end(42), record("COMPLETING", restarts=0), later("COMPLETED"), "FAILED", 0, True),
        # the attempt after a requeue; the worst step of the one before leaks into it
        (end(5, restart=1), record("COMPLETING", restarts=1), record("FAILED", code=5, restarts=1), "FAILED", 1, True),
        (end(restart=1, derived=15), None, record("COMPLETED", restarts=1, derived_signal=15), "COMPLETED", 1, False),
        (end(restart=1), record("COMPLETING", restarts=1, reason="launch_failed_requeued_held"), later(restarts=1),
         "LAUNCH_FAILED", 0, True),
    ],
)  # fmt: skip
def test_ends(
    hook: JobEnd, first: JobRecord | None, latest: JobRecord, state: str, attempt: int, collected: bool
) -> None:
    decision = decide(hook, Known(first, latest), Config(), SEEN + 5)
    assert decision is not None
    assert (decision.state, decision.attempt, decision.collect) == (state, attempt, collected)
    assert decision.nodes == NODES


def test_too_early() -> None:
    """While a job completes nobody judges; a node that never lets go does not hold the judgement for ever."""
    for hook in (end(), end(1)):
        assert decide(hook, Known(COMPLETING, COMPLETING), Config(), SEEN + 5) is None
    hidden = record("COMPLETING", reason="TimeLimit")
    decision = decide(end(), Known(hidden, hidden), Config(), SEEN + 100)
    assert decision is not None
    assert (decision.state, decision.final) == ("TIMEOUT", False)
    assert decide(end(), Known(COMPLETING, COMPLETING), Config(), SEEN + 100) is None
    unknown = decide(end(), Known(COMPLETING, COMPLETING), Config(), SEEN + 1000)
    assert unknown is not None
    assert (unknown.state, unknown.collect) == ("UNKNOWN", True)


def test_json_shows_the_state_behind_completing() -> None:
    latest = record("CANCELLED", completing=True)
    decision = decide(end(), Known(COMPLETING, latest), Config(), SEEN + 100)
    assert decision is not None
    assert decision.state == "CANCELLED"


@pytest.mark.parametrize(
    ("hook", "known", "state"),
    [
        (end(1), Known(gone=True), "FAILED"),
        (end(), Known(gone=True), "UNKNOWN"),
        (end(), Known(first=record("COMPLETING", reason="TimeLimit"), gone=True), "TIMEOUT"),
        (end(), Known(gone=True, accounting=(record("CANCELLED", restarts=None),)), "CANCELLED"),
        (end(restart=1), Known(latest=later(), accounting=(record("PREEMPTED", restarts=None),)), "PREEMPTED"),
        (end(restart=0), Known(latest=later(), accounting=(record("REQUEUED", restarts=None),)), "REQUEUED"),
    ],
)
def test_slurm_has_forgotten_the_job(hook: JobEnd, known: Known, state: str) -> None:
    decision = decide(hook, known, Config(), SEEN + 400)
    assert decision is not None
    assert decision.state == state


def test_states_are_chosen_by_the_configuration() -> None:
    only = Config(slurm=SlurmConfig(states=("FAILED",), failed_steps=False))
    for latest, wanted in (
        (record("TIMEOUT"), False),
        (record("FAILED"), True),
        (record("COMPLETED", derived=7), False),
    ):
        decision = decide(end(), Known(None, latest), only, SEEN + 5)
        assert decision is not None
        assert decision.collect is wanted


def decided(attempt: int, started: int | None, **more: Any) -> Decision:
    values: dict[str, Any] = {
        "incident": "", "job": 60, "attempt": attempt, "restart": 1, "seen": SEEN, "state": "FAILED", "collect": True,
        "final": True, "cluster": "c", "started": started, "nodes": NODES,
    }  # fmt: skip
    return Decision(**{**values, **more})


def test_attempts_are_numbered_once(tmp_path: Path) -> None:
    """Two attempts that Slurm counts alike are two incidents; judging again about one changes nothing."""
    store = LocalStore(tmp_path)
    first = publish(store, decided(1, START))
    again = publish(store, decided(1, START, seen=SEEN + 30))
    second = publish(store, decided(1, START + 400, seen=SEEN + 500))
    assert (first.incident, again.incident, second.incident) == ("slurm-c-60-1", "slurm-c-60-1", "slurm-c-60-2")
    assert len(published(store, "c", 60)) == 2
    assert published(store, "c", 61) == []


def test_attempts_without_a_start_are_told_apart_by_time(tmp_path: Path) -> None:
    """Before 23.02 hooks know no start: an attempt that began after the other had ended is another one."""
    store = LocalStore(tmp_path)
    first = publish(store, decided(0, None, state="REQUEUED"))
    second = publish(store, decided(1, int(SEEN) + 6, seen=SEEN + 8))
    assert (first.incident, second.incident) == ("slurm-c-60-0", "slurm-c-60-1")


def test_names_of_arrays_and_components(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert publish(store, decided(0, START, array=61, task=2, job=63)).incident == "slurm-c-61_2-0"
    assert publish(store, decided(0, START, het=34, offset=1, job=35)).incident == "slurm-c-34-0"


def test_which_node_reads_the_shared_files() -> None:
    assert decided(0, START, batch_host="n2").reader == "n2"
    assert decided(0, START).reader == "n1"
    assert decided(0, START, nodes=()).reader is None


def test_a_node_finds_its_attempt() -> None:
    first, second = decided(0, START, seen=SEEN), decided(1, START + 400, seen=SEEN + 500)
    exact = dataclasses.replace(end(restart=1), start=START + 400)
    assert of_ticket(exact, [first, second]) == second
    assert of_ticket(dataclasses.replace(exact, start=START + 900), [first, second]) is None
    # without a start: by restart count and time; a node that was down reports hours later
    assert of_ticket(end(restart=1), [first, second]) == first
    assert of_ticket(dataclasses.replace(end(restart=1), seen=SEEN + 9000), [first, second]) == second
    assert of_ticket(end(restart=0), [first, second]) is None


def test_decisions_of_a_newer_version_are_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    publish(store, decided(0, START))
    key = "control/slurm/c/jobs/60.json"
    store.put(key, store.get(key).replace(b'"job":', b'"something_new": 1, "job":'))
    assert len(published(store, "c", 60)) == 1
