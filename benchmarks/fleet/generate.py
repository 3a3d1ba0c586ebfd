"""Writes a synthetic lake of any size, the same one for the same arguments: day files as a compaction leaves them.

    python benchmarks/fleet/generate.py DIR --incidents 10000 [--nodes 20000] [--days 1096] [--until 2026-11-30]

DuckDB makes the rows (hashes of row numbers, no random state) and writes Parquet by date. Per incident: one verdict,
one incident, 12 observations, 12 ledger rows, 3 checkpoints, about one kernel event; ten allocations per incident,
successes too; rank rows on demand (--ranks 64). Log lines stay in the raw zone and are not part of any report.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import duckdb

from analyzers.snapshot import Manifest
from collector.lake import DAY_UNIT, LAKE_TABLES
from collector.tables import SCHEMAS

VERSION = f"v{1:017d}-00000000-0000"
HERE = Path(__file__).parent


def main() -> None:
    """Parse arguments, write, say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--incidents", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--days", type=int, default=1096)
    parser.add_argument("--until", default="2026-11-30")
    parser.add_argument("--ranks", type=int, default=0, help="rank rows per incident; no report reads them")
    given = parser.parse_args()
    started = time.perf_counter()
    write(given.folder, given.incidents, given.nodes, given.days, given.until, given.ranks)
    size = sum(path.stat().st_size for path in given.folder.rglob("*") if path.is_file())
    print(f"{given.incidents:,} incidents, {size / 1e6:,.0f} MB, {time.perf_counter() - started:.0f} s")


def write(folder: Path, incidents: int, nodes: int, days: int, until: str, ranks: int) -> None:
    """The lake below `folder`, which must not have one yet."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET threads = 2; SET memory_limit = '3GB'")
    for name, value in (("n", incidents), ("nodes", nodes), ("days", days), ("ranks", ranks)):
        connection.execute(f"SET VARIABLE {name} = {value}")
    connection.execute(f"SET VARIABLE until = TIMESTAMPTZ '{until} 00:00:00+00'")
    connection.execute((HERE / "synthetic" / "incident.sql").read_text())
    for path in sorted((HERE / "synthetic").glob("*.sql")):
        if path.stem in LAKE_TABLES:
            _table(connection, folder, path)
    _manifests(connection, folder)


def _table(connection: duckdb.DuckDBPyConnection, folder: Path, path: Path) -> None:
    """One table: the columns of the schema, what the generator does not make is null; one file per day."""
    made = {row[0] for row in connection.execute(f"DESCRIBE {path.read_text()}").fetchall()}
    columns = [f'"{f.name}"' if f.name in made else f'NULL AS "{f.name}"' for f in SCHEMAS[path.stem]]
    own = ", '_' AS _unit" if path.stem == "allocations" else ""
    date = "" if "date" in SCHEMAS[path.stem].names else ", date"
    target = folder / "lake" / path.stem
    target.mkdir(parents=True)
    connection.execute(
        f"COPY (SELECT {', '.join(columns)}{own}{date} FROM ({path.read_text()}) ORDER BY date) TO '{target}' "
        f"(FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date), WRITE_PARTITION_COLUMNS, "
        f"FILENAME_PATTERN '{DAY_UNIT}.{VERSION}')"
    )
    for file in target.glob("date=*/*.parquet"):
        file.rename(file.with_name(f"{DAY_UNIT}.{VERSION}.parquet"))


def _manifests(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """What a compaction writes last: which units of a day its files hold."""
    units: dict[str, dict[str, str]] = {}
    for incident, date in connection.execute("SELECT incident, CAST(date AS VARCHAR) FROM incident").fetchall():
        units.setdefault(date, {})[incident] = VERSION
    for path in folder.glob("lake/allocations/date=*"):
        units.setdefault(path.name.removeprefix("date="), {})
    (folder / "lake" / "_days").mkdir(parents=True)
    for date, known in units.items():
        name = f"date={date}/{DAY_UNIT}.{VERSION}.parquet"
        files = {t: f"lake/{t}/{name}" for t in LAKE_TABLES if (folder / "lake" / t / name).exists()}
        manifest = Manifest(date, VERSION, files, known, {"allocations": {"_": VERSION}})
        (folder / manifest.key).write_bytes(manifest.dumps())


if __name__ == "__main__":
    main()
