"""Is a rerun free of the old failure AND past the step where it died? Both halves, and honesty about the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analyzers.cli import cli
from analyzers.diagnose import diagnose
from analyzers.verify import compare, last_step

STEPS = {rank: [f"[rank{rank}] step {n}/400 loss=2.0\n" for n in range(400)] for rank in (0, 1)}


def trace(error: str, rank: int = 1) -> str:
    body = ["Traceback (most recent call last):", '  File "/opt/train/train.py", line 10, in main', "    step()", error]
    return "".join(f"[rank{rank}]: {text}\n" for text in body)


def job(steps: int, end: str = "") -> str:
    return "".join(STEPS[rank][n] for n in range(steps) for rank in (0, 1)) + end


FINISHED = "[rank0] training finished\n[rank1] training finished\n"
OLD = job(10, trace("KeyError: 'labels'"))


def run(folder: Path, text: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "job.log").write_text(text)
    return diagnose(folder)


@pytest.mark.parametrize(
    ("rerun", "result"),
    [
        (job(30), "fixed"),
        (job(10, FINISHED), "fixed"),
        (job(30, trace("KeyError: 'labels'")), "failing"),
        (job(3, trace("KeyError: 'labels'")), "failing"),
        (job(10), "not_reached"),
        (job(4, trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")), "not_reached"),
        ("01:02:03 loading the model\n", "unknown"),
    ],
)
def test_results(tmp_path: Path, rerun: str, result: str) -> None:
    found = compare(run(tmp_path / "old", OLD), run(tmp_path / "new", rerun))
    assert found["result"] == result, found
    assert found["reasons"] and found["old_step"] == 9
    assert found["signature"] == "python/uncaught-exception"


def test_another_exception_is_not_the_same_failure_but_is_said(tmp_path: Path) -> None:
    found = compare(
        run(tmp_path / "old", OLD), run(tmp_path / "new", job(30, trace("ZeroDivisionError: division by zero")))
    )
    assert found["result"] == "fixed"
    assert any("ZeroDivisionError" in reason for reason in found["reasons"]), "a fixed failure is no healthy run"


def test_an_old_incident_without_a_signature_proves_nothing(tmp_path: Path) -> None:
    old = run(tmp_path / "old", "01:02:03 loading the model\n")
    assert compare(old, run(tmp_path / "new", job(30)))["result"] == "unknown"


def test_the_slowest_rank_counts() -> None:
    rows = [{"rank": 0, "last_step": 12}, {"rank": 1, "last_step": 9}, {"rank": 2, "last_step": None}]
    assert last_step({"details": {"ranks": rows}}) == 9
    assert last_step({}) is None


def test_what_is_no_diagnosis_is_refused() -> None:
    with pytest.raises(ValueError, match="no verdict"):
        compare({"verdict": None}, {})


@pytest.mark.parametrize(("rerun", "status"), [(job(30), 0), (job(4), 3), (job(30, trace("KeyError: 'labels'")), 4)])
def test_the_command(tmp_path: Path, rerun: str, status: int) -> None:
    runner = CliRunner()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "job.log").write_text(OLD)
    saved = tmp_path / "old.json"
    saved.write_text(runner.invoke(cli, ["diagnose", str(tmp_path / "old"), "--json"]).stdout)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "job.log").write_text(rerun)
    arguments = ["verify", str(tmp_path / "new"), "--incident", str(saved)]
    said = runner.invoke(cli, arguments)
    assert said.exit_code == status, said.output
    as_json = runner.invoke(cli, [*arguments, "--json"])
    assert as_json.exit_code == status
    assert json.loads(as_json.stdout)["result"].replace("_", " ") == said.stdout.partition(":")[0]


@pytest.mark.parametrize(
    "content", ["", "[]", "3", "{}", "[" * 100_000, '{"verdict": 3}', '{"verdict": {"signature": []}}']
)
def test_a_file_that_is_no_incident_is_a_usage_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "old.json").write_text(content)
    (tmp_path / "job.log").write_text(job(3))
    result = CliRunner().invoke(cli, ["verify", str(tmp_path / "job.log"), "--incident", str(tmp_path / "old.json")])
    assert result.exit_code == 2, result.output
    assert "is not a diagnosis" in result.output
