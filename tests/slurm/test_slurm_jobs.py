"""End to end on a real cluster: every way in which a job can end, from the hooks to the verdict in the lake.

All jobs run at the same time, because a time limit takes a minute; a thread drains as the systemd timer would.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.lake import raw_parts, read_raw
from collector.store import open_store

SRUN = "srun --kill-on-bad-exit=1 --output=run-%j-%t.log /usr/bin/python3 payload.py {kind}\nexit $?\n"
SECRET = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"


class Season:
    """All jobs and what became of them."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.jobs: dict[str, int] = {}
        self.store = open_store(f"file://{cluster.store}")
        self.answers: dict[str, dict[str, Any]] = {}

    def submit(self, name: str, script: str, *options: str) -> int:
        folder = self.cluster.folder(name)
        self.jobs[name] = self.cluster.submit(folder, script, "-o", "job-%j.out", *options)
        return self.jobs[name]

    def ready(self, name: str, ranks: int, attempt: int = 0) -> None:
        """Wait until all ranks of an attempt wait in their collective."""
        folder = self.cluster.work / name / f"ready-{self.jobs[name]}-{attempt}"
        self.cluster.wait_for(
            f"{ranks} ranks of {name}", lambda: folder.is_dir() and len(list(folder.iterdir())) >= ranks
        )

    def incident(self, name: str, attempt: int = 0) -> str:
        return f"slurm-testc-{self.jobs[name]}-{attempt}"

    def answer(self, name: str, attempt: int = 0) -> dict[str, Any]:
        return self.answers[self.incident(name, attempt)]

    def rows(self, table: str, incident: str) -> list[dict[str, Any]]:
        return read_raw(self.store, table, incident).to_pylist()


@pytest.fixture(scope="module")
def season(cluster: Any) -> Iterator[Season]:
    one = Season(cluster)
    over = threading.Event()

    def keep_draining() -> None:
        while not over.is_set():
            cluster.drain(linger=20)
            over.wait(0.5)

    drainer = threading.Thread(target=keep_draining)
    drainer.start()
    try:
        _submit(one)
        _meddle(one)
        _finish(one)
        over.set()
        drainer.join()
        cluster.drain(linger=60)
        assert not cluster.troubles, cluster.troubles[0]
        incidents = json_lines(cluster.firstfault("analyze", "--pending", "--deadline", "0", "--json"))
        one.answers = {row["incident"]: row["diagnosis"] for row in incidents}
        yield one
    finally:
        over.set()
        drainer.join()


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _submit(one: Season) -> None:
    wide = ("-N4", "-n4")
    one.submit("lost", SRUN.format(kind="wait"), "-N2", "-n2", "-p", "frail", "--no-requeue")
    one.submit("limit", SRUN.format(kind="wait"), *wide, "--time=1")
    one.submit("raise", SRUN.format(kind="raise"), *wide)
    one.submit("kill", SRUN.format(kind="kill"), *wide)
    one.submit("cancel", SRUN.format(kind="wait"), *wide)
    again = 'kind=wait; [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && kind=raise\n'
    one.submit("requeue", again + SRUN.format(kind="$kind"), *wide, "--requeue")
    one.submit("segv", SRUN.format(kind="segv"), *wide)
    one.submit("ok", SRUN.format(kind="ok"), *wide)
    one.submit("hidden", SRUN.format(kind="exit").replace("exit $?", "true"), *wide)
    array = "export CULPRIT=0; [ $SLURM_ARRAY_TASK_ID = 1 ] && kind=raise || kind=ok\n" + SRUN.format(kind="$kind")
    both = SRUN.format(kind="raise").replace("srun", "export CULPRIT=1\nsrun --het-group=0,1")
    one.submit("het", both, "-N1", "-n1", ":", "-N1", "-n1")
    one.submit("array", array, "-N1", "-n1", "--array=0-2")


def _meddle(one: Season) -> None:
    cluster = one.cluster
    one.ready("lost", 2)
    _kill_node(cluster, "n6", one.jobs["lost"])
    one.ready("requeue", 4)
    cluster.run("scontrol", "requeue", str(one.jobs["requeue"]))
    one.ready("cancel", 4)
    cluster.run("scancel", str(one.jobs["cancel"]))


