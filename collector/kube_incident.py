"""One failed attempt of one job while its evidence is being taken: which logs are safe, which are due, when it is over.

Pure bookkeeping, no I/O and no clock of its own, so that every decision can be tested. An incident opens with the first
failed pod and closes when the job is terminal, or when the job runs again (the next failure is a new attempt).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from collector.kube_jobs import JobRef, JobState
from collector.kube_pods import Failure, Pod, Run, failures, view
from collector.kube_settings import Settings
from collector.lake import safe_name

MAX_TRIES = 6
Key = tuple[str, str, int]
"""(pod uid, container, number of the run)."""


@dataclass(slots=True)
class Part:
    """The log of one run of one container."""

    pod: Pod
    run: Run
    state: str = "due"
    """due | reading | following | partial (has lines, not to the end) | final | gone (nothing to be had)."""
    tries: int = 0
    not_before: float = 0.0
    bytes: int = 0
    """Bytes of the best copy so far."""
    again: bool = False
    """Its state changed while it was being read: read it once more."""
    ended_at: float | None = None
    """Unix seconds at which its container was seen to have ended while its log was followed."""

    @property
    def key(self) -> Key:
        """Identity of the run."""
        return self.pod.uid, self.run.container, self.run.number

    @property
    def origin(self) -> str:
        """Its name in the raw zone."""
        return safe_name(
            f"pod-{self.pod.namespace}-{self.pod.name}-{self.pod.uid}-{self.run.container}-{self.run.number}"
        )

    @property
    def settled(self) -> bool:
        """True if nothing is under way or due."""
        return self.state in ("final", "gone", "partial")


@dataclass(slots=True)
class Incident:
    """One attempt of one job."""

    job: JobRef
    attempt: int
    id: str
    opened: float
    """Unix seconds."""
    first: str = ""
    """The first failure in words."""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """uid -> last known masked object of each pod."""
    seen: dict[tuple[str, str], Failure] = field(default_factory=dict)
    """(pod uid, text) -> each sign of failure ever seen: a pod's status forgets why it waited."""
    job_object: dict[str, Any] | None = None
    """Last known masked job object."""
    state: JobState = field(default_factory=lambda: JobState("running"))
    parts: dict[Key, Part] = field(default_factory=dict)
    quiet_since: float = 0.0
    """Unix seconds of the last new failure."""
    terminal_since: float | None = None
    next_poll: float = 0.0
    poll: float = 2.0
    polls: int = 0
    closed: str | None = None
    """How it ended: failed | succeeded | deleted | restarted | open_limit."""
    void: bool = False
    """True if it turned out to be none: nothing of it is kept."""
    resumed: bool = False
    head_written: bool = False
    """True once the objects are safe in the store."""
    verdict: str | None = None
    last_head_written: bool = False
    """True once what was known at its end is in the store."""
    analyses: int = 0
    """Analyses that failed."""

    def update(self, pod: Mapping[str, Any], now: float) -> list[Part]:
        """Take a newer pod object in; the parts that are now due."""
        meta = pod["metadata"]
        self.objects[str(meta["uid"])] = dict(pod)
        for failure in failures(pod):
            self.seen.setdefault((str(meta["uid"]), failure.text), failure)
        seen = view(pod)
        due = []
        for run in seen.runs:
            if run.state == "waiting":
                continue
            part = self._part(seen, run, now)
            if part is not None:
                due.append(part)
        return due

    def _part(self, pod: Pod, run: Run, now: float) -> Part | None:
        part = self.parts.get((pod.uid, run.container, run.number))
        if part is None:
            part = Part(pod, run)
            self.parts[part.key] = part
            return part
        ended = run.state == "terminated" and part.run.state == "running"
        going = pod.deleting and not part.pod.deleting
        part.pod, part.run = pod, run
        if part.state in ("reading", "following"):
            part.again = part.again or (ended and part.state == "reading")
            if ended:
                part.ended_at = now
        elif ended or (going and run.state == "running" and part.state == "partial"):
            part.state, part.not_before = "due", 0.0
            return part
        return None

    def signs(self, uid: str) -> list[Failure]:
        """All signs of failure of a pod, the earliest first."""
        found = [failure for (owner, _), failure in self.seen.items() if owner == uid]
        return sorted(found, key=lambda failure: (failure.at is None, failure.at or 0))

    def due(self, now: float) -> Iterator[Part]:
        """Parts to read now: failed runs first, then ended ones, then those that still run."""
        ready = [part for part in self.parts.values() if part.state == "due" and part.not_before <= now]
        yield from sorted(ready, key=lambda part: (not part.run.failed, part.run.state != "terminated"))

    def endless(self, now: float, seconds: float) -> list[Part]:
        """Parts that are followed although their containers ended long ago; they are to be read once more."""
        found = [p for p in self.parts.values() if p.state == "following" and p.ended_at and now - p.ended_at > seconds]
        for part in found:
            part.again, part.ended_at = True, None
        return found

    def done(self, part: Part, *, complete: bool, again: bool, size: int, now: float) -> None:
        """Record what came of reading a part."""
        ended = part.run.state == "terminated"
        part.bytes = max(part.bytes, size)
        if complete and (ended or part.state == "following") and not part.again:
            part.state = "final"
        elif part.again:
            part.state, part.again, part.not_before = "due", False, now
        elif again and part.tries < MAX_TRIES:
            part.tries += 1
            part.state, part.not_before = "due", now + min(0.5 * 2.0**part.tries, 20.0)
        elif part.bytes:
            part.state = "partial"
        else:
            part.state = "gone"

    def handled(self) -> list[list[Any]]:
        """Keys of the runs and pods that ended with this attempt, for the record; what still runs may fail later."""
        keys = {part.key for part in self.parts.values() if part.run.state == "terminated"}
        ended = (view(pod) for pod in self.objects.values())
        keys.update((pod.uid, "", 0) for pod in ended if pod.over or pod.deleting or not pod.runs)
        return [list(key) for key in sorted(keys)]

    def ending(self, views: Mapping[str, Pod], now: float, settings: Settings) -> str | None:
        """How the incident ended, None if it goes on. `views`: the living pods of the job."""
        waiting = any(not part.settled for part in self.parts.values())
        living = [pod for pod in views.values() if not pod.over]
        if self.state.phase != "running":
            if self.terminal_since is None:
                self.terminal_since = now
            if (not waiting and not living) or now - self.terminal_since > settings.drain_seconds:
                return self.state.phase
            return None
        self.terminal_since = None
        if now - self.opened > settings.open_seconds:
            return "open_limit"
        quiet = now - self.quiet_since > settings.settle_seconds
        unsafe = any(p.state in ("due", "reading") and p.run.state == "terminated" for p in self.parts.values())
        return "restarted" if quiet and not unsafe and self._runs_again(views) else None

    def _runs_again(self, views: Mapping[str, Pod]) -> bool:
        """True if something of the job started after the last failure and runs."""
        last = max((p.run.finished or 0 for p in self.parts.values() if p.run.failed), default=0)
        started = [run.started or 0 for pod in views.values() for run in pod.runs if run.state == "running"]
        return any(start >= last for start in started) and not any(
            run.failed and not run.previous for pod in views.values() for run in pod.runs
        )


def incident_id(cluster: str, job: JobRef, attempt: int) -> str:
    """`k8s-<cluster>-<namespace>-<job uid>-<attempt>`, safe as a name for keys."""
    return safe_name(f"k8s-{safe_name(cluster)}-{job.namespace}-{job.uid}-{attempt}")
