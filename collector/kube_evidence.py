"""What the objects around a failed job say, as evidence: masked JSON, sentences for the signatures, exits as rows.

The sentences are the ones that `kubectl describe` prints, because the signatures know those; each carries the node, the
rank and the time of the object it was made of. Everything here is a pure function of JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from collector.data import lookup
from collector.kube_jobs import JobState, Kind, accelerators, dig, is_launcher, number, told, world_of
from collector.kube_pods import Failure, micros, runs_of, unschedulable
from collector.model import Origin

OBJECTS_PATH = "kubernetes/objects"
EVENTS_PATH = "kubernetes/events"
_PER_FILE = 100
_MASKED = "[masked]"
_NOISE = ("kubectl.kubernetes.io/last-applied-configuration",)


def masked(item: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an object with the values of its environment masked, and without what only the server needs."""
    return {key: _masked(key, value) for key, value in item.items() if key != "managedFields"}


def _masked(key: str, value: Any) -> Any:
    if key == "env" and isinstance(value, list):
        return [_variable(each) if isinstance(each, Mapping) else each for each in value]
    if key == "annotations" and isinstance(value, Mapping):
        return {name: text for name, text in value.items() if name not in _NOISE}
    if isinstance(value, Mapping):
        return {k: _masked(k, v) for k, v in value.items() if k != "managedFields"}
    if isinstance(value, list):
        return [_masked(key, each) if isinstance(each, Mapping) else each for each in value]
    return value


def _variable(variable: Mapping[str, Any]) -> dict[str, Any]:
    shown = str(variable.get("name") or "").startswith(tuple(lookup("job_kinds")["environment"]))
    return {k: (v if k != "value" or shown else _MASKED) for k, v in variable.items()}


def place_of(kind: Kind, pod: Mapping[str, Any], attempt: int, processes: int | None, alone: bool) -> Origin:
    """Whose log a pod's is: its node, and the rank if one process runs in it.

    `alone`: no other pod of the job is on that node; else the pod's name stands for the node, so that two pods' local
    ranks are not taken for one.
    """
    node = dig(pod, "spec.nodeName") if alone else None
    index = number(pod, kind.index)
    one = processes == 1 or (processes is None and accelerators(pod) <= 1 and not _launches(pod))
    rank = index if one and not is_launcher(kind, pod) else None
    return Origin(node or str(dig(pod, "metadata.name")), rank, attempt=attempt)


def _launches(pod: Mapping[str, Any]) -> bool:
    """True if a launcher in the pod starts several ranks, as far as its command and environment tell."""
    if (told(pod, "env:PET_NPROC_PER_NODE") or "1") not in ("1", "auto", "cpu"):
        return True
    for container in dig(pod, "spec.containers") or []:
        words = " ".join(map(str, [*(container.get("command") or []), *(container.get("args") or [])]))
        if any(
            word in words for word in ("torchrun", "torch.distributed", "accelerate launch", "deepspeed ", "mpirun")
        ):
            return True
    return False


