"""A real Slurm on one machine: munged, slurmctld and six slurmd from Debian's packages, without systemd or cgroups.

State lives in a folder of its own; every daemon is ended by the pid that was kept. Jobs run as nobody. The hooks are
those of the product, as `firstfault slurm install` writes them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "scontrol", "sbatch", "scancel")
NODES = 6
"""n1 to n4 are for all; n5 and n6 form the partition `frail`, whose nodes a test kills."""
USER = "nobody"
PAYLOAD = Path(__file__).parent / "payload.py"


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true answer of `condition`; fails after a generous deadline."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"no {what} within {seconds:g} s")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, below the range from which outgoing connections take theirs."""
    found: list[int] = []
    port = 20_000 + os.getpid() % 8_000
    while len(found) < count:
        port += 1
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


class Cluster:
    """The running cluster and what tests do with it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.store = root / "store"
        self.config = root / "firstfault.toml"
        self.conf = root / "etc" / "slurm.conf"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self.said: list[str] = []
        self.troubles: list[str] = []

    # --- up and down --------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Start everything and wait until all nodes are idle."""
        self.root.chmod(0o755)
        for name in ("etc", "log", "state", "spool", "munge", "work", "ff", "hooks", "store"):
            (self.root / name).mkdir()
        for name in ("work", "store"):
            (self.root / name).chmod(0o1777)
        shutil.chown(self.root / "state", "slurm")
        shutil.chown(self.root / "munge", "munge")
        for name in ("jobcomp.txt", "slurmctld.log"):
            (self.root / "log" / name).touch()
            shutil.chown(self.root / "log" / name, "slurm")
        self._install()
        self._munge()
        self._write_conf()
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
        wait_for("slurmctld", lambda: "is UP" in self.run("scontrol", "ping", check=False))
        for number in range(1, NODES + 1):
            self.start_node(f"n{number}")
        wait_for("idle nodes", lambda: len(self.nodes("idle")) == NODES)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        (self.root / "spool" / name).mkdir(exist_ok=True)
        self._start(name, ["slurmd", "-D", "-N", name, "-f", str(self.conf)])

    def down(self) -> None:
        """Cancel what runs, then end the daemons that this object started."""
        with contextlib.suppress(subprocess.SubprocessError):
            for job in self.run("squeue", "-h", "-o", "%A", check=False).split():
                self.run("scancel", "--signal=KILL", "--full", job, check=False)
                self.run("scancel", job, check=False)
        with contextlib.suppress(BaseException):
            wait_for("empty queue", lambda: not self.run("squeue", "-h", check=False).strip(), 15)
        for name in [*(n for n in self.daemons if n != "munged"), "munged"]:
            daemon = self.daemons.get(name)
            if daemon is None or daemon.poll() is not None:
                continue
            daemon.terminate()
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(timeout=15)
        shutil.rmtree(self.root, ignore_errors=True)

    def _start(self, name: str, command: list[str]) -> None:
        with (self.root / "log" / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.root / "log", env=self.env,
                start_new_session=True,
            )  # fmt: skip

    def _munge(self) -> None:
        folder = self.root / "munge"
        key, sock = folder / "munge.key", folder / "munge.sock"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        shutil.chown(key, "munge")
        command = ["runuser", "-u", "munge", "--", "munged", "--foreground", f"--key-file={key}", f"--socket={sock}",
                   f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed",
                   "--num-threads=2"]  # fmt: skip
        self._start("munged", command)
        wait_for("munge", lambda: subprocess.run(["munge", "-S", str(sock), "-n"], capture_output=True).returncode == 0)

    def _install(self) -> None:
        spool = self.root / "ff"
        self.config.write_text(
            f'[store]\nuri = "file://{self.store}"\n'
            f'[spool]\nnode = "{spool}/node"\nhead = "{spool}/head"\ntasks = "{spool}/tasks"\n'
            f'[slurm]\nconf = "{self.conf}"\npyslurm = false\n'
        )
        self.firstfault("slurm", "install", "--to", str(self.root / "hooks"))

    def _write_conf(self) -> None:
        ports = free_ports(NODES + 1)
        host, root, hooks = socket.gethostname().partition(".")[0], self.root, self.root / "hooks"
        lines = f"""
ClusterName=testc
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/munge.sock,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/log/slurmctld.pid
SlurmdPidFile={root}/spool/%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
InactiveLimit=0
KillWait=2
OverTimeLimit=0
MinJobAge=300
MessageTimeout=20
UnkillableStepTimeout=120
PrologEpilogTimeout=60
PrologFlags=Alloc
Epilog={hooks}/epilog.sh
EpilogSlurmctld={hooks}/epilog-slurmctld.sh
TaskEpilog={hooks}/task-epilog.sh
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/jobcomp.txt
AccountingStorageType=accounting_storage/none
NodeName=DEFAULT CPUs=4 RealMemory=1000 State=UNKNOWN
"""
        for number in range(1, NODES + 1):
            lines += f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[number]}\n"
        lines += "PartitionName=debug Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n"
        lines += "PartitionName=frail Nodes=n[5-6] MaxTime=INFINITE State=UP OverSubscribe=NO\n"
        self.conf.write_text(lines)
        self.conf.with_name("cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    wait_for = staticmethod(wait_for)

    # --- doing things -------------------------------------------------------------------------------------------------

    def run(self, *command: str, check: bool = True, user: str | None = None, cwd: Path | None = None) -> str:
        """Standard output of a command with this cluster's configuration."""
        prefix = ["runuser", "-u", user, "--"] if user else []
        done = subprocess.run(
            [*prefix, *command], env=self.env, capture_output=True, text=True, timeout=60, cwd=cwd, check=False
        )
        if check and done.returncode != 0:
            pytest.fail(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def nodes(self, states: str = "") -> list[str]:
        """Names of the nodes (in those states)."""
        found = self.run("sinfo", "-h", "-N", "-o", "%N", *(["-t", states] if states else []), check=False)
        return sorted(set(found.split()))

    def drained(self) -> str:
        """Nodes that are drained or down, with the reason; "" if none is."""
        return self.run("sinfo", "-h", "-R", "-N", check=False).strip()

    def firstfault(self, *arguments: str, check: bool = True, env: Mapping[str, str] | None = None) -> str:
        """Run the product's command line with this cluster's configuration file."""
        done = subprocess.run(
            [sys.executable, "-m", "analyzers.cli", *arguments], capture_output=True, text=True, timeout=120,
            check=False, env={**self.env, "FIRSTFAULT_CONFIG": str(self.config), **(env or {})},
        )  # fmt: skip
        if check and done.returncode != 0:
            pytest.fail(f"firstfault {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def folder(self, name: str) -> Path:
        """A new work folder of the user."""
        folder = self.work / name
        folder.mkdir()
        shutil.chown(folder, USER)
        shutil.copy(PAYLOAD, folder / "payload.py")
        return folder

    def submit(self, folder: Path, script: str, *options: str) -> int:
        """Submit a batch script as the user; returns the job id."""
        path = folder / "job.sh"
        path.write_text("#!/bin/bash\n" + script)
        out = self.run("sbatch", "--parsable", *options, str(path), user=USER, cwd=folder)
        return int(re.match(r"\d+", out)[0])  # type: ignore[index]

    def record(self, job: int) -> str:
        """`scontrol show job`."""
        return self.run("scontrol", "show", "job", str(job), check=False)

    def state(self, job: int) -> str:
        """State of a job, "" if it is forgotten."""
        match = re.search(r"JobState=(\S+)", self.record(job))
        return match[1] if match else ""

    def wait_state(self, job: int, *states: str, seconds: float = 90.0) -> str:
        """Wait until the job has one of the states."""
        return wait_for(f"{states} of job {job}", lambda: (s := self.state(job)) in states and s, seconds)

    def drain(self, linger: float = 30.0, **env: str) -> str:
        """Drain both spools until they are empty; what it said. A crash is kept in `troubles`."""
        done = subprocess.run(
            [sys.executable, "-m", "analyzers.cli", "drain", "--linger", str(linger)], capture_output=True, text=True,
            check=False, env={**self.env, "FIRSTFAULT_CONFIG": str(self.config), **env}, timeout=linger + 120,
        )  # fmt: skip
        self.said.append(done.stderr)
        if "Traceback" in done.stderr:
            self.troubles.append(done.stderr)
        return done.stderr

    def tickets(self) -> list[str]:
        """Names of the tickets that wait."""
        folders = [self.root / "ff" / role / "new" for role in ("head", "node")]
        return [p.name for folder in folders if folder.is_dir() for p in folder.iterdir() if p.suffix != ".retry"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster, brought up once."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}")
    pwd.getpwnam("slurm")
    one = Cluster(Path(tempfile.mkdtemp(prefix="ff-slurm-", dir="/tmp")))
    try:
        one.up()
        yield one
    finally:
        one.down()