def _kill_node(cluster: Any, node: str, job: int) -> None:
    """slurmd, slurmstepd and the tasks of a node die at once, as if its power had gone."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    steps = [pid for pid in pids if _read(pid, "cmdline").startswith(b"slurmstepd: [%d." % job)]
    steps = [pid for pid in steps if _works_for(pid, cluster, node)]
    wanted = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_JOB_ID={job}".encode()}
    tasks = [pid for pid in pids if wanted <= set(_read(pid, "environ").split(b"\0"))]
    assert steps and tasks
    # whoever could report a death dies first
    for pid in [cluster.daemons[node].pid, *steps, *tasks]:
        os.kill(pid, signal.SIGKILL)
    cluster.daemons[node].wait(timeout=30)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _works_for(pid: int, cluster: Any, node: str) -> bool:
    """True if a slurmstepd belongs to that node: it writes to the log of its slurmd."""
    log = str(cluster.root / "log" / f"slurmd-{node}.log")
    try:
        return any(str(link.readlink()) == log for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _finish(one: Season) -> None:
    cluster = one.cluster
    ends = {"raise": "FAILED", "kill": "FAILED", "segv": "FAILED", "cancel": "CANCELLED", "ok": "COMPLETED",
            "hidden": "COMPLETED", "limit": "TIMEOUT", "requeue": "FAILED", "lost": "NODE_FAIL", "het": "FAILED"}  # fmt: skip
    for name, state in ends.items():
        cluster.wait_state(one.jobs[name], state, seconds=180)
    cluster.wait_for("end of the array", lambda: "array" and not cluster.run("squeue", "-h").strip(), 120)


@pytest.mark.parametrize(
    ("name", "attempt", "state", "signature", "ranks", "nodes"),
    [
        ("raise", 0, "FAILED", "python/uncaught-exception", [2], ["n3"]),
        ("kill", 0, "FAILED", "exit/killed", [2], ["n3"]),
        ("segv", 0, "FAILED", None, [2], ["n3"]),
        ("requeue", 1, "FAILED", "python/uncaught-exception", [2], ["n3"]),
        ("hidden", 0, "COMPLETED", None, [2], ["n3"]),
        ("array", 0, "FAILED", "python/uncaught-exception", [0], None),
        ("het", 0, "FAILED", "python/uncaught-exception", [1], None),
    ],
)
def test_a_rank_fails(
    season: Season,
    name: str,
    attempt: int,
    state: str,
    signature: str | None,
    ranks: list[int],
    nodes: list[str] | None,
) -> None:
    """The failing rank, its node and the state, in the lake once."""
    incident = season.incident(name, attempt) if name != "array" else f"slurm-testc-{season.jobs['array']}_1-0"
    answer = season.answers[incident]
    verdict = answer["verdict"]
    assert verdict["ranks"] == ranks
    assert nodes is None or verdict["nodes"] == nodes
    assert signature is None or verdict["signature"] == signature
    (row,) = season.rows("incidents", incident)
    assert (row["state"], row["scheduler"], row["cluster"]) == (state, "slurm", "testc")
    assert len(row["nodes"]) == (1 if name in ("array", "het") else 4)


@pytest.mark.parametrize(
    ("name", "attempt", "state", "cause"),
    [
        ("cancel", 0, "CANCELLED", "scheduler"),
        ("limit", 0, "TIMEOUT", "scheduler"),
        ("lost", 0, "NODE_FAIL", "node"),
        ("requeue", 0, "REQUEUED", "scheduler"),
    ],
)
def test_slurm_ends_a_job(season: Season, name: str, attempt: int, state: str, cause: str) -> None:
    """What looks like success to every hook is known for what it was."""
    (row,) = season.rows("incidents", season.incident(name, attempt))
    assert row["state"] == state
    verdict = season.answer(name, attempt)["verdict"]
    assert verdict["cause"] == cause, verdict


def test_each_is_there_once(season: Season) -> None:
    """One incident per failed attempt, none for a success; and who held which node is known of that too."""
    jobs = season.jobs
    expected = {season.incident(name) for name in jobs if name not in ("ok", "array")}
    expected |= {season.incident("requeue", 1), f"slurm-testc-{jobs['array']}_1-0"}
    assert set(season.answers) == expected
    assert not season.rows("log_lines", season.incident("ok"))
    text = season.cluster.firstfault(
        "query", "-e", f"select node from allocations where job = '{jobs['ok']}' order by node", "--json"
    )
    assert [row["node"] for row in json_lines(text)] == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize("name", ["raise", "kill", "segv", "cancel", "limit", "hidden"])
def test_all_logs_are_there_and_once(season: Season, name: str) -> None:
    """Each rank's log from the node where it ran, the job's own output once, every line once."""
    incident, job = season.incident(name), season.jobs[name]
    lines = season.rows("log_lines", incident)
    by_path = {line["path"]: (line["rank"], line["node"]) for line in lines if line["rank"] is not None}
    assert by_path == {f"run-{job}-{rank}.log": (rank, f"n{rank + 1}") for rank in range(4)}
    places = Counter((line["path"], line["line"], line["part"]) for line in lines)
    assert max(places.values()) == 1
    folder = season.cluster.work / name
    for path in {line["path"] for line in lines}:
        original = (folder / path).read_bytes()
        for line in (line for line in lines if line["path"] == path and "[redacted" not in line["text"]):
            at = original[line["offset"] :].split(b"\n")[0].decode()
            assert line["text"] and line["text"] in at, path
            assert original[: line["offset"]].count(b"\n") + 1 == line["line"]


def test_ledger_is_complete(season: Season) -> None:
    """All nodes and the head have reported; of the lost node the lake says that it has not."""
    for name in ("raise", "kill", "segv", "cancel", "limit", "hidden"):
        gaps = season.answer(name)["ledger"]["gaps"]
        assert not [gap for gap in gaps if "expected to report" in gap], gaps
        origins = {row["node"] for row in season.rows("ledger", season.incident(name)) if row["node"]}
        assert origins == {"n1", "n2", "n3", "n4"}
    assert [gap for gap in season.answer("lost")["ledger"]["gaps"] if gap.startswith("node-n6")]


def test_a_heterogeneous_job_is_one_incident(season: Season) -> None:
    """Both components report under the leader's name, the shared output once."""
    incident = season.incident("het")
    heads = {part.origin for part in raw_parts(season.store, "ledger", incident)}
    assert {"head", "head-1"} <= heads
    assert len(heads) == 4
    assert not [gap for gap in season.answer("het")["ledger"]["gaps"] if "expected to report" in gap]
    places = Counter((line["path"], line["line"], line["part"]) for line in season.rows("log_lines", incident))
    assert max(places.values()) == 1


