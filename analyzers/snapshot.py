"""Which files ARE the lake at this moment: the one rule that analysis, compaction and every reader share.

Files are written once and deleted only when something newer covers them, so readers need no lock, only an order:

* An analysis writes the files of one version of its incident, the verdict last. Of the versions whose verdict exists
  the highest counts, in every table; so tables never mix two analyses. Superseded files go after that, verdict first.
* A compaction writes day files, then their manifest (which units at which version lie in them): that one object is the
  swap. What the manifest covers goes after that: files, older manifests, their day files, in this order. If two
  compactions of a day meet, both manifests stand and of a unit in both the newer one's rows count.
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
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    """What a compaction made of one day. Written once, like every object of the lake zone."""

    date: str
    version: str
    """Sorts by age; also the version in the names of its day files."""
    files: Mapping[str, str]
    """Table -> key of its day file; absent where the day has no rows of it."""
    units: Mapping[str, str]
    """Incident -> version in the day files."""
    own_units: Mapping[str, Mapping[str, str]]
    """Table of OWN_UNITS -> unit -> version."""

    def covered(self, table: str) -> Mapping[str, str]:
        """Unit -> version that the day file of `table` holds."""
        return self.own_units.get(table, {}) if table in OWN_UNITS else self.units

    @property
    def key(self) -> str:
        """Key of the manifest itself."""
        return f"{MANIFESTS}date={self.date}.{self.version}.json"

    def dumps(self) -> bytes:
        """The object's bytes."""
        data = {
            "schema": 1, "date": self.date, "version": self.version, "files": dict(self.files),
            "units": dict(self.units), "own_units": {table: dict(units) for table, units in self.own_units.items()},
        }  # fmt: skip
        return json.dumps(data, sort_keys=True).encode()


class DayFile(NamedTuple):
    """A day file to read."""

    date: str
    version: str
    """That of its manifest."""
    key: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent choice of files."""

    units: Mapping[str, Mapping[str, str]]
    """Table -> unit -> version that counts; the same for all tables but OWN_UNITS."""
    files: Mapping[str, tuple[LakeFile, ...]]
    """Table -> files of single units to read."""
    days: Mapping[str, tuple[DayFile, ...]]
    """Table -> day files to read."""
    superseded: Mapping[str, frozenset[tuple[str, str]]]
    """Table -> (version of the manifest, unit) whose rows in that day file do not count."""
    manifests: tuple[Manifest, ...] = ()
    left_over: tuple[LakeFile, ...] = ()
    """Files that no reader looks at: superseded, covered by a day file, or never published."""

    def same_files(self, other: Snapshot) -> bool:
        """True if a reader of `other` opens the same objects."""
        return self.files == other.files and self.days == other.days and self.superseded == other.superseded


def take(store: Store, tables: Iterable[str] = LAKE_TABLES) -> Snapshot:
    """A consistent snapshot of the given tables. Raises StoreError (StoreUnavailable if it never comes to rest)."""
    wanted = [table for table in LAKE_TABLES if table in set(tables)]
    for attempt in range(_ATTEMPTS):
        snapshot = _try_once(store, wanted)
        if snapshot is not None:
            return snapshot
        time.sleep(0.05 * attempt)
    raise StoreUnavailable("the lake changes faster than it can be listed; try again")


def _try_once(store: Store, wanted: list[str]) -> Snapshot | None:
    verdicts = _listed(store, "verdicts")
    others = [table for table in wanted if table != "verdicts"]
    listed = {"verdicts": verdicts, **dict(zip(others, _each(store, others), strict=True))}
    manifests = read_manifests(store)
    if manifests is None:
        return None
    snapshot = _choose(wanted, listed, manifests)
    chosen = {f.object.key: f for f in _current(verdicts, snapshot.units["verdicts"])}
    for file in _listed(store, "verdicts"):
        chosen.pop(file.object.key, None)
    taken_over = {(unit, version) for manifest in manifests for unit, version in manifest.units.items()}
    return snapshot if all((file.unit, file.version) in taken_over for file in chosen.values()) else None


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


def read_manifests(store: Store) -> list[Manifest] | None:
    """All manifests, oldest first; None if one went away between the listing and the reading.

    Raises StoreError, also for one that cannot be understood: guessing would double rows.
    """
    items = [item for item in store.list(MANIFESTS) if item.key.endswith(".json")]
    try:
        if len(items) < 2:
            found = [_manifest(store, item) for item in items]
        else:
            with ThreadPoolExecutor(_THREADS) as pool:
                found = list(pool.map(lambda item: _manifest(store, item), items))
    except StoreMissing:
        return None
    return sorted(found, key=lambda manifest: manifest.version)


def _manifest(store: Store, item: StoredObject) -> Manifest:
    try:
        data: Any = json.loads(store.get(item.key))
        return Manifest(data["date"], data["version"], data["files"], data["units"], data["own_units"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{item.key} is no manifest of a day: {error}") from error


def _choose(wanted: list[str], listed: Mapping[str, list[LakeFile]], manifests: list[Manifest]) -> Snapshot:
    published = _newest("verdicts", listed["verdicts"], manifests)
    units: dict[str, dict[str, str]] = {"verdicts": published}
    files, days, superseded = {}, {}, {}
    left: list[LakeFile] = []
    for table in wanted:
        current = units[table] = _newest(table, listed[table], manifests) if table in OWN_UNITS else published
        # (unit, version) -> the newest manifest that holds it
        held = {pair: m.version for m in manifests for pair in m.covered(table).items() if current[pair[0]] == pair[1]}
        files[table] = tuple(f for f in _current(listed[table], current) if (f.unit, f.version) not in held)
        needed = set(held.values())
        days[table] = tuple(
            DayFile(m.date, m.version, m.files[table]) for m in manifests if m.version in needed and table in m.files
        )
        superseded[table] = frozenset(
            (m.version, unit)
            for m in manifests
            for unit, v in m.covered(table).items()
            if held.get((unit, v)) != m.version
        )
        used = {f.object.key for f in files[table]} | {m.files[table] for m in manifests if table in m.files}
        left.extend(f for f in listed[table] if f.object.key not in used)
    return Snapshot(units, files, days, superseded, tuple(manifests), tuple(left))


def _newest(table: str, files: list[LakeFile], manifests: list[Manifest]) -> dict[str, str]:
    """Unit -> highest version that is published, in files or in day files."""
    versions: dict[str, list[str]] = defaultdict(list)
    for file in files:
        if file.unit != DAY_UNIT:
            versions[file.unit].append(file.version)
    for manifest in manifests:
        for unit, version in manifest.covered(table).items():
            versions[unit].append(version)
    return {unit: max(found) for unit, found in versions.items()}
