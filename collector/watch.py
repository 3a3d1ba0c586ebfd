"""The Kubernetes entrance: watches pods and takes the evidence of a failed job before it is deleted.

    watch (reflector) -> queue -> dispatcher: whose pod, did it fail? -> incident -> readers: logs to local disk
        -> shipper: parts to the store;  keeper: is the job over? -> finisher: objects, analysis, Event, annotation

Everything urgent happens on what the watch delivered, before any other question is asked of the API: the job object
may be gone already. Everything else can be killed and done again: names of parts are fixed, and what must be known is
in the store (`kube_record`) or in the cluster itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

from collector.kube_api import Api, KubeError, NotFound, path_of
from collector.kube_close import Closer
from collector.kube_evidence import first_failure, masked
from collector.kube_finalizer import Holder
from collector.kube_finish import Finisher, place
from collector.kube_incident import Incident, Part
from collector.kube_jobs import (
    COLLECT_LABEL,
    JobRef,
    Owners,
    accelerators,
    dig,
    job_or_none,
    kind_of,
    number,
    state_of,
)
from collector.kube_pods import Failure, Pod, failures, unschedulable, view
from collector.kube_reader import Readers
from collector.kube_record import Records
from collector.kube_reflect import Reflector
from collector.kube_settings import Settings
from collector.kube_ship import Analyse, Shipper
from collector.model import Origin
from collector.pseudonyms import Pseudonymiser
from collector.spool import Spool
from collector.store import Store, StoreError

_TICK = 0.5
_LATER = 2.0
_FEW = 8
_BY_ITSELF = ("exit", "oom", "restart")
"""Kinds of failure in which a container ended by itself; for others the job is looked at first."""


class Controller:
    """All of it, for one replica that leads. `start` returns at once; `stop` ends it."""

    def __init__(
        self, api: Api, store: Store, spool: Spool, settings: Settings, *, analyse: Analyse | None = None,
        names: Pseudonymiser | None = None,
    ) -> None:  # fmt: skip
        """`analyse`: makes the verdict of a closed incident; without it evidence is collected only."""
        self.api, self.settings = api, settings
        self.shipper = Shipper(spool, store, names=names)
        self.owners = Owners(api)
        self.records = Records(store, spool, settings.cluster)
        self._lock = threading.RLock()
        self.closer = Closer(Finisher(api, store, settings, names), self.records, self.shipper, analyse, self._lock)
        self.readers = Readers(api, self.shipper, settings, self._place, self._poke)
        self.incidents: dict[str, Incident] = {}
        """Job uid -> its open incident."""
        self.holder = Holder(api, settings.finalizer_seconds, self._on_disk) if settings.finalizer else None
        self.counts: Counter[str] = Counter()
        self.trouble: str | None = None
        self._queue: OrderedDict[str, tuple[float, str, dict[str, Any]]] = OrderedDict()
        self._wake, self._halt = threading.Event(), threading.Event()
        self._stuck: set[str] = set()
        self._next_look = 0.0
        self._namespaces: dict[str, tuple[float, dict[str, str]]] = {}
        self.reflectors = [
            Reflector(api, path_of("v1", "pods", namespace), view, self._on_pod)
            for namespace in (settings.namespaces or (None,))
        ]
        self._threads = [
            threading.Thread(target=self._loop, args=(work, pause), name=work.__name__, daemon=True)
            for work, pause in ((self._dispatch, 0.1), (self._keep, _TICK), (self._finish, 1.0))
        ]

    def start(self) -> None:
        """Begin; incidents that an earlier controller left open go on."""
        for each in (self.shipper, *self.reflectors):
            each.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; what is on local disk stays there for the next start."""
        self._halt.set()
        self._wake.set()
        for reflector in self.reflectors:
            reflector.stop()
        self.readers.stop()
        self.shipper.stop()
        for thread in (self.shipper, *self._threads):
            if thread.is_alive():
                thread.join(10.0)

    @property
    def synced(self) -> bool:
        """True once all pods were seen."""
        return all(reflector.synced.is_set() for reflector in self.reflectors)

    @property
    def alive(self) -> bool:
        """False if a thread ended that must not."""
        return all(thread.is_alive() for thread in (self.shipper, *self.reflectors, *self._threads))

    def _poke(self) -> None:
        self._wake.set()

    def _loop(self, work: Any, pause: float) -> None:
        resumed = False
        while not self._halt.is_set():
            try:
                if work == self._keep and not resumed:
                    resumed = self._resume()
                work()
            except Exception as error:  # one bad object must not end the loop for all jobs
                self.trouble = f"{work.__name__}: {type(error).__name__}: {error}"
                self.counts["internal_errors"] += 1
                self._halt.wait(1.0)
            if work == self._dispatch:
                self._wake.wait(pause)
                self._wake.clear()
            else:
                self._halt.wait(pause)

    # --- from the watch -----------------------------------------------------------------------------------------------

    def _on_pod(self, kind: str, item: Mapping[str, Any], before: Pod | None) -> None:
        """Called by the watch's thread: keep it short, ask nobody."""
        if not item:
            return
        meta = item["metadata"]
        if str(meta.get("namespace")) in self.settings.excluded:
            return
        owner = view(item).owner
        if owner is None or kind_of(owner[0], owner[1]) is None:
            return
        held = self.holder is not None
        known = held or any(meta["uid"] in incident.objects for incident in list(self.incidents.values()))
        if known or self.incidents or failures(item) or unschedulable(item):
            with self._lock:
                self._queue[str(meta["uid"])] = (0.0, kind, masked(item))
            self._wake.set()

    def _dispatch(self) -> None:
        while not self._halt.is_set():
            now = time.time()
            with self._lock:
                ready = next((uid for uid, (due, _, _) in self._queue.items() if due <= now), None)
                if ready is None:
                    return
                _, kind, item = self._queue.pop(ready)
            try:
                self._handle(kind, item, now)
            except KubeError as error:
                self.trouble = str(error)
                with self._lock:
                    self._queue.setdefault(ready, (now + _LATER, kind, item))

    def _handle(self, kind: str, item: dict[str, Any], now: float) -> None:
        pod = view(item)
        assert pod.owner is not None
        owner = dict(zip(("apiVersion", "kind", "name", "uid"), pod.owner, strict=True))
        job = self.owners.job(pod.namespace, owner)
        if job is None or not self._selected(job, item):
            return
        self._take_note(job, pod, item, now)
        if self.holder is not None and kind != "DELETED":
            self.holder.seen(item)

    def _take_note(self, job: JobRef, pod: Pod, item: dict[str, Any], now: float) -> None:
        with self._lock:
            incident = self.incidents.get(job.uid)
        if incident is None:
            found = self._new_failures(job, pod, item, now)
            if found:
                self._open(job, item, found, now)
            return
        with self._lock:
            before = sum(part.run.failed for part in incident.parts.values())
            self._take(incident, item, now)
            if sum(part.run.failed for part in incident.parts.values()) > before:
                incident.quiet_since = now

    def _take(self, incident: Incident, item: dict[str, Any], now: float) -> None:
        incident.update(item, now)
        for part in list(incident.due(now)):
            self.readers.start(incident, part, self._lock)

    def _new_failures(self, job: JobRef, pod: Pod, item: dict[str, Any], now: float) -> list[Failure]:
        """Failures of a pod that no earlier attempt had and that are young enough to matter."""
        handled = self.records.handled(job.uid)
        oldest = (now - self.settings.max_age_seconds) * 1_000_000
        found = [
            failure
            for failure in failures(item)
            if (pod.uid, failure.container or "", failure.number or 0) not in handled
            and (failure.at or oldest) >= oldest
        ]
        waits = now - (pod.created or 0) / 1_000_000 > self.settings.pending_seconds
        why = unschedulable(item)
        if why and pod.node is None and not found and waits and (pod.uid, "", 0) not in handled:
            found.append(Failure("never_ran", f"no node for {self.settings.pending_seconds:g} s: {why}"))
        return found

    def _open(self, job: JobRef, item: dict[str, Any], found: list[Failure], now: float) -> None:
        first = first_failure(found)
        counted = number(item, tuple(source for source in job.kind.attempt if not source.startswith("path:")))
        incident = self.records.fresh(
            job, counted, now, f"pod {dig(item, 'metadata.name')}: {first.text if first else ''}"
        )
        incident.poll = self.settings.poll_seconds
        before = self.records.closed(job.uid)
        urgent = not before and any(failure.kind in _BY_ITSELF for failure in found)
        if urgent:
            with self._lock:
                self._take(incident, item, now)  # its own log before any question
        self._refresh(incident)
        if self._is_aftermath(incident, found, before):
            self.counts["ignored"] += 1
            with self._lock:
                incident.void, incident.closed = True, incident.state.phase
            self.readers.release(incident)
            return
        if not urgent:
            with self._lock:
                self._take(incident, item, now)
        with self._lock:
            self.incidents[job.uid] = incident
        self.counts["resumed" if incident.resumed else "opened"] += 1
        if incident.resumed:
            try:
                self.closer.finisher.remembered(incident)
            except StoreError as error:
                self.trouble = str(error)
        self._fetch_peers(incident, [peer for peer in self._peers(job) if peer.uid not in incident.objects], now)
        self.records.save(incident)

    @staticmethod
    def _is_aftermath(incident: Incident, found: list[Failure], before: bool) -> bool:
        """True for pods that are cleared away after their job has ended, well or with an incident of its own.

        A child that the kernel killed is a failure even of a job that succeeded.
        """
        if incident.state.phase == "succeeded":
            return before or all(failure.kind != "oom" for failure in found)
        return before and incident.state.phase != "running"

    def _fetch_peers(self, incident: Incident, peers: list[Pod], now: float) -> None:
        """The whole objects of other pods of the job: one by one if they are few, else by listing the namespace."""
        namespace = incident.job.namespace
        if len(peers) > _FEW:
            wanted = {peer.uid for peer in peers}
            for _, item in self.api.list(path_of("v1", "pods", namespace)):
                if item and item["metadata"]["uid"] in wanted:
                    with self._lock:
                        self._take(incident, masked(item), now)
            return
        for peer in peers:
            try:
                item = masked(self.api.get(path_of("v1", "pods", namespace, peer.name)))
            except NotFound:
                continue
            with self._lock:
                self._take(incident, item, now)

    def _peers(self, job: JobRef) -> list[Pod]:
        """The living pods of a job: those of one owner share it, and owners are asked about once."""
        found = []
        answers: dict[str, bool] = {}
        for reflector in self.reflectors:
            for pod in list(reflector.views.values()):
                if pod.namespace != job.namespace or pod.owner is None:
                    continue
                uid = pod.owner[3]
                if uid not in answers:
                    owner = dict(zip(("apiVersion", "kind", "name", "uid"), pod.owner, strict=True))
                    above = (
                        self.owners.job(pod.namespace, owner) if kind_of(owner["apiVersion"], owner["kind"]) else None
                    )
                    answers[uid] = above is not None and above.uid == job.uid
                if answers[uid]:
                    found.append(pod)
        return found

    def _selected(self, job: JobRef, item: Mapping[str, Any]) -> bool:
        labels = dig(item, "metadata.labels") or {}
        said = labels.get(COLLECT_LABEL) or self._namespace_labels(job.namespace).get(COLLECT_LABEL)
        if said in ("true", "false"):
            return bool(said == "true")
        if self.settings.opt_in:
            return False
        return job.kind.select == "always" or accelerators(item) > 0

    def _namespace_labels(self, namespace: str) -> dict[str, str]:
        known = self._namespaces.get(namespace)
        if known is None or time.monotonic() - known[0] > 60:
            try:
                labels = dig(self.api.get(path_of("v1", "namespaces", None, namespace)), "metadata.labels") or {}
            except KubeError:
                labels = known[1] if known else {}
            self._namespaces[namespace] = known = (time.monotonic(), labels)
        return known[1]

    def _on_disk(self, uid: str) -> bool:
        """True if nothing more can be had of a pod, or nothing is wanted of it."""
        with self._lock:
            if uid in self._queue:
                return False
            for incident in self.incidents.values():
                parts = [part for part in incident.parts.values() if part.pod.uid == uid]
                if any(not part.settled for part in parts):
                    return False
        return True

    def _place(self, incident: Incident, part: Part) -> Origin:
        return place(incident, part.pod.uid) or Origin(part.pod.name, attempt=incident.attempt)

    # --- while it is open ---------------------------------------------------------------------------------------------

    def _resume(self) -> bool:
        """Take over what an earlier controller left open; False to try again (the store did not answer)."""
        if not self.synced:
            return False
        try:
            for incident in self.records.unfinished():
                with self._lock:
                    mine = incident.job.uid in self.incidents or any(
                        each.id == incident.id for each in self.closer.waiting
                    )
                if mine:
                    continue  # it was opened by this controller, while the store did not answer
                self.closer.finisher.remembered(incident)
                with self._lock:
                    if incident.closed:
                        self.closer.waiting.append(incident)
                        continue
                    if incident.job.uid in self.incidents:
                        continue
                    incident.quiet_since = time.time()
                    self.incidents[incident.job.uid] = incident
                self._fetch_peers(incident, self._peers(incident.job), time.time())
        except (StoreError, KubeError) as error:
            self.trouble = str(error)
            return False
        return True

    def _refresh(self, incident: Incident) -> None:
        """Look at the job object."""
        try:
            job = job_or_none(self.api, incident.job)
        except KubeError as error:
            if error.status not in (401, 403):
                return
            job = incident.job_object  # we may not read its kind: its pods alone tell
        if job is not None:
            incident.job_object = masked(job)
        incident.state = state_of(incident.job.kind, job)
        incident.polls += 1

    def _look_for_stuck(self, now: float) -> None:
        """Pods that find no node make no events: look at those that have waited too long, once each."""
        if now < self._next_look:
            return
        self._next_look = now + min(10.0, self.settings.pending_seconds / 2)
        for pod in [pod for reflector in self.reflectors for pod in list(reflector.views.values()) if pod.unscheduled]:
            waited = now - (pod.created or 0) / 1_000_000
            if waited > self.settings.pending_seconds and pod.uid not in self._stuck:
                self._stuck.add(pod.uid)
                try:
                    item = self.api.get(path_of("v1", "pods", pod.namespace, pod.name))
                except KubeError:
                    continue
                self._on_pod("MODIFIED", item, pod)

    def _keep(self) -> None:
        now = time.time()
        self._look_for_stuck(now)
        if self.holder is not None:
            self.holder.sweep()
        for uid, incident in list(self.incidents.items()):
            with self._lock:
                for part in list(incident.due(now)):
                    self.readers.start(incident, part, self._lock)
                endless = incident.endless(now, self.settings.end_seconds)
            for part in endless:
                self.readers.release(incident, part)
            if now < incident.next_poll:
                continue
            incident.next_poll = now + incident.poll
            incident.poll = min(incident.poll * 1.3, self.settings.poll_seconds * 10)
            self._refresh(incident)
            views = {pod.uid: pod for pod in self._peers(incident.job)}
            with self._lock:
                ending = incident.ending(views, now, self.settings)
                if ending is None:
                    continue
                incident.closed, incident.next_poll = ending, 0.0
                del self.incidents[uid]
                self.closer.waiting.append(incident)
            self.readers.release(incident)
            self.records.save(incident)
            self.counts["closed"] += 1

    def _finish(self) -> None:
        self.closer.step(list(self.incidents.values()))
