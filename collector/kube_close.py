"""After an incident closed: wait until its parts are in the store, write what the objects say, analyse, tell people.

Incidents that are ready are analysed together, because starting an analysis costs more than one more incident in it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from collector.kube_finish import Finisher
from collector.kube_incident import Incident
from collector.kube_record import Records
from collector.kube_ship import Analyse, Shipper
from collector.store import StoreError

BATCH = 50
ANALYSES = 4
"""Tries of an analysis; later ones are for `firstfault analyze`."""


class Closer:
    """The incidents that closed and are not done yet. `step` is called by one thread."""

    def __init__(
        self, finisher: Finisher, records: Records, shipper: Shipper, analyse: Analyse | None, lock: threading.RLock
    ) -> None:
        """`lock` guards the incidents; `analyse` None: evidence only."""
        self.finisher, self._records, self._shipper = finisher, records, shipper
        self._analyse, self._lock = analyse, lock
        self.waiting: list[Incident] = []
        self.verdicts: Counter[tuple[str, str]] = Counter()
        """(status, cause) -> number."""
        self.counts: Counter[str] = Counter()
        self.trouble: str | None = None

    def step(self, living: Iterable[Incident]) -> None:
        """The first head of each incident in `living`, and whatever can be done for those that closed."""
        try:
            for incident in living:
                if not incident.head_written:
                    self.finisher.head(incident)
                    incident.head_written = True
            ready = [incident for incident in list(self.waiting) if self._is_safe(incident)][:BATCH]
            for incident in ready:
                if not incident.last_head_written:
                    self.finisher.head(incident)
                    incident.last_head_written = True
            if ready:
                self._complete(ready)
        except StoreError as error:
            self.trouble = str(error)

    def _is_safe(self, incident: Incident) -> bool:
        """True if nothing of a closed incident is under way any more."""
        with self._lock:
            busy = any(part.state in ("reading", "following") for part in incident.parts.values())
        return not busy and not self._shipper.pending(incident.id) and incident.next_poll <= time.time()

    def _complete(self, ready: list[Incident]) -> None:
        answers: Mapping[str, Mapping[str, Any]] = {}
        if self._analyse is not None:
            try:
                answers = self._analyse([incident.id for incident in ready])
            except Exception as error:  # the evidence is safe; `firstfault analyze` can be run again at any time
                self.trouble = f"analysis: {type(error).__name__}: {error}"
                self.counts["analysis_failed"] += 1
        for incident in ready:
            answer = answers.get(incident.id)
            if answer is None and self._analyse is not None and incident.analyses + 1 < ANALYSES:
                incident.analyses += 1
                incident.next_poll = time.time() + 30.0 * 2.0**incident.analyses
                continue
            self._done(incident, answer)

    def _done(self, incident: Incident, answer: Mapping[str, Any] | None) -> None:
        verdict = (answer or {}).get("verdict") or {}
        if answer is not None:
            self.verdicts[str(verdict.get("status")), str(verdict.get("cause"))] += 1
            for problem in self.finisher.tell(incident, answer):
                self.trouble = problem
        incident.verdict = str(verdict.get("title") or "none")
        self._records.save(incident)
        self.waiting.remove(incident)
        self.counts["finished"] += 1
