"""The hooks as Slurm runs them: no PATH, no HOME, hostile values, full disks, blocked signals - and always exit 0."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.config import Config, SpoolConfig
from collector.slurm_install import HOOKS, render
from collector.slurm_ticket import parse

BASE = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_RESTART_COUNT": "0", "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "alice", "SLURMD_NODENAME": "n1", "SLURM_NODELIST": "n[1-4]", "SLURM_CLUSTER_NAME": "alpha",
    "SLURM_JOB_DERIVED_EC": "0", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
}  # fmt: skip


class Hooks:
    """The hooks, rendered for a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = Config(spool=SpoolConfig(f"{root}/node", f"{root}/head", f"{root}/tasks"))
        for name in HOOKS:
            path = root / name
            path.write_text(render(name, self.config))
            path.chmod(0o755)

    def run(self, name: str, **values: str) -> subprocess.CompletedProcess[bytes]:
        """Run a hook with nothing but Slurm's variables; it must exit 0 and say nothing."""
        done = subprocess.run(
            [str(self.root / name)], env={**BASE, **values}, capture_output=True, timeout=60, check=False, cwd="/"
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done

    def tickets(self, role: str = "node") -> list[Path]:
        folder = self.root / role / "new"
        return sorted(folder.iterdir()) if folder.is_dir() else []


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)


