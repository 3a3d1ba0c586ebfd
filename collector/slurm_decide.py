"""What the end of a job was, and which attempt of it: the one judgement that all origins of an incident share.

Hooks cannot tell: cancel, time limit, node failure, requeue and preemption look like success to every one of them, and
the restart count they see is raised before the hooks of some ends and after those of others. The head asks the
controller when the job is over, decides, and publishes the decision in the store as one small object per job; nodes
only read it. Where no head speaks, the first node of the job decides in its place, so one question per job remains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from collector.config import Config
from collector.lake import safe_name
from collector.slurm_paths import FilePattern
from collector.slurm_record import JobRecord
from collector.slurm_ticket import JobEnd, expand_nodes
from collector.store import Store, StoreMissing

HIDDEN_FOR = 90.0
"""Seconds after which a job that is still COMPLETING is judged by its reason: a dead node can keep it so for hours."""
GIVE_UP = 900.0
"""Seconds after which even a job without any sign is judged."""
_REASONS = {
    "TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY", "NonZeroExitCode": "FAILED",
    "JobLaunchFailure": "FAILED", "launch_failed_requeued_held": "LAUNCH_FAILED", "DeadLine": "DEADLINE",
    "BootFailure": "BOOT_FAIL",
}  # fmt: skip
"""Reason of a record -> state, where the state itself is hidden. Source: job_reason_string() of Slurm."""
_OOM_SIGNAL, _SIGTERM = 125, 15
_CREDIBLE = 2.0
"""Seconds by which a job's start may lie behind the hook that saw its end: two clocks."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one attempt of a job was. Times are Unix seconds."""

    incident: str
    job: int
    attempt: int
    """0-based."""
    restart: int
    """The restart count that the hooks of this attempt saw."""
    seen: float
    """When the hook ran whose ticket led to this."""
    state: str
    collect: bool
    final: bool
    """True if Slurm will not run the job again."""
    cluster: str
    code: int = 0
    signal: int = 0
    reason: str | None = None
    name: str | None = None
    user: str | None = None
    uid: int | None = None
    started: int | None = None
    ended: int | None = None
    nodes: tuple[str, ...] = ()
    batch_host: str | None = None
    tasks: int | None = None
    gpus: int | None = None
    work_dir: str | None = None
    het: int | None = None
    offset: int | None = None
    array: int | None = None
    task: int | None = None
    patterns: tuple[FilePattern, ...] = ()
    """Where its shared output files lie."""
    decided_by: str = "head"

    @property
    def reader(self) -> str | None:
        """The node that reads what all nodes of its component see."""
        return self.batch_host or (self.nodes[0] if self.nodes else None)


@dataclass(frozen=True, slots=True)
class Known:
    """What was asked so far about one ended attempt."""

    first: JobRecord | None = None
    """The first look at it, mostly while it was COMPLETING."""
    latest: JobRecord | None = None
    gone: bool = False
    """True if the controller has forgotten the job."""
    accounting: Sequence[JobRecord] = field(default_factory=tuple)


def decide(end: JobEnd, known: Known, config: Config, now: float) -> Decision | None:
    """The decision, without `patterns`, or None if it is too early: ask again."""
    judged = _judge(end, known, now - end.seen)
    if judged is None:
        return None
    state, final, attempt, record = judged
    code, signal = (record.code, record.signal) if record is not None else (end.code, end.signal)
    if not end.clean and code == 0 and signal == 0:
        code, signal = end.code, end.signal
    base = record or known.first or JobRecord(end.job, state)
    # the hook's list is whole; that of the record shrinks while the job completes
    nodes = expand_nodes(end.nodes) or expand_nodes(base.nodes)
    cluster = safe_name(config.cluster or end.cluster or "cluster")
    return Decision(
        "", end.job, attempt, end.restart, end.seen, state, _wanted(state, end, base, attempt, config), final, cluster,
        code=code, signal=signal, reason=base.reason, name=base.name, user=end.user or base.user,
        uid=end.uid if end.uid is not None else base.uid, started=_started(end, record, known.first),
        ended=record.ended if record is not None and record.ended and record.ended <= now else int(end.seen),
        nodes=tuple(nodes),
        batch_host=base.batch_host, tasks=base.tasks, gpus=base.gpus, work_dir=base.work_dir,
        het=end.het or base.het, offset=end.offset if end.offset is not None else base.offset,
        array=end.array or base.array, task=end.task if end.task is not None else base.task,
        decided_by=end.role,
    )  # fmt: skip


