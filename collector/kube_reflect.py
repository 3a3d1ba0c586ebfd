"""Keeps a small view of every object of a collection, by list and watch, through everything that API servers do.

The official SharedInformer keeps whole objects, lists without pages, has no time limit on a silent connection and
reconnects to a dead server without a pause; a controller that must survive an API outage next to 5,000 running pods
needs the four other ways. The contract is the usual one: at least once, in order per object, DELETED also for what
vanished while nobody watched.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from collector.kube_api import Api, Gone, KubeError

WATCH_SECONDS = 240
"""The server ends a watch after this time; the next one goes on where it stopped."""
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0

Handler = Callable[[str, Mapping[str, Any], Any], None]
"""(ADDED | MODIFIED | DELETED, object, its view before). The object of DELETED may be empty if nobody saw it go."""


class Reflector(threading.Thread):
    """One thread that follows one collection."""

    def __init__(
        self, api: Api, path: str, view: Callable[[Mapping[str, Any]], Any], handler: Handler, **selectors: str
    ) -> None:
        """`view` makes the small thing that is kept; `handler` is called from this thread and must not block long."""
        super().__init__(name=f"watch {path}", daemon=True)
        self._api, self._path, self._view, self._handler, self._selectors = api, path, view, handler, selectors
        self.views: dict[str, Any] = {}
        """uid -> view. Replaced entry by entry by the thread; others may read single entries or copies."""
        self.synced = threading.Event()
        """Set once the first list is complete."""
        self.heard = 0.0
        """time.monotonic() of the last sign of life of the server."""
        self.trouble: str | None = None
        """Why the last try failed, None while all is well."""
        self.lists = 0
        """How often the collection was listed whole."""
        self._version: str | None = None
        self._halt = threading.Event()

    def run(self) -> None:
        """Follow until stopped."""
        pause = _FIRST_PAUSE
        while not self._halt.is_set():
            try:
                if self._version is None:
                    self._relist()
                before = time.monotonic()
                self._follow()
                self.trouble = None
                # a proxy that ends every watch at once must not turn this into a busy loop
                pause = _FIRST_PAUSE if time.monotonic() - before > 1 else min(pause * 2, _LAST_PAUSE)
                if pause == _FIRST_PAUSE:
                    continue
            except Gone as error:
                self._version, self.trouble = None, str(error)
                continue
            except Exception as error:  # also what nobody thought of: without its watch the controller is blind
                if not isinstance(error, KubeError):
                    self._version = None
                self.trouble = f"{type(error).__name__}: {error}"
                pause = min(pause * 2, _LAST_PAUSE)
            self._halt.wait(pause * random.uniform(0.5, 1.0))

    def stop(self) -> None:
        """Ask the thread to end; a running watch ends with its next event or time limit."""
        self._halt.set()

    def _relist(self) -> None:
        seen: set[str] = set()
        version = ""
        for listed, item in self._api.list(self._path, **self._selectors):
            version = listed
            if self._halt.is_set():
                return
            if item:
                seen.add(self._put("MODIFIED", item))
        for uid in [uid for uid in self.views if uid not in seen]:
            self._tell("DELETED", {}, self.views.pop(uid))
        self.lists += 1
        self._version, self.heard, self.trouble = version, time.monotonic(), None
        self.synced.set()

    def _follow(self) -> None:
        assert self._version is not None
        for kind, item in self._api.watch(self._path, self._version, WATCH_SECONDS, **self._selectors):
            self.heard, self.trouble = time.monotonic(), None
            if kind in ("ADDED", "MODIFIED"):
                self._put(kind, item)
            elif kind == "DELETED":
                self._tell("DELETED", item, self.views.pop(str(item["metadata"]["uid"]), None))
            # only now: an event whose handling is cut off by a crash is seen again
            self._version = str(item["metadata"]["resourceVersion"])
            if self._halt.is_set():
                return
        self.heard = time.monotonic()

    def _put(self, kind: str, item: Mapping[str, Any]) -> str:
        uid = str(item["metadata"]["uid"])
        before = self.views.get(uid)
        self.views[uid] = self._view(item)
        self._tell("ADDED" if before is None else kind, item, before)
        return uid

    def _tell(self, kind: str, item: Mapping[str, Any], before: Any) -> None:
        try:
            self._handler(kind, item, before)
        except Exception as error:  # a handler's bug costs one event, never the watch of the whole cluster
            self.trouble = f"handler: {type(error).__name__}: {error}"
