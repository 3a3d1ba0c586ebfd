"""Panels of the fleet report: `queries/weekly/<name>.sql` is what is asked, `<name>.yaml` beside it how it is shown.

The base tables of `queries/weekly/base/` (runs, exposure, failures, ...) are computed once per report, in order of
their file names, and every panel reads them; so a panel is a short query and all panels count the same things.
Parameters come from a fixed vocabulary and exactly those that a query names are bound. The connection is given: whoever
opens the lake decides what SQL may touch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal

import msgspec

from analyzers import sql
from analyzers.periods import Period
from analyzers.report.plain import clean, inline
from collector import tables
from collector.data import lookup

GROUP = "weekly"
PARAMETERS = ("since", "until", "cluster")
"""Names that a query of the report may bind."""
_READ_NOW = ("observations", "ledger")
"""Tables of which only the reported period matters."""
_READ_LONG = ("verdicts", "incidents", "checkpoints", "kernel_events", "gpus")
"""Tables that are read for the earlier periods and the lemon window too."""
_FOREVER = 1 << 62
_MANY = 3_000_000
"""Allocations that may be held in memory at once; a window function over them needs about 200 bytes each."""
_IN_PARTS = re.compile(r"^-- In parts by: (\w+)$", re.MULTILINE)

Format = Literal[
    "text",
    "count",
    "gpu_hours",
    "hours",
    "share",
    "rate",
    "number",
    "time",
    "list",
    "code",
    "incident",
    "flag",
    "change",
    "spark",
    "line",
    "cause",
]


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column as it is shown; `name` is a column of the query or of what weekly_stats adds to it."""

    name: str
    label: str
    format: Format = "text"
    of: str | None = None
    """Key of the summary that is the denominator: the header states it and each cell adds its share."""
    bar: bool = False
    """Draw a bar beside the value, in proportion to the largest of the column."""


class Chart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An interval plot over the rows: a dot at `value` and a line from `lo` to `hi`."""

    label: str
    value: str
    lo: str
    hi: str
    unit: str
    band: bool = False
    """Draw the band of published values behind it."""
    log: bool = False


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a panel is shown."""

    title: str
    question: str
    base: str
    """What is counted, in words; {names} are filled from the summary."""
    order: int
    columns: tuple[Column, ...] = ()
    empty: str = "Nothing of the kind in this period."
    chart: Chart | None = None
    limit: int = 15
    """Rows shown; the rest is counted. JSON and CSV have all."""
    exposure: bool = False
    """True if the panel makes no sense without allocations."""


@cache
def specs() -> Mapping[str, Spec]:
    """Panel name -> its spec, in the order of the page. Raises ValueError naming the file that is malformed."""
    found: dict[str, Spec] = {}
    for path in sorted((sql.queries_dir() / GROUP).glob("*.yaml")):
        import yaml

        try:
            found[path.stem] = msgspec.convert(yaml.safe_load(path.read_bytes()), Spec)
        except (msgspec.ValidationError, yaml.YAMLError) as error:
            raise ValueError(f"queries/{GROUP}/{path.name}: {error}") from error
    return dict(sorted(found.items(), key=lambda item: item[1].order))


@cache
def text(name: str) -> str:
    """The SQL of a panel. Raises KeyError for an unknown one."""
    return dict(sql.load(GROUP))[name]


def bases() -> list[tuple[str, str]]:
    """(table, SQL) of the base tables in the order in which they are made."""
    return [(name.partition("_")[2], query) for name, query in sql.load(f"{GROUP}/base")]


def settings() -> dict[str, Any]:
    """Thresholds and assumptions: signatures/_lookup/weekly.yaml."""
    found: dict[str, Any] = lookup("weekly")
    return found