def test_shellcheck() -> None:
    folder = Path(__file__).parents[2] / "slurm"
    program = Path(sys.executable).with_name("shellcheck")
    command = [str(program) if program.exists() else "shellcheck", "-s", "sh", *map(str, sorted(folder.glob("*.sh")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_success_leaves_a_small_file_and_nothing_else(hooks: Hooks) -> None:
    hooks.run("epilog.sh")
    (path,) = hooks.tickets()
    assert path.stat().st_size < 512
    assert not list((hooks.root / "node" / "evidence").iterdir())
    end = parse(path.name, path.read_bytes(), 0.0)
    assert end is not None
    assert (end.job, end.uid, end.user, end.node, end.nodes, end.cluster) == (
        4711,
        1000,
        "alice",
        "n1",
        "n[1-4]",
        "alpha",
    )


def test_failure_keeps_what_dies_with_the_job(hooks: Hooks) -> None:
    hooks.run("epilog.sh", SLURM_JOB_EXIT_CODE2="1:0")
    (path,) = hooks.tickets()
    folder = hooks.root / "node" / "evidence" / path.name
    deadline = time.monotonic() + 60
    while not (folder / "complete").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    names = {file.name for file in folder.iterdir()}
    assert "complete" in names
    assert "dmesg.txt" in names or "dmesg.full.why" in names
    assert not [name for name in names if name.endswith(".part")]


def test_head_notes_components_and_tasks(hooks: Hooks) -> None:
    hooks.run(
        "epilog-slurmctld.sh", SLURM_ARRAY_JOB_ID="61", SLURM_ARRAY_TASK_ID="2", SLURM_HET_JOB_ID="34",
        SLURM_HET_JOB_OFFSET="1", SLURM_JOB_START_TIME="1796101871", SLURM_JOB_NODELIST="n[1-2]",
    )  # fmt: skip
    (path,) = hooks.tickets("head")
    end = parse(path.name, path.read_bytes(), 0.0)
    assert end is not None
    assert (end.role, end.array, end.task, end.het, end.offset, end.start) == ("head", 61, 2, 34, 1, 1796101871)
    assert end.nodes == "n[1-2]"


@pytest.mark.parametrize("name", ["epilog.sh", "epilog-slurmctld.sh"])
@pytest.mark.parametrize(
    "values",
    [
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "1; touch pwned"},
        {"SLURM_JOB_ID": "../../etc/passwd"},
        {"SLURM_JOB_ID": "$(touch pwned)"},
        {"SLURM_JOB_ID": "12\n13"},
    ],
)
def test_no_ticket_without_a_job_id(hooks: Hooks, name: str, values: dict[str, str]) -> None:
    hooks.run(name, **values)
    assert not hooks.tickets() + hooks.tickets("head")


@pytest.mark.parametrize("name", ["epilog.sh", "epilog-slurmctld.sh"])
def test_hostile_values_are_only_text(hooks: Hooks, name: str) -> None:
    """Everything that a user can put into the environment of a hook."""
    evil = "x\n$(touch {0}/pwned)`touch {0}/pwned`;touch {0}/pwned\nuid=0\nend=1".replace("{0}", str(hooks.root))
    users = ("SLURM_JOB_NAME", "SLURM_JOB_COMMENT", "SLURM_JOB_STDOUT", "SLURM_JOB_WORK_DIR", "SLURM_JOB_STDERR",
             "SLURM_JOB_ACCOUNT", "IFS", "PS4", "ENV", "BASH_ENV", "TMPDIR", "LD_LIBRARY_PATH")  # fmt: skip
    hooks.run(name, **dict.fromkeys(users, evil), PATH=str(hooks.root), SLURM_JOB_EXIT_CODE2="1:0; touch pwned")
    (path,) = hooks.tickets("node" if name == "epilog.sh" else "head")
    assert not (hooks.root / "pwned").exists()
    end = parse(path.name, path.read_bytes(), 0.0)
    assert end is not None
    assert (end.uid, end.code) == (1000, 0)


def test_twice_is_as_good_as_once(hooks: Hooks) -> None:
    for _ in range(2):
        hooks.run("epilog.sh", SLURM_JOB_EXIT_CODE2="3:0")
    assert {path.name.split(".")[1:5] == ["4711", "0", "3", "0"] for path in hooks.tickets()} == {True}


def test_blocked_signals_do_not_hold_it(hooks: Hooks) -> None:
    """22.05 runs hooks with most signals blocked."""
    blocked = {signal.SIGALRM, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        hooks.run("epilog.sh", SLURM_JOB_EXIT_CODE2="1:0")
        hooks.run("epilog-slurmctld.sh")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert len(hooks.tickets()) == len(hooks.tickets("head")) == 1


def test_a_tool_that_hangs_does_not_hold_it(hooks: Hooks) -> None:
    """A driver that answers nothing: the hook goes on after its second, the rest is written meanwhile."""
    tools = hooks.root / "tools"
    tools.mkdir()
    slow = tools / "nvidia-smi"
    slow.write_text(f"#!/bin/sh\necho $$ >{hooks.root}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    script = (hooks.root / "epilog.sh").read_text()
    (hooks.root / "epilog.sh").write_text(
        script.replace("PATH=/usr/sbin", f"PATH={tools}:/usr/sbin").replace("patience=20", "patience=3")
    )
    hooks.run("epilog.sh", SLURM_JOB_EXIT_CODE2="1:0")
    (path,) = hooks.tickets()
    folder = hooks.root / "node" / "evidence" / path.name
    deadline = time.monotonic() + 60
    while not (folder / "complete").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (folder / "nvidia-smi.xml.why").exists()
    assert not (folder / "nvidia-smi.xml").exists()
    pid = int((hooks.root / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A full disk with room for names only."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=200", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs to mount a small file system")
    for folder in ("new", "tmp", "evidence"):
        (disk / folder).mkdir()
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_keeps_the_name(tmp_path: Path, full: Path) -> None:
    hooks = Hooks(tmp_path)
    hooks.config = Config(spool=SpoolConfig(str(full), str(full), str(full)))
    (tmp_path / "epilog.sh").write_text(render("epilog.sh", hooks.config))
    out = os.open(full / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(out, b"\0" * 4096)
    except OSError:
        os.close(out)
    for code in ("0:0", "7:0"):
        hooks.run("epilog.sh", SLURM_JOB_EXIT_CODE2=code)
    ends = [parse(path.name, path.read_bytes(), 0.0) for path in (full / "new").iterdir()]
    assert sorted((end.job, end.code) for end in ends if end) == [(4711, 0), (4711, 7)]
    assert not list((full / "tmp").iterdir())


def test_no_spool_and_read_only(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    shutil.rmtree(tmp_path / "node", ignore_errors=True)
    (tmp_path / "node").write_text("a file where the folder should be")
    hooks.run("epilog.sh", SLURM_JOB_EXIT_CODE2="1:0")
    hooks.run("task-epilog.sh")


def test_task_epilog_marks_rank_node_and_time(hooks: Hooks) -> None:
    tasks = hooks.root / "tasks"
    tasks.mkdir()
    hooks.run("task-epilog.sh")
    hooks.run("task-epilog.sh", SLURM_STEP_ID="")
    hooks.run("task-epilog.sh", SLURM_PROCID="../x")
    assert [(path.name, path.stat().st_size) for path in tasks.iterdir()] == [("4711.0.2.0.n1", 0)]


def test_task_prolog_sets_only_what_the_user_left(hooks: Hooks) -> None:
    said = hooks.run("task-prolog.sh").stdout.decode()
    assert "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000\n" in said
    assert "export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/nccl_trace_job4711_rank_\n" in said
    assert all(line.startswith("export ") for line in said.splitlines())
    mine = hooks.run("task-prolog.sh", TORCH_FR_BUFFER_SIZE="", PYTHONFAULTHANDLER="0", TORCH_NCCL_DUMP_ON_TIMEOUT="0",
                     TORCH_FR_DUMP_TEMP_FILE="/x", TORCHELASTIC_ERROR_FILE="/y").stdout  # fmt: skip
    assert mine == b""
    assert hooks.run("task-prolog.sh", SLURM_STEP_ID="").stdout == b""