def _judge(end: JobEnd, known: Known, age: float) -> tuple[str, bool, int, JobRecord | None] | None:
    """(state, final, attempt, record of that attempt), or None."""
    booked = _booked(end, known)
    latest = known.latest
    if latest is not None and _same(end, known.first, latest):
        attempt = latest.restarts if latest.restarts is not None else end.restart
        if latest.settled:
            return latest.state, True, attempt, latest
        if age > HIDDEN_FOR:
            state = latest.state if latest.state != "COMPLETING" else _inferred(end, latest)
            if state is not None:
                return state, False, _attempt_before(end, latest), latest
        if age <= GIVE_UP:
            return None
        return "FAILED" if not end.clean else "UNKNOWN", False, attempt, latest
    if latest is not None:  # the record is that of a later attempt: this one was ended to run the job again
        first = known.first if known.first is not None and _same(end, None, known.first) else None
        booked_state = booked.state if booked is not None and (booked.settled or booked.state == "REQUEUED") else None
        state = booked_state or _requeued(end, first, latest)
        return state, False, _attempt_before(end, first or latest), booked or first
    if booked is not None and booked.settled:
        return booked.state, True, end.restart, booked
    if known.first is not None and (known.gone or age > GIVE_UP):
        return _inferred(end, known.first) or "UNKNOWN", True, end.restart, known.first
    if known.gone or age > GIVE_UP:
        return ("FAILED" if not end.clean else "UNKNOWN"), True, end.restart, None
    return None


def _same(end: JobEnd, first: JobRecord | None, latest: JobRecord) -> bool:
    """True if the record is still that of the attempt that ended."""
    if latest.state in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED") and not latest.completing:
        return False
    if latest.started is not None and latest.started > end.seen + _CREDIBLE:
        return False
    started = _started(end, first)
    if started is not None and latest.started is not None:
        return abs(latest.started - started) <= _CREDIBLE
    return True


def _started(end: JobEnd, *records: JobRecord | None) -> int | None:
    """When the attempt that ended had started: what a hook or a record of before its end says."""
    if end.start is not None:
        return end.start
    said = (record.started for record in records if record is not None and record.started is not None)
    return next((started for started in said if started <= end.seen + _CREDIBLE), None)


def _booked(end: JobEnd, known: Known) -> JobRecord | None:
    """The accounting's row of this attempt."""
    started = _started(end, known.first)
    rows = [row for row in known.accounting if row.started is not None and row.started <= end.seen + _CREDIBLE]
    if started is not None:
        rows = [row for row in rows if row.started is not None and abs(row.started - started) <= _CREDIBLE]
    return rows[-1] if rows else None


def _attempt_before(end: JobEnd, record: JobRecord) -> int:
    """The number of an attempt that was, or may be, followed by another.

    `scontrol requeue` and preemption raise the count before the hooks run, a node failure and RequeueExit after.
    """
    if record.restarts is not None and record.restarts > end.restart:
        return end.restart
    if not end.clean:
        return end.restart
    return max(end.restart - 1, 0) if record.restarts else end.restart


def _requeued(end: JobEnd, first: JobRecord | None, latest: JobRecord) -> str:
    """Why Slurm ended an attempt that it then ran again. `first` is a record of that attempt, if one was seen."""
    if not end.clean:
        return "FAILED"
    if first is not None and first.reason in _REASONS:
        return _REASONS[first.reason]
    counted = first.restarts if first is not None else latest.restarts
    return "NODE_FAIL" if counted is not None and counted > end.restart else "REQUEUED"


