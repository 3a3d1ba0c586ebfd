"""Which of several replicas acts: a Lease of coordination.k8s.io, as the Kubernetes components themselves do it.

A holder that could not renew for the renew deadline stops BEFORE others may take over: two replicas never act at once
as long as clocks run at the same speed. Others judge by their own clock since they last saw the record change, so that
clocks need not agree.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from collector.kube_api import Api, KubeError, NotFound, path_of

_VERSION = "coordination.k8s.io/v1"


class Lease:
    """Waits for leadership, keeps it, and says when it is lost."""

    def __init__(
        self, api: Api, namespace: str, name: str, identity: str, *, duration: float = 15.0, retry: float = 2.0
    ) -> None:
        """`duration`: seconds after which others may take over from a holder that is silent."""
        self._api, self._namespace, self._name, self.identity = api, namespace, name, identity
        self._duration, self._retry = duration, retry
        self._seen: tuple[Any, float] = (None, 0.0)
        self._halt = threading.Event()
        self.leading = False

    @property
    def _path(self) -> str:
        return path_of(_VERSION, "leases", self._namespace, self._name)

    def acquire(self) -> bool:
        """Block until this replica leads (True) or `stop` was called (False)."""
        while not self._halt.is_set():
            if self._try():
                self.leading = True
                return True
            self._halt.wait(self._retry)
        return False

    def keep(self, lost: Callable[[], None]) -> threading.Thread:
        """Renew in a thread; calls `lost` once if that failed for two thirds of the duration."""

        def renew() -> None:
            last = time.monotonic()
            while not self._halt.wait(self._retry):
                if self._try():
                    last = time.monotonic()
                elif time.monotonic() - last > self._duration * 2 / 3:
                    self.leading = False
                    lost()
                    return

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Give the lease up, so that another replica need not wait."""
        self._halt.set()
        if self.leading:
            self.leading = False
            try:
                held = self._api.get(self._path)
                if held.get("spec", {}).get("holderIdentity") == self.identity:
                    held["spec"]["holderIdentity"] = ""
                    self._api.json("PUT", self._path, None, held)
            except KubeError:
                pass

    def _try(self) -> bool:
        try:
            try:
                held = self._ask("GET", self._path)
            except NotFound:
                body = {"metadata": {"name": self._name}, "spec": self._spec({})}
                self._ask("POST", path_of(_VERSION, "leases", self._namespace), body)
                return True
            spec = held.get("spec") or {}
            if spec.get("holderIdentity") not in (self.identity, "", None) and not self._expired(spec):
                return False
            held["spec"] = self._spec(spec)
            self._ask("PUT", self._path, held)
            return True
        except KubeError:  # also Conflict: another replica was faster
            return False

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Bounded so that a silent server cannot hold a leader beyond its renew deadline."""
        return self._api.json(method, path, None, body, tries=1, read=max(self._duration / 5, 0.5))

    def _expired(self, spec: dict[str, Any]) -> bool:
        record = (spec.get("holderIdentity"), spec.get("renewTime"))
        if record != self._seen[0]:
            self._seen = (record, time.monotonic())
            return False
        return time.monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._duration)

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = before.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "acquireTime": before.get("acquireTime") if same else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if same else 1),
        }
