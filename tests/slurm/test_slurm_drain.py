"""The drain without a cluster: Slurm's tools are scripts that print what a real one printed; store, spool and files are
real. Killed at any moment, with a store that is down, with a controller that hangs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.config import BudgetConfig, Config, RedactionConfig, SlurmConfig, SpoolConfig, StoreConfig
from collector.lake import raw_parts, read_raw
from collector.slurm import check_owner, drain
from collector.slurm_context import Context
from collector.slurm_decide import published
from collector.spool import Spool, SpoolError

UID = 65534
CHECKOUT = Path(__file__).parents[2]

SCONTROL = """#!/bin/sh
[ "$1" = --details ] && shift
echo "$@" >>{root}/asked
[ -e {root}/hang ] && sleep 60
[ -e {root}/down ] && {{ echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }}
case "$1 $2" in
"--version "*) echo "slurm-wlm 22.05.8" ;;
"show job"|"show jobs")
  [ -n "$3" ] && [ ! -e {root}/job.$3 ] && {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}
  if [ -n "$3" ]; then cat {root}/job.$3; else for f in {root}/job.*; do cat $f; echo; done; fi ;;
"write batch_script") cat {root}/script ;;
"update "*) exit 1 ;;
esac
"""
RECORD = """JobId={job} JobName=t
   UserId=nobody({uid}) GroupId=nogroup({uid}) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   StartTime={start} EndTime={end} Deadline=N/A
   NodeList={nodes}
   BatchHost=n1
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1
   WorkDir={work}
   StdErr={work}/job-{job}.out
   StdOut={work}/job-{job}.out
"""


class Site:
    """A folder with everything: tools, spools, store, the user's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.chmod(0o755)
        (root / "bin").mkdir()
        (root / "script").write_text("#!/bin/bash\nsrun -o r-%j-%t.log ./x\n")
        tools = {
            "scontrol": SCONTROL.format(root=root),
            "sacct": "#!/bin/sh\nexit 1\n",
            "sacctmgr": f'#!/bin/sh\necho "$@" >>{root}/updated\n',
        }
        for name, text in tools.items():
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        self.work = root / "w"
        self.work.mkdir()
        os.chown(self.work, UID, UID)
        self.store = root / "store"
        self.config = self.make()

    def make(self, **slurm: Any) -> Config:
        return Config(
            cluster="c",
            store=StoreConfig(f"file://{self.store}"),
            budget=BudgetConfig(seconds=60),
            spool=SpoolConfig(f"{self.root}/node", f"{self.root}/head", f"{self.root}/tasks"),
            slurm=SlurmConfig(bin=f"{self.root}/bin", pyslurm=False, local_globs=(), **slurm),
        )

    @property
    def ctx(self) -> Context:
        return Context.of(self.config)

    def record(self, job: int, state: str, code: str = "1:0", **more: Any) -> None:
        """What scontrol shows of a job from now on."""
        now = int(time.time())
        values = {
            "job": job, "uid": UID, "state": state, "reason": "None", "restarts": 0, "code": code, "work": self.work,
            "nodes": "n[1-2]", "start": stamp(now - 30), "end": stamp(now), **more,
        }  # fmt: skip
        (self.root / f"job.{job}").write_text(RECORD.format(**values))

    def logs(self, job: int, ranks: int = 2) -> None:
        """Output files of the job, with one distinct line each."""
        for name in [f"job-{job}.out", *(f"r-{job}-{rank}.log" for rank in range(ranks))]:
            path = self.work / name
            path.write_text(f"line of {name}\n")
            os.chown(path, UID, UID)

    def ticket(self, role: str, job: int, code: str = "1.0", node: str = "n1", age: float = 5.0, **more: Any) -> str:
        """A ticket as the hooks write it."""
        spool = Spool(self.root / role)
        name = f"{role[0]}.{job}.0.{code}.{abs(hash((node, role))) % 10_000}"
        body = {
            "v": 1,
            "job": job,
            "uid": UID,
            "user": "nobody",
            "node": node,
            "nodes": "n[1-2]",
            "cluster": "c",
            **more,
        }
        spool.put(name, "".join(f"{key}={value}\n" for key, value in {**body, "end": 1}.items()).encode())
        then = time.time() - age
        os.utime(spool.path / "new" / name, (then, then))
        evidence = spool.path / "evidence" / name
        if role == "node" and not code.startswith("0.0"):
            evidence.mkdir(exist_ok=True)
            (evidence / "complete").touch()
        return name

    def lines(self, incident: str) -> list[dict[str, Any]]:
        return read_raw(self.ctx.store, "log_lines", incident).to_pylist()

    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def due(self) -> None:
        """All tickets are due now."""
        for role in ("node", "head"):
            for path in (self.root / role / "new").glob("*.retry"):
                row = json.loads(path.read_text())
                path.write_text(json.dumps({**row, "not_before": 0}))


