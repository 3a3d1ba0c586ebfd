"""Analysis from the lake: raw parts in, verdicts and tables out; and the lake as SQL.

The analysis of a batch is `diagnose` of many incidents with one ranking call between: fetch (many at once, the network
is slow), read, examine, rank together, conclude, publish. An incident is published under a version made of the time and
a fingerprint of its raw parts, so that "what has to be analysed" follows from two listings, without any clock: an
incident is pending when the fingerprint of its parts is not that of its verdict.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from analyzers import lake_sql, raw_evidence, snapshot
from analyzers.case import Case, Observation
from analyzers.gather import Evidence
from analyzers.lake_rows import date_of, tables_of
from analyzers.lake_sql import connect as connect  # the lake as SQL is part of what a user of this module needs
from collector import __version__
from collector.lake import (
    EXPECTED,
    HEAD,
    LAKE_TABLES,
    RawPart,
    lake_key,
    new_version,
    raw_parts,
    to_parquet,
    version_print,
    version_time,
)
from collector.store import Store, StoreError, StoreUnavailable

BATCH = 100
BATCH_LINES = 1_000_000
"""Incidents ranked in one call, and log lines of them: enough that the call costs nothing per incident, few enough to
hold in memory. An incident is never split."""
DEADLINE = 900.0
"""Seconds after the last part after which an incident is analysed although expected origins are missing."""
_THREADS = 8
_T = TypeVar("_T")


class Analysed(NamedTuple):
    """What became of one incident."""

    incident: str
    answer: dict[str, Any] | None
    """The contract of `diagnose --json` (DESIGN section 4), or None if it could not be analysed now."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """An incident whose raw parts its verdict does not know."""

    incident: str
    parts: tuple[RawPart, ...]
    """Its ledger parts."""
    analysed: bool
    """True if there is a verdict of fewer or other parts: the incident is open again."""

    @property
    def last(self) -> float:
        """Unix seconds (clock of the store) of the newest part."""
        return max(part.object.modified for part in self.parts)


def analyze(store: Store, incident: str) -> dict[str, Any]:
    """Analyse one incident now, whoever has reported, and publish it; the contract of DESIGN section 4.

    Raises StoreMissing if nothing was reported of it, StoreError if the store fails.
    """
    (result,) = analyze_many(store, [incident])
    if result.answer is None:
        raise StoreUnavailable(f"{incident}: {result.error}")
    return result.answer


def analyze_many(store: Store, incidents: Iterable[str], *, extra_signatures: Any = None) -> Iterator[Analysed]:
    """Analyse and publish incidents, in batches of one ranking call each; yields each as it is published.

    An incident that fails is reported and costs only itself. Raises StoreError if the store fails for all.
    """
    from analyzers import diagnose
    from analyzers.signatures import load

    known = load(extra_signatures)
    taken = snapshot.take(store, ["verdicts"])
    before = _Before(taken.units["verdicts"], {file.unit: file.date for file in taken.files["verdicts"]})
    batch: list[_Judged] = []
    lines = 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for incident, raw, error in _fetched(pool, store, incidents):
            if raw is None or not (raw.parts or raw.broken):
                yield Analysed(incident, None, error or "nothing was reported of it")
                continue
            evidence = raw_evidence.evidence(raw, store.uri)
            case = diagnose.build_case(evidence, known)
            batch.append(_Judged(raw, evidence, case, diagnose.examine(case)))
            lines += len(evidence.lines)
            if len(batch) >= BATCH or lines >= BATCH_LINES:
                yield from _concluded(pool, store, batch, known.hash, before)
                batch, lines = [], 0
        yield from _concluded(pool, store, batch, known.hash, before)


def _fetched(
    pool: ThreadPoolExecutor, store: Store, incidents: Iterable[str]
) -> Iterator[tuple[str, raw_evidence.Raw | None, str | None]]:
    """(incident, what is raw of it, error), a few ahead of the reader: the network is slow, memory is small."""
    ahead: deque[tuple[str, Future[tuple[raw_evidence.Raw | None, str | None]]]] = deque()
    for incident in incidents:
        ahead.append((incident, pool.submit(_try, functools.partial(raw_evidence.fetch, store, incident))))
        if len(ahead) > _THREADS:
            name, job = ahead.popleft()
            yield name, *job.result()
    for name, job in ahead:
        yield name, *job.result()


def _concluded(
    pool: ThreadPoolExecutor, store: Store, batch: Sequence[_Judged], signature_set: str, before: _Before
) -> Iterator[Analysed]:
    """Rank a batch in one call, conclude and publish each."""
    from analyzers import diagnose, rank

    if not batch:
        return
    rankings = rank.rank(
        {one.raw.incident: one.observations for one in batch},
        {one.raw.incident: diagnose.ranks_at_least(one.case) for one in batch},
        diagnose.relations(batch[0].case),
    )
    jobs = []
    for one in batch:
        incident = one.raw.incident
        answer = diagnose.conclude(one.case, one.evidence, one.observations, rankings[incident])
        answer["incident"]["scheduler"] = one.evidence.tables["incidents"][0]["scheduler"]
        answer["details"]["signature_set"] = signature_set
        date = date_of(one.raw, one.evidence, answer)
        rows = tables_of(one.case, one.evidence, one.observations, answer)
        publish = functools.partial(_publish, store, incident, one.raw.reported, date, rows, before)
        jobs.append((incident, answer, pool.submit(_try, publish)))
    for incident, answer, job in jobs:
        _, error = job.result()
        yield Analysed(incident, answer if error is None else None, error)


def _try(work: Callable[[], _T]) -> tuple[_T | None, str | None]:
    try:
        return work(), None
    except StoreError as error:
        return None, str(error)


@dataclass(frozen=True, slots=True)
class _Before:
    """What was published before this analysis began."""

    versions: Mapping[str, str]
    """Incident -> version."""
    dates: Mapping[str, str]
    """Incident -> date of its verdict file, unless it lies in a day file."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """An incident before the ranking."""

    raw: raw_evidence.Raw
    evidence: Evidence
    case: Case
    observations: list[Observation]


def _publish(
    store: Store, incident: str, reported: Sequence[RawPart], date: str, tables: Mapping[str, list[dict[str, Any]]],
    before: _Before,
) -> str:  # fmt: skip
    """Write all tables under a new version, the verdict last, then remove what they supersede. Returns the version."""
    old = before.versions.get(incident)
    version = new_version(fingerprint(reported), old)
    for table in LAKE_TABLES:
        rows = tables.get(table) or []
        if table == "verdicts":
            rows = [{**row, "analyzed_at": version_time(version), "date": date} for row in rows]
        if rows:
            store.put(lake_key(table, date, incident, version), to_parquet(table, rows))
    if old is not None and incident in before.dates:
        remove_version(store, incident, before.dates[incident], old)
    return version


def remove_version(store: Store, incident: str, date: str, version: str) -> None:
    """Remove the files of a superseded version, the verdict first: readers check that it is still there."""
    for table in ("verdicts", *(table for table in LAKE_TABLES if table != "verdicts")):
        store.delete(lake_key(table, date, incident, version))


def fingerprint(parts: Iterable[RawPart]) -> str:
    """8 hex digits that change when an origin reports for the first time or reports something else."""
    named = sorted(f"{part.origin}\0{part.object.etag or part.object.modified}\0{part.object.size}" for part in parts)
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:8]


def pending(store: Store) -> list[Pending]:
    """Incidents whose ledger parts are not those of their verdict, oldest first. Raises StoreError."""
    parts: dict[str, list[RawPart]] = defaultdict(list)
    for part in raw_parts(store, "ledger"):
        parts[part.incident].append(part)
    known = snapshot.take(store, ["verdicts"]).units["verdicts"]
    waiting = [
        Pending(incident, tuple(found), incident in known)
        for incident, found in parts.items()
        if version_print(known.get(incident, "")) != fingerprint(found)
    ]
    return sorted(waiting, key=lambda one: one.last)


def complete(store: Store, one: Pending, *, deadline: float = DEADLINE, now: float | None = None) -> bool:
    """True if all origins that the incident's heads expect have reported, or the deadline has passed.

    Without a head nobody knows who is expected, so only the deadline closes the incident. Raises StoreUnavailable.
    """
    if (now if now is not None else time.time()) - one.last >= deadline:
        return True
    heads = [part for part in one.parts if part.origin.startswith(HEAD)]
    raw = raw_evidence.Raw(one.incident, reported=list(one.parts))
    raw.parts["ledger"] = list(raw_evidence.ledger_rows(store, heads or one.parts))
    expects = any(row.get("source") == EXPECTED for row in raw.rows("ledger"))
    return expects and not raw_evidence.missing_origins(raw)


def closed(store: Store, waiting: Sequence[Pending], *, deadline: float = DEADLINE) -> list[Pending]:
    """Those of `waiting` that are complete. Raises StoreUnavailable."""
    with ThreadPoolExecutor(_THREADS) as pool:
        done = list(pool.map(lambda one: complete(store, one, deadline=deadline), waiting))
    return [one for one, is_done in zip(waiting, done, strict=True) if is_done]


def outdated(store: Store, since: str, *, extra_signatures: Any = None, again: bool = False) -> list[str]:
    """Incidents from `since` (YYYY-MM-DD) whose verdict another signature set or version made; all with `again`."""
    from analyzers.signatures import load

    text = "SELECT incident, signature_set, version FROM verdicts WHERE date >= $since ORDER BY incident"
    now = (load(extra_signatures).hash, __version__)
    rows = lake_sql.query(store, text, {"since": since}).rows
    return [incident for incident, signature_set, version in rows if again or (signature_set, version) != now]


def incident_rows(store: Store, incident: str) -> dict[str, list[dict[str, Any]]]:
    """Table -> rows of one incident, as far as it has any."""

    def work(connection: Any) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for table in (table for table in LAKE_TABLES if table != "allocations"):
            cursor = connection.execute(f'SELECT * FROM "{table}" WHERE incident = ?', [incident])
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            if rows:
                found[table] = rows
        return found

    return lake_sql.read(store, work)


def check(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Name of each query of queries/checks that returns rows -> those rows: broken invariants, over one snapshot."""
    from analyzers import sql

    def work(connection: Any) -> dict[str, list[dict[str, Any]]]:
        broken = {}
        for name, text in sql.load("checks"):
            columns, rows = lake_sql.execute(connection, text)
            if rows:
                broken[name] = [dict(zip(columns, row, strict=True)) for row in rows]
        return broken

    return lake_sql.read(store, work)


def dumps(answer: dict[str, Any]) -> str:
    """An answer as JSON text."""
    return json.dumps(answer, ensure_ascii=False, default=str)
