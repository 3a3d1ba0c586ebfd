"""Which job a pod belongs to, and how the objects of that job are read: owner references and a table kept as data.

A pod is followed along its controlling owners; the topmost one with a row in `job_kinds.yaml` is the job. Nothing needs
a watch of the operator's own kind: the version to ask for stands in the owner reference, so that a kind that is not
installed is never asked for and one that is installed later needs no restart.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from collector.data import lookup
from collector.kube_api import Api, KubeError, NotFound, Refused, path_of

COLLECT_LABEL = "firstfault.dev/collect"
"""Label of a pod, job or namespace: "true" takes it in, "false" leaves it out, whatever its kind."""
_MAX_OWNERS = 6
_MAX_KNOWN = 20_000
_DIGITS = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table of job kinds (see signatures/_lookup/job_kinds.yaml for each field)."""

    kind: str
    groups: tuple[str, ...]
    plural: str
    select: str
    failed: tuple[str, ...] = ()
    succeeded: tuple[str, ...] = ()
    reason: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    attempt: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    outer: bool = True


@dataclass(frozen=True, slots=True)
class JobRef:
    """One job object of a cluster."""

    kind: Kind
    api_version: str
    namespace: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        """Its path in the API."""
        return path_of(self.api_version, self.kind.plural, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class JobState:
    """What the job object says of itself."""

    phase: str
    """running | failed | succeeded | deleted."""
    reason: str = ""
    message: str = ""


@cache
def kinds() -> tuple[Kind, ...]:
    """The table. Raises TypeError for a row with a field that nobody knows."""
    rows = lookup("job_kinds")["kinds"]
    made: list[dict[str, Any]] = [{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    return tuple(Kind(**fields) for fields in made)


def kind_of(api_version: str, kind: str) -> Kind | None:
    """The row of a kind, whatever its version."""
    group = api_version.rpartition("/")[0]
    return next((row for row in kinds() if row.kind == kind and group in row.groups), None)


def controller(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The controlling owner reference in an object's metadata; the only owner counts as one too."""
    owners = meta.get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), owners[0] if len(owners) == 1 else None)


class Owners:
    """Resolves pods to jobs, asking the API once per owner. Thread-safe."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, JobRef | None] = {}
        self._lock = threading.Lock()

    def job(self, namespace: str, owner: Mapping[str, Any] | None) -> JobRef | None:
        """The job above `owner` (a pod's controlling owner), or None if it is none of ours.

        Raises KubeError if the API did not answer; an owner that is gone is taken as the end of the chain.
        """
        if owner is None:
            return None
        uid = str(owner.get("uid"))
        with self._lock:
            if uid in self._known:
                return self._known[uid]
        found = self._climb(namespace, owner)
        with self._lock:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[uid] = found
        return found

    def _climb(self, namespace: str, owner: Mapping[str, Any] | None) -> JobRef | None:
        best: JobRef | None = None
        for _ in range(_MAX_OWNERS):
            if owner is None:
                break
            version, kind = str(owner.get("apiVersion", "")), kind_of(str(owner.get("apiVersion", "")), owner["kind"])
            if kind is None:
                break
            if best is None or kind.outer:
                best = JobRef(kind, version, namespace, str(owner["name"]), str(owner["uid"]))
            try:
                above = self._api.get(path_of(version, kind.plural, namespace, str(owner["name"])))
            except (NotFound, Refused):  # deleted with its pods, or a kind that we may not read: known by its name
                break
            owner = controller(above.get("metadata", {}))
        return best


def dig(found: Any, path: str) -> Any:
    """The value at a dotted path; None if a step is missing."""
    for step in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(step)
    return found


def state_of(kind: Kind, job: Mapping[str, Any] | None) -> JobState:
    """Whether a job runs, failed, succeeded or is gone (None, or on its way to be)."""
    if job is None:
        return JobState("deleted")
    for phase, tests in (("failed", kind.failed), ("succeeded", kind.succeeded)):
        for test in tests:
            if test.startswith("condition:"):
                named = test.partition(":")[2]
                conditions = dig(job, "status.conditions") or []
                met = next((c for c in conditions if c.get("type") == named and c.get("status") == "True"), None)
                if met is not None:
                    return JobState(phase, str(met.get("reason") or named), str(met.get("message") or ""))
            else:
                path, _, value = test.partition("=")
                if dig(job, path) == value:
                    said = [str(dig(job, p)) for p in kind.reason if dig(job, p)]
                    return JobState(phase, value, ": ".join(said))
    if dig(job, "metadata.deletionTimestamp"):
        return JobState("deleted", "deletionTimestamp")
    return JobState("running")


def world_of(kind: Kind, job: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    """(number of pods, processes per pod) as the job's specification says; None where it does not."""
    if job is None:
        return None, None
    return next((n for p in kind.pods if (n := _count(dig(job, p))) is not None), None), _processes(kind, job)


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    members = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else None
    if members is None or not all(isinstance(member, Mapping) for member in members):
        return None
    return sum(int(member.get("replicas", 1)) for member in members) or None


def _processes(kind: Kind, job: Mapping[str, Any]) -> int | None:
    for path in kind.processes:
        value = dig(job, path)
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            return int(value)
    return None


def told(pod: Mapping[str, Any], source: str) -> str | None:
    """What a pod says under `label:NAME`, `annotation:NAME`, `env:NAME` (literal values only) or `name`."""
    how, _, name = source.partition(":")
    if how in ("label", "annotation"):
        value = (dig(pod, f"metadata.{how}s") or {}).get(name)
        return None if value is None else str(value)
    if how == "env":
        for container in dig(pod, "spec.containers") or []:
            for variable in container.get("env") or []:
                if variable.get("name") == name and variable.get("value") is not None:
                    return str(variable["value"])
    if how == "name" and (match := _DIGITS.search(str(dig(pod, "metadata.name") or ""))):
        return match[1]
    return None


def number(pod: Mapping[str, Any], sources: tuple[str, ...]) -> int | None:
    """The first of `sources` that a pod answers with a number."""
    answers = (told(pod, source) for source in sources)
    return next((int(answer) for answer in answers if answer and answer.isdigit() and len(answer) < 10), None)


def is_launcher(kind: Kind, pod: Mapping[str, Any]) -> bool:
    """True for a pod that runs the launcher and no rank."""
    for test in kind.launcher:
        source, _, value = test.partition("=")
        if told(pod, source) == value:
            return True
    return False


def accelerators(pod: Mapping[str, Any]) -> int:
    """Accelerators that the pod's containers ask for."""
    wanted = 0
    for container in dig(pod, "spec.containers") or []:
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            if name.startswith(tuple(lookup("job_kinds")["accelerators"])) and str(amount).isdigit():
                wanted += int(amount)
    return wanted


def job_or_none(api: Api, job: JobRef) -> dict[str, Any] | None:
    """The job object, None if it is gone or another one of the same name stands there. Raises KubeError otherwise."""
    try:
        found = api.get(job.path)
    except NotFound:
        return None
    return found if dig(found, "metadata.uid") == job.uid else None


__all__ = [
    "COLLECT_LABEL", "JobRef", "JobState", "Kind", "KubeError", "Owners", "accelerators", "controller", "dig",
    "is_launcher", "job_or_none", "kind_of", "kinds", "number", "state_of", "told", "world_of",
]  # fmt: skip
