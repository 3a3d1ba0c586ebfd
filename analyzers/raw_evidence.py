"""From the raw parts of an incident to the same Evidence that a folder gives.

Lines come as rows that a node has split and masked already; small files come as bytes and go through the readers of
`analyzers.gather`; facts that only the place itself could read (the scheduler's record, checkpoints) come as rows. Two
nodes may report files of one name: then the origin is put in front. A part that cannot be read costs itself only.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from analyzers import gather
from collector import naming
from collector.lake import EXPECTED, HEAD, RAW_TABLES, RawPart, from_parquet, raw_parts
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, LogLine, Origin, Outcome
from collector.store import Store, StoreError, StoreUnavailable

_EVIDENCE = frozenset(RAW_TABLES) - {"log_lines", "artifacts", "incidents", "ledger"}


@dataclass(slots=True)
class Raw:
    """What the store holds of one incident."""

    incident: str
    parts: dict[str, list[tuple[str, list[dict[str, Any]]]]] = field(default_factory=lambda: defaultdict(list))
    """Table -> (origin, rows), in order of origins; times as integer microseconds."""
    reported: list[RawPart] = field(default_factory=list)
    """The ledger parts: an origin has reported when its own is there."""
    broken: list[LedgerEntry] = field(default_factory=list)
    bytes: int = 0
    oldest: float = 0.0
    """Unix seconds at which the first part was stored."""

    def rows(self, table: str) -> Iterable[dict[str, Any]]:
        """The rows of a table over all origins."""
        return (row for _, rows in self.parts[table] for row in rows)


def fetch(store: Store, incident: str) -> Raw:
    """Everything raw of an incident. Raises StoreUnavailable; a part that is damaged or gone becomes a ledger row."""
    # the ledger is listed first: whoever reports between two listings must count as not yet there, never as there
    # without his lines
    raw = Raw(incident, reported=sorted(raw_parts(store, "ledger", incident), key=lambda part: part.origin))
    for table in RAW_TABLES:
        listed = raw.reported if table == "ledger" else raw_parts(store, table, incident)
        for part in sorted(listed, key=lambda part: part.origin):
            raw.bytes += part.object.size
            raw.oldest = min(raw.oldest or part.object.modified, part.object.modified)
            try:
                rows = from_parquet(table, store.get(part.object.key), part.object.key)
            except StoreUnavailable:
                raise
            except StoreError as error:
                raw.broken.append(LedgerEntry("lake", part.object.key, Outcome.UNREACHABLE, detail=str(error)))
                continue
            raw.parts[table].append((part.origin, _plain(rows)))
    return raw


def ledger_rows(store: Store, parts: Iterable[RawPart]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(origin, rows) of the readable ones among ledger parts. Raises StoreUnavailable."""
    for part in parts:
        try:
            yield part.origin, _plain(from_parquet("ledger", store.get(part.object.key), part.object.key))
        except StoreUnavailable:
            raise
        except StoreError:
            continue


def _plain(table: Any) -> list[dict[str, Any]]:
    """Arrow rows as the readers' rows: times as integer microseconds, absent fields absent."""
    import pyarrow as pa

    columns = {
        f.name: (column.cast(pa.int64()) if pa.types.is_timestamp(f.type) else column).to_pylist()
        for f, column in zip(table.schema, table.columns, strict=True)
        if column.null_count < table.num_rows
    }
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def evidence(raw: Raw, root: str, budget: Budget | None = None) -> gather.Evidence:
    """The evidence of one incident, its artifacts read. Never raises on content."""
    found = gather.Evidence(raw.incident, root)
    renamed = _collisions(raw)
    found.bytes = raw.bytes
    found.lines = _lines(raw, renamed)
    found.ledger = [*_ledger(raw), *raw.broken]
    for table in _EVIDENCE:
        found.tables[table].extend(raw.rows(table))
    head = header(raw)
    found.world_size = head.get("world_size")
    artifacts = [
        artifact
        for origin, rows in raw.parts["artifacts"]
        for row in rows
        if (artifact := _artifact(row, renamed.get((origin, row.get("path") or ""))))
    ]
    found.files = len(artifacts) + len({line.path for line in found.lines})
    before = len(found.ledger)
    gather.read(found, artifacts, budget or Budget())
    # the node said already that it collected the file; what a reader could not use is news
    found.ledger[before:] = [entry for entry in found.ledger[before:] if entry.outcome is not Outcome.COLLECTED]
    _merge_ranks(found)
    _merge_incident(found, head)
    return found


def header(raw: Raw) -> dict[str, Any]:
    """The scheduler's facts of the incident: the first value of each field over all origins, the head's first."""
    merged: dict[str, Any] = {}
    for _, rows in sorted(raw.parts["incidents"], key=lambda part: part[0] != HEAD):
        for row in rows:
            for name, value in row.items():
                if value is not None and merged.get(name) is None:
                    merged[name] = value
    return merged


def missing_origins(raw: Raw) -> list[dict[str, Any]]:
    """Ledger rows of the origins that a head expects and that have not reported."""
    here = {part.origin for part in raw.reported}
    rows = [row for row in raw.rows("ledger") if row.get("source") == EXPECTED and row.get("path") not in here]
    return list({row["path"]: row for row in rows}.values())


