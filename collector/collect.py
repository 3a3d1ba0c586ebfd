"""Runs sources within a budget and writes what they give as the raw parts of one origin. Content never stops it.

    sources -> artifacts -> lines (masked) and small files (masked) -> store, the ledger last

Log lines are handed to the writer one by one, so a collection never holds more than one log in memory. Only the store
may raise: then nothing of this origin counts as reported (its `ledger` part is missing) and whoever called tries again
with the same names, which overwrites.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, LogLine, Outcome, RunRef, Source
from collector.pseudonyms import Pseudonymiser
from collector.readers.windows import Locate
from collector.store import Store

ARTIFACT_BYTES = 8 << 20
_CHUNK = 20_000
"""Lines masked in one go."""


@dataclass(frozen=True, slots=True)
class Masking:
    """What is done to content before it is written."""

    on: bool = True
    done: bool = False
    """True if the sources give masked content already."""
    names: Pseudonymiser | None = None


@dataclass(slots=True)
class _Run:
    run: RunRef
    budget: Budget
    masking: Masking
    artifact_bytes: int
    locate: Locate | None
    deadline: float
    ledger: list[LedgerEntry] = field(default_factory=list)
    small: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)


def collect(
    run: RunRef,
    sources: Sequence[Source],
    budget: Budget,
    store: Store,
    *,
    origin: str,
    masking: Masking | None = None,
    extra: Mapping[str, Iterable[Mapping[str, Any]]] | None = None,
    artifact_bytes: int = ARTIFACT_BYTES,
    locate: Locate | None = None,
    adjust: Callable[[LogLine], LogLine] | None = None,
) -> list[LedgerEntry]:
    """Collect from `sources` and write the parts of `origin` for incident `run.incident`; returns its ledger.

    `extra`: rows of other raw tables (`incidents`, `scheduler_events`, ...), and of `ledger`, written along.
    `adjust`: a last word on each line, such as true line numbers behind a gap. `locate`: prefilter for logs of more
    lines than the budget allows, by default that of the signatures. Raises StoreError only.
    """
    from collector import prefilter
    from collector.lake import write_raw

    deadline = time.monotonic() + budget.seconds
    work = _Run(run, budget, masking or Masking(), artifact_bytes, locate or prefilter.locate, deadline)
    found = list(_artifacts(work, sources))
    rows = _line_rows(work, found, adjust)
    first = next(rows, None)
    if first is not None:
        write_raw(store, "log_lines", run.incident, origin, _chained(first, rows))
    work.small.extend(_small(work, found))
    tables: dict[str, list[Mapping[str, Any]]] = {"artifacts": list(work.small), "checkpoints": list(work.checkpoints)}
    for table, more in (extra or {}).items():
        tables.setdefault(table, []).extend(more)
    ledger = [*(ledger_row(_named(work, entry)) for entry in work.ledger), *tables.pop("ledger", [])]
    for table, listed in tables.items():
        if listed:
            write_raw(store, table, run.incident, origin, listed)
    write_raw(store, "ledger", run.incident, origin, ledger)
    return work.ledger


def ledger_row(entry: LedgerEntry) -> dict[str, Any]:
    """The row of table `ledger` (without `incident`) that an entry is."""
    return {
        "source": entry.source,
        "path": entry.path,
        "kind": str(entry.kind) if entry.kind is not None else None,
        "node": entry.origin.node,
        "rank": entry.origin.rank,
        "attempt": entry.origin.attempt,
        "outcome": entry.outcome.value,
        "bytes_seen": entry.bytes_seen,
        "bytes_kept": entry.bytes_kept,
        "dropped_from": entry.dropped_from,
        "dropped_to": entry.dropped_to,
        "detail": entry.detail,
    }


def _chained(first: Mapping[str, Any], rest: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    yield first
    yield from rest


def _artifacts(work: _Run, sources: Sequence[Source]) -> Iterator[Artifact]:
    for source in sources:
        try:
            for found in source.collect(work.run, work.budget):
                if isinstance(found, LedgerEntry):
                    work.ledger.append(found)
                else:
                    yield found
        except Exception as error:  # a source that breaks its contract costs its own evidence only
            why = f"internal error: {type(error).__name__}: {error}"
            work.ledger.append(LedgerEntry(source.name, "", Outcome.UNREACHABLE, detail=why))


# --- logs -------------------------------------------------------------------------------------------------------------


def _line_rows(
    work: _Run, found: Sequence[Artifact], adjust: Callable[[LogLine], LogLine] | None
) -> Iterator[dict[str, Any]]:
    from collector.readers import rank_log

    logs = [artifact for artifact in found if artifact.kind is ArtifactKind.RANK_LOG]
    left = work.budget.lines
    for number, artifact in enumerate(logs):
        if time.monotonic() > work.deadline:
            work.ledger.append(_entry(artifact, Outcome.TIMED_OUT, f"{work.budget.seconds:g} s were over"))
            continue
        log = rank_log.read(artifact, max(left // (len(logs) - number), 400), work.locate)
        left = max(left - len(log.lines), 0)
        work.ledger.extend(log.ledger)
        masked = 0
        for start in range(0, len(log.lines), _CHUNK):
            lines, count = mask_lines(log.lines[start : start + _CHUNK], work.masking)
            masked += count
            for line in lines:
                yield _line_row(work, adjust(line) if adjust else line)
        if log.lines or not log.ledger:
            outcome = Outcome.COLLECTED if log.lines else Outcome.EMPTY
            work.ledger.append(_entry(artifact, outcome, _said(f"{len(log.lines)} lines", masked)))


def mask_lines(lines: Sequence[LogLine], masking: Masking) -> tuple[list[LogLine], int]:
    """The lines with their secrets masked, and how many were; a secret over several lines is found too."""
    if not masking.on or masking.done or not lines:
        return list(lines), 0
    from collector.redact import redact_bytes

    texts = [line.text.replace("\n", " ") for line in lines]
    masked, count = redact_bytes("\n".join(texts).encode("utf-8", "replace"))
    if not count:
        return list(lines), 0
    changed = masked.decode("utf-8", "replace").split("\n")
    return [line._replace(text=text) for line, text in zip(lines, changed, strict=True)], count


def _line_row(work: _Run, line: LogLine) -> dict[str, Any]:
    row = line._asdict()
    names = work.masking.names
    if names is not None:
        row["text"], row["path"] = names.text(line.text), names.path(line.path)
        row["node"] = names.host(line.node) if line.node else line.node
    return row


# --- small files ------------------------------------------------------------------------------------------------------


def _small(work: _Run, found: Sequence[Artifact]) -> Iterator[dict[str, Any]]:
    for artifact in found:
        if artifact.kind is ArtifactKind.CHECKPOINT and artifact.members:
            work.checkpoints.extend(_checkpoint_rows(work, artifact))
        elif artifact.kind is not ArtifactKind.RANK_LOG:
            row = _content_row(work, artifact)
            if row is not None:
                yield row


def _content_row(work: _Run, artifact: Artifact) -> dict[str, Any] | None:
    if time.monotonic() > work.deadline:
        work.ledger.append(_entry(artifact, Outcome.TIMED_OUT, f"{work.budget.seconds:g} s were over"))
        return None
    try:
        with artifact.open() as stream:
            content = stream.read(work.artifact_bytes + 1)
    except (OSError, ValueError, ImportError) as error:
        work.ledger.append(_entry(artifact, Outcome.UNREACHABLE, str(error)))
        return None
    if len(content) > work.artifact_bytes:
        work.ledger.append(_entry(artifact, Outcome.REFUSED, f"over the {work.artifact_bytes} bytes of a small file"))
        return None
    if not content:
        work.ledger.append(_entry(artifact, Outcome.EMPTY, "0 bytes"))
        return None
    content, count = _masked(work, content)
    work.ledger.append(_entry(artifact, Outcome.COLLECTED, _said(None, count), len(content)))
    names = work.masking.names
    node, path = artifact.origin.node, artifact.path
    if names is not None:
        node, path = names.host(node) if node else node, names.path(path)
    return {
        "kind": artifact.kind.value,
        "path": path,
        "node": node,
        "rank": artifact.origin.rank,
        "attempt": artifact.origin.attempt,
        "taken_at": int((artifact.modified or time.time()) * 1_000_000),
        "content": content,
    }


def _masked(work: _Run, content: bytes) -> tuple[bytes, int]:
    """Text is masked; a pickle would break, and a flight recorder's holds shapes and source lines only."""
    from collector.classify import is_text

    if not is_text(content[: 64 << 10]):
        return content, 0
    count = 0
    if work.masking.on and not work.masking.done:
        from collector.redact import redact_bytes

        content, count = redact_bytes(content)
    if work.masking.names is not None:
        content = work.masking.names.text(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return content, count


def _checkpoint_rows(work: _Run, artifact: Artifact) -> list[dict[str, Any]]:
    """What a checkpoint folder says of itself: only the place where it lies can read that."""
    from collector.readers import checkpoint

    try:
        rows = checkpoint.read(artifact)
    except Exception as error:  # a reader that breaks its contract costs its own artifact
        work.ledger.append(_entry(artifact, Outcome.UNREACHABLE, f"{type(error).__name__}: {error}"))
        return []
    work.ledger.append(_entry(artifact, Outcome.COLLECTED if rows else Outcome.EMPTY, None))
    return rows


def _entry(artifact: Artifact, outcome: Outcome, detail: str | None, kept: int | None = None) -> LedgerEntry:
    size = max(artifact.size, 0)
    if kept is None:
        kept = size if outcome is Outcome.COLLECTED else 0
    return LedgerEntry("collect", artifact.path, outcome, artifact.origin, artifact.kind, size, kept, detail=detail)


def _said(text: str | None, masked: int) -> str | None:
    """A detail with the number of secrets masked, if any were."""
    parts = [text] if text else []
    if masked:
        parts.append(f"{masked} secret{'s' if masked > 1 else ''} masked")
    return ", ".join(parts) or None


def _named(work: _Run, entry: LedgerEntry) -> LedgerEntry:
    names = work.masking.names
    if names is None:
        return entry
    node = entry.origin.node
    origin = replace(entry.origin, node=names.host(node)) if node else entry.origin
    return replace(entry, path=names.path(entry.path), origin=origin)
