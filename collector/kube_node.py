"""The node agent: keeps the logs of failed pods of its own node, and reports what the controller did not.

A lost controller must lose nothing, and a log must not be there twice. So the agent puts a failed pod's log on its own
disk at once, and only later, when the controller had its time, looks what stands in the store: where the controller
reported, it adds the older segments and the node's own state; where it did not, it reports the whole log under the name
that the controller would have used.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector.collect import Masking, collect
from collector.kube_api import Api, KubeError, path_of
from collector.kube_evidence import masked, place_of
from collector.kube_incident import Part, incident_id
from collector.kube_jobs import JobRef, Owners, kind_of, number
from collector.kube_pods import Pod, Run, failures, view
from collector.kube_record import Records
from collector.kube_reflect import Reflector
from collector.kube_settings import Settings
from collector.kube_ship import Shipper, Staged, stage_rows
from collector.lake import raw_key, safe_name
from collector.model import ArtifactKind, Budget, LedgerEntry, Outcome, RunRef
from collector.pseudonyms import Pseudonymiser
from collector.sources.node_agent import NodeState, Segment, lines, segments
from collector.spool import Spool
from collector.store import Store, StoreError


@dataclass(slots=True)
class _Kept:
    """A failed pod whose logs lie on this node's disk."""

    item: dict[str, Any]
    pod: Pod
    since: float
    """Monotonic seconds of the first failure."""
    logs: dict[tuple[str, int], list[tuple[Segment, Path]]] = field(default_factory=dict)
    """(container, run) -> its segments and where their lines are kept."""


class NodeAgent:
    """One node's agent."""

    def __init__(
        self, api: Api, store: Store, spool: Spool, settings: Settings, node: str, pods: Path, *,
        state: NodeState | None = None, patience: float = 120.0, names: Pseudonymiser | None = None,
    ) -> None:  # fmt: skip
        """`pods`: the folder /var/log/pods; `patience`: seconds that the controller has before this agent reports."""
        self._api, self._store, self._settings, self._node, self._pods = api, store, settings, node, pods
        self._state, self._patience, self._names = state or NodeState(node), patience, names
        self._owners, self._records = Owners(api), Records(store, spool, settings.cluster)
        self.shipper = Shipper(spool, store, names=names)
        self._folder = spool.path / "kept"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700)
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self.counts: Counter[str] = Counter()
        self.trouble: str | None = None
        self.reflector = Reflector(
            api, path_of("v1", "pods"), view, self._on_pod, fieldSelector=f"spec.nodeName={node}"
        )  # fmt: skip
        self._thread = threading.Thread(target=self._loop, name="node agent", daemon=True)

    def start(self) -> None:
        """Begin."""
        for each in (self.shipper, self.reflector, self._thread):
            each.start()

    def stop(self) -> None:
        """Stop."""
        self._halt.set()
        self.reflector.stop()
        self.shipper.stop()
        for thread in (self._thread, self.shipper):
            thread.join(10.0)

    def _on_pod(self, kind: str, item: Mapping[str, Any], before: Pod | None) -> None:
        """A pod that fails, or goes while its containers run: its files are copied before the kubelet removes them."""
        if not item:
            return
        pod = view(item)
        if pod.owner is None or kind_of(pod.owner[0], pod.owner[1]) is None or not failures(item):
            return
        with self._lock:
            kept = self._kept.setdefault(pod.uid, _Kept(masked(item), pod, time.monotonic()))
            kept.item, kept.pod = masked(item), pod
        self._keep(kept)

    def _keep(self, kept: _Kept) -> None:
        pod = kept.pod
        folder = f"{pod.namespace}_{pod.name}_{pod.uid}"
        for run in pod.runs:
            if run.state == "waiting":
                continue
            found = segments(self._pods, folder, run.container, run.number)
            if not found:
                continue
            copies: list[tuple[Segment, Path]] = []
            for index, segment in enumerate(found):
                target = self._folder / f"{pod.uid}.{run.container}.{run.number}.{index}"
                problems: list[str] = []
                with target.open("wb") as file:
                    for block in lines(self._pods, [segment], problems):
                        file.write(block)
                if problems:
                    self.trouble = problems[0]
                copies.append((segment, target))
            kept.logs[run.container, run.number] = copies

    def _loop(self) -> None:
        while not self._halt.wait(0.5):
            now = time.monotonic()
            for uid, kept in list(self._kept.items()):
                if now - kept.since < self._patience:
                    continue
                try:
                    self._report(kept)
                except (KubeError, StoreError, OSError) as error:
                    self.trouble = str(error)
                    kept.since = now - self._patience + 10.0
                    continue
                except Exception as error:  # one odd pod must not end the agent
                    self.trouble = f"{type(error).__name__}: {error}"
                    self.counts["internal_errors"] += 1
                with self._lock:
                    self._kept.pop(uid, None)
                for copies in kept.logs.values():
                    for _, path in copies:
                        path.unlink(missing_ok=True)

    def _report(self, kept: _Kept) -> None:
        owner = dict(zip(("apiVersion", "kind", "name", "uid"), kept.pod.owner or (), strict=True))
        job = self._owners.job(kept.pod.namespace, owner)
        if job is None:
            return
        incident, attempt = self._incident(job, kept)
        place = place_of(job.kind, kept.item, attempt, None, True)
        for run in kept.pod.runs:
            copies = kept.logs.get((run.container, run.number), [])
            part = Part(kept.pod, run)
            known = self._store.exists(raw_key("ledger", incident, part.origin))
            if known and len(copies) > 1:
                origin = safe_name(f"node-{safe_name(self._node)}-{part.origin}")
                self._stage(incident, origin, run, place, kept, copies[:-1], older=True)
            elif not known and copies:
                self._stage(incident, part.origin, run, place, kept, copies)
        collect(
            RunRef(incident, "kubernetes", job.name, self._settings.cluster, attempt), [self._state], Budget(),
            self._store, origin=safe_name(f"node-{self._node}"), masking=Masking(names=self._names),
        )  # fmt: skip
        self.counts["reported"] += 1

    def _incident(self, job: JobRef, kept: _Kept) -> tuple[str, int]:
        """The incident that the controller opened for this pod; else the one that it would have opened."""
        record = self._records.fresh_copy(job.uid)
        for row in reversed(record["attempts"]):
            handled = {str(key[0]) for key in row.get("handled", [])}
            if not row.get("closed") or kept.pod.uid in handled:
                return str(row["id"]), int(row["attempt"])
        counted = number(kept.item, tuple(s for s in job.kind.attempt if not s.startswith("path:")))
        attempt = self._records.next_attempt(job, counted)
        return incident_id(self._settings.cluster, job, attempt), attempt

    def _stage(
        self, incident: str, origin: str, run: Run, place: Any, kept: _Kept, copies: list[tuple[Segment, Path]],
        older: bool = False,
    ) -> None:  # fmt: skip
        name, folder = self.shipper.room(incident)
        with (folder / "log").open("wb") as file:
            for _, path in copies:
                with path.open("rb") as source:
                    shutil.copyfileobj(source, file)
        shown = f"pods/{kept.pod.name}/{run.container}/{run.number}.log" + (".older" if older else "")
        size = sum(segment.size for segment, _ in copies)
        row = LedgerEntry(
            "node_agent", shown, Outcome.COLLECTED, place, ArtifactKind.RANK_LOG, size, size,
            detail=f"{len(copies)} segments of the node's own files",
        )  # fmt: skip
        self.shipper.stage(name, Staged(incident, origin, shown, place, stage_rows([row])))
