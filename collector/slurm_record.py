"""Slurm's own account of a job: one record, whichever of its tools told it.

Text of `scontrol show job` is the tested path, because every version has it; JSON where it hides less. While a job is
COMPLETING all text tools hide the state behind it, and after a requeue the record is already that of the next attempt:
`settled` and `superseded` say so. Job names, comments and paths are the user's: a key is believed at the beginning of
its own line only, and never twice.

Sources: scontrol(1), sacct(1), squeue(1) "JOB STATE CODES", slurm/data_parser v0.0.39 to v0.0.43.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

_LINE_KEYS = re.compile(r"([A-Z][A-Za-z/:]*)=(\S*)")
_WHOLE_LINE = ("Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "AdminComment", "SystemComment")
"""Keys whose value is the rest of their line, spaces and all."""
_GPU = re.compile(r"(?:gres/)?gpu(?::[A-Za-z][\w.-]*)?[=:](\d+)")
_ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
     "REVOKED", "LAUNCH_FAILED"}
)  # fmt: skip
_FLAGS = frozenset({"COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESIZING",
                    "REQUEUE_FED", "REQUEUED", "RECONFIG_FAIL", "STOPPED", "UPDATE_DB", "POWER_UP_NODE"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is known of a job at one moment. Times are Unix seconds."""

    job: int
    state: str
    """Base state, such as FAILED; COMPLETING where a tool hides it."""
    completing: bool = False
    reason: str | None = None
    name: str | None = None
    user: str | None = None
    uid: int | None = None
    restarts: int | None = None
    code: int = 0
    signal: int = 0
    derived: int = 0
    """Highest exit code of a step."""
    derived_signal: int = 0
    submitted: int | None = None
    started: int | None = None
    ended: int | None = None
    nodes: str | None = None
    batch_host: str | None = None
    tasks: int | None = None
    gpus: int | None = None
    work_dir: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    command: str | None = None
    array: int | None = None
    task: int | None = None
    het: int | None = None
    offset: int | None = None
    partition: str | None = None
    account: str | None = None
    comment: str | None = None

    @property
    def settled(self) -> bool:
        """True if the state will not change any more."""
        return self.state in _ENDED and not self.completing


def parse_scontrol(text: str) -> list[JobRecord]:
    """The records in the output of `scontrol show job[s]` (one key block per job, an empty line between)."""
    blocks = re.split(r"\n(?=JobId=\d+ )", text.lstrip("\n"))
    return [record for block in blocks if (record := _block(block)) is not None]


def _block(text: str) -> JobRecord | None:
    found: dict[str, str] = {}
    doubtful: set[str] = set()
    for number, line in enumerate(text.split("\n")):
        if number and not line.startswith("   "):
            continue
        for key, value in _pairs(line.strip()):
            if key in found:
                # a newline in a name or comment can forge a line: what is said twice is not believed
                doubtful.add(key)
            found[key] = value
    for key in doubtful - {"JobId"}:
        del found[key]
    if not found.get("JobId", "").isdigit() or "JobState" not in found:
        return None
    return _record(found)


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    first, _, rest = line.partition("=")
    if first in _WHOLE_LINE:
        yield first, rest
        return
    for match in _LINE_KEYS.finditer(line):
        if match[1] == "JobName":
            # a job's name may say anything: what stands behind it on the line is not believed
            yield "JobName", line[match.start(2) :]
            return
        yield match[1], match[2]


def _record(found: dict[str, str]) -> JobRecord:
    code, signal = _pair(found.get("ExitCode"))
    derived, derived_signal = _pair(found.get("DerivedExitCode"))
    state, flags = _base(re.split(r"[,+]", found["JobState"]))
    user, _, uid = (found.get("UserId") or "").partition("(")
    return JobRecord(
        int(found["JobId"]),
        state,
        "COMPLETING" in flags or state == "COMPLETING",
        reason=_text(found.get("Reason")),
        name=_text(found.get("JobName")),
        user=_text(user),
        uid=_int(uid.rstrip(")")),
        restarts=_int(found.get("Restarts")),
        code=code,
        signal=signal,
        derived=derived,
        derived_signal=derived_signal,
        submitted=_when(found.get("SubmitTime")),
        started=_when(found.get("StartTime")),
        ended=_when(found.get("EndTime")),
        nodes=_text(found.get("NodeList")),
        batch_host=_text(found.get("BatchHost")),
        tasks=_int(found.get("NumTasks")),
        gpus=_gpus(found),
        work_dir=_text(found.get("WorkDir")),
        stdout=_text(found.get("StdOut")),
        stderr=_text(found.get("StdErr")),
        command=_text(found.get("Command")),
        array=_int(found.get("ArrayJobId")),
        task=_int(found.get("ArrayTaskId")),
        het=_int(found.get("HetJobId")),
        offset=_int(found.get("HetJobOffset")),
        partition=_text(found.get("Partition")),
        account=_text(found.get("Account")),
        comment=_text(found.get("Comment")),
    )


def _base(names: list[str]) -> tuple[str, set[str]]:
    """The base state and the flags of a state such as FAILED+COMPLETING."""
    flags = {name for name in names if name in _FLAGS}
    bases = [name for name in names if name not in _FLAGS]
    return (bases[0] if bases else names[0]), flags


def _gpus(found: dict[str, str]) -> int | None:
    for key in ("AllocTRES", "TRES", "TresPerJob"):
        if match := _GPU.search(found.get(key, "")):
            return int(match[1])
    match, nodes = _GPU.search(found.get("TresPerNode", "")), _int((found.get("NumNodes") or "").partition("-")[0])
    return int(match[1]) * nodes if match and nodes else None


# --- sacct ------------------------------------------------------------------------------------------------------------

