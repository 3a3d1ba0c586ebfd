"""A Case: everything that is known of one incident, read-only, the only thing a detector may see.

Observations are built here too, because every detector makes the same kind. Rows of evidence tables are plain dicts
with the field names of `collector.tables`; log lines are `LogLine` tuples, because there may be a million of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from collector.model import LedgerEntry, LogLine
from collector.readers.tracebacks import PyException

ROLES = ("initiating", "cascade", "confirmation", "teardown", "wrapper", "context")
CAUSES = (
    "gpu", "node", "fabric", "storage", "scheduler", "framework", "user_code", "data",
    "host_memory", "device_memory", "environment", "unknown",
)  # fmt: skip
SCOPES = ("rank", "node", "launcher", "job")


@dataclass(slots=True)
class Observation:
    """What a detector saw: a row of the `observations` table (see collector/tables.py for each field)."""

    detector: str
    signature: str
    role: str
    cause: str
    title: str
    text: str = ""
    scope: str = "rank"
    strength: int = 2
    """3 decisive (names the cause by itself), 2 strong, 1 a hint."""
    attempt: int | None = None
    rank: int | None = None
    node: str | None = None
    device: str | None = None
    accuses_rank: int | None = None
    accuses_node: str | None = None
    entity: str | None = None
    at_lo: int | None = None
    at_hi: int | None = None
    seq: int | None = None
    issuer: str = "rank"
    source: str = "rank_log"
    path: str | None = None
    line: int | None = None
    offset: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    """Captures and details. Keys the ranking reads: `ranks` (list of global ranks, for a joint event),
    `nodes` (list), `exit_code`, `signal`, `pid`, `step`, `missing` (what would settle it)."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A signature matched a line."""

    signature: str
    line: LogLine
    index: int
    """Index of the line in `Case.lines`."""
    captures: Mapping[str, str]


@dataclass(slots=True)
class Case:
    """One incident's evidence. Missing tables are empty, never absent."""

    incident: str
    lines: Sequence[LogLine] = ()
    """In reading order: file by file, line by line."""
    hits: Sequence[Hit] = ()
    signatures: Mapping[str, Any] = field(default_factory=dict)
    """Signature id -> analyzers.signatures.Signature, for the hits' roles and titles."""
    exceptions: Sequence[PyException] = ()
    """Structured tracebacks of `lines`, in order of their last line."""
    world_size: int | None = None
    """Number of ranks, if the evidence tells."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    ledger: Sequence[LedgerEntry] = ()
    control: Case | None = None
    """A known-good run of the same job, if the user gave one."""

    def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        """Rows of an evidence table, empty if nothing of the kind was found."""
        return self.tables.get(table, ())


class Detector(Protocol):
    """One question. Pure: a Case in, observations out; yields nothing when its tables are empty."""

    def __call__(self, case: Case) -> Iterator[Observation]:
        """Yield what was seen."""
        ...
