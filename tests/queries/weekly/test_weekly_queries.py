"""Queries of the fleet report: they compile on the empty lake, and small lakes worked out by hand give their rows.

A case is a folder `cases/<query>/<case>/` with `given.yaml` (span and tables; `runs_that_ended` is short for an
incident and its verdict) and `expect.yaml` (rows in order, each with the columns that matter).
"""

import re
import runpy
from datetime import datetime
from pathlib import Path

import duckdb
import pytest
import yaml

from analyzers import sql
from analyzers.periods import moment, periods
from analyzers.report import panels

HERE = Path(__file__).parent / "cases"
CASES = sorted(path.parent for path in HERE.glob("*/*/given.yaml"))
PANELS = dict(sql.load("weekly"))
BASES = dict(panels.bases())
QUERIES = {**BASES, **PANELS}
_EMPTY_SPAN = periods(moment("2026-W48"), moment("2026-W49"))
_GIVEN = runpy.run_path(str(Path(__file__).parent / "given_lake.py"))
lake, instant = _GIVEN["lake"], _GIVEN["instant"]


def ask(given, query):
    spans = periods(moment(str(given["since"])), moment(str(given["until"])))
    connection = lake(given)
    prepared = panels.Lake(connection, spans, given.get("cluster"))
    if query in PANELS:
        return prepared.ask(query)
    cursor = connection.execute(f'SELECT * FROM "{query}" ORDER BY ALL')
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _same(found, wanted):
    if isinstance(found, datetime):
        return found == instant(wanted)
    if isinstance(wanted, float | int) and not isinstance(wanted, bool) and found is not None:
        return float(found) == pytest.approx(wanted, rel=1e-5)
    return found == wanted


@pytest.mark.parametrize("folder", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_case(folder):
    given = yaml.safe_load((folder / "given.yaml").read_text())
    expected = yaml.safe_load((folder / "expect.yaml").read_text())
    found = ask(given, folder.parent.name)
    shown = [{key: row[key] for key in want} for row, want in zip(found, expected, strict=False)]
    assert len(found) == len(expected), found
    for row, want in zip(shown, expected, strict=True):
        assert all(_same(row[key], want[key]) for key in want), (row, want)


def test_every_query_has_a_case():
    assert {folder.parent.name for folder in CASES} | {"known", "examined"} >= set(QUERIES)


@pytest.mark.parametrize("name", QUERIES)
def test_is_one_documented_select_with_known_parameters(name):
    text = QUERIES[name]
    (statement,) = duckdb.connect().extract_statements(text)
    assert statement.type == duckdb.StatementType.SELECT
    assert statement.named_parameters <= set(panels.PARAMETERS)
    header = "\n".join(line[3:] for line in text.splitlines() if line.startswith("-- "))
    assert header.index("Grain: ") > 20  # a title stands before it
    assert text.startswith("-- ") and (name in BASES or "Base: " in header)


@pytest.mark.parametrize("name", QUERIES)
def test_stays_in_the_portable_subset(name):
    """What Spark and Trino would not read, or would read differently (the wrong way round even): not in the queries."""
    text = re.sub(r"--.*", "", QUERIES[name]).upper()
    for banned in ("GROUP BY ALL", "ORDER BY ALL", "QUALIFY", "EPOCH", "SELECT DISTINCT ON", "PIVOT", "->", "::"):
        assert banned not in text, banned


def test_every_panel_has_a_spec_and_every_spec_a_panel():
    assert set(panels.specs()) | {"trust"} == set(PANELS)
    orders = [spec.order for spec in panels.specs().values()]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("empty", ["no tables", "empty tables"])
def test_an_empty_lake_answers_every_query(empty):
    connection = lake({}) if empty == "empty tables" else duckdb.connect()
    prepared = panels.Lake(connection, _EMPTY_SPAN, "nowhere")
    rows = {name: prepared.ask(name) for name in PANELS}
    assert rows["trust"][0]["examined"] == 0 and len(rows["trend"]) == 5
    assert {name for name, found in rows.items() if found} == {"trust", "trend", "watched", "expected"}


def test_columns_and_types_hold_on_the_empty_lake():
    """A misspelt column is found here and not in production."""
    connection = lake({})
    panels.Lake(connection, _EMPTY_SPAN, None)
    for name, text in PANELS.items():
        parameters = dict.fromkeys(duckdb.connect().extract_statements(text)[0].named_parameters)
        described = connection.execute(f"DESCRIBE {text}", parameters or None).fetchall()
        assert described, name


def test_partitions_outside_the_span_stay_unread():
    """A date far outside is never read although nothing else excludes it."""
    given = {
        "runs_that_ended": [
            {"incident": "a", "date": "2020-01-01", "ended": "2026-11-24T00:00Z", "status": "supported", "cause": "gpu"}
        ]
    }
    connection = lake(given)
    panels.Lake(connection, _EMPTY_SPAN, None)
    assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM memory.main.verdicts").fetchone() == (1,)


def test_many_allocations_are_looked_at_in_parts_with_the_same_result(monkeypatch):
    """Where memory does not hold them all, `holdings` is a view and exposure is made part by part."""
    given = {
        "allocations": [
            {"cluster": "it's", "job": str(job), "node": f"n{node}", "gpus": 4, "state": "COMPLETED",
             "started": f"2026-11-{20 + job % 9}T00:00Z", "ended": f"2026-11-{21 + job % 9}T12:00Z"}
            for job in range(12) for node in range(job % 5 + 1)
        ],
    }  # fmt: skip

    def made():
        connection = lake(given)
        prepared = panels.Lake(connection, _EMPTY_SPAN, "it's")
        tables = [connection.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall() for name in BASES]
        return tables, {name: prepared.ask(name) for name in PANELS}

    whole = made()
    monkeypatch.setattr(panels, "_MANY", 10)
    assert made() == whole
    assert whole[1]["trust"][0]["gpu_hours"] > 0
