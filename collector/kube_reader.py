"""Reads logs of containers side by side, within limits: so many at once, so many from one kubelet, so many followed.

A running container is followed if there is room, because its last words may be its only ones; beyond the room it is
read when it ends.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from collector.kube_api import Api
from collector.kube_incident import Incident, Part
from collector.kube_settings import Settings
from collector.kube_ship import Shipper, Staged, stage_rows
from collector.model import Artifact, Budget, LedgerEntry, Origin, RunRef
from collector.sources.kube_pod import PodLog

Place = Callable[[Incident, Part], Origin]


class Readers:
    """A pool for logs that have ended and one for logs that are followed."""

    def __init__(
        self, api: Api, shipper: Shipper, settings: Settings, place: Place, changed: Callable[[], None]
    ) -> None:
        """`place` tells whose log a part is; `changed` is called after each."""
        self._api, self._shipper, self._settings = api, shipper, settings
        self._place, self._changed = place, changed
        self._pool = ThreadPoolExecutor(settings.readers, thread_name_prefix="read")
        self._followers = ThreadPoolExecutor(max(settings.followers, 1), thread_name_prefix="follow")
        self._free = threading.Semaphore(settings.followers)
        self._nodes: defaultdict[str | None, threading.Semaphore] = defaultdict(
            lambda: threading.Semaphore(settings.per_node)
        )
        self._streams: dict[tuple[str, Any], PodLog] = {}
        self._lock = threading.Lock()
        self._halt = False
        self.bytes = 0
        """Bytes of logs received."""

    def start(self, incident: Incident, part: Part, lock: threading.RLock) -> None:
        """Begin to read a part that is due. `lock` guards the incident; it is held by the caller."""
        if part.run.state == "running" and self._free.acquire(blocking=False):
            part.state = "following"
            self._followers.submit(self._guarded, incident, part, lock, True)
        elif part.run.state == "running" and not part.pod.deleting and part.bytes:
            part.state = "partial"  # it was read once; again when it ends
        else:
            part.state = "reading"
            self._pool.submit(self._guarded, incident, part, lock, False)

    def _guarded(self, incident: Incident, part: Part, lock: threading.RLock, follow: bool) -> None:
        try:
            if self._halt:
                return
            if follow:
                self._read(incident, part, lock, True)
            else:
                with self._nodes[part.pod.node]:
                    self._read(incident, part, lock, False)
        except Exception as error:  # a bug must not leave a part under way for ever
            self._shipper.trouble = f"reader: {type(error).__name__}: {error}"
            with lock:
                incident.done(part, complete=False, again=True, size=0, now=time.time())
        finally:
            if follow:
                self._free.release()
            self._changed()

    def _read(self, incident: Incident, part: Part, lock: threading.RLock, follow: bool) -> None:
        name, folder = self._shipper.room(incident.id)
        with lock:
            place, pod, run, best = self._place(incident, part), part.pod, part.run, part.bytes
        source = PodLog(
            self._api, pod, run, place, folder / "log", cap=self._settings.log_bytes, follow=follow
        )  # fmt: skip
        key = (incident.id, part.key)
        with self._lock:
            self._streams[key] = source
        ledger: list[LedgerEntry] = []
        found: Artifact | None = None
        seconds = self._settings.open_seconds if follow else self._settings.log_seconds
        try:
            for answer in source.collect(RunRef(incident.id, "kubernetes"), Budget(seconds=seconds)):
                if isinstance(answer, Artifact):
                    found = answer
                else:
                    ledger.append(answer)
        finally:
            with self._lock:
                self._streams.pop(key, None)
                self.bytes += source.bytes
        size = found.size if found is not None else 0
        better = (found is not None and size >= best) or (found is None and not best and not source.again)
        last = found is None and source.again and part.tries + 1 >= 6 and not best
        if (better or last) and not incident.void:
            if found is None:
                (folder / "log").unlink(missing_ok=True)
            self._shipper.stage(
                name, Staged(incident.id, part.origin, source.shown, place, stage_rows(ledger))
            )  # fmt: skip
        else:
            self._shipper.drop(name)
        with lock:
            incident.done(part, complete=source.complete, again=source.again, size=size, now=time.time())

    def release(self, incident: Incident, part: Part | None = None) -> None:
        """End what is still followed of an incident (it closes), or one part of it."""
        with self._lock:
            streams = [
                source for (owner, key), source in self._streams.items()
                if owner == incident.id and (part is None or key == part.key)
            ]  # fmt: skip
        for source in streams:
            source.stop()

    @property
    def busy(self) -> int:
        """Streams that are open."""
        with self._lock:
            return len(self._streams)

    def stop(self) -> None:
        """End all streams; what they gave so far is kept as a broken log."""
        self._halt = True
        with self._lock:
            streams = list(self._streams.values())
        for source in streams:
            source.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._followers.shutdown(wait=False, cancel_futures=True)
