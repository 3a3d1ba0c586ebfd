"""GPU lifetimes of Titan through the report's own queries, against the figures of their study.

    python benchmarks/fleet/titan.py DIR        # DIR holds gc_full.csv of github.com/olcf/TitanGPULife (data/)

The data has no licence and is not part of this project: it is read where it lies. Ostrouchov et al., "GPU Lifetimes on
Titan Supercomputer: Survival Analysis and Reliability", SC '20. A GPU in a slot is an allocation of one GPU (job =
serial number, node = slot, state OUT when it was taken out of service), an event (DBE or OTB) is a failure that the
slot initiated, and the batch (first inserted before or since 2016) is the cluster.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from analyzers.periods import Period
from analyzers.report import panels, weekly_stats
from collector.tables import to_arrow

NEW_SINCE = "2016-01-01"
HERE = Path(__file__).parent

# what is asked: (name, published or recomputed from the study's data, tolerance)
EXPECTED: dict[str, tuple[float, float]] = {
    "GPUs with an event": (5190, 0), "of them taken out": (5089, 0), "with more than one": (551, 0),
    "of the new batch": (127, 0), "events": (6367, 0),
    "quarter MTBF 2015-Q3, h": (32.9, 0.05), "quarter MTBF 2016-Q4, h": (2.72, 0.005),
    "quarter MTBF 2018-Q4 new, h": (96.06, 0.005), "quarter MTBF 2018-Q4 old, h": (7.90, 0.005),
    "distinct moments in 2016-Q4": (812, 0),
    "slots with an event": (4626, 0), "top slot c13-3c1s0n0, events": (106, 0), "second slot c24-0c2s1n0": (81, 0),
    "third slot c22-0c2s3n1": (60, 0), "fourth slot c23-2c2s3n0": (34, 0),
    "cage 0, events per GPU-year": (0.0383, 5e-5), "cage 1, events per GPU-year": (0.0848, 5e-5),
    "cage 2, events per GPU-year": (0.1533, 5e-5),
}  # fmt: skip


def main() -> int:
    """Print every figure beside the expected one; 1 if any differs."""
    rows = list(csv.DictReader((Path(sys.argv[1]) / "gc_full.csv").open()))
    found = figures(lake(rows))
    wrong = 0
    print(f"{'figure':34} {'found':>10} {'expected':>10}")
    for name, (expected, tolerance) in EXPECTED.items():
        value = found[name]
        good = abs(value - expected) <= tolerance
        wrong += not good
        print(f"{name:34} {value:>10.4g} {expected:>10.4g}{'' if good else '   DIFFERS'}")
    return bool(wrong)


def lake(rows: Iterable[Mapping[str, str]]) -> duckdb.DuckDBPyConnection:
    """The lake's tables from the study's rows."""
    listed = list(rows)
    first: dict[str, str] = {}
    for row in listed:
        if row["insert"]:
            first[row["SN"]] = min(first.get(row["SN"], "9"), row["insert"])
    tables: dict[str, list[dict[str, Any]]] = {"allocations": [], "incidents": [], "verdicts": []}
    for number, row in enumerate(listed):
        cluster = "new" if first.get(row["SN"], "") >= NEW_SINCE else "old"
        held = {"cluster": cluster, "job": row["SN"], "user": row["SN"]}
        if row["insert"]:
            tables["allocations"].append(
                {
                    **held, "node": row["location"], "gpus": 1, "state": "OUT" if row["out"] == "TRUE" else "IN",
                    "started": _us(row["insert"]), "ended": _us(row["remove"]),
                }
            )  # fmt: skip
        if row["event"]:
            incident, at = f"titan-{number}", _us(row["remove"])
            tables["incidents"].append({**held, "incident": incident, "gpus": 1, "ended": at})
            tables["verdicts"].append(
                {
                    "incident": incident, "date": row["remove"][:10], "status": "established", "cause": "gpu",
                    "signature": f"titan/{row['event'].lower()}", "nodes": [row["location"]], "at_lo": at, "at_hi": at,
                }
            )  # fmt: skip
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET threads = 2")
    for name, filled in tables.items():
        connection.register(f"{name}__files", to_arrow(name, filled))
        connection.execute(f'CREATE VIEW "{name}" AS SELECT * FROM "{name}__files"')
    return connection


def _us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def quarter(text: str) -> tuple[datetime, datetime]:
    """2016-Q4 -> its borders."""
    year, number = int(text[:4]), int(text[-1])
    ends = datetime(year + number // 4, number % 4 * 3 + 1, 1, tzinfo=UTC)
    return datetime(year, number * 3 - 2, 1, tzinfo=UTC), ends


def figures(connection: duckdb.DuckDBPyConnection) -> dict[str, float]:
    """All figures of EXPECTED, asked through analyzers.report.panels."""
    found: dict[str, float] = {}
    for name, cluster in (("2015-Q3", None), ("2016-Q4", None), ("2018-Q4", "new"), ("2018-Q4", "old")):
        prepared = panels.Lake(connection, [Period(0, name, *quarter(name))], cluster)
        (row,) = prepared.ask("trend")
        found[f"quarter MTBF {name}{f' {cluster}' if cluster else ''}, h"] = row["mean_gap_hours"]
        if name == "2016-Q4":
            found["distinct moments in 2016-Q4"] = row["moments"]
    whole = Period(0, "all", datetime(2013, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC))
    prepared = panels.Lake(connection, [whole], None)
    slots: dict[str, int] = {}
    for row in prepared.ask("lemons"):  # a slot has a row for each batch that it held
        slots[row["node"]] = slots.get(row["node"], 0) + row["failures"]
    for name in EXPECTED:
        if " slot c" in name:
            found[name] = slots[name.split()[2].rstrip(",")]
    for path in sorted((HERE / "titan").glob("*.sql")):
        for name, value in connection.execute(path.read_text()).fetchall():
            found[name] = value
    lemons = weekly_stats.finish("lemons", prepared.ask("lemons"), weekly_stats.Context({}))
    named = [row["node"] for row in lemons if row["finding"] == "lemon"]
    print(f"slots that stand out after one count per GPU: {len(named)} ({', '.join(named[:5])} ...)\n")
    return found


if __name__ == "__main__":
    sys.exit(main())
