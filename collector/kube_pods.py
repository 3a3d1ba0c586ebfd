"""What a pod says of itself: a small view to keep of each, and the ways in which pods fail. Pure functions of JSON.

Reason and exit code disagree in real clusters: a killed child gives OOMKilled with exit code 0 and phase Succeeded. So
every sign is looked at by itself, and what was seen is kept with the spelling of the kubelet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from collector.data import lookup
from collector.kube_jobs import dig


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a container: the API numbers them by restart count."""

    container: str
    number: int
    state: str
    """waiting | running | terminated."""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started: int | None = None
    """UTC microseconds."""
    finished: int | None = None
    previous: bool = False
    """True if the API keeps its log as the previous one."""

    @property
    def failed(self) -> bool:
        """True if it ended in any way but well."""
        return self.state == "terminated" and (bool(self.exit_code) or bool(self.signal) or self.reason == "OOMKilled")


@dataclass(frozen=True, slots=True)
class Pod:
    """What is kept of every pod of the cluster: a few hundred bytes, not its object."""

    namespace: str
    name: str
    uid: str
    node: str | None
    phase: str
    owner: tuple[str, str, str, str] | None
    """(apiVersion, kind, name, uid) of the controlling owner."""
    created: int | None
    deleting: bool
    runs: tuple[Run, ...]
    unscheduled: bool = False
    """True while the scheduler finds no node for it."""

    @property
    def over(self) -> bool:
        """True if no container runs or will run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Failure:
    """One sign of failure of one pod."""

    kind: str
    """exit | oom | restart | evicted | never_ran | deleted | lost | failed."""
    text: str
    """One line in the words that kubectl uses."""
    container: str | None = None
    number: int | None = None
    at: int | None = None


def micros(stamp: Any) -> int | None:
    """RFC 3339 -> UTC microseconds; None for anything else."""
    try:
        moment = datetime.fromisoformat(str(stamp).replace("Z", "+00:00"))
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000)


def runs_of(pod: Mapping[str, Any]) -> Iterator[Run]:
    """Every run that the pod's status tells of, init containers first, the previous one before the current one."""
    for field in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for status in dig(pod, f"status.{field}") or []:
            count = int(status.get("restartCount") or 0)
            last = status.get("lastState") or {}
            if count and last:
                yield _run(str(status.get("name")), count - 1, last, True)
            if status.get("state"):
                yield _run(str(status.get("name")), count, status["state"], False)


def _run(container: str, count: int, state: Mapping[str, Any], previous: bool) -> Run:
    name = next((key for key in ("terminated", "running", "waiting") if key in state), "waiting")
    said = state.get(name) or {}
    return Run(
        container, count, name, str(said.get("reason") or ""), str(said.get("message") or ""), said.get("exitCode"),
        said.get("signal") or None, micros(said.get("startedAt")), micros(said.get("finishedAt")), previous,
    )  # fmt: skip


def view(pod: Mapping[str, Any]) -> Pod:
    """The small view of a pod object."""
    from collector.kube_jobs import controller

    meta = pod.get("metadata") or {}
    owner = controller(meta)
    named = None if owner is None else tuple(str(owner.get(k) or "") for k in ("apiVersion", "kind", "name", "uid"))
    return Pod(
        str(meta.get("namespace")), str(meta.get("name")), str(meta.get("uid")), dig(pod, "spec.nodeName"),
        str(dig(pod, "status.phase") or ""), named, micros(meta.get("creationTimestamp")),  # type: ignore[arg-type]
        bool(meta.get("deletionTimestamp")), tuple(runs_of(pod)), unschedulable(pod) is not None,
    )  # fmt: skip


def failures(pod: Mapping[str, Any]) -> list[Failure]:
    """All signs of failure of one pod object, the earliest first where times are known."""
    found = [*_by_container(pod), *_by_pod(pod)]
    return sorted(found, key=lambda failure: (failure.at is None, failure.at or 0))


def _by_container(pod: Mapping[str, Any]) -> Iterator[Failure]:
    waits = lookup("job_kinds")["never_ran"]
    for run in runs_of(pod):
        where = f"container {run.container}"
        if run.failed:
            kind = "oom" if run.reason == "OOMKilled" else "restart" if run.previous else "exit"
            told = f"Reason: {run.reason or 'Error'}, Exit Code: {run.exit_code}"
            told += f", Signal: {run.signal}" if run.signal else ""
            again = f" (run {run.number}, it was restarted)" if run.previous else ""
            yield Failure(kind, f"{where} terminated{again}: {told}", run.container, run.number, run.finished)
        elif run.state == "waiting" and run.reason in waits:
            yield Failure("never_ran", f"{where} waits: {run.reason}: {run.message}", run.container, run.number)


def _by_pod(pod: Mapping[str, Any]) -> Iterator[Failure]:
    status = pod.get("status") or {}
    ended = [run for run in runs_of(pod) if run.failed and not run.previous]
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    words = lookup("job_kinds")["disrupted"]
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            told = f"DisruptionTarget, Reason: {condition.get('reason')}: {condition.get('message') or ''}"
            yield Failure("evicted", told, at=micros(condition.get("lastTransitionTime")))
    if reason in words:
        yield Failure("lost" if reason == "NodeLost" else "evicted", f"Reason: {reason}: {message}")
    elif status.get("phase") == "Failed" and not ended:
        yield Failure("failed", f"pod failed. Reason: {reason or 'none given'}: {message}")
    elif status.get("phase") == "Unknown":
        yield Failure("lost", f"the node does not report. Reason: {reason}: {message}")
    stamp = dig(pod, "metadata.deletionTimestamp")
    current = [run for run in runs_of(pod) if not run.previous]
    working = not current or any(run.state != "terminated" for run in current)
    if stamp and status.get("phase") in ("Pending", "Running") and not ended and working:
        yield Failure("deleted", f"pod was deleted in phase {status.get('phase')}", at=micros(stamp))


def unschedulable(pod: Mapping[str, Any]) -> str | None:
    """Why the scheduler finds no node, if it said so."""
    for condition in dig(pod, "status.conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason')}: {condition.get('message') or ''}"
    return None
