"""From a fetched log on local disk to its part in the store: staged as a ticket, so that a death loses nothing.

Fetching is urgent (the pod is about to go), writing to the store is not. A log is parsed in blocks, by one thread, so
that the memory of the controller does not depend on how large or how many the logs are. A later, better copy of a log
overwrites the part of the earlier one; a worse one (shorter, or an error) never does.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from collector.collect import ledger_row
from collector.lake import raw_key, safe_name, write_raw
from collector.model import Artifact, ArtifactKind, LedgerEntry, LogLine, Origin, Outcome
from collector.pseudonyms import Pseudonymiser
from collector.spool import Spool, Ticket
from collector.store import Store, StoreError, StoreRefused

BLOCK = 4 << 20
"""Bytes of a log that are turned into lines at once."""
_LINES = 1 << 22


@dataclass(frozen=True, slots=True)
class Staged:
    """One log part that waits on local disk."""

    incident: str
    origin: str
    shown: str
    """Path under which its lines are cited."""
    place: Origin
    ledger: tuple[Mapping[str, Any], ...]
    """Rows about it, without `incident`."""


def lines_of(path: Path, shown: str, place: Origin) -> Iterator[LogLine]:
    """The lines of a log file, block by block: line numbers and offsets are those of the whole file."""
    from collector.readers import rank_log

    line, offset, held = 0, 0, b""
    with path.open("rb") as file:
        while True:
            data = file.read(BLOCK)
            block = held + data
            cut = block.rfind(b"\n") + 1 if data else len(block)
            if not cut and len(block) > 16 * BLOCK:
                cut = len(block)
            block, held = block[:cut], block[cut:]
            if block:
                opened = partial(io.BytesIO, block)
                piece = Artifact(ArtifactKind.RANK_LOG, shown, place, len(block), opened, time.time())
                for row in rank_log.read(piece, _LINES).lines:
                    yield row._replace(line=row.line + line, offset=row.offset + offset)
                line += block.count(b"\n")
                offset += len(block)
            if not data:
                return


class Shipper(threading.Thread):
    """Stages parts and carries them to the store, the oldest first, one at a time."""

    def __init__(
        self, spool: Spool, store: Store, *, names: Pseudonymiser | None = None, max_bytes: int = 8 << 30
    ) -> None:
        super().__init__(name="ship", daemon=True)
        self.spool, self.store, self._names, self._max_bytes = spool, store, names, max_bytes
        self._wake, self._halt = threading.Event(), threading.Event()
        self._sequence = time.time_ns()
        self._lock = threading.Lock()
        self._changes = 0
        self._listed: tuple[int, Counter[str]] = (-1, Counter())
        """(number of changes at the time, incident -> parts on disk)."""
        self.trouble: str | None = None
        """Why the store did not take the last part."""
        self.shipped: Counter[str] = Counter()
        """outcome -> parts."""

    def room(self, incident: str) -> tuple[str, Path]:
        """A ticket name and a new folder for the log that belongs to it."""
        with self._lock:
            self._sequence += 1
            name = f"{safe_name(incident)}~{self._sequence}"
        folder = self.spool.path / "evidence" / name
        folder.mkdir(parents=True, mode=0o700)
        return name, folder

    def stage(self, name: str, part: Staged) -> None:
        """Make the part whose log lies in the folder of `room` durable. Raises OSError on a full disk."""
        body = {
            "incident": part.incident, "origin": part.origin, "shown": part.shown, "ledger": list(part.ledger),
            "place": {key: getattr(part.place, key) for key in ("node", "rank", "local_rank", "attempt", "stream")},
        }  # fmt: skip
        self.spool.put(name, json.dumps(body).encode())
        self._changed()
        self._wake.set()

    def drop(self, name: str) -> None:
        """Give a room up that holds nothing worth keeping."""
        import shutil

        shutil.rmtree(self.spool.path / "evidence" / name, ignore_errors=True)

    def _changed(self) -> None:
        with self._lock:
            self._changes += 1

    def waiting(self) -> Counter[str]:
        """Incident (as a safe name) -> parts that are not in the store yet, as they lie on disk."""
        changes = self._changes
        if self._listed[0] != changes:
            self._listed = changes, Counter(name.rpartition("~")[0] for name in self.spool.names())
        return self._listed[1]

    def pending(self, incident: str) -> int:
        """Parts of an incident that are not in the store yet."""
        return self.waiting()[safe_name(incident)]

    def run(self) -> None:
        """Carry until stopped."""
        while not self._halt.is_set():
            self._wake.clear()
            for ticket in self.spool.claims():
                self._one(ticket)
                if self._halt.is_set():
                    return
            self._wake.wait(1.0)

    def stop(self) -> None:
        """End after the part that is under way."""
        self._halt.set()
        self._wake.set()

    def _one(self, ticket: Ticket) -> None:
        try:
            body = json.loads(ticket.body)
            part = Staged(**{**body, "place": Origin(**body["place"]), "ledger": tuple(body["ledger"])})
            self._write(part, ticket.evidence / "log")
        except StoreError as error:
            self.trouble = str(error)
            self.shipped["retried"] += 1
            # a refusal (credentials, a missing bucket) is mended by people too, and the evidence is worth the wait
            self.spool.fail(ticket, str(error))
            self._halt.wait(0.2 if isinstance(error, StoreRefused) else 0.05)
            return
        except Exception as error:  # one broken ticket must not stop the others
            self.shipped["failed"] += 1
            self.spool.fail(ticket, f"{type(error).__name__}: {error}", fatal=True)
        else:
            self.trouble = None
            self.shipped["written"] += 1
            self.spool.done(ticket)
        self._changed()

    def _write(self, part: Staged, log: Path) -> None:
        rows = list(part.ledger)
        if log.exists() and log.stat().st_size:
            count = [0]
            write_raw(self.store, "log_lines", part.incident, part.origin, self._rows(log, part, count))
            rows.insert(0, self._collected(part, log.stat().st_size, count[0]))
        elif rows and self.store.exists(raw_key("ledger", part.incident, part.origin)):
            return  # an earlier look at the same log found it, or said why not
        elif log.exists():
            rows.insert(0, {**self._collected(part, 0, 0), "outcome": Outcome.EMPTY.value, "detail": "0 bytes"})
        write_raw(self.store, "ledger", part.incident, part.origin, rows)

    def _rows(self, log: Path, part: Staged, count: list[int]) -> Iterator[dict[str, Any]]:
        for line in lines_of(log, part.shown, part.place):
            count[0] += 1
            row = line._asdict()
            if self._names is not None:
                row["text"], row["path"] = self._names.text(line.text), self._names.path(line.path)
                row["node"] = self._names.host(line.node) if line.node else None
            yield row

    def _collected(self, part: Staged, size: int, lines: int) -> dict[str, Any]:
        entry = LedgerEntry(
            "kube_pod", part.shown, Outcome.COLLECTED, part.place, ArtifactKind.RANK_LOG, size, size,
            detail=f"{lines} lines",
        )  # fmt: skip
        if self._names is not None and part.place.node:
            entry = replace(entry, origin=replace(part.place, node=self._names.host(part.place.node)))
        return ledger_row(entry)


def stage_rows(entries: Sequence[LedgerEntry]) -> tuple[dict[str, Any], ...]:
    """Ledger entries as the rows that a ticket carries."""
    return tuple(ledger_row(entry) for entry in entries)


Analyse = Callable[[Sequence[str]], Mapping[str, Mapping[str, Any]]]
"""Incident ids -> the diagnosis (DESIGN section 4) of each that could be made. May raise: it is tried again."""
