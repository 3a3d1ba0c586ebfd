"""A job's record through pyslurm, in a process of its own: `-m collector.slurm_pyslurm JOB` prints it as JSON.

Importing pyslurm can end the process (slurm_init calls fatal() where there is no slurm.conf) or block it for a minute,
and its API changed: classes (`Job.load`) from 22.5.2 and 23.2.2 on, dictionaries (`job().find_id`) before. Both give
the same JobRecord. pyslurm is GPL-2.0 and is never needed: without it `scontrol` is asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from collector.slurm_record import JobRecord


def of_module(pyslurm: Any, job: int) -> JobRecord | None:
    """The record of `job` from an imported pyslurm of either generation; None if it does not know the job."""
    loader = getattr(pyslurm, "Job", None)
    if loader is not None and hasattr(loader, "load"):
        try:
            return of_object(loader.load(job))
        except Exception as error:
            if "Invalid job id" in str(error):
                return None
            raise
    try:
        found = pyslurm.job().find_id(job)
    except ValueError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    rows = found if isinstance(found, list) else [found]
    return of_dict(rows[0]) if rows and isinstance(rows[0], Mapping) else None


def of_object(one: Any) -> JobRecord:
    """From a `pyslurm.Job` (22.5.2 to 25.11)."""

    def get(*names: str) -> Any:
        return next((value for name in names if (value := getattr(one, name, None)) is not None), None)

    state = _state(str(get("state") or "UNKNOWN"))
    return JobRecord(
        int(get("id")),
        state,
        state == "COMPLETING",
        reason=_text(get("state_reason")),
        name=_text(get("name")),
        user=_text(get("user_name")),
        uid=_whole(get("user_id")),
        restarts=_whole(get("requeue_count")),
        code=_whole(get("exit_code")) or 0,
        signal=_whole(get("exit_code_signal")) or 0,
        derived=_whole(get("derived_exit_code")) or 0,
        derived_signal=_whole(get("derived_exit_code_signal")) or 0,
        submitted=_whole(get("submit_time")),
        started=_whole(get("start_time")),
        ended=_whole(get("end_time")),
        nodes=_text(get("allocated_nodes")),
        batch_host=_text(get("batch_host")),
        tasks=_whole(get("ntasks")),
        gpus=_gpus(get("gres_per_node", "gres"), _whole(get("num_nodes"))),
        work_dir=_text(get("working_directory")),
        stdout=_text(get("standard_output")),
        stderr=_text(get("standard_error")),
        command=_text(get("command")),
        array=_whole(get("array_id")) or None,
        task=_whole(get("array_task_id")),
        het=_whole(get("heterogeneous_id")) or None,
        offset=_whole(get("heterogeneous_offset")),
        partition=_text(get("partition")),
        account=_text(get("account")),
        comment=_text(get("comment")),
    )


def of_dict(row: Mapping[str, Any]) -> JobRecord:
    """From `pyslurm.job().find_id(...)[0]` (up to 25.5). `exit_code` is "code:signal"."""
    state = _state(str(row.get("job_state") or "UNKNOWN"))
    code, signal = _pair(row.get("exit_code"))
    derived, derived_signal = _pair(row.get("derived_ec"))
    return JobRecord(
        int(row["job_id"]),
        state,
        state == "COMPLETING",
        reason=_text(row.get("state_reason")),
        name=_text(row.get("name")),
        uid=_whole(row.get("user_id")),
        restarts=_whole(row.get("restart_cnt")),
        code=code,
        signal=signal,
        derived=derived,
        derived_signal=derived_signal,
        submitted=_whole(row.get("submit_time")),
        started=_whole(row.get("start_time")),
        ended=_whole(row.get("end_time")),
        nodes=_text(row.get("nodes")),
        batch_host=_text(row.get("batch_host")),
        tasks=_whole(row.get("num_tasks")),
        work_dir=_text(row.get("work_dir")),
        stdout=_text(row.get("std_out")),
        stderr=_text(row.get("std_err")),
        command=_text(row.get("command")),
        array=_whole(row.get("array_job_id")) or None,
        task=_whole(row.get("array_task_id")),
        partition=_text(row.get("partition")),
        account=_text(row.get("account")),
        comment=_text(row.get("comment")),
    )


def _state(text: str) -> str:
    return text.upper().replace(" ", "_")


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "None", "(null)", "N/A") else None


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, str):
        code, _, signal = value.partition(":")
        return (int(code) if code.isdigit() else 0), (int(signal) if signal.isdigit() else 0)
    status = _whole(value) or 0
    return status >> 8 & 0xFF, status & 0x7F


def _gpus(value: Any, nodes: int | None) -> int | None:
    """GPUs in all, from {'gpu': 1} (22.5) or {'gres/gpu': 1} (24.11) per node."""
    if not isinstance(value, Mapping) or not nodes:
        return None
    counts = [_whole(count) or 0 for name, count in value.items() if "gpu" in str(name).split(":")[0]]
    return sum(counts) * nodes or None


def main() -> int:
    """Print the record of the job in argv[1]; `null` if Slurm does not know it."""
    import pyslurm

    found = of_module(pyslurm, int(sys.argv[1]))
    print(json.dumps(asdict(found) if found is not None else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
