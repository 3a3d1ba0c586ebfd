"""Day files out of thousands of incident files, safe to kill at any moment and beside readers, analyses and itself.

Per day: write the day files of all tables under fresh names, then their manifest (the swap), then remove what the
manifest covers. Killed before the manifest, nobody reads the new files; killed after it, nobody reads the old ones;
either way a later run removes what is left. Only what one has merged oneself is removed, so two compactions that meet
leave two manifests, which the next run merges. Files of analyses that never got to their verdict, and day files that
never got a manifest, are removed after a day: nobody reads them, but somebody slow may still be writing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from analyzers import snapshot
from collector.lake import (
    DAY_UNIT,
    LAKE_TABLES,
    LakeFile,
    from_parquet,
    lake_key,
    new_version,
    to_parquet,
    version_time,
)
from collector.store import Store, StoreError, StoreRefused, StoreUnavailable

_GRACE = 24 * 3600.0
_THREADS = 8


@dataclass(slots=True)
class Report:
    """What a compaction did."""

    days: list[str] = field(default_factory=list)
    merged: int = 0
    """Files that went into day files."""
    removed: int = 0
    problems: list[str] = field(default_factory=list)


def compact(store: Store, *, until: str | None = None, at_least: int = 2, threads: int = _THREADS) -> Report:
    """Compact each day before `until` (YYYY-MM-DD, default: all) that has `at_least` files to merge.

    `threads`: objects read or removed at the same time.

    Raises StoreError if the store fails; a day with a damaged file is left as it is and reported.
    """
    report = Report()
    taken = snapshot.take(store)
    with ThreadPoolExecutor(threads) as pool:
        for date in _days(taken, at_least):
            if until is not None and date >= until:
                continue
            try:
                _compact_day(store, pool, taken, date, report)
            except (StoreUnavailable, StoreRefused):
                raise
            except StoreError as error:
                # replaced meanwhile (the next run sees the new files) or damaged (a person must look)
                report.problems.append(f"{date}: {error}")
    _sweep(store, report)
    return report


def _days(taken: snapshot.Snapshot, at_least: int) -> Iterator[str]:
    """Days with enough files to merge, or with a day file that holds rows which no longer count."""
    stale = {version for pairs in taken.superseded.values() for version, _ in pairs}
    dates = {file.date for files in taken.files.values() for file in files}
    for date in sorted(dates | {manifest.date for manifest in taken.manifests}):
        mine = [manifest for manifest in taken.manifests if manifest.date == date]
        units = {file.unit for files in taken.files.values() for file in files if file.date == date}
        if len(units) + len(mine) >= at_least or any(manifest.version in stale for manifest in mine):
            yield date


def _compact_day(store: Store, pool: ThreadPoolExecutor, taken: snapshot.Snapshot, date: str, report: Report) -> None:
    old = [manifest for manifest in taken.manifests if manifest.date == date]
    version = new_version("0" * 8, max((manifest.version for manifest in old), default=None))
    merging = {table: [file for file in taken.files[table] if file.date == date] for table in LAKE_TABLES}
    files: dict[str, str] = {}
    for table in LAKE_TABLES:
        merged = _merged(store, pool, taken, table, merging[table], old)
        if merged is not None:
            files[table] = lake_key(table, date, DAY_UNIT, version)
            store.put(files[table], merged)
        report.merged += len(merging[table])
    own = {table: _units(taken, table, merging[table], old) for table in snapshot.OWN_UNITS}
    manifest = snapshot.Manifest(date, version, files, _units(taken, "verdicts", merging["verdicts"], old), own)
    if manifest.units or any(own.values()):
        store.put(manifest.key, manifest.dumps())
    report.days.append(date)
    # manifests before their day files: a manifest must never name a file that is gone
    covered = [file.object.key for listed in merging.values() for file in listed]
    for keys in (covered, [m.key for m in old], [key for m in old for key in m.files.values()]):
        report.removed += len(list(pool.map(store.delete, keys)))


def _units(
    taken: snapshot.Snapshot, table: str, files: Sequence[LakeFile], old: Sequence[snapshot.Manifest]
) -> dict[str, str]:  # fmt: skip
    """Unit -> version of all units that count among files and manifests."""
    found = {file.unit: file.version for file in files}
    for manifest in old:
        counting = manifest.covered(table).items()
        found.update({u: v for u, v in counting if (manifest.version, u) not in taken.superseded[table]})
    return found


def _merged(
    store: Store, pool: ThreadPoolExecutor, taken: snapshot.Snapshot, table: str, files: Sequence[LakeFile],
    old: Sequence[snapshot.Manifest],
) -> bytes | None:  # fmt: skip
    """The day's current rows of a table as a Parquet file; None if there are none."""
    import pyarrow as pa

    unit = "_unit" if table in snapshot.OWN_UNITS else "incident"
    extra = (unit,) if unit == "_unit" else ()
    parts = list(pool.map(lambda file: _loaded(store, table, file, unit), files))
    for manifest in old:
        if table in manifest.files:
            key = manifest.files[table]
            gone = [name for version, name in taken.superseded[table] if version == manifest.version]
            parts.append(_without(from_parquet(table, store.get(key), key, extra=extra), unit, gone))
    whole = pa.concat_tables(parts) if parts else None
    if whole is None or not whole.num_rows:
        return None
    # rows of one incident stand together, so that a filter on it skips row groups
    return to_parquet(table, whole.sort_by(unit), extra=extra)


def _loaded(store: Store, table: str, file: LakeFile, unit: str) -> Any:
    import pyarrow as pa

    loaded = from_parquet(table, store.get(file.object.key), file.object.key)
    if unit not in loaded.schema.names:
        loaded = loaded.append_column(unit, pa.array([file.unit] * loaded.num_rows, pa.string()))
    return loaded


def _without(loaded: Any, unit: str, gone: Iterable[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array(sorted(gone), pa.string())
    return loaded.filter(pc.invert(pc.is_in(loaded.column(unit), value_set=names)))


def _sweep(store: Store, report: Report) -> None:
    """Remove files that no reader looks at: at once if something newer covers them, else after the grace."""
    taken = snapshot.take(store)
    now = time.time() * 1e6
    for file in taken.left_over:
        if _replaced(taken, file) or version_time(file.version) < now - _GRACE * 1e6:
            store.delete(file.object.key)
            report.removed += 1


def _replaced(taken: snapshot.Snapshot, file: LakeFile) -> bool:
    """True if a published version of the same unit is newer, or the same one lies in a day file."""
    if file.unit == DAY_UNIT:
        # a day file that no manifest names may be one that another compaction is about to name
        return False
    current: Mapping[str, str] = taken.units[file.table]
    return file.unit in current and file.version <= current[file.unit]
