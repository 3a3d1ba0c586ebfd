"""Whose failure is it, where the line does not say? Only where everything else rules the others out."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers.attribute import attribute, demote_stops, mark_progress
from analyzers.case import Case, Observation
from analyzers.diagnose import build_case, observe
from analyzers.gather import gather
from analyzers.signatures import load
from collector.model import Budget

HEAD = 'Traceback (most recent call last):\n  File "/opt/train/train.py", line 3, in main\n    rows[i]\n'
KEY_ERROR = HEAD + "KeyError: 'labels'\n"
GONE = HEAD + "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43210.\n"
AGENT = "1201 01:22:04.534000 29033 torch/distributed/elastic/multiprocessing/api.py:1002] "


def ready(ranks: int) -> str:
    return "".join(f"rank={r} ready pid={100 + r} local_rank={r} world_size={ranks}\n" for r in range(ranks))


def failed(rank: int, code: int) -> str:
    return f"E{AGENT}failed (exitcode: {code}) local_rank: {rank} (pid: {100 + rank}) of binary: /opt/venv/bin/python\n"


def closing(rank: int) -> str:
    return f"W{AGENT}Sending process {100 + rank} closing signal SIGTERM\n"


def seen(folder: Path, text: str, name: str = "job.log") -> tuple[Case, list[Observation]]:
    (folder / name).write_text(text)
    case = build_case(gather(folder, Budget()), load())
    return case, observe(case)


def attributed(folder: Path, text: str) -> list[Observation]:
    case, observations = seen(folder, text)
    attribute(case, observations)
    return [each for each in observations if each.detector == "exceptions"]


def test_an_unmarked_traceback_stays_nobodys_without_evidence(tmp_path: Path) -> None:
    (found,) = attributed(tmp_path, ready(3) + KEY_ERROR)
    assert found.rank is None and not found.detail["ranks"]


def test_it_belongs_to_the_only_rank_whose_end_nothing_else_explains(tmp_path: Path) -> None:
    (found,) = attributed(tmp_path, ready(3) + KEY_ERROR + closing(0) + closing(2) + failed(1, 1))
    assert found.rank == 1 and "only rank" in found.detail["attributed"]


def test_two_ranks_that_ended_alike_leave_it_open(tmp_path: Path) -> None:
    (found,) = attributed(tmp_path, ready(3) + KEY_ERROR + failed(0, 1) + failed(1, 1))
    assert found.rank is None and not found.detail["ranks"]


def test_as_many_copies_as_ranks_are_everybodys(tmp_path: Path) -> None:
    found = attributed(tmp_path, ready(3) + (KEY_ERROR + "next\n") * 3)
    assert found and all(each.detail["ranks"] == [0, 1, 2] for each in found)
    assert "3 copies" in found[0].detail["attributed"]


@pytest.mark.parametrize("copies", [2, 4])
def test_another_number_of_copies_proves_nothing(tmp_path: Path, copies: int) -> None:
    found = attributed(tmp_path, ready(3) + (KEY_ERROR + "next\n") * copies)
    assert all(each.rank is None and not each.detail["ranks"] for each in found)


def test_a_marked_rank_is_never_changed(tmp_path: Path) -> None:
    marked = "".join(f"[rank2]: {line}\n" for line in KEY_ERROR.splitlines())
    (found,) = attributed(tmp_path, ready(3) + marked + closing(0) + failed(1, 1))
    assert found.rank == 2 and "attributed" not in found.detail


# --- progress ---------------------------------------------------------------------------------------------------------


def progressed(folder: Path, text: str, name: str = "rank1.log") -> list[bool]:
    case, observations = seen(folder, text, name)
    mark_progress(case, observations)
    return [bool(each.detail.get("progressed")) for each in observations if each.detector == "exceptions"]


def steps(first: int, last: int) -> str:
    return "".join(f"step {n}/40 loss=2.0\n" for n in range(first, last))


def test_an_error_that_the_same_rank_trained_on_after(tmp_path: Path) -> None:
    assert progressed(tmp_path, steps(0, 3) + KEY_ERROR + steps(3, 6)) == [True]


def test_one_late_line_of_a_buffer_is_no_progress(tmp_path: Path) -> None:
    assert progressed(tmp_path, steps(0, 3) + KEY_ERROR + steps(3, 4)) == [False]
    assert progressed(tmp_path, steps(0, 3) + KEY_ERROR + steps(3, 4) * 3) == [False], (
        "the same step again is none either"
    )


def test_the_error_that_ended_a_rank_is_none_it_recovered_from(tmp_path: Path) -> None:
    text = "rank=1 ready pid=101 local_rank=1 world_size=2\n" + steps(0, 3) + KEY_ERROR + steps(3, 6) + failed(1, 1)
    assert progressed(tmp_path, text) == [False]


def test_progress_of_another_rank_excuses_nobody(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(steps(0, 40))
    assert progressed(tmp_path, steps(0, 3) + KEY_ERROR) == [False]


# --- the scheduler's own end ------------------------------------------------------------------------------------------

SIGTERM = "W1201 01:47:04.443000 21655 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, " \
          "shutting down workers\n"  # fmt: skip
TASK = "srun: error: gpu-node-01: task 2: Exited with exit code 1\n"


def roles(folder: Path, text: str) -> set[str]:
    case, observations = seen(folder, text)
    demote_stops(case, observations)
    return {each.role for each in observations if each.cause == "scheduler"}


def test_a_signal_from_outside_is_a_cause_unless_a_task_had_failed_before(tmp_path: Path) -> None:
    assert roles(tmp_path, ready(3) + SIGTERM) == {"initiating"}
    assert "initiating" not in roles(tmp_path, ready(3) + TASK + SIGTERM)
    assert "initiating" in roles(tmp_path, ready(3) + SIGTERM + TASK), "what came later explains nothing"
