"""Installation, doctor, collection by hand and the comment, on the real cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collector import doctor, slurm_ask
from collector.config import Config, ConfigError, SpoolConfig, load
from collector.lake import read_raw
from collector.slurm_install import check, describe, render
from collector.spool import Spool
from collector.store import open_store

FAILS = "srun --kill-on-bad-exit=1 --output=run-%j-%t.log /usr/bin/python3 payload.py raise\nexit $?\n"


@pytest.fixture
def failed(cluster: Any, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """A job whose rank 2 raised, with its tickets still in the spools."""
    cluster.drain(linger=60)
    folder = cluster.folder(re.sub(r"\W", "-", request.node.name))
    job = cluster.submit(folder, FAILS, "-N4", "-n4", "-o", "job-%j.out")
    cluster.wait_state(job, "FAILED")
    cluster.wait_for("tickets", lambda: len([t for t in cluster.tickets() if f".{job}." in t]) == 5)
    return folder, job


def test_collected_by_hand(cluster: Any, failed: tuple[Path, int]) -> None:
    """A job that no hook saw: the same incident, with what can be seen from here."""
    _, job = failed
    for role in ("head", "node"):
        for name in ("new", "evidence"):
            shutil.rmtree(cluster.root / "ff" / role / name)
    shutil.rmtree(cluster.root / "ff" / "tasks")
    cluster.firstfault("slurm", "install", "--to", str(cluster.root / "hooks"))
    incident = cluster.firstfault("collect", "--job", str(job)).strip()
    assert incident == f"slurm-testc-{job}-0"
    store = open_store(f"file://{cluster.store}")
    lines = read_raw(store, "log_lines", incident).to_pylist()
    assert {line["path"] for line in lines} == {f"job-{job}.out", *(f"run-{job}-{rank}.log" for rank in range(4))}
    (answer,) = [json.loads(cluster.firstfault("analyze", "--incident", incident, "--json"))]
    assert answer["diagnosis"]["verdict"]["ranks"] == [2]
    # the nodes themselves never reported, and nobody pretends that they did
    assert [gap for gap in answer["diagnosis"]["ledger"]["gaps"] if "node-n4: unreachable" in gap]


@pytest.mark.parametrize(("job", "said"), [(999_999, "does not know job"), (None, "has not ended")])
def test_by_hand_says_why_not(cluster: Any, job: int | None, said: str) -> None:
    running = None
    if job is None:
        running = job = cluster.submit(cluster.folder("sleeps"), "sleep 100\n", "-N1", "-n1")
        cluster.wait_state(job, "RUNNING")
    done = subprocess.run(
        [sys.executable, "-m", "analyzers.cli", "collect", "--job", str(job)], capture_output=True, text=True,
        env={**cluster.env, "FIRSTFAULT_CONFIG": str(cluster.config)}, timeout=120, check=False,
    )  # fmt: skip
    if running is not None:
        cluster.run("scancel", str(running))
        cluster.wait_state(running, "CANCELLED")
    assert done.returncode == 1
    assert said in done.stderr


def test_comment_without_accounting(cluster: Any, failed: tuple[Path, int]) -> None:
    """The controller takes no comment for an ended job; that costs the comment and nothing else."""
    assert failed[1]
    config = cluster.root / "comment.toml"
    config.write_text(cluster.config.read_text() + "admin_comment = true\n")
    said = cluster.drain(linger=90, FIRSTFAULT_CONFIG=str(config))
    assert not cluster.troubles
    assert "no comment for an ended job without slurmdbd" in said
    assert cluster.tickets() == []


def test_installation_is_checked(cluster: Any) -> None:
    hooks = cluster.root / "hooks"
    cluster.firstfault("slurm", "install", "--check", "--to", str(hooks))
    config = load(cluster.config)
    assert check(config, hooks) == []
    epilog = hooks / "epilog.sh"
    text = epilog.read_text()
    try:
        epilog.write_text(text + "# changed\n")
        epilog.chmod(0o775)
        problems = check(config, hooks)
        assert any("not that of this version" in problem for problem in problems)
        assert any("can be changed by others" in problem for problem in problems)
        epilog.unlink()
        assert any("No such file" in problem for problem in check(config, hooks))
    finally:
        epilog.write_text(text)
        epilog.chmod(0o755)
    (cluster.root / "ff" / "node").chmod(0o755)
    assert any("chmod 700" in problem for problem in check(config, hooks))
    (cluster.root / "ff" / "node").chmod(0o700)
    elsewhere = check(config, cluster.root / "nowhere")
    assert any("Epilog in slurm.conf is" in problem for problem in elsewhere)


def test_doctor_finds_nothing_wrong_and_what_is(cluster: Any) -> None:
    cluster.drain(linger=60)
    checks = {one.name: one for one in doctor.examine(cluster.config)}
    assert {one.state for one in checks.values()} <= {"ok", "warn"}, checks
    assert checks["slurm"].found.startswith("Slurm 2")
    assert "cluster testc" in checks["slurm"].found
    assert checks["store"].state == checks["hooks"].state == checks["clock"].state == "ok"
    said = cluster.firstfault("doctor")
    assert "ok    store:" in said
    broken = cluster.root / "broken.toml"
    broken.write_text(cluster.config.read_text().replace(f"file://{cluster.store}", f"file://{cluster.config}"))
    wrong = [one for one in doctor.examine(broken) if one.state == "wrong"]
    assert [one.name for one in wrong] == ["store"]
    assert wrong[0].mend


def test_doctor_reads_the_spool(cluster: Any) -> None:
    """An old ticket says that no drain runs, a dead one why it was given up."""
    spool = Spool(cluster.root / "ff" / "node")
    spool.put("garbage")
    cluster.drain(linger=0)
    spool.put("n.1.0.0.0.1", b"")
    os.utime(spool.path / "new" / "n.1.0.0.0.1", (1_000_000, 1_000_000))
    try:
        wrong = [one for one in doctor.examine(cluster.config) if one.state == "wrong"]
        assert [one.name for one in wrong] == ["spool node", "spool node"]
        assert "--revive" in wrong[1].mend
    finally:
        (spool.path / "new" / "n.1.0.0.0.1").unlink()
        for path in (spool.path / "dead").iterdir():
            path.unlink()


def test_version_and_settings(cluster: Any) -> None:
    tools = slurm_ask.Tools("/usr/bin", str(cluster.conf))
    assert tools.version() >= (20, 2)
    assert tools.setting("ClusterName") == "testc"
    assert tools.setting("NoSuchThing") is None
    with pytest.raises(slurm_ask.Unanswered, match="not installed"):
        slurm_ask.Tools("/nowhere").version()
    assert slurm_ask.record(tools, 999_999) == (None, "")


# --- without a cluster ------------------------------------------------------------------------------------------------


def test_what_would_be_installed() -> None:
    config = Config(spool=SpoolConfig("/data/ff/n", "/data/ff/h", "/data/ff/t"))
    text = describe(config, Path("/etc/x"))
    assert "Epilog=/etc/x/epilog.sh\n" in text
    assert "# optional: TaskProlog=/etc/x/task-prolog.sh\n" in text
    assert "spool=/data/ff/n\n" in text
    assert "spool=/data/ff/h\n" in text
    assert "tasks=/data/ff/t\n" in text
    assert "/var/spool/firstfault" not in text.replace("# ", "")


@pytest.mark.parametrize("path", ["/a b", "relative", "/x;rm", "/x$(y)", "/x\ny"])
def test_spool_paths_that_a_shell_would_misread(path: str) -> None:
    with pytest.raises(ConfigError):
        render("epilog.sh", Config(spool=SpoolConfig(node=path)))
