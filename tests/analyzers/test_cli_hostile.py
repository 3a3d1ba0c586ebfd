"""A command line in hostile hands: evidence is not overwritten, secrets in names stay masked, errors are sentences."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from analyzers import cli_files
from analyzers.cli import cli
from analyzers.masked import masked

ERROR = (
    "[rank1]: Traceback (most recent call last):\n"
    "[rank1]:   File \"/opt/train/train.py\", line 10, in main\n[rank1]:     step()\n[rank1]: KeyError: 'labels'\n"
)
SECRET = "hf_" + "0123456789abcdefABCDEFghijklmnopqr"


def call(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], input=stdin)


def refused(*arguments: str | Path, status: int = 2) -> str:
    result = call(*arguments)
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "job.log").write_text(ERROR)
    return folder


# --- the page never replaces evidence ---------------------------------------------------------------------------------


def every_way_to_name(log: Path, beside: Path) -> list[Path]:
    symbolic, hard = beside / "symbolic.html", beside / "hard.html"
    symbolic.symlink_to(log)
    os.link(log, hard)
    return [log, symbolic, hard, log.parent / ".." / log.parent.name / log.name]


def test_a_page_over_a_file_of_the_run(job: Path, tmp_path: Path) -> None:
    log = job / "job.log"
    for page in every_way_to_name(log, tmp_path):
        for given in (job, log):
            refused("diagnose", given, "--html", page)
            assert log.read_text() == ERROR and page.read_text() == ERROR
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hard.html", "run", "symbolic.html"]


def test_a_page_over_a_file_of_the_control(job: Path, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    (good / "good.log").write_text("rank=0 step 1/1 loss=2\n")
    refused("diagnose", job, "--control", good, "--html", good / "good.log")
    assert (good / "good.log").read_text() == "rank=0 step 1/1 loss=2\n"


def test_an_earlier_page_in_the_run_is_replaced(job: Path) -> None:
    page = job / "page.html"
    assert call("diagnose", job / "job.log", "--html", page).exit_code == 0
    page.chmod(0o640)
    assert call("diagnose", job, "--html", page).exit_code == 0
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    assert sorted(p.name for p in job.iterdir()) == ["job.log", "page.html"]


def test_a_page_into_a_fifo_or_device(job: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for page in (tmp_path / "pipe", Path(os.devnull)):
        assert "regular file" in refused("diagnose", job, "--html", page)


def test_a_page_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(click.UsageError, match="No space left"):
        cli_files.write_page(page, "new")
    assert page.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


# --- secrets in names -------------------------------------------------------------------------------------------------


def test_secrets_in_names_are_masked_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / f"run {SECRET}"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / f"{SECRET}.log").write_text(ERROR)
    (folder / "logs" / f"{SECRET}.bin").write_bytes(os.urandom(4096))
    (folder / "logs" / f"empty {SECRET}.log").write_text("")
    page = tmp_path / "page.html"
    for options in (["--json"], [], ["-v", "--width", "300"]):
        result = call("diagnose", folder, "--html", page, *options)
        assert result.exit_code == 0
        assert "redacted:" in result.stdout + page.read_text()
        assert SECRET not in result.stdout and SECRET not in page.read_text()
    found = json.loads(call("diagnose", folder, "--json").stdout)
    assert "[redacted:huggingface-token]" in found["details"]["inputs"]["root"]
    assert "[redacted:huggingface-token]" in json.dumps(found["candidates"])
    assert "[redacted:huggingface-token]" in json.dumps(found["details"]["ledger_rows"])


def test_masking_looks_at_each_string_alone() -> None:
    head, path = "-----BEGIN PRIVATE KEY-----", "/" + "a" * 40
    value = {"text": head, "path": path, "more": [f"x {SECRET}\ny", (1, None, path)]}
    assert masked(value) == {
        "text": head, "path": path, "more": ["x [redacted:huggingface-token]\ny", (1, None, path)],
    }  # fmt: skip
    plain = {"a": ["b", 1]}
    assert masked(plain) is plain


# --- streams that are closed or full ----------------------------------------------------------------------------------


def shell(redirection: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "analyzers.cli"]
        + [str(argument) for argument in arguments],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(
    ("redirection", "says"), [(">&-", "standard output is closed"), (">/dev/full", "No space left")]
)
def test_nowhere_to_print(job: Path, redirection: str, says: str, options: list[str]) -> None:
    done = shell(redirection, "diagnose", job, *options)
    assert done.returncode == 1
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


def test_nowhere_to_complain(job: Path) -> None:
    for redirection in ("2>&-", "2>/dev/full"):
        assert shell(redirection, "diagnose", job / "nothing").returncode in (1, 2)
    assert shell(">/dev/full 2>/dev/full", "diagnose", job).returncode == 1


def test_closed_standard_input(job: Path) -> None:
    done = shell("<&-", "diagnose", "-")
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr
    assert shell("<&-", "diagnose", job).returncode == 0


# --- paths that are none ----------------------------------------------------------------------------------------------


def test_paths_that_cannot_be_looked_at(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "path is empty" in refused("diagnose", "")
    assert "path is empty" in refused("diagnose", job, "")
    assert "cannot be looked at" in refused("diagnose", "a" * 300)
    assert "cannot" in refused("diagnose", job, "--html", "b" * 300)
    refused("diagnose", job, "--html", "")

    def denied(self: Path, **_: bool) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", denied)
    assert "Permission denied" in refused("diagnose", job / "job.log")


def test_pipes_and_devices_are_not_read(job: Path, tmp_path: Path) -> None:
    family = tmp_path / "signatures" / "site"
    family.mkdir(parents=True)
    os.mkfifo(family / "mine.yaml")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused("diagnose", job, "--signatures", family.parent)
    assert "not a regular file" in refused("signatures", "--extra", family.parent, "list")
    assert "not a regular file" in refused("signatures", "check", family.parent)
    for odd in (tmp_path / "pipe", Path("/dev/zero")):
        assert "not a regular file" in refused("verify", job, "--incident", odd)
        assert "neither" in refused("diagnose", job, "--control", odd)
        assert "neither" in refused("stacks", odd)


def test_what_is_too_large_is_not_read(job: Path, tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(cli_files.MAX_READ + 1)
    assert "larger than 64 MB" in refused("verify", job, "--incident", huge)


def test_a_folder_without_signatures(tmp_path: Path) -> None:
    assert "nothing to check" in refused("signatures", "check", tmp_path, status=1)


# --- old incidents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 2}, "another schema"),
        ({"schema": "1"}, "another schema"),
        ({"verdict": {"signature": ["x"]}}, "not a name"),
        ({"verdict": None}, "expected the output"),
        ({"details": 3}, "not a diagnosis"),
        ({"details": {"ranks": 3}}, "not a diagnosis"),
    ],
)
def test_incidents_that_are_none(job: Path, tmp_path: Path, change: dict[str, object], says: str) -> None:
    old = json.loads(call("diagnose", job, "--json").stdout)
    (tmp_path / "old.json").write_text(json.dumps({**old, **change}))
    said = refused("verify", job, "--incident", tmp_path / "old.json")
    assert says in said
    for internal in ("object", "attribute", "NoneType", "'int'", "iterable", "Error:  "):
        assert internal not in said


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"9" * 5000, b"[" * 100_000])
def test_incidents_that_are_no_json(job: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "old.json").write_bytes(content)
    said = refused("verify", job, "--incident", tmp_path / "old.json")
    assert said.endswith("cannot be read as JSON")


def test_incidents_do_not_act_on_the_terminal(job: Path, tmp_path: Path) -> None:
    old = json.loads(call("diagnose", job, "--json").stdout)
    old["verdict"]["signature"] = f"a\x1b]0;owned\x07\x1b[2Jb\x9b\u202ec {SECRET}"
    (tmp_path / "old.json").write_text(json.dumps(old))
    for options in ([], ["--json"]):
        said = call("verify", job, "--incident", tmp_path / "old.json", *options)
        assert said.exit_code == 3
        assert not set(said.stdout) & {"\x1b", "\x07", "\x9b", "\u202e"}
        assert SECRET not in said.stdout
