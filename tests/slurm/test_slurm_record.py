"""Slurm's accounts of a job: text, accounting, JSON and pyslurm give the same record."""

from __future__ import annotations

import json
import types
from datetime import datetime
from typing import Any

import pytest

from collector import slurm_pyslurm
from collector.slurm_record import SACCT_DELIMITER, SACCT_FIELDS, JobRecord, parse_json, parse_sacct, parse_scontrol

# printed by Slurm 22.05.8 for a job of two nodes, one of which died
TEXT = """JobId=7 JobName=train model
   UserId=alice(1000) GroupId=users(100) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)
   Requeue=0 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=0:15
   DerivedExitCode=1:0
   RunTime=00:00:31 TimeLimit=365-00:00:00 TimeMin=N/A
   SubmitTime=2026-12-01T05:11:11 EligibleTime=2026-12-01T05:11:11
   AccrueTime=2026-12-01T05:11:11
   StartTime=2026-12-01T05:11:11 EndTime=2026-12-01T05:11:42 Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-12-01T05:11:11 Scheduler=Backfill
   Partition=frail AllocNode:Sid=login:9318
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[5-6]
   BatchHost=n5
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=2,node=2,billing=2,gres/gpu=16
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/alice/my job.sh
   WorkDir=/home/alice/run 1
   StdErr=/home/alice/run 1/job-7.out
   StdIn=/dev/null
   StdOut=/home/alice/run 1/job-7.out
   Power=
"""


def local(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone().timestamp())


def test_text_of_scontrol() -> None:
    (record,) = parse_scontrol(TEXT + "\n\n")
    assert (record.job, record.state, record.completing, record.settled) == (7, "NODE_FAIL", False, True)
    assert (record.reason, record.name, record.user, record.uid) == ("NodeDown", "train model", "alice", 1000)
    assert (record.restarts, record.code, record.signal, record.derived) == (1, 0, 15, 1)
    assert record.started == local("2026-12-01T05:11:11")
    assert record.ended == local("2026-12-01T05:11:42")
    assert (record.nodes, record.batch_host, record.tasks, record.gpus) == ("n[5-6]", "n5", 2, 16)
    assert (record.work_dir, record.stdout) == ("/home/alice/run 1", "/home/alice/run 1/job-7.out")
    assert record.account is None


def test_many_records_and_their_kinds() -> None:
    text = (
        TEXT
        + "\nJobId=63 ArrayJobId=61 ArrayTaskId=2 JobName=a\n   UserId=b(1) x=y\n   JobState=COMPLETING Reason=None"
    )
    text += "\n\nJobId=35 HetJobId=34 HetJobOffset=1 JobName=h\n   JobState=FAILED Reason=NonZeroExitCode\n"
    first, array, het = parse_scontrol(text)
    assert first.job == 7
    assert (array.array, array.task, array.completing, array.settled) == (61, 2, True, False)
    assert (het.het, het.offset, het.state) == (34, 1, "FAILED")


@pytest.mark.parametrize(
    "name",
    [
        "x JobState=COMPLETED Reason=None",
        "x\n   JobState=COMPLETED Reason=None",
        "x\n   UserId=root(0) GroupId=root(0)",
    ],
)
def test_names_cannot_forge_facts(name: str) -> None:
    """What a job's name says about the job is not believed."""
    (record,) = parse_scontrol(TEXT.replace("train model", name)) or [None]  # type: ignore[list-item]
    assert record is None or (record.state, record.uid) in (("NODE_FAIL", 1000), ("NODE_FAIL", None))


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error: Invalid job id specified", "JobId=x", "JobId=3 JobName=a\n"]
)
def test_what_is_no_record(text: str) -> None:
    assert parse_scontrol(text) == []


def test_accounting_has_every_attempt() -> None:
    def line(**values: str) -> str:
        return SACCT_DELIMITER.join(values.get(name, "") for name in SACCT_FIELDS)

    common = {
        "JobIDRaw": "60",
        "JobID": "60",
        "User": "alice",
        "UID": "1000",
        "NodeList": "n[1-4]",
        "Submit": "2026-12-01T01:00:00",
    }
    text = "\n".join(
        [
            line(**common, State="REQUEUED", ExitCode="0:0", Start="2026-12-01T01:00:00", End="2026-12-01T01:05:00"),
            line(**common, State="CANCELLED by 1000", ExitCode="0:15", Start="2026-12-01T01:07:00", End="Unknown"),
            line(**{**common, "JobIDRaw": "63", "JobID": "61_2"}, State="FAILED", ExitCode="4:0", Start="Unknown"),
            line(
                **{**common, "JobIDRaw": "35", "JobID": "34+1"}, State="FAILED", ExitCode="1:0", DerivedExitCode="1:0"
            ),
            "garbage",
        ]
    )
    first, second, array, het = parse_sacct(text)
    assert (first.state, first.started, first.ended) == (
        "REQUEUED",
        local("2026-12-01T01:00:00"),
        local("2026-12-01T01:05:00"),
    )
    assert (second.state, second.signal, second.ended) == ("CANCELLED", 15, None)
    assert (array.job, array.array, array.task, array.code) == (63, 61, 2, 4)
    assert (het.het, het.offset, het.derived) == (34, 1, 1)


