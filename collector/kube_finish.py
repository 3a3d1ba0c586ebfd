"""Closes an incident: objects and sentences to the store, analysis, and the verdict where people look for it.

Each step may be repeated at any time: parts have fixed names, the Event has a name made of the incident's, and an
annotation is what it is. So nothing has to be known about how far a killed controller had come.
"""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from collector.collect import Masking, collect, mask_lines
from collector.kube_api import Api, Conflict, KubeError, NotFound, path_of
from collector.kube_evidence import (
    EVENTS_PATH,
    OBJECTS_PATH,
    event_lines,
    exit_rows,
    job_lines,
    json_files,
    masked,
    node_lines,
    numbered,
    place_of,
    pod_lines,
    world_size,
)
from collector.kube_incident import Incident
from collector.kube_jobs import accelerators, dig, world_of
from collector.kube_pods import Failure, micros, runs_of
from collector.kube_settings import Settings
from collector.lake import HEAD, expected_rows, read_raw
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, LogLine, Origin, Outcome, RunRef
from collector.pseudonyms import Pseudonymiser
from collector.store import Store, StoreError

SIGNS_PATH = "kubernetes/signs"
ANNOTATION = "firstfault.dev/verdict"
ANNOTATION_INCIDENT = "firstfault.dev/incident"
_RECENT = 3.0
"""Seconds for which an answer of the API about events and nodes is used again."""
_MESSAGE = 1000
"""Events carry at most 1,024 characters."""


def places(incident: Incident) -> dict[str, Origin]:
    """Pod uid -> whose log it is."""
    kind = incident.job.kind
    _, processes = world_of(kind, incident.job_object)
    nodes = Counter(dig(pod, "spec.nodeName") for pod in incident.objects.values())
    return {
        uid: place_of(kind, pod, incident.attempt, processes, nodes[dig(pod, "spec.nodeName")] == 1)
        for uid, pod in incident.objects.items()
    }


def place(incident: Incident, uid: str) -> Origin | None:
    """The same for one pod, without looking at the others more than needed."""
    pod = incident.objects.get(uid)
    if pod is None:
        return None
    node = dig(pod, "spec.nodeName")
    shared = sum((other.get("spec") or {}).get("nodeName") == node for other in incident.objects.values())
    _, processes = world_of(incident.job.kind, incident.job_object)
    return place_of(incident.job.kind, pod, incident.attempt, processes, shared == 1)


class _Objects:
    """Source of what the API said, as small files."""

    name = "kube_objects"

    def __init__(
        self, incident: Incident, events: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
    ) -> None:
        self._files: list[tuple[str, bytes]] = []
        if incident.job_object is not None:
            self._files += json_files([incident.job_object], "kubernetes/job")
        self._files += json_files(list(incident.objects.values()), OBJECTS_PATH)
        signs = [{"uid": uid, **asdict(failure)} for (uid, _), failure in incident.seen.items()]
        self._files += json_files(signs, SIGNS_PATH)
        self._files += json_files(events, EVENTS_PATH)
        self._files += json_files(nodes, "kubernetes/nodes")

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        for path, content in self._files:
            yield Artifact(
                ArtifactKind.SCHEDULER, path, Origin(), len(content), partial(io.BytesIO, content), time.time()
            )


