"""A lake from a few rows written by hand, as `cases/*/given.yaml` has them. Loaded with runpy by the tests."""

from datetime import UTC, date, datetime

import duckdb
import pyarrow as pa

from analyzers.periods import moment
from collector.tables import SCHEMAS, to_arrow

_INCIDENT = ("cluster", "job", "user", "name", "gpus", "world_size", "started", "ended")


def lake(given):
    """A DuckDB connection with the given tables as a lake has them: views in UTC with a column `date`."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET threads = 2")
    rows = {name: list(given.get(name, ())) for name in SCHEMAS}
    for run in given.get("runs_that_ended", ()):
        rows["incidents"].append({"incident": run["incident"], **{k: run[k] for k in _INCIDENT if k in run}})
        verdict = {k: v for k, v in run.items() if k in SCHEMAS["verdicts"].names and k not in _INCIDENT}
        failed = run.get("failed")
        day = run.get("date") or (failed or run["ended"])
        rows["verdicts"].append({**verdict, "at_lo": failed, "at_hi": failed, "date": _day(day)})
    dates = {row["incident"]: row["date"] for row in rows["verdicts"]}
    for name, listed in rows.items():
        table = to_arrow(name, [{k: _value(v, SCHEMAS[name].field(k).type) for k, v in row.items()} for row in listed])
        if "date" not in table.schema.names:
            days = [dates.get(row.get("incident"), "2026-11-24") for row in listed]
            table = table.append_column("date", pa.array(days, pa.string()))
        connection.register(f"{name}__files", table)
        connection.execute(f'CREATE VIEW "{name}" AS SELECT * FROM "{name}__files"')
    return connection


def _day(value):
    return value.isoformat() if type(value) is date else f"{instant(value):%Y-%m-%d}"


def instant(value):
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return moment(str(value))


def _value(value, kind):
    if value is None or not pa.types.is_timestamp(kind):
        return value
    at = instant(value) - datetime(1970, 1, 1, tzinfo=UTC)
    return (at.days * 86_400 + at.seconds) * 1_000_000 + at.microseconds