NEW_JSON = {
    "jobs": [
        {
            "job_id": 59, "name": "t", "job_state": ["CANCELLED", "COMPLETING"], "state_reason": "None",
            "user_id": 1000, "user_name": "alice", "restart_cnt": 0,
            "exit_code": {"status": ["SIGNALED"], "return_code": {"set": True, "infinite": False, "number": 0},
                          "signal": {"id": {"set": True, "infinite": False, "number": 15}, "name": "SIGTERM"}},
            "start_time": {"set": True, "infinite": False, "number": 1796101871},
            "end_time": {"set": True, "infinite": False, "number": 1796101902},
            "tasks": {"set": True, "infinite": False, "number": 4}, "nodes": "n[1-4]", "batch_host": "n1",
            "array_job_id": {"set": True, "infinite": False, "number": 0},
            "array_task_id": {"set": False, "infinite": False, "number": 0},
            "current_working_directory": "/w", "standard_output": "/w/o-%j.out", "stdout_expanded": "/w/o-59.out",
            "tres_alloc_str": "cpu=4,node=4,gres/gpu=4",
        }
    ]
}  # fmt: skip
OLD_JSON = {
    "jobs": [
        {"job_id": 59, "job_state": "COMPLETING", "exit_code": 256, "derived_exit_code": 9, "start_time": 1796101871,
         "restart_cnt": 2, "array_task_id": None}
    ]
}  # fmt: skip


def test_json_of_new_and_old_versions() -> None:
    (new,) = parse_json(json.dumps(NEW_JSON))
    assert (new.state, new.completing, new.settled) == ("CANCELLED", True, False)
    assert (new.code, new.signal, new.started, new.tasks, new.gpus) == (0, 15, 1796101871, 4, 4)
    assert (new.stdout, new.array, new.task) == ("/w/o-59.out", None, None)
    (old,) = parse_json(json.dumps(OLD_JSON))
    assert (old.state, old.completing, old.code, old.signal) == ("COMPLETING", True, 1, 0)
    assert (old.derived, old.derived_signal, old.restarts) == (0, 9, 2)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"jobs": 3}', b'{"jobs": [3, {}]}', b"\xff"])
def test_what_is_no_json_of_slurm(data: bytes) -> None:
    assert parse_json(data) == []


# --- pyslurm, both generations of its interface -----------------------------------------------------------------------

EXPECTED = JobRecord(
    14, "FAILED", reason="NonZeroExitCode", name="t", user="alice", uid=1000, restarts=0, code=1, signal=0, derived=1,
    submitted=1796101870, started=1796101871, ended=1796101902, nodes="n[1-4]", batch_host="n1", tasks=4, gpus=4,
    work_dir="/w", stdout="/w/o-14.out", stderr="/w/o-14.out", partition="debug",
)  # fmt: skip


class NewJob:
    """pyslurm.Job of 22.5.2 to 25.11."""

    id, state, state_reason, name, user_name, user_id = 14, "FAILED", "NonZeroExitCode", "t", "alice", 1000
    requeue_count, exit_code, exit_code_signal, derived_exit_code, derived_exit_code_signal = 0, 1, 0, 1, 0
    submit_time, start_time, end_time, allocated_nodes, batch_host, ntasks, num_nodes = (
        1796101870, 1796101871, 1796101902, "n[1-4]", "n1", 4, 4,
    )  # fmt: skip
    working_directory, standard_output, standard_error, partition = "/w", "/w/o-14.out", "/w/o-14.out", "debug"
    array_id = array_task_id = heterogeneous_id = None
    gres_per_node: Any = None


def new_module(gres: Any) -> Any:
    class Job(NewJob):
        gres_per_node = gres

        @staticmethod
        def load(job: int) -> NewJob:
            if job != 14:
                raise RuntimeError("Invalid job id specified")
            return Job()

    return types.SimpleNamespace(Job=Job)


def old_module() -> Any:
    row = {
        "job_id": 14, "job_state": "FAILED", "state_reason": "NonZeroExitCode", "name": "t", "user_id": 1000,
        "restart_cnt": 0, "exit_code": "1:0", "derived_ec": "1:0", "submit_time": 1796101870, "start_time": 1796101871,
        "end_time": 1796101902, "nodes": "n[1-4]", "batch_host": "n1", "num_tasks": 4, "work_dir": "/w",
        "std_out": "/w/o-14.out", "std_err": "/w/o-14.out", "partition": "debug", "array_job_id": None,
    }  # fmt: skip

    class job:
        def find_id(self, ident: Any) -> list[dict[str, Any]]:
            if not isinstance(ident, int):
                raise TypeError("an integer is required")
            if ident != 14:
                raise ValueError(("Invalid job id specified", 2017))
            return [row]

    return types.SimpleNamespace(job=job)


@pytest.mark.parametrize("gres", [{"gpu": 1}, {"gres/gpu": 1}])
def test_pyslurm_with_classes(gres: Any) -> None:
    assert slurm_pyslurm.of_module(new_module(gres), 14) == EXPECTED
    assert slurm_pyslurm.of_module(new_module(gres), 15) is None


def test_pyslurm_with_dictionaries() -> None:
    found = slurm_pyslurm.of_module(old_module(), 14)
    # the old interface has neither the user's name nor the GPUs
    assert found is not None
    assert {
        f: (getattr(found, f), getattr(EXPECTED, f))
        for f in found.__slots__
        if getattr(found, f) != getattr(EXPECTED, f)
    } == {
        "user": (None, "alice"),
        "gpus": (None, 4),
    }
    assert slurm_pyslurm.of_module(old_module(), 15) is None


def test_pyslurm_that_hides_the_state() -> None:
    class Hidden(NewJob):
        state = "COMPLETING"

    record = slurm_pyslurm.of_object(Hidden())
    assert record.completing
    assert not record.settled