class Lake:
    """The tables of a lake prepared for one span of time: base tables made, panels can be asked."""

    def __init__(self, connection: Any, spans: Sequence[Period], cluster: str | None) -> None:
        """Narrow the tables, register settings and periods, and compute the base tables on `connection`.

        `connection`: DuckDB with the lake's tables as views (analyzers.lake_sql.connect), in UTC. A table that it lacks
        is taken as empty.
        """
        self._connection = connection
        reported = spans[-1]
        self.since, self.until, self.cluster = reported.starts, reported.ends, cluster
        self.lemon_from = min(self.since, self.until - timedelta(days=settings()["lemon_days"]))
        self.history_from = min(spans[0].starts, self.lemon_from)
        for table in (*_READ_NOW, *_READ_LONG, "allocations"):
            self._narrow(table)
        self._register(spans)
        self._parts = 1
        for name, query in bases():
            self._make(name, query)

    def _dates(self, table: str) -> str:
        """Condition on the partitions that can matter, as literals: a bound or joined date would prune nothing."""
        first = self.since if table in _READ_NOW else self.history_from
        margin = settings()["longest_job_days" if table == "allocations" else "partition_margin_days"]
        since = f"date >= '{first - timedelta(days=margin):%Y-%m-%d}'"
        # an allocation may be dated by its end or its import, which come after the span for a job that runs through it
        return since if table == "allocations" else f"{since} AND date <= '{self.until:%Y-%m-%d}'"

    def _narrow(self, table: str) -> None:
        """A temporary view of the table's own name over the partitions that can matter."""
        found = self._connection.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_name = $table AND table_catalog = current_database()",
            {"table": table},
        ).fetchall()
        columns = {name for (name,) in found}
        if not columns:
            self._connection.register(table, tables.to_arrow(table, []))
            return
        where = f" WHERE {self._dates(table)}" if "date" in columns else ""
        (database,) = self._connection.execute("SELECT current_database()").fetchone()
        whole = f'"{database}".main."{table}"'  # a temporary view lives in a database of its own
        self._connection.execute(f'CREATE OR REPLACE TEMP VIEW "{table}" AS SELECT * FROM {whole}{where}')

    def _make(self, name: str, query: str) -> None:
        """A base table. Past _MANY allocations `holdings` stays a view, asked anew where it is needed, and a query that
        says "In parts by: COLUMN" runs once for each part of them, so that memory stays bounded."""
        execute = self._connection.execute
        if name == "holdings":
            self._holdings = query
            (rows,) = execute("SELECT count(*) FROM allocations").fetchone()
            self._parts = max(1, math.ceil(rows / _MANY))
        by = _IN_PARTS.search(query)
        if self._parts == 1 or not (by or name == "holdings"):
            execute(f'CREATE OR REPLACE TEMP TABLE "{name}" AS {query}', self._bound(query))
        elif by is None:
            self._view(name, query)
        else:
            self._in_parts(name, query, by[1])

    def _in_parts(self, name: str, query: str, column: str) -> None:
        """A base table made part by part; each part of `holdings` is kept while it is looked at."""
        execute = self._connection.execute
        execute("DROP VIEW holdings")
        for part in range(self._parts):
            mine = f'hash("{column}") % {self._parts} = {part}'
            execute(
                f"CREATE OR REPLACE TEMP TABLE holdings AS SELECT * FROM ({self._holdings}) AS h WHERE {mine}",
                self._bound(self._holdings),
            )
            head = f'INSERT INTO "{name}"' if part else f'CREATE OR REPLACE TEMP TABLE "{name}" AS'
            execute(f"{head} {query}", self._bound(query))
        execute("DROP TABLE holdings")
        self._view("holdings", self._holdings)

    def _view(self, name: str, query: str) -> None:
        """A temporary view; parameters cannot be bound in one and become literals."""
        for parameter, value in self._bound(query).items():
            literal = "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"
            kind = "TIMESTAMPTZ " if isinstance(value, datetime) else ""
            query = re.sub(rf"\${parameter}\b", (kind + literal).replace("\\", "\\\\"), query)
        self._connection.execute(f'CREATE OR REPLACE TEMP VIEW "{name}" AS {query}')

    def ask(self, name: str) -> list[dict[str, Any]]:
        """Rows of a panel as dicts, with nothing hidden in their texts; times as aware datetimes in UTC.

        Raises KeyError for an unknown panel.
        """
        query = text(name)
        cursor = self._connection.execute(query, self._bound(query))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]

    def _bound(self, query: str) -> dict[str, Any]:
        (statement,) = self._connection.extract_statements(query)
        values: dict[str, datetime | str | None] = {
            "since": self.since,
            "until": self.until,
            "cluster": self.cluster,
        }
        return {name: values[name] for name in statement.named_parameters}

    def _register(self, spans: Sequence[Period]) -> None:
        import pyarrow as pa

        time = pa.timestamp("us", tz="UTC")
        known = settings()
        scalars: dict[str, Any] = {k: v for k, v in known.items() if isinstance(v, int | float)}
        scalars.update(history_from=self.history_from, lemon_from=self.lemon_from)
        small = {
            "periods": pa.table(
                {
                    "period": pa.array([p.period for p in spans], pa.int64()),
                    "label": pa.array([p.label for p in spans], pa.string()),
                    "starts": pa.array([p.starts for p in spans], time),
                    "ends": pa.array([p.ends for p in spans], time),
                }
            ),
            "settings": pa.table({k: pa.array([v], time if k.endswith("_from") else None) for k, v in scalars.items()}),
            "infrastructure": pa.table({"cause": pa.array(known["infrastructure"], pa.string())}),
            "single_node": pa.table({"cause": pa.array(known["single_node"], pa.string())}),
            "failed_states": pa.table({"state": pa.array(known["failed_states"], pa.string())}),
            "evidence_kinds": pa.table({"kind": pa.array(list(known["evidence"]), pa.string())}),
            "size_bins": pa.table(
                {
                    "lo": pa.array(known["size_bins"], pa.int64()),
                    "hi": pa.array([*known["size_bins"][1:], _FOREVER], pa.int64()),
                }
            ),
            "watched": pa.table(
                {
                    "label": pa.array([w["label"] for w in known["watched"] for _ in w["signatures"]], pa.string()),
                    "signature": pa.array([s for w in known["watched"] for s in w["signatures"]], pa.string()),
                }
            ),
        }
        for name, table in small.items():
            self._connection.register(name, table)


def _plain(value: Any) -> Any:
    """A value of the lake as it may be shown: names and texts came from jobs, which may print anything."""
    if isinstance(value, str):
        return inline(clean(value))
    return [_plain(item) for item in value] if isinstance(value, list) else value