def stamp(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


@pytest.fixture
def site() -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    folder = Path(tempfile.mkdtemp(prefix="ff-site-", dir="/tmp"))
    yield Site(folder)
    shutil.rmtree(folder)


def test_head_and_nodes_report_one_incident(site: Site) -> None:
    """One question for the job, one for its script; each node its own part, the first one the shared files."""
    site.logs(7)
    site.record(7, "FAILED")
    site.ticket("head", 7)
    for node in ("n1", "n2"):
        site.ticket("node", 7, node=node)
    summary = drain(site.ctx, linger=10)
    assert (len(summary.done), summary.waiting, summary.failed) == (3, [], [])
    assert site.asked() == ["show job 7", "write batch_script 7 -"]
    assert {part.origin for part in raw_parts(site.ctx.store, "ledger", "slurm-c-7-0")} == {
        "head",
        "node-n1",
        "node-n2",
    }
    lines = site.lines("slurm-c-7-0")
    assert Counter(line["text"] for line in lines) == {
        "line of job-7.out": 1, "line of r-7-0.log": 1, "line of r-7-1.log": 1,
    }  # fmt: skip
    assert {line["path"]: line["rank"] for line in lines} == {"job-7.out": None, "r-7-0.log": 0, "r-7-1.log": 1}


def test_success_is_dropped(site: Site) -> None:
    site.record(7, "COMPLETED", "0:0")
    site.ticket("head", 7, "0.0")
    site.ticket("node", 7, "0.0")
    summary = drain(site.ctx, linger=10)
    assert len(summary.done) == 2
    assert not list(raw_parts(site.ctx.store, "ledger"))
    assert [item.key for item in site.ctx.store.list("lake/allocations/")]


def test_a_burst_is_one_question(site: Site) -> None:
    """A hundred ends are asked about at once, not one by one."""
    for job in range(100, 200):
        site.record(job, "COMPLETED", "0:0")
        site.ticket("head", job, "0.0")
    summary = drain(site.ctx, linger=30)
    assert len(summary.done) == 100
    assert site.asked() == ["show jobs"]


def test_without_a_head_the_first_node_speaks(site: Site) -> None:
    """Patience over, the batch host decides for all; the other node never asks."""
    site.config = site.make(patience=10.0)
    site.logs(7)
    site.record(7, "FAILED")
    for node in ("n1", "n2"):
        site.ticket("node", 7, node=node, age=60)
    assert len(drain(site.ctx, linger=20).done) == 2
    origins = {part.origin for part in raw_parts(site.ctx.store, "ledger", "slurm-c-7-0")}
    assert origins == {"head", "node-n1", "node-n2"}
    assert len(site.asked()) <= 4


def test_logs_are_safe_before_anybody_answers(site: Site) -> None:
    """The store is down and the job is run again: the copies were made before the next attempt truncated the file."""
    site.logs(7)
    site.record(7, "FAILED")
    site.store.write_text("no folder: the store is down")
    name = site.ticket("node", 7)
    drain(site.ctx)
    copies = site.root / "node" / "evidence" / name / "files" / "manifest.json"
    assert copies.exists()
    for path in site.work.iterdir():
        path.write_text("the next attempt\n")
    site.store.unlink()
    site.ticket("head", 7)
    site.due()
    assert len(drain(site.ctx, linger=10).done) == 2
    assert {line["text"].split()[0] for line in site.lines("slurm-c-7-0")} == {"line"}


def test_store_down_loses_nothing(site: Site) -> None:
    """Tickets wait with a reason, back off, and are finished when the store is back."""
    site.logs(7)
    site.record(7, "FAILED")
    site.store.write_text("no folder")
    for role, node in (("head", "n1"), ("node", "n1"), ("node", "n2")):
        site.ticket(role, 7, node=node)
    summary = drain(site.ctx)
    assert (summary.done, summary.dead) == ([], [])
    assert len(summary.failed) == len(summary.waiting) == 3
    assert Spool(site.root / "node").claim() is None
    site.store.unlink()
    site.due()
    assert len(drain(site.ctx, linger=10).done) == 3
    assert len(site.lines("slurm-c-7-0")) == 3


@pytest.mark.parametrize("trouble", ["down", "hang"])
def test_controller_that_does_not_answer(site: Site, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung controller costs seconds, and the ticket waits."""
    from collector import slurm_context

    monkeypatch.setattr(slurm_context, "Tools", short_tools)
    site.record(7, "FAILED")
    site.ticket("head", 7)
    (site.root / trouble).touch()
    summary = drain(site.ctx)
    assert summary.waiting
    assert "scontrol" in summary.failed[0]
    (site.root / trouble).unlink()
    site.due()
    assert len(drain(site.ctx, linger=5).done) == 1


def short_tools(path: str, conf: str | None, **more: Any) -> Any:
    from collector.slurm_ask import Tools

    return Tools(path, conf, seconds=1.0, **more)


def test_a_second_epilog_changes_nothing(site: Site) -> None:
    """Slurm may run an Epilog twice; by then the files may be gone."""
    site.logs(7)
    site.record(7, "FAILED")
    site.ticket("head", 7)
    site.ticket("node", 7)
    drain(site.ctx, linger=10)
    before = site.lines("slurm-c-7-0")
    for path in site.work.iterdir():
        path.unlink()
    site.ticket("node", 7)
    site.ticket("head", 7)
    drain(site.ctx, linger=10)
    assert site.lines("slurm-c-7-0") == before
    assert len(published(site.ctx.store, "c", 7)) == 1


def test_heterogeneous_job_is_one_incident(site: Site) -> None:
    """Both components report under the leader's name; only the first one reads the shared output."""
    site.logs(34)
    for job, offset, nodes in ((34, 0, "n1"), (35, 1, "n2")):
        site.record(job, "FAILED", nodes=nodes)
        text = (site.root / f"job.{job}").read_text()
        (site.root / f"job.{job}").write_text(
            text.replace(f"JobId={job}", f"JobId={job} HetJobId=34 HetJobOffset={offset}")
        )
        site.ticket("head", job, het=34, offset=offset, nodes=nodes)
        site.ticket("node", job, het=34, node=nodes, nodes=nodes)
    assert len(drain(site.ctx, linger=10).done) == 4
    origins = {part.origin for part in raw_parts(site.ctx.store, "ledger", "slurm-c-34-0")}
    assert origins == {"head", "head-1", "node-n1", "node-n2"}
    assert Counter(line["text"] for line in site.lines("slurm-c-34-0"))["line of job-34.out"] == 1


def test_names_of_people_and_nodes_are_hidden(site: Site) -> None:
    key = site.root / "key"
    key.write_text("0123456789abcdef")
    site.config = Config(
        cluster="c", store=site.config.store, spool=site.config.spool, slurm=site.config.slurm,
        redaction=RedactionConfig(True, str(key)),
    )  # fmt: skip
    site.logs(7)
    (site.work / "r-7-0.log").write_text("rank 0 on n1 says hello\n")
    site.record(7, "FAILED")
    site.ticket("head", 7)
    for node in ("n1", "n2"):
        site.ticket("node", 7, node=node)
    drain(site.ctx, linger=10)
    store = site.ctx.store
    origins = {part.origin for part in raw_parts(store, "ledger", "slurm-c-7-0")}
    assert len(origins) == 3
    assert not {"node-n1", "node-n2"} & origins
    for table in ("log_lines", "incidents", "ledger", "allocations", "scheduler_events", "artifacts"):
        for row in read_raw(store, table, "slurm-c-7-0").to_pylist():
            words = str(row).replace("'", " ").replace("/", " ").split()
            assert not {"n1", "n2", "nobody"} & {word.strip(",.()[]") for word in words}, row


def kernel(age: int, *texts: str) -> str:
    """Lines of `dmesg --time-format=iso`, so many seconds ago."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S,000000+00:00 ", time.gmtime(time.time() - age))
    return "".join(at + text + "\n" for text in texts)


def kill(cgroup: str, pid: int, constraint: str = "MEMCG") -> list[str]:
    """The lines that the kernel prints about one kill."""
    return [
        f"python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0 ({pid})",
        f"[ {pid} ]  1000 {pid}   123   45  0  0 python",
        f"oom-kill:constraint=CONSTRAINT_{constraint},oom_memcg={cgroup},task_memcg={cgroup},task=python,pid={pid},uid=1",
        f"Memory cgroup out of memory: Killed process {pid} (python) total-vm:1kB",
        f"oom_reaper: reaped process {pid} (python), now anon-rss:0kB",
    ]


def test_only_this_jobs_kernel_news(site: Site) -> None:
    """Kills of an earlier job, of a neighbour on the same node and of a container are not this job's."""
    site.record(7, "FAILED")
    site.ticket("head", 7)
    name = site.ticket("node", 7)
    (site.root / "node" / "evidence" / name / "dmesg.txt").write_text(
        kernel(4000, *kill("/slurm/uid_1/job_7/step_0", 7100))
        + kernel(12, *kill("/slurm/uid_1/job_99/step_0/task_0", 7101))
        + kernel(12, *kill("/kubepods/burstable/pod1", 7102))
        + kernel(11, *kill("/system.slice/slurmstepd.scope/job_7/step_0/user", 7103))
        + kernel(11, *kill("/", 7104, "NONE"))
        + kernel(11, *kill("/system.slice/slurmd.service", 7105))
        + kernel(10, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    )
    drain(site.ctx, linger=10)
    rows = read_raw(site.ctx.store, "artifacts", "slurm-c-7-0").to_pylist()
    (log,) = [row for row in rows if row["kind"] == "kernel_log"]
    text = log["content"].decode()
    assert log["node"] == "n1"
    assert [pid for pid in range(7100, 7106) if f"Killed process {pid}" in text] == [7103, 7104, 7105]
    assert not [pid for pid in (7100, 7101, 7102) if str(pid) in text]
    assert "fallen off the bus" in text


def test_what_is_no_ticket_is_given_up_with_a_reason(site: Site) -> None:
    Spool(site.root / "node").put("garbage", b"\x00\xff")
    summary = drain(site.ctx)
    assert "no ticket of a hook" in summary.dead[0]
    assert not summary.quiet


def test_a_spool_that_others_may_write_is_refused(site: Site) -> None:
    Spool(site.root / "node")
    (site.root / "node").chmod(0o777)
    with pytest.raises(SpoolError, match="can be written by others"):
        drain(site.ctx, "node")
    check_owner(site.root / "none")


def test_verdict_in_the_comment(site: Site) -> None:
    """Opt-in: one line where users look, when all have reported."""
    site.config = site.make(admin_comment=True)
    site.logs(7)
    (site.work / "r-7-1.log").write_text("Traceback (most recent call last):\nValueError: 'bad' | shard\n")
    site.record(7, "FAILED")
    site.ticket("head", 7)
    for node in ("n1", "n2"):
        site.ticket("node", 7, node=node)
    drain(site.ctx, linger=60)
    (line,) = (site.root / "updated").read_text().splitlines()
    assert line.startswith("-i modify job where jobid=7 set AdminComment=firstfault: ")
    assert "ValueError: bad" in line
    assert "rank 1" in line


# --- kill -9 ----------------------------------------------------------------------------------------------------------

KILLED = """
import os, random, signal, sys, time
import pyarrow, pyarrow.parquet
from collector import slurm, slurm_comment, tables, lake
from collector.readers import rank_log
from collector.redact import redact_bytes
from collector.config import load
from pathlib import Path
from collector.slurm_context import Context
redact_bytes(b"warm up")
config, seed, rounds = load(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
luck, kills = random.Random(seed), 0
for _ in range(rounds):
    child = os.fork()
    if child == 0:
        try:
            slurm.drain(Context.of(config), linger=0.5)
        finally:
            os._exit(0)
    time.sleep(luck.uniform(0, 0.04) if luck.random() < 0.7 else luck.expovariate(1 / 0.15))
    done, _ = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    for role in ("node", "head"):
        for path in (Path(config.spool.node).parent / role / "new").glob("*.retry"):
            path.unlink(missing_ok=True) if luck.random() < 0.3 else None
    if not [p for role in ("node", "head") for p in (Path(config.spool.node).parent / role / "new").iterdir()]:
        break
print(kills)
"""


def test_kill_at_many_moments_loses_and_doubles_nothing(site: Site) -> None:
    """The whole drain - copying as the user, deciding, writing - killed again and again, then left alone once."""
    jobs = range(300, 350)
    toml = site.root / "c.toml"
    toml.write_text(
        f'cluster = "c"\n[store]\nuri = "file://{site.store}"\n[spool]\nnode = "{site.root}/node"\n'
        f'head = "{site.root}/head"\ntasks = "{site.root}/tasks"\n[slurm]\nbin = "{site.root}/bin"\npyslurm = false\n'
        "local_globs = []\n"
    )
    for job in jobs:
        site.logs(job)
        site.record(job, "FAILED")
        site.ticket("head", job)
        for node in ("n1", "n2"):
            site.ticket("node", job, node=node)
    script = site.root / "killer.py"
    script.write_text(KILLED)
    done = subprocess.run(
        [sys.executable, str(script), str(toml), "20261201", "400"], capture_output=True, text=True, cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 15, done.stdout
    site.due()
    assert drain(site.ctx, linger=60).waiting == []
    for job in jobs:
        incident = f"slurm-c-{job}-0"
        assert len(published(site.ctx.store, "c", job)) == 1
        origins = sorted(part.origin for part in raw_parts(site.ctx.store, "ledger", incident))
        assert origins == ["head", "node-n1", "node-n2"]
        assert Counter(line["text"] for line in site.lines(incident)) == {
            f"line of job-{job}.out": 1, f"line of r-{job}-0.log": 1, f"line of r-{job}-1.log": 1,
        }  # fmt: skip
    for role in ("node", "head"):
        spool = Spool(site.root / role)
        assert spool.names() == []
        assert spool.dead() == {}
