"""How each process ended: signals speak where the rank could not, teardown and echoes accuse nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers.case import Observation
from analyzers.detectors import exits
from analyzers.diagnose import build_case
from analyzers.gather import gather
from analyzers.signatures import load
from collector.model import Budget

AGENT = "1201 01:22:04.534000 29033 torch/distributed/elastic/multiprocessing/api.py:1002] "
READY = "".join(
    f"rank={r} ready pid={100 + r} local_rank={r} world_size=3\n[rank{r}] step 1/9 loss=2\n" for r in range(3)
)
ERROR = (
    "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/opt/train/train.py\", line 3, in main\n"
    "[rank1]:     rows[i]\n[rank1]: KeyError: 'labels'\n"
)  # fmt: skip


def failed(rank: int, code: int) -> str:
    return f"E{AGENT}failed (exitcode: {code}) local_rank: {rank} (pid: {100 + rank}) of binary: /opt/venv/bin/python\n"


def closing(rank: int) -> str:
    return f"W{AGENT}Sending process {100 + rank} closing signal SIGTERM\n"


def look(folder: Path, text: str) -> dict[int | None, Observation]:
    (folder / "job.log").write_text(text)
    found = list(exits.detect(build_case(gather(folder, Budget()), load())))
    assert len({each.rank for each in found}) == len(found), "at most one observation per rank"
    return {each.rank: each for each in found}


def test_sigkill_is_a_failure_of_its_own(tmp_path: Path) -> None:
    found = look(tmp_path, READY + closing(0) + closing(2) + failed(1, -9))
    assert (found[1].signature, found[1].role, found[1].detail["signal"]) == ("exit/killed", "initiating", 9)
    assert found[1].line == 9 and found[1].issuer == "launcher"
    assert {found[r].role for r in (0, 2)} == {"teardown"}


@pytest.mark.parametrize("code", [-11, -7, 139])
def test_crashes(tmp_path: Path, code: int) -> None:
    found = look(tmp_path, READY + failed(1, code))
    assert (found[1].signature, found[1].role) == ("exit/crashed", "initiating")


def test_an_abort_without_a_word_is_a_failure_and_with_one_an_echo(tmp_path: Path) -> None:
    silent = look(tmp_path, READY + failed(1, -6))
    assert (silent[1].signature, silent[1].role) == ("exit/aborted", "initiating")
    spoken = look(tmp_path, READY + ERROR + failed(1, -6))
    assert (spoken[1].signature, spoken[1].role) == ("exit/aborted", "cascade")


def test_a_code_confirms_the_error_that_was_printed(tmp_path: Path) -> None:
    found = look(tmp_path, READY + ERROR + failed(1, 1))
    assert (found[1].signature, found[1].role) == ("exit/failed", "confirmation")


def test_a_code_without_an_error_is_all_that_is_known(tmp_path: Path) -> None:
    found = look(tmp_path, READY + failed(1, 17))
    assert (found[1].signature, found[1].role, found[1].strength) == ("exit/failed-silently", "initiating", 1)
    assert "17" in found[1].title


def test_a_rank_that_the_launcher_ended_accuses_nobody(tmp_path: Path) -> None:
    found = look(tmp_path, READY + closing(0) + failed(0, -15))
    assert {each.role for each in found.values()} == {"teardown"}


def test_the_forced_end_of_a_rank_that_ignored_sigterm_is_teardown_too(tmp_path: Path) -> None:
    forced = f"W{AGENT}Unable to shutdown process 100 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"
    found = look(tmp_path, READY + closing(0) + forced + failed(0, -9))
    assert {each.role for each in found.values()} == {"teardown"}


def test_a_launcher_that_names_no_process_accuses_no_rank(tmp_path: Path) -> None:
    line = "[2026-12-01 00:12:57,785] [ERROR] [launch.py:184:sigkill_handler] ['python', '--local_rank=1'] exits with "
    line += "return code = -9\n"
    found = look(tmp_path, READY + line)
    assert list(found) == [None]
    assert found[None].signature == "exit/killed" and "does not say which" in found[None].title


def test_srun_names_tasks_which_are_ranks(tmp_path: Path) -> None:
    found = look(tmp_path, READY + "srun: error: n1: task 2: Segmentation fault (core dumped)\n")
    assert (found[2].signature, found[2].node) == ("exit/crashed", "n1")


def test_without_a_word_about_ends_nothing_is_observed(tmp_path: Path) -> None:
    assert look(tmp_path, READY) == {}


def test_a_local_rank_of_a_second_node_is_not_taken_for_a_global_one(tmp_path: Path) -> None:
    for node, first in (("gpu-node-00", 0), ("gpu-node-01", 2)):
        ready = "".join(f"[default{r}]:rank={first + r} ready host={node} local_rank={r}\n" for r in (0, 1))
        end = failed(1, -9).replace("(pid: 101)", f"(pid: {first + 500})") if first else ""
        (tmp_path / f"{node}.log").write_text(ready + end)
    found = list(exits.detect(build_case(gather(tmp_path, Budget()), load())))
    assert [(each.rank, each.signature) for each in found] == [(3, "exit/killed")]
