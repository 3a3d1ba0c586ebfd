"""Which files ARE the lake at this moment: the one rule that analysis, compaction and every reader share.

Files are written once and deleted only when something newer covers them, so readers need no lock, only an order:

* An analysis writes the files of one version of its incident, the verdict last. Of the versions whose verdict exists
  the highest counts, in every table; so tables never mix two analyses. Superseded files go after that, verdict first.
* A compaction writes day files, then the day's manifest (which units at which version lie in which files): that one
  object is the swap. Files that the manifest covers go after that.
* A reader lists verdicts, then the other tables, THEN reads the manifests: what a compaction took away after the
  listing is in the manifest. Then it lists the verdicts again: a chosen verdict that is gone means that a later
  analysis may have taken files away between the listings, and the reader begins again.

`allocations` have units of their own (successful jobs have no verdict): there a unit's own file is its commit.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from collector.lake import DAY_UNIT, LAKE_TABLES, LakeFile, parse_lake
from collector.store import Store, StoredObject, StoreError, StoreMissing, StoreUnavailable

MANIFESTS = "lake/_days/"
"""Engines that read the lake by folder ignore names that begin with an underscore."""
OWN_UNITS = frozenset({"allocations"})
"""Tables whose units need no verdict."""
_ATTEMPTS = 8
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a compaction made of one day."""

    date: str
    files: Mapping[str, str]
    """Table -> key of its day file; absent where the day has no rows of it."""
    units: Mapping[str, str]
    """Incident -> version in the day files."""
    own_units: Mapping[str, Mapping[str, str]]
    """Table of OWN_UNITS -> unit -> version."""

    def covered(self, table: str) -> Mapping[str, str]:
        """Unit -> version that the day file of `table` holds."""
        return self.own_units.get(table, {}) if table in OWN_UNITS else self.units

    def dumps(self) -> bytes:
        """The object's bytes."""
        data = {
            "schema": 1, "date": self.date, "files": dict(self.files), "units": dict(self.units),
            "own_units": {table: dict(units) for table, units in self.own_units.items()},
        }  # fmt: skip
        return json.dumps(data, sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent choice of files."""

    units: Mapping[str, Mapping[str, str]]
    """Table -> unit -> version that counts; the same for all tables but OWN_UNITS."""
    files: Mapping[str, tuple[LakeFile, ...]]
    """Table -> files of single units to read."""
    days: Mapping[str, tuple[tuple[str, str], ...]]
    """Table -> (date, key) of day files to read."""
    superseded: Mapping[str, frozenset[tuple[str, str]]]
    """Table -> (date, unit) whose rows in that day's file do not count any more."""
    left_over: tuple[LakeFile, ...] = ()
    """Files that no reader looks at: superseded, covered by a day file, or never published."""
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    """Date -> manifest."""
    verdict_dates: Mapping[str, str] = field(default_factory=dict)
    """Unit -> date under which its current verdict lies."""

    def same_files(self, other: Snapshot) -> bool:
        """True if a reader of `other` opens the same objects."""
        return self.files == other.files and self.days == other.days and self.superseded == other.superseded


def manifest_key(date: str) -> str:
    """Key of the manifest of a day."""
    return f"{MANIFESTS}date={date}.json"


def take(store: Store, tables: Iterable[str] = LAKE_TABLES) -> Snapshot:
    """A consistent snapshot of the given tables. Raises StoreError (StoreUnavailable if it never comes to rest)."""
    wanted = [table for table in LAKE_TABLES if table in set(tables)]
    for attempt in range(_ATTEMPTS):
        verdicts = _listed(store, "verdicts")
        others = [table for table in wanted if table != "verdicts"]
        listed = {"verdicts": verdicts, **dict(zip(others, _each(store, others), strict=True))}
        manifests = read_manifests(store)
        snapshot = _choose(wanted, listed, manifests)
        if len(wanted) == 1 and wanted[0] in OWN_UNITS:
            return snapshot
        still = {file.object.key for file in _listed(store, "verdicts")}
        chosen = {file.object.key for file in _current(verdicts, snapshot.units["verdicts"])}
        if _covered(snapshot, chosen - still, verdicts):
            return snapshot
        time.sleep(0.05 * attempt)
    raise StoreUnavailable("the lake changes faster than it can be listed; try again")


def _each(store: Store, tables: list[str]) -> list[list[LakeFile]]:
    if len(tables) < 2:
        return [_listed(store, table) for table in tables]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda table: _listed(store, table), tables))


