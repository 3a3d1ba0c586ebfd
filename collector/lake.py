"""Names and places of the lake's objects, and how a table becomes a Parquet file and comes back.

Two zones in one store. The raw zone is what origins reported, `raw/<table>/incident=<id>/<origin>.parquet`, written
whole by its one origin and overwritten by a retry. An origin writes its `ledger` part LAST: that part says that all
others of the origin are there. The lake zone is what the analysis made of it,
`lake/<table>/date=YYYY-MM-DD/<unit>.<version>.parquet`, where the unit is the incident. A name is written once: a later
analysis has a higher version, and readers take the newest one (`analyzers.snapshot`), so that nobody needs a lock.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from collector.parquet import from_parquet as from_parquet
from collector.parquet import to_parquet as to_parquet
from collector.parquet import write_parquet
from collector.store import Store, StoredObject

if TYPE_CHECKING:
    import pyarrow as pa

RAW_TABLES = (
    "log_lines", "artifacts", "incidents", "ranks", "scheduler_events", "allocations", "checkpoints", "kernel_events",
    "gpus", "environment", "ledger",
)  # fmt: skip
"""Tables that a collector may write: lines, small files, and facts that only the place itself can read."""
LAKE_TABLES = (
    "incidents", "ranks", "kernel_events", "scheduler_events", "gpus", "environment", "stack_frames", "collectives",
    "checkpoints", "allocations", "ledger", "observations", "candidates", "verdicts",
)  # fmt: skip
"""Tables of the lake zone, in the order in which an analysis writes them: the verdict publishes the rest."""
EXPECTED = "expected"
"""`source` of the ledger rows in which a head names the origins that must report; see `expected_rows`."""
HEAD = "head"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_VERSION = re.compile(r"v\d{17}-[0-9a-f]{8}-[0-9a-f]{4}")
_LAKE_KEY = re.compile(
    r"lake/(?P<table>\w+)/date=(?P<date>\d{4}-\d\d-\d\d)/(?P<unit>[^/]+?)(?:\.(?P<version>v\d{17}-[0-9a-f]{8}-[0-9a-f]{4}))?"
    r"\.parquet"
)
_RAW_KEY = re.compile(r"raw/(?P<table>\w+)/incident=(?P<incident>[^/]+)/(?P<origin>[^/]+)\.parquet")
DAY_UNIT = "~day"
"""Unit name of a day file, which holds many units; no incident can have it."""


class LakeFile(NamedTuple):
    """What the name of an object of the lake zone says."""

    table: str
    date: str
    unit: str
    version: str
    """Sorts by age; empty for a file that somebody wrote without one."""
    object: StoredObject


class RawPart(NamedTuple):
    """What the name of an object of the raw zone says."""

    table: str
    incident: str
    origin: str
    object: StoredObject


def safe_name(text: str) -> str:
    """`text` as a name for keys: unchanged if it is one, else cleaned and with a hash that keeps two texts apart."""
    if _NAME.fullmatch(text) and len(text) <= 180:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{_UNSAFE.sub('-', text).strip('-_')[:120] or 'x'}-{digest}"


def raw_key(table: str, incident: str, origin: str) -> str:
    """Key of what `origin` (`head`, `node-<host>`, `pod-<ns>-<pod>-<uid>`) reported for a table of an incident.

    Raises ValueError for a table that is not in RAW_TABLES or names that are not safe (see `safe_name`).
    """
    if table not in RAW_TABLES:
        raise ValueError(f"{table!r} is no table of the raw zone: {', '.join(RAW_TABLES)}")
    return f"raw/{table}/incident={_checked(incident)}/{_checked(origin)}.parquet"


def lake_key(table: str, date: str, incident: str, version: str = "") -> str:
    """Key of an incident's file of a table; `date` is YYYY-MM-DD of the failure. Raises ValueError for bad names."""
    if table not in LAKE_TABLES:
        raise ValueError(f"{table!r} is no table of the lake zone: {', '.join(LAKE_TABLES)}")
    if not _DATE.fullmatch(date) or (version and not _VERSION.fullmatch(version)):
        raise ValueError(f"bad date or version: {date!r} {version!r}")
    unit = incident if incident == DAY_UNIT else _checked(incident)
    return f"lake/{table}/date={date}/{unit}{'.' if version else ''}{version}.parquet"