def _inferred(end: JobEnd, record: JobRecord) -> str | None:
    """The state behind COMPLETING, from what does not hide; None if nothing tells."""
    if record.state not in ("COMPLETING", "UNKNOWN", "PENDING", "RUNNING"):
        return record.state
    if record.signal == _OOM_SIGNAL or end.signal == _OOM_SIGNAL:
        return "OUT_OF_MEMORY"
    if record.reason in _REASONS:
        return _REASONS[record.reason]
    if not end.clean:
        return "FAILED"
    return "CANCELLED" if record.signal == _SIGTERM else None


def _wanted(state: str, end: JobEnd, record: JobRecord, attempt: int, config: Config) -> bool:
    if state in config.slurm.states:
        return True
    if state == "UNKNOWN":
        return True
    if state != "COMPLETED" or not config.slurm.failed_steps or attempt > 0:
        # the worst step of an attempt leaks into the next one
        return False
    # a signal too: srun kills the peers of a rank that failed, and theirs is often the highest status. A monitor that
    # the script itself ends looks the same; the verdict will be that nothing failed.
    return bool(record.derived or record.derived_signal or end.derived)


# --- numbering and publishing -----------------------------------------------------------------------------------------


def incident_id(decision: Decision, attempt: int) -> str:
    """`slurm-<cluster>-<job>[_<task>]-<attempt>`; all components of a heterogeneous job share the leader's."""
    job = f"{decision.array}_{decision.task}" if decision.array and decision.task is not None else None
    return f"slurm-{decision.cluster}-{job or decision.het or decision.job}-{attempt}"


def control_key(cluster: str, job: int) -> str:
    """Where the decisions about a job's attempts lie."""
    return f"control/slurm/{safe_name(cluster)}/jobs/{job}.json"


def published(store: Store, cluster: str, job: int) -> list[Decision]:
    """The decisions about a job so far, none if there is none. Raises StoreError if the store fails."""
    try:
        rows = json.loads(store.get(control_key(cluster, job)))
    except (StoreMissing, ValueError):
        return []
    return [from_json(row) for row in rows if isinstance(row, dict)]


def publish(store: Store, decision: Decision) -> Decision:
    """Number the attempt, write the decision down for all, and return it with its incident. Raises StoreError.

    Deciding again about the same attempt gives the same incident.
    """
    before = published(store, decision.cluster, decision.job)
    same = next((one for one in before if _same_attempt(one, decision)), None)
    others = [one for one in before if one is not same]
    attempt = same.attempt if same is not None else decision.attempt
    while any(one.attempt == attempt for one in others):
        attempt += 1
    numbered = {**asdict(decision), "attempt": attempt, "incident": incident_id(decision, attempt)}
    final = from_json(numbered)
    text = json.dumps([*(asdict(one) for one in others), asdict(final)], ensure_ascii=True)
    store.put(control_key(decision.cluster, decision.job), text.encode())
    return final


def _same_attempt(one: Decision, other: Decision) -> bool:
    if one.started is not None and other.started is not None:
        return abs(one.started - other.started) <= _CREDIBLE
    # an attempt that began after the other had ended is another one
    if any(a.started is not None and a.started > b.seen + _CREDIBLE for a, b in ((one, other), (other, one))):
        return False
    return one.restart == other.restart and abs(one.seen - other.seen) < 60


def from_json(row: Mapping[str, Any]) -> Decision:
    """A decision from its JSON object; fields of a newer version are ignored. Raises TypeError, KeyError."""
    names = {f.name for f in fields(Decision)}
    values = {name: value for name, value in row.items() if name in names}
    values["nodes"] = tuple(values.get("nodes") or ())
    values["patterns"] = tuple(FilePattern(**one) for one in values.get("patterns") or ())
    return Decision(**values)


def of_ticket(end: JobEnd, decisions: Sequence[Decision]) -> Decision | None:
    """The decision about the attempt that a node's ticket is about, if it is among them."""
    if end.start is not None:
        exact = [one for one in decisions if one.started is not None and abs(one.started - end.start) <= _CREDIBLE]
        return exact[0] if exact else None
    # a node may report hours late (it was down), but hardly before the head
    fitting = [one for one in decisions if one.restart == end.restart and one.seen <= end.seen + 60]
    return max(fitting, key=lambda one: one.seen, default=None)
