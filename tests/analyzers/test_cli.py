"""The command line: data on standard output, talk on standard error, exit status 0, 3, 2, sentences for errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analyzers.cli import cli

ROOT = Path(__file__).resolve().parents[2]
GONE = "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43210."


def trace(error: str, rank: int) -> str:
    body = ["Traceback (most recent call last):", '  File "/opt/train/train.py", line 10, in main', "    step()", error]
    return "".join(f"[rank{rank}]: {text}\n" for text in body)


FAILED = trace(GONE, 0) + trace("KeyError: 'labels'", 1)
ECHOES = trace(GONE, 0) + trace(GONE, 1)
HEALTHY = "rank=0 step 1/2 loss=2\nrank=0 step 2/2 loss=2\nrank=0 training finished\n"


def call(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], input=stdin)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "job.log").write_text(FAILED)
    return folder


# --- exit status ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "status"), [(FAILED, 0), (HEALTHY, 0), (ECHOES, 3)])
def test_exit_status_says_whether_a_verdict_was_reached(tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "job.log").write_text(text)
    for extra in ([], ["--json"], ["-v"]):
        assert call("diagnose", tmp_path, *extra).exit_code == status


def test_the_real_program_passes_the_status_on_and_keeps_the_streams_apart(job: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "analyzers.cli", "diagnose", str(job), "--json", "--html", str(page)],
        capture_output=True, cwd=tmp_path, timeout=110, check=False, env=os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]["ranks"] == [1]
    assert done.stderr == b""
    assert page.exists()


# --- usage errors, in words -------------------------------------------------------------------------------------------


def usage_error(*arguments: str | Path, stdin: str | None = None) -> str:
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in usage_error("diagnose", tmp_path / "nowhere")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "is empty" in usage_error("diagnose", tmp_path)


def test_nothing_named() -> None:
    assert "RUN_DIR" in usage_error("diagnose")


def test_standard_input_and_a_path_together(job: Path) -> None:
    assert "cannot be combined" in usage_error("diagnose", "-", job)


def test_a_fifo_and_a_device() -> None:
    assert "neither a folder nor a regular file" in usage_error("diagnose", "/dev/null")


def test_a_folder_that_may_not_be_read(job: Path) -> None:
    job.chmod(0)
    try:
        if not os.access(job, os.R_OK):  # root may read everything
            assert "permission denied" in usage_error("diagnose", job)
        else:
            assert call("diagnose", job).exit_code == 0
    finally:
        job.chmod(0o755)


def test_a_page_that_cannot_be_written(job: Path, tmp_path: Path) -> None:
    assert "cannot write" in usage_error("diagnose", job, "--html", tmp_path / "no" / "such" / "page.html")


def test_signatures_that_are_broken(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "signatures" / "site"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("title: no more than a title\n")
    assert "mine.yaml" in usage_error("diagnose", job, "--signatures", tmp_path / "signatures")


def test_an_unknown_command() -> None:
    assert "No such command" in usage_error("diagnoze", ".")


# --- input and output -------------------------------------------------------------------------------------------------


def test_a_log_from_standard_input() -> None:
    result = call("diagnose", "-", "--json", stdin=FAILED)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"]["ranks"] == [1]


def test_empty_standard_input_is_undetermined_not_healthy() -> None:
    assert call("diagnose", "-", stdin="").exit_code == 3


def test_several_paths_are_one_run(tmp_path: Path) -> None:
    for rank, error in enumerate((GONE, "KeyError: 'labels'")):
        (tmp_path / f"rank{rank}.log").write_text(trace(error, rank))
    result = call("diagnose", tmp_path / "rank0.log", tmp_path / "rank1.log", "--json")
    assert json.loads(result.stdout)["verdict"]["ranks"] == [1]


def test_html_writes_exactly_one_file(job: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    page = tmp_path / "page.html"
    result = call("diagnose", job, "--html", page)
    assert result.exit_code == 0
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert set(after) - set(before) == {page}
    assert {path: after[path] for path in before} == before
    text = page.read_text("utf-8")
    assert text.lower().startswith("<!doctype html")
    assert "KeyError" in text


def test_without_html_nothing_is_written(job: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    call("diagnose", job)
    call("diagnose", job, "--json")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_text_names_rank_line_and_fix(job: Path) -> None:
    output = call("diagnose", job, "--width", "100").stdout
    for word in ("rank 1", "KeyError: 'labels'", "job.log:8", "Fix"):
        assert word.lower() in output.lower(), word
    assert "\x1b" not in output, "no colours where nobody looks"
    assert max(map(len, output.splitlines())) <= 100


def test_a_control_run(job: Path, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    (good / "job.log").write_text(HEALTHY)
    found = json.loads(call("diagnose", job, "--json", "--control", good).stdout)
    assert found["details"]["first_difference"]["line"] == 1


def test_json_is_the_contract(job: Path) -> None:
    found = json.loads(call("diagnose", job, "--json").stdout)
    assert list(found)[:6] == ["schema", "incident", "verdict", "candidates", "collateral", "ledger"]
    assert found["schema"] == 1
    assert isinstance(found["candidates"][0]["score"], float)


@pytest.mark.parametrize("name", sorted(cli.list_commands(None)))  # type: ignore[arg-type]
def test_every_command_explains_itself(name: str) -> None:
    result = call(name, "--help")
    assert result.exit_code == 0 and len(result.output.splitlines()) > 4
    short = call(name, "-h")
    assert short.output == result.output
    assert name in call("--help").output


def test_version() -> None:
    from collector import __version__

    assert __version__ in call("--version").output