def test_a_requeue_takes_no_log_away(season: Season) -> None:
    """The first attempt's output, which the second one truncated, is in the lake."""
    first = season.rows("log_lines", season.incident("requeue", 0))
    second = season.rows("log_lines", season.incident("requeue", 1))
    assert {line["rank"] for line in first} >= {0, 1, 2, 3}
    assert not [line for line in first if "ValueError" in line["text"]]
    assert [line for line in second if "ValueError" in line["text"]]
    assert not {line["text"] for line in first if "init process group" in line["text"]} & {
        line["text"] for line in second if "init process group" in line["text"]
    }


def test_ranks_know_their_nodes_and_ends(season: Season) -> None:
    """TaskEpilog tells where each rank ran and which ended first."""
    rows = season.rows("ranks", season.incident("raise"))
    assert {row["rank"]: row["node"] for row in rows} == {0: "n1", 1: "n2", 2: "n3", 3: "n4"}
    assert min(rows, key=lambda row: row["exited_at"])["rank"] == 2


def test_secrets_stay_where_they_are(season: Season) -> None:
    """The token that a rank printed is in its own log and nowhere else."""
    for incident in season.answers:
        for table in ("log_lines", "artifacts"):
            for row in season.rows(table, incident):
                assert SECRET not in str(row)
        masked = [row for row in season.rows("log_lines", incident) if "[redacted:" in row["text"]]
        if incident == season.incident("raise"):
            assert masked
    assert SECRET not in json.dumps(season.answers)


def test_nothing_is_left_and_no_node_is_drained(season: Season) -> None:
    """Empty spools, nothing given up, all nodes that were not killed in service."""
    assert season.cluster.tickets() == []
    for role in ("head", "node"):
        assert not list((season.cluster.root / "ff" / role / "dead").iterdir())
        assert not list((season.cluster.root / "ff" / role / "evidence").iterdir())
    assert set(season.cluster.nodes("idle")) >= {"n1", "n2", "n3", "n4", "n5"}
    assert "pilog" not in season.cluster.drained()


def test_a_node_that_comes_back_reports_late(season: Season) -> None:
    """Its Epilog runs when slurmd does: the incident is open again, and complete."""
    cluster = season.cluster
    if cluster.daemons["n6"].poll() is None:
        pytest.fail("n6 was not killed")
    # its Epilog runs only if its slurmstepd outlived it, which it did not: the hook is run as slurmd would run it
    environment = {
        "SLURM_JOB_ID": str(season.jobs["lost"]), "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_UID": "65534", "SLURM_JOB_USER": "nobody", "SLURMD_NODENAME": "n6", "SLURM_NODELIST": "n[5-6]",
        "SLURM_CLUSTER_NAME": "testc",
    }  # fmt: skip
    cluster.run("env", "-i", *[f"{k}={v}" for k, v in environment.items()], str(cluster.root / "hooks" / "epilog.sh"))
    cluster.drain(linger=60)
    (row,) = json_lines(cluster.firstfault("analyze", "--pending", "--json"))
    assert row["incident"] == season.incident("lost")
    assert not [gap for gap in row["diagnosis"]["ledger"]["gaps"] if gap.startswith("node-n6")]
