"""Opt-in: holds pods of jobs by a finalizer, so that the object of a deleted pod stays until its logs are safe.

A finalizer that nobody removes blocks a namespace for ever. So it is removed when the evidence is on disk, when the
time limit has passed whatever happened, and by `release_all` before an uninstallation. It is put on and off by merge
patches that name the resource version: a list of finalizers has other writers (the job controller), and none may be
lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from collector.kube_api import Api, Conflict, KubeError, NotFound, path_of
from collector.kube_jobs import dig
from collector.kube_pods import micros

FINALIZER = "firstfault.dev/evidence"


class Holder:
    """The pods that are held. Called from one thread at a time per pod."""

    def __init__(self, api: Api, seconds: float, safe: Callable[[str], bool]) -> None:
        """`seconds`: longest hold of a pod that is being deleted; `safe`: pod uid -> its evidence is on disk."""
        self._api, self._seconds, self._safe = api, seconds, safe
        self._waiting: dict[str, tuple[str, str, float]] = {}
        """uid -> (namespace, name, Unix seconds at which it is let go whatever happens)."""
        self.problems = 0
        """Patches that failed and were left for the next event."""

    def seen(self, item: Mapping[str, Any]) -> None:
        """Take note of a pod of a job of ours: hold it while it lives, watch it while it goes."""
        meta = item["metadata"]
        held = FINALIZER in (meta.get("finalizers") or [])
        going = micros(meta.get("deletionTimestamp"))
        over = dig(item, "status.phase") in ("Succeeded", "Failed")
        uid, namespace, name = str(meta["uid"]), str(meta["namespace"]), str(meta["name"])
        if held and going is not None:
            self._waiting.setdefault(uid, (namespace, name, time.time() + self._seconds))
        elif held and over and self._safe(uid):
            self._change(namespace, name, item, hold=False)
        elif not held and going is None and not over:
            self._change(namespace, name, item, hold=True)

    def sweep(self) -> None:
        """Let go what is safe or has waited long enough."""
        for uid, (namespace, name, until) in list(self._waiting.items()):
            if not self._safe(uid) and time.time() < until:
                continue
            if release(self._api, namespace, name, uid):
                self._waiting.pop(uid, None)

    def _change(self, namespace: str, name: str, item: Mapping[str, Any], *, hold: bool) -> None:
        try:
            _write(self._api, namespace, name, item, hold=hold)
        except NotFound:
            pass
        except KubeError:  # another event, with the newer version, will come
            self.problems += 1


def release(api: Api, namespace: str, name: str, uid: str | None = None) -> bool:
    """Take the finalizer off a pod; True if none is left on it (or it is gone), False to try again."""
    try:
        item = api.get(path_of("v1", "pods", namespace, name))
        if (uid is None or item["metadata"]["uid"] == uid) and FINALIZER in (item["metadata"].get("finalizers") or []):
            _write(api, namespace, name, item, hold=False)
    except NotFound:
        return True
    except KubeError:
        return False
    return True


def release_all(api: Api, namespaces: Iterable[str | None], seconds: float = 240.0) -> int:
    """Take the finalizer off all pods of `namespaces` (None: of all); how many still have it. Raises KubeError."""
    end = time.monotonic() + seconds
    places = list(namespaces)
    while True:
        left = 0
        for namespace in places:
            for _, item in api.list(path_of("v1", "pods", namespace)):
                if item and FINALIZER in (item["metadata"].get("finalizers") or []):
                    left += not release(api, item["metadata"]["namespace"], item["metadata"]["name"])
        if not left or time.monotonic() > end:
            return left
        time.sleep(1.0)


def _write(api: Api, namespace: str, name: str, item: Mapping[str, Any], *, hold: bool) -> None:
    meta = item["metadata"]
    others = [each for each in meta.get("finalizers") or [] if each != FINALIZER]
    body = {"metadata": {
        "resourceVersion": meta["resourceVersion"], "finalizers": [*others, FINALIZER] if hold else others or None,
    }}  # fmt: skip
    try:
        api.patch(path_of("v1", "pods", namespace, name), body)
    except Conflict:
        if hold:
            raise
        newer = api.get(path_of("v1", "pods", namespace, name))
        if FINALIZER in (newer["metadata"].get("finalizers") or []):
            _write_once(api, namespace, name, newer)


def _write_once(api: Api, namespace: str, name: str, item: Mapping[str, Any]) -> None:
    meta = item["metadata"]
    others = [each for each in meta.get("finalizers") or [] if each != FINALIZER]
    body = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": others or None}}
    api.patch(path_of("v1", "pods", namespace, name), body)