SACCT_FIELDS = (
    "JobIDRaw", "JobID", "State", "ExitCode", "DerivedExitCode", "Submit", "Start", "End", "NodeList", "Reason", "User",
    "UID", "NTasks", "AllocTRES", "Partition", "Account", "WorkDir",
)  # fmt: skip
"""What `sacct -XnP -D --delimiter=... -o` is asked for: all attempts (-D), the job only (-X)."""
SACCT_DELIMITER = "\x1f"
_ARRAY_ID = re.compile(r"(\d+)_(\d+)$")
_HET_ID = re.compile(r"(\d+)\+(\d+)$")


def parse_sacct(text: str) -> list[JobRecord]:
    """One record per attempt, in the order of sacct (by submission). 22.05 has no restart count: it is None."""
    return [record for line in text.splitlines() if (record := _sacct_line(line)) is not None]


def _sacct_line(line: str) -> JobRecord | None:
    values = line.split(SACCT_DELIMITER)
    if len(values) < len(SACCT_FIELDS) or not values[0].isdigit():
        return None
    row = dict(zip(SACCT_FIELDS, values, strict=False))
    code, signal = _pair(row["ExitCode"])
    derived, derived_signal = _pair(row["DerivedExitCode"])
    record = JobRecord(
        int(row["JobIDRaw"]),
        # "CANCELLED by 1000"
        row["State"].partition(" ")[0].rstrip("+"),
        reason=_text(row["Reason"]),
        user=_text(row["User"]),
        uid=_int(row["UID"]),
        code=code,
        signal=signal,
        derived=derived,
        derived_signal=derived_signal,
        submitted=_when(row["Submit"]),
        started=_when(row["Start"]),
        ended=_when(row["End"]),
        nodes=_text(row["NodeList"]),
        tasks=_int(row["NTasks"]),
        gpus=_gpus(row),
        work_dir=_text(row["WorkDir"]),
        partition=_text(row["Partition"]),
        account=_text(row["Account"]),
    )
    if match := _ARRAY_ID.match(row["JobID"]):
        return replace(record, array=int(match[1]), task=int(match[2]))
    if match := _HET_ID.match(row["JobID"]):
        return replace(record, het=int(match[1]), offset=int(match[2]))
    return record


# --- JSON -------------------------------------------------------------------------------------------------------------


def parse_json(data: bytes | str) -> list[JobRecord]:
    """The records in `scontrol show job --json` (23.02 and later); empty if it is something else."""
    try:
        jobs = json.loads(data).get("jobs", [])
        return [_json_record(job) for job in jobs if isinstance(job, dict) and job.get("job_id")]
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return []


def _json_record(job: dict[str, Any]) -> JobRecord:
    states = job.get("job_state") or ["UNKNOWN"]
    state, flags = _base([states] if isinstance(states, str) else [str(each) for each in states])
    exit_code, derived = job.get("exit_code"), job.get("derived_exit_code")
    return JobRecord(
        int(job["job_id"]),
        state,
        "COMPLETING" in flags or state == "COMPLETING",
        reason=_text(job.get("state_reason")),
        name=_text(job.get("name")),
        user=_text(job.get("user_name")),
        uid=_given(job.get("user_id")),
        restarts=_given(job.get("restart_cnt")),
        code=_status(exit_code)[0],
        signal=_status(exit_code)[1],
        derived=_status(derived)[0],
        derived_signal=_status(derived)[1],
        submitted=_given(job.get("submit_time")) or None,
        started=_given(job.get("start_time")) or None,
        ended=_given(job.get("end_time")) or None,
        nodes=_text(job.get("nodes")),
        batch_host=_text(job.get("batch_host")),
        tasks=_given(job.get("tasks")),
        gpus=_gpus({"AllocTRES": str(job.get("tres_alloc_str") or "")}),
        work_dir=_text(job.get("current_working_directory")),
        stdout=_text(job.get("stdout_expanded") or job.get("standard_output")),
        stderr=_text(job.get("stderr_expanded") or job.get("standard_error")),
        command=_text(job.get("command")),
        array=_given(job.get("array_job_id")) or None,
        task=_given(job.get("array_task_id")),
        het=_given(job.get("het_job_id")) or None,
        offset=_given(job.get("het_job_offset")),
        partition=_text(job.get("partition")),
        account=_text(job.get("account")),
        comment=_text(job.get("comment")),
    )


def _given(value: Any) -> int | None:
    """A number, plain (23.02) or as {"set": true, "infinite": false, "number": n} (23.11)."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _status(value: Any) -> tuple[int, int]:
    """(exit code, signal) of a raw wait status (23.02) or an object with return_code and signal."""
    if isinstance(value, dict) and ("return_code" in value or "signal" in value):
        signal = value.get("signal") or {}
        number = signal.get("id", signal.get("signal_id")) if isinstance(signal, dict) else signal
        return _given(value.get("return_code")) or 0, _given(number) or 0
    status = _given(value) or 0
    return status >> 8 & 0xFF, status & 0x7F


# --- values -----------------------------------------------------------------------------------------------------------


def _pair(text: str | None) -> tuple[int, int]:
    code, _, signal = (text or "").partition(":")
    return _int(code) or 0, _int(signal) or 0


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "(null)", "None", "None assigned", "N/A") else None


def _when(text: str | None) -> int | None:
    """Slurm prints local time without a zone, that of the machine where the tool ran."""
    try:
        return int(datetime.fromisoformat(text or "").astimezone().timestamp())
    except ValueError:
        return None


def attempts(records: list[JobRecord], job: int) -> Iterator[JobRecord]:
    """The records of one raw job id, in the order of their starts."""
    mine = [record for record in records if record.job == job]
    return iter(sorted(mine, key=lambda record: record.started or 0))