class Finisher:
    """Writes heads and notifies. The store's errors are the caller's to try again."""

    def __init__(self, api: Api, store: Store, settings: Settings, names: Pseudonymiser | None = None) -> None:
        self._api, self._store, self._settings, self._names = api, store, settings, names
        self._recent: dict[str, tuple[float, list[dict[str, Any]]]] = {}
        """What was asked -> (monotonic seconds, answer): fifty jobs that fail at once share a namespace."""

    def head(self, incident: Incident) -> None:
        """Write what the objects say as origin `head`. Raises StoreError."""
        # other threads go on taking pods in: everything here speaks of one moment
        incident = replace(
            incident, objects=dict(incident.objects), seen=dict(incident.seen), parts=dict(incident.parts)
        )  # fmt: skip
        rows = list(self._missing(incident))
        events, nodes = self._events(incident, rows), self._nodes(incident, rows)
        where = places(incident)
        lines: list[dict[str, Any]] = []
        exits: list[dict[str, Any]] = []
        for uid, pod in incident.objects.items():
            signs = incident.signs(uid)
            lines.extend(pod_lines(pod, signs, where[uid]))
            exits.extend(exit_rows(pod, signs, where[uid]))
        lines.extend(job_lines(incident.job.kind, incident.job_object, incident.state, incident.attempt))
        lines.extend(event_lines(events, where, incident.attempt))
        lines.extend(node_lines(nodes, incident.attempt))
        extra = {"log_lines": self._hidden(numbered(lines)), "scheduler_events": exits, "ledger": rows}
        extra["incidents"] = [self._summary(incident)]
        run = RunRef(incident.id, "kubernetes", incident.job.name, self._settings.cluster, incident.attempt)
        collect(
            run, [_Objects(incident, events, nodes)], Budget(), self._store, origin=HEAD,
            masking=Masking(names=self._names), extra=extra,
        )  # fmt: skip

    def _hidden(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Secrets in events and termination messages, and names, are masked like those in logs."""
        names = [*LogLine._fields]
        lines, _ = mask_lines([LogLine._make([row.get(name) for name in names]) for row in rows], Masking())
        for row, line in zip(rows, lines, strict=True):
            row["text"] = line.text if self._names is None else self._names.text(line.text)
            if self._names is not None and row["node"]:
                row["node"] = self._names.host(row["node"])
        return rows

    def _missing(self, incident: Incident) -> Iterator[dict[str, Any]]:
        """Who must report, so that an absent part is seen as absent; and pods that never ran."""
        where = places(incident)
        origins = [
            (part.origin, where[part.pod.uid].node, where[part.pod.uid].rank)
            for part in incident.parts.values() if part.pod.uid in where
        ]  # fmt: skip
        yield from expected_rows(incident.id, origins)
        ran = {part.pod.uid for part in incident.parts.values()}
        for uid, pod in incident.objects.items():
            if uid not in ran:
                why = "no container of it ever ran"
                yield _row(f"pods/{dig(pod, 'metadata.name')}", Outcome.EMPTY, why, where[uid])

    def _events(self, incident: Incident, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        about = {incident.job.uid, *incident.objects}
        names = {str(dig(pod, "spec.nodeName")) for pod in incident.objects.values()}
        try:
            listed = self._list(path_of("v1", "events", incident.job.namespace))
            found = [e for e in listed if dig(e, "involvedObject.uid") in about or _names_job(e, incident)]
            for name in sorted(names - {"None"})[:200]:
                selector = f"involvedObject.kind=Node,involvedObject.name={name}"
                found += self._list(path_of("v1", "events", "default"), selector)
        except KubeError as error:
            rows.append(_row("kubernetes/events", _outcome(error), error.message, Origin()))
            return []
        return [masked(event) for event in found]

    def _nodes(self, incident: Incident, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for name in sorted({str(dig(pod, "spec.nodeName")) for pod in incident.objects.values()} - {"None"}):
            try:
                found.append(self._node(name))
            except KubeError as error:
                rows.append(_row(f"kubernetes/nodes/{name}", _outcome(error), error.message, Origin(name)))
        return found

    def _list(self, path: str, selector: str | None = None) -> list[dict[str, Any]]:
        key = f"{path}?{selector}"
        known = self._recent.get(key)
        if known is None or time.monotonic() - known[0] > _RECENT:
            if len(self._recent) > 1000:
                self._recent.clear()
            listed = [item for _, item in self._api.list(path, fieldSelector=selector) if item]
            self._recent[key] = known = (time.monotonic(), listed)
        return known[1]

    def _node(self, name: str) -> dict[str, Any]:
        path = path_of("v1", "nodes", None, name)
        known = self._recent.get(path)
        if known is None or time.monotonic() - known[0] > _RECENT:
            node = masked(self._api.get(path))
            (node.get("status") or {}).pop("images", None)
            self._recent[path] = known = (time.monotonic(), [node])
        return known[1][0]

    def _summary(self, incident: Incident) -> dict[str, Any]:
        pods = list(incident.objects.values())
        runs = [run for pod in pods for run in runs_of(pod)]
        nodes = sorted({str(dig(pod, "spec.nodeName")) for pod in pods} - {"None"})
        return {
            "scheduler": "kubernetes", "cluster": self._settings.cluster, "job": incident.job.uid,
            "name": f"{incident.job.namespace}/{incident.job.name}", "user": None,
            "state": incident.state.reason or incident.closed or incident.state.phase,
            "exit_code": next((run.exit_code for run in runs if run.failed and run.exit_code is not None), None),
            "world_size": world_size(incident.job.kind, incident.job_object, pods),
            "nodes": [self._names.host(node) for node in nodes] if self._names else nodes,
            "gpus": sum(map(accelerators, pods)) or None, "attempts": incident.attempt + 1,
            "started": min((at for pod in pods if (at := micros(dig(pod, "status.startTime")))), default=None),
            "ended": max((run.finished for run in runs if run.finished), default=None),
        }  # fmt: skip

    def remembered(self, incident: Incident) -> None:
        """Fill in what an earlier controller had written of an incident. Raises StoreError."""
        for row in read_raw(self._store, "artifacts", incident.id).to_pylist():
            stem = str(row["path"])
            if not stem.startswith((OBJECTS_PATH, SIGNS_PATH, "kubernetes/job")):
                continue
            for item in json.loads(row["content"]).get("items", []):
                if stem.startswith(SIGNS_PATH):
                    uid = item.pop("uid")
                    incident.seen.setdefault((uid, item["text"]), Failure(**item))
                elif stem.startswith(OBJECTS_PATH):
                    if str(dig(item, "metadata.uid")) not in incident.objects:
                        incident.update(item, time.time())
                elif incident.job_object is None:
                    incident.job_object = item

    # --- telling people -----------------------------------------------------------------------------------------------

    def tell(self, incident: Incident, answer: Mapping[str, Any]) -> list[str]:
        """Event and annotation on the job object; what could not be written, in words. Never raises."""
        problems = []
        if self._settings.annotate:
            body = {"metadata": {"annotations": {
                ANNOTATION: one_line(answer)[:_MESSAGE], ANNOTATION_INCIDENT: incident.id,
            }}}  # fmt: skip
            try:
                self._api.patch(incident.job.path, body)
            except NotFound:
                pass
            except KubeError as error:
                problems.append(f"annotation: {error}")
        if self._settings.events:
            try:
                self._event(incident, answer)
            except KubeError as error:
                problems.append(f"event: {error}")
        return problems

    def _event(self, incident: Incident, answer: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        job = incident.job
        body = {
            "metadata": {"name": f"firstfault.{incident.id}"[-240:].lstrip("-."), "namespace": job.namespace},
            "involvedObject": {
                "apiVersion": job.api_version, "kind": job.kind.kind, "name": job.name, "namespace": job.namespace,
                "uid": job.uid,
            },
            "type": "Warning", "reason": "FirstFault", "message": one_line(answer)[:_MESSAGE],
            "source": {"component": "firstfault"}, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        try:
            self._api.json("POST", path_of("v1", "events", job.namespace), None, body)
        except Conflict:
            name = body["metadata"]["name"]  # type: ignore[index]
            self._api.patch(path_of("v1", "events", job.namespace, name), {"message": body["message"]})


def one_line(answer: Mapping[str, Any]) -> str:
    """The verdict for a person in one line: status, title, ranks and nodes, the line that proves it."""
    verdict = answer.get("verdict") or {}
    text = f"{verdict.get('status', 'undetermined')}: {verdict.get('title') or 'no verdict'}"
    ranks, nodes = verdict.get("ranks") or [], verdict.get("nodes") or []
    if ranks:
        text += f" [rank {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}]"
    if nodes:
        text += f" on {', '.join(map(str, nodes[:4]))}{', ...' if len(nodes) > 4 else ''}"
    evidence = verdict.get("evidence") or []
    if evidence:
        text += f" | {evidence[0].get('path')}:{evidence[0].get('line')}: {str(evidence[0].get('text'))[:300]}"
    return text


def _names_job(event: Mapping[str, Any], incident: Incident) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("kind") == incident.job.kind.kind and about.get("name") == incident.job.name


def _outcome(error: KubeError) -> Outcome:
    return Outcome.REFUSED if error.status in (401, 403) else Outcome.UNREACHABLE


def _row(path: str, outcome: Outcome, detail: str, place: Origin) -> dict[str, Any]:
    return {
        "source": "kube_objects", "path": path, "kind": ArtifactKind.SCHEDULER.value, "node": place.node,
        "rank": place.rank, "attempt": place.attempt, "outcome": outcome.value, "bytes_seen": 0, "bytes_kept": 0,
        "detail": detail,
    }  # fmt: skip


__all__ = ["ANNOTATION", "Finisher", "StoreError", "one_line", "places"]