def world_size(kind: Kind, job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> int | None:
    """Ranks of the job, where pods and processes per pod are both known."""
    ranks = [pod for pod in pods if not is_launcher(kind, pod)]
    count, processes = world_of(kind, job)
    if processes is None and ranks and all(accelerators(pod) <= 1 and not _launches(pod) for pod in ranks):
        processes = 1
    return count * processes if count and processes else None


def pod_lines(pod: Mapping[str, Any], signs: Iterable[Failure], place: Origin) -> Iterator[dict[str, Any]]:
    """Rows of `log_lines`: what the kubelet states about a pod, one sentence each."""
    name = dig(pod, "metadata.name")
    for failure in signs:
        yield _line(f"pod {name}: {failure.text}", failure.at, place, "kubernetes/pods")
    for run in runs_of(pod):
        if run.failed and run.message:
            for text in run.message.splitlines()[-20:]:
                yield _line(f"pod {name}: termination message: {text}", run.finished, place, "kubernetes/pods")
        elif run.state == "waiting" and run.reason == "CrashLoopBackOff":
            yield _line(f"pod {name}: container {run.container} waits: {run.reason}", None, place, "kubernetes/pods")
    why = unschedulable(pod)
    if why:
        yield _line(f"pod {name}: was not scheduled: {why}", None, place, "kubernetes/pods")


def _line(text: str, at: int | None, place: Origin, path: str) -> dict[str, Any]:
    return {
        "attempt": place.attempt, "path": path, "line": 0, "offset": 0, "part": 0, "node": place.node,
        "rank": place.rank, "issuer": "scheduler", "at_lo": at, "at_hi": None if at is None else at + 999_999,
        "text": text,
    }  # fmt: skip


def job_lines(kind: Kind, job: Mapping[str, Any] | None, state: JobState, attempt: int) -> Iterator[dict[str, Any]]:
    """Rows of `log_lines`: how the job object ended, in the words of its controller."""
    if state.phase in ("failed", "deleted"):
        at = None
        for condition in dig(job, "status.conditions") or []:
            if condition.get("reason") == state.reason:
                at = micros(condition.get("lastTransitionTime"))
        text = f"{kind.kind} {dig(job, 'metadata.name') or ''} {state.phase}. Reason: {state.reason}: {state.message}"
        yield _line(text, at, Origin(attempt=attempt), "kubernetes/job")


def event_lines(
    events: Iterable[Mapping[str, Any]], places: Mapping[str, Origin], attempt: int
) -> Iterator[dict[str, Any]]:
    """Rows of `log_lines`: the Events about the job, its pods and nodes, as `kubectl describe` lists them.

    `places`: uid of a pod -> its origin. An Event's time is an interval from its first to its last occurrence.
    """
    for event in events:
        about = event.get("involvedObject") or event.get("regarding") or {}
        place = places.get(str(about.get("uid")), Origin(attempt=attempt))
        if about.get("kind") == "Node":
            place = Origin(str(about.get("name")), attempt=attempt)
        first = event.get("eventTime") or event.get("firstTimestamp") or dig(event, "metadata.creationTimestamp")
        who = dig(event, "source.component") or event.get("reportingComponent") or ""
        text = f"{event.get('type', 'Normal')}  {event.get('reason')}  {who}  {about.get('kind')}/{about.get('name')}  "
        text += " ".join(str(event.get("message") or event.get("note") or "").split())
        row = _line(text, micros(first), place, EVENTS_PATH)
        last = micros(event.get("lastTimestamp"))
        if last is not None and row["at_lo"] is not None:
            row["at_hi"] = max(last, row["at_lo"]) + 999_999
        yield row


def node_lines(nodes: Iterable[Mapping[str, Any]], attempt: int) -> Iterator[dict[str, Any]]:
    """Rows of `log_lines`: conditions of nodes that are not as they should be."""
    for node in nodes:
        name = str(dig(node, "metadata.name"))
        place = Origin(name, attempt=attempt)
        for condition in dig(node, "status.conditions") or []:
            good = "True" if condition.get("type") == "Ready" else "False"
            if condition.get("status") != good:
                what = "NodeNotReady" if condition.get("type") == "Ready" else str(condition.get("type"))
                text = f"node {name}: {what} ({condition.get('status')}), Reason: {condition.get('reason')}: "
                text += str(condition.get("message") or "")
                yield _line(text, micros(condition.get("lastTransitionTime")), place, "kubernetes/nodes")


_EVENTS = {"oom": "oom", "evicted": "evicted", "lost": "node_fail", "deleted": "cancelled"}


def exit_rows(pod: Mapping[str, Any], signs: Iterable[Failure], place: Origin) -> Iterator[dict[str, Any]]:
    """Rows of `scheduler_events`: how each container of a pod ended.

    A container that ended after its pod was told to go was stopped, whatever code it left with.
    """
    asked = micros(dig(pod, "metadata.deletionTimestamp"))
    grace = int(dig(pod, "metadata.deletionGracePeriodSeconds") or 0) * 1_000_000
    for failure in signs:
        run = next((r for r in runs_of(pod) if (r.container, r.number) == (failure.container, failure.number)), None)
        code = run.exit_code if run is not None else None
        signal = (run.signal or (code - 128 if code and 128 < code < 160 else None)) if run is not None else None
        event = _EVENTS.get(failure.kind, "signal" if signal else "exit")
        stopped = asked is not None and failure.at is not None and failure.at >= asked - grace - 1_000_000
        if stopped and failure.kind != "oom":
            event = "teardown"
        yield {
            "node": place.node, "rank": place.rank, "attempt": place.attempt, "path": "kubernetes/pods",
            "at_lo": failure.at, "at_hi": None if failure.at is None else failure.at + 999_999, "event": event,
            "code": code, "signal": signal, "text": f"pod {dig(pod, 'metadata.name')}: {failure.text}",
        }  # fmt: skip


def numbered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `log_lines` in time, each with a line number in its own path, so that it can be cited."""
    count: Counter[str] = Counter()
    placed = []
    for row in sorted(rows, key=lambda row: (row["path"], row["at_lo"] is None, row["at_lo"] or 0)):
        count[row["path"]] += 1
        placed.append({**row, "line": count[row["path"]]})
    return placed


def json_files(objects: Sequence[Mapping[str, Any]], stem: str) -> Iterator[tuple[str, bytes]]:
    """(path, content): objects as JSON lists of limited length, readable with `kubectl` tools and jq."""
    for start in range(0, len(objects), _PER_FILE):
        page = {"apiVersion": "v1", "kind": "List", "items": list(objects[start : start + _PER_FILE])}
        text = json.dumps(page, ensure_ascii=False, indent=1, default=str)
        yield f"{stem}-{start // _PER_FILE:03d}.json", text.encode("utf-8", "replace")


def first_failure(found: Iterable[Failure]) -> Failure | None:
    """The one to name when an incident opens: the earliest with a time, else any."""
    listed = list(found)
    return min(listed, key=lambda failure: (failure.at is None, failure.at or 0), default=None)