def _listed(store: Store, table: str) -> list[LakeFile]:
    parsed = (parse_lake(item) for item in store.list(f"lake/{table}/date="))
    return [file for file in parsed if file is not None]


def _current(files: list[LakeFile], units: Mapping[str, str]) -> list[LakeFile]:
    return [file for file in files if file.unit != DAY_UNIT and units.get(file.unit) == file.version]


def _covered(snapshot: Snapshot, gone: set[str], verdicts: list[LakeFile]) -> bool:
    """True if each verdict file that is gone was taken over by a day file."""
    for file in verdicts:
        if file.object.key in gone:
            versions = [manifest.units.get(file.unit) for manifest in snapshot.manifests.values()]
            if file.version not in versions:
                return False
    return True


def read_manifests(store: Store) -> dict[str, Manifest]:
    """Date -> manifest. Raises StoreError, also for one that cannot be understood: guessing would double rows."""
    items = [item for item in store.list(MANIFESTS) if item.key.endswith(".json")]
    if len(items) < 2:
        found = [_manifest(store, item) for item in items]
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(lambda item: _manifest(store, item), items))
    return {manifest.date: manifest for manifest in found if manifest is not None}


def _manifest(store: Store, item: StoredObject) -> Manifest | None:
    try:
        data: Any = json.loads(store.get(item.key))
        return Manifest(data["date"], data["files"], data["units"], data["own_units"])
    except StoreMissing:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{item.key} is no manifest of a day: {error}") from error


def _choose(wanted: list[str], listed: Mapping[str, list[LakeFile]], manifests: dict[str, Manifest]) -> Snapshot:
    published = _newest("verdicts", listed["verdicts"], manifests)
    units, files, days, superseded = {}, {}, {}, {}
    left: list[LakeFile] = []
    for table in wanted:
        current = _newest(table, listed[table], manifests) if table in OWN_UNITS else published
        units[table] = current
        inside = {(m.date, u): v for m in manifests.values() for u, v in m.covered(table).items()}
        held = {(u, v) for (_, u), v in inside.items() if current.get(u) == v}
        files[table] = tuple(f for f in _current(listed[table], current) if (f.unit, f.version) not in held)
        days[table] = tuple((m.date, m.files[table]) for m in manifests.values() if table in m.files)
        superseded[table] = frozenset(key for key, v in inside.items() if current.get(key[1]) != v)
        used = {f.object.key for f in files[table]} | {key for _, key in days[table]}
        left.extend(f for f in listed[table] if f.object.key not in used)
    units.setdefault("verdicts", published)
    dates = {f.unit: f.date for f in _current(listed["verdicts"], published)}
    dates |= {u: m.date for m in manifests.values() for u, v in m.units.items() if published.get(u) == v}
    return Snapshot(units, files, days, superseded, tuple(left), manifests, dates)


def _newest(table: str, files: list[LakeFile], manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """Unit -> highest version that is published, in files or in day files."""
    versions: dict[str, list[str]] = defaultdict(list)
    for file in files:
        if file.unit != DAY_UNIT:
            versions[file.unit].append(file.version)
    for manifest in manifests.values():
        for unit, version in manifest.covered(table).items():
            versions[unit].append(version)
    return {unit: max(found) for unit, found in versions.items()}