def _collisions(raw: Raw) -> dict[tuple[str, str], str]:
    """(origin, path) -> path to show, for paths that several origins reported."""
    owners: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for table in ("log_lines", "artifacts"):
        for origin, rows in raw.parts[table]:
            for path in {row.get("path") or "" for row in rows}:
                if (origin, path) not in seen:
                    seen.add((origin, path))
                    owners[path] += 1
    return {(origin, path): f"{origin}/{path.lstrip('/')}" for origin, path in seen if owners[path] > 1}


def _lines(raw: Raw, renamed: Mapping[tuple[str, str], str]) -> list[LogLine]:
    lines = []
    for origin, rows in raw.parts["log_lines"]:
        for row in rows:
            path = row.get("path") or ""
            get = row.get
            lines.append(
                LogLine(
                    get("attempt"), renamed.get((origin, path), path), get("line") or 0, get("offset") or 0,
                    get("part") or 0, get("node"), get("rank"), get("local_rank"), get("pid"), get("stream"),
                    get("issuer") or "unknown", get("at_lo"), get("at_hi"), get("text") or "",
                )
            )  # fmt: skip
    return lines


def _artifact(row: Mapping[str, Any], renamed: str | None) -> Artifact | None:
    """A row of `artifacts` as what the readers take; None for a kind that this version does not know."""
    try:
        kind = ArtifactKind(row.get("kind") or "")
    except ValueError:
        return None
    content: bytes = row.get("content") or b""
    path = row.get("path") or ""
    named = naming.read_name(path).origin

    def open_content() -> BinaryIO:
        return io.BytesIO(content)

    taken = row.get("taken_at")
    return Artifact(
        kind,
        renamed or path,
        Origin(row.get("node"), row.get("rank"), named.local_rank, row.get("attempt"), named.stream),
        len(content),
        open_content,
        taken / 1e6 if taken is not None else None,
    )


def _ledger(raw: Raw) -> Iterable[LedgerEntry]:
    missing = {row["path"] for row in missing_origins(raw)}
    told: set[str] = set()
    for row in raw.rows("ledger"):
        path = row.get("path") or ""
        if row.get("source") == EXPECTED:
            if path not in missing or path in told:
                continue
            told.add(path)
        yield entry(row)


def entry(row: Mapping[str, Any]) -> LedgerEntry:
    """A row of the `ledger` table as a LedgerEntry; an outcome of a newer version reads as unreachable."""
    said = str(row.get("outcome"))
    known = said in Outcome._value2member_map_
    detail = row.get("detail") if known else f"{said}: {row.get('detail') or ''}".rstrip(": ")
    return LedgerEntry(
        row.get("source") or "", row.get("path") or "", Outcome(said) if known else Outcome.UNREACHABLE,
        Origin(row.get("node"), row.get("rank"), attempt=row.get("attempt")), row.get("kind"),
        row.get("bytes_seen") or 0, row.get("bytes_kept") or 0, row.get("dropped_from"), row.get("dropped_to"), detail,
    )  # fmt: skip


def _merge_ranks(found: gather.Evidence) -> None:
    """One row per rank and attempt: what its lines say, completed by what the scheduler or the pod says."""
    merged: dict[tuple[int, Any], dict[str, Any]] = {}
    for row in reversed(found.tables["ranks"]):  # rows from lines were added last and count first
        key = (row.get("attempt") or 0, row.get("rank"))
        known = merged.setdefault(key, {"attempt": key[0], "rank": key[1]})
        known.update({name: value for name, value in row.items() if known.get(name) is None})
    found.tables["ranks"] = [merged[key] for key in sorted(merged, key=lambda key: (key[0], key[1] is None, key[1]))]


_FRAMEWORKS = (
    "torch", "deepspeed", "lightning", "pytorch-lightning", "accelerate", "transformers", "trl", "ray", "megatron-core",
)  # fmt: skip


def _merge_incident(found: gather.Evidence, head: Mapping[str, Any]) -> None:
    """One row of `incidents`: the scheduler's facts, completed by what the evidence shows."""
    times = [line.at_lo for line in found.lines if line.at_lo is not None]
    ranks = found.tables["ranks"]
    row: dict[str, Any] = {**head, "incident": found.incident, "world_size": found.world_size}
    row["scheduler"] = head.get("scheduler") or _scheduler(found.incident)
    row["nodes"] = list(head.get("nodes") or sorted({str(r["node"]) for r in ranks if r.get("node")})) or None
    row["attempts"] = head.get("attempts") or len({line.attempt or 0 for line in found.lines}) or None
    row["started"] = head.get("started") or min(times, default=None)
    row["ended"] = head.get("ended") or max(times, default=None)
    row["frameworks"] = list(head.get("frameworks") or _frameworks(found.tables["environment"])) or None
    found.tables["incidents"] = [row]


def _scheduler(incident: str) -> str:
    return {"slurm": "slurm", "k8s": "kubernetes"}.get(incident.partition("-")[0], "local")


def _frameworks(environment: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {str(row.get("name") or "").removeprefix("package:").lower() for row in environment}
    return [name for name in _FRAMEWORKS if name in names]