def parse_lake(item: StoredObject) -> LakeFile | None:
    """The parts of a lake key, or None if the object is something else."""
    match = _LAKE_KEY.fullmatch(item.key)
    if match is None or match["table"] not in LAKE_TABLES:
        return None
    return LakeFile(match["table"], match["date"], match["unit"], match["version"] or "", item)


def raw_parts(store: Store, table: str, incident: str | None = None) -> Iterator[RawPart]:
    """The parts of a table of the raw zone, of one incident or of all."""
    where = f"raw/{table}/" + (f"incident={_checked(incident)}/" if incident is not None else "incident=")
    for item in store.list(where):
        match = _RAW_KEY.fullmatch(item.key)
        if match is not None:
            yield RawPart(match["table"], match["incident"], match["origin"], item)


def expected_rows(incident: str, origins: Iterable[tuple[str, str | None, int | None]]) -> Iterator[dict[str, Any]]:
    """Ledger rows by which a head says who must report: (origin, node, rank) each.

    They stand in the lake as `unreachable` until the origin's own ledger part arrives.
    """
    for origin, node, rank in origins:
        yield {
            "incident": incident, "source": EXPECTED, "path": _checked(origin), "node": node, "rank": rank,
            "outcome": "unreachable", "detail": "it was expected to report and has not",
        }  # fmt: skip


def new_version(print_of_parts: str, old: str | None) -> str:
    """A version made now that sorts behind `old`, whatever the clocks of two machines say.

    `print_of_parts`: 8 hex digits that tell of what it was made (of the raw parts; zeros where nothing else tells).
    """
    now = time.time_ns() // 1000
    if old:
        now = max(now, version_time(old) + 1)
    return f"v{now:017d}-{print_of_parts}-{secrets.token_hex(2)}"


def version_time(version: str) -> int:
    """UTC microseconds at which a version was made; 0 for a file without a version."""
    return int(version[1:18]) if version else 0


def version_print(version: str) -> str:
    """The 8 hex digits of what it was made of; empty for a file without a version."""
    return version[19:27]


def publish_allocations(store: Store, unit: str, date: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write exposure (successes too) straight to the lake; rows of the same unit that are older do not count any more.

    `unit`: such as `<cluster>-<job>` or `<cluster>-<hour>`; `date`: YYYY-MM-DD. Raises StoreError, ValueError.
    """
    key = lake_key("allocations", date, unit, new_version("0" * 8, None))
    store.put(key, to_parquet("allocations", rows))


def write_raw(
    store: Store, table: str, incident: str, origin: str, rows: Iterable[Mapping[str, Any]] | pa.Table
) -> int:
    """Write one part of the raw zone; returns the bytes of the object.

    `rows`: dicts of `collector.tables` (converted in batches: a generator of a million lines is never held as dicts)
    or an Arrow table. `incident` is filled in where a row lacks it. Raises StoreError, ValueError for bad names or
    unknown fields.
    """
    key = raw_key(table, incident, origin)
    if table != "log_lines":
        data = to_parquet(table, rows, incident=incident)
        store.put(key, data)
        return len(data)
    # a file, because the lines of one node may be too many even when compressed
    with tempfile.TemporaryDirectory(prefix="firstfault-") as folder:
        path = Path(folder) / "part.parquet"
        write_parquet(str(path), table, rows, incident=incident)
        store.put(key, path)
        return path.stat().st_size


def read_raw(store: Store, table: str, incident: str) -> pa.Table:
    """All parts of a table of one incident, in order of their origins; without parts an empty table.

    Raises StoreError if a part cannot be fetched or is no Parquet file.
    """
    return _together(table, [loaded for _, loaded in read_parts(store, table, incident)])


def read_parts(store: Store, table: str, incident: str) -> Iterator[tuple[str, pa.Table]]:
    """(origin, its rows) of each part of a table of one incident, in order of origins. Raises StoreError."""
    for part in sorted(raw_parts(store, table, incident), key=lambda part: part.origin):
        yield part.origin, from_parquet(table, store.get(part.object.key), part.object.key)


def _together(table: str, parts: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    from collector import tables

    return pa.concat_tables(parts) if parts else tables.SCHEMAS[table].empty_table()


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > 200:
        raise ValueError(f"{name[:100]!r} is no name for keys; use collector.lake.safe_name")
    return name
