"""Every query of the lake compiles on the empty lake; every check finds its own broken row and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from analyzers import lake_sql, sql
from collector.lake import LAKE_TABLES
from collector.store import LocalStore
from collector.tables import to_arrow

GROUPS = ("fleet", "checks")
NAMED = [(group, name) for group in GROUPS for name, _ in sql.load(group)]
FORBIDDEN = ("qualify", "epoch_", "read_", "group by all", "list_transform", "->", "copy ", "attach")

FIRST, SECOND = "slurm-c-1-0", "slurm-c-2-0"
SOUND: dict[str, list[dict[str, Any]]] = {
    "incidents": [{"incident": FIRST, "world_size": 4, "started": 10, "ended": 20, "gpus": 4, "cluster": "c",
                   "nodes": ["n1", "n2"]},
                  {"incident": SECOND, "world_size": None, "cluster": "d"}],
    "ledger": [{"incident": i, "source": "collect", "path": "p", "outcome": "collected", "bytes_seen": 5,
                "bytes_kept": 5} for i in (FIRST, SECOND)],
    "observations": [{"incident": FIRST, "id": 0, "role": "initiating", "signature": "gpu/xid", "path": "p", "line": 3,
                      "at_lo": 15, "at_hi": 15}],
    "candidates": [{"incident": FIRST, "place": 1, "score": 0.9}, {"incident": FIRST, "place": 2, "score": 0.5}],
    "ranks": [{"incident": FIRST, "attempt": 0, "rank": rank, "node": "n1"} for rank in range(4)],
    "verdicts": [{"incident": FIRST, "status": "established", "cause": "gpu", "scope": "rank", "signature": "gpu/xid",
                  "path": "p", "line": 3, "text": "t", "ranks": [2], "nodes": ["n1"], "at_lo": 15, "at_hi": 15,
                  "date": "2026-12-01", "ledger_expected": 4, "ledger_collected": 4},
                 {"incident": SECOND, "status": "undetermined", "cause": None, "ranks": [], "nodes": [],
                  "date": "2026-12-02", "ledger_expected": 2, "ledger_collected": 1}],
    "allocations": [{"job": "1", "started": 1, "ended": 2}],
}  # fmt: skip
ONE = SOUND["verdicts"][0]
BROKEN: dict[str, dict[str, list[dict[str, Any]]]] = {
    "candidate_places": {"candidates": [{"incident": SECOND, "place": 2, "score": 0.5}]},
    "cited_is_observed": {"observations": []},
    "established_cites": {"verdicts": [{**ONE, "path": None}]},
    "known_words": {"ledger": [{"incident": FIRST, "outcome": "lost"}]},
    "no_failure_names_nobody": {"verdicts": [{**ONE, "status": "no_failure"}]},
    "one_row_per_rank": {"ranks": [{"incident": FIRST, "attempt": 0, "rank": 1}] * 2},
    "one_verdict": {"verdicts": [ONE, ONE]},
    "ranks_in_world": {"verdicts": [{**ONE, "ranks": [4]}]},
    "times_in_order": {"verdicts": [{**ONE, "at_lo": 16}]},
    "verdict_has_incident": {"incidents": []},
    "verdict_has_ledger": {"ledger": []},
}
"""Check -> tables that break it."""


def lake(tables: dict[str, list[dict[str, Any]]]) -> Any:
    """A connection with these rows and the lake's views, every incident dated as its verdict."""
    connection = duckdb.connect(":memory:")
    dates = {row["incident"]: row["date"] for row in tables["verdicts"]}
    for table in LAKE_TABLES:
        rows = tables.get(table, [])
        loaded = to_arrow(table, rows)
        if "date" not in loaded.schema.names:
            import pyarrow as pa

            days = [dates.get(row.get("incident", ""), "2026-12-01") for row in rows]
            loaded = loaded.append_column("date", pa.array(days, pa.string()))
        connection.register(table, loaded)
    for name, text in sql.load("views"):
        connection.execute(f'CREATE VIEW "{name}" AS {text.rstrip().removesuffix(";")}')
    return connection


def run(connection: Any, group: str, name: str, **given: Any) -> list[dict[str, Any]]:
    columns, rows = lake_sql.execute(connection, dict(sql.load(group))[name], given)
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.parametrize(("group", "name"), NAMED)
def test_it_compiles_on_the_empty_lake(tmp_path: Path, group: str, name: str) -> None:
    text = dict(sql.load(group))[name]
    assert lake_sql.query(LocalStore(tmp_path), text).rows == []
    (statement,) = duckdb.connect().extract_statements(text)
    assert set(statement.named_parameters) <= set(lake_sql.PARAMETERS)


@pytest.mark.parametrize(("group", "name"), [*NAMED, *(("views", name) for name, _ in sql.load("views"))])
def test_it_is_plain_and_says_what_it_is(group: str, name: str) -> None:
    text = dict(sql.load(group))[name]
    assert not [word for word in FORBIDDEN if word in text.lower()]
    lines = text.splitlines()
    assert lines[0].startswith("-- ") and lines[0].endswith(".")
    assert "Rows returned are broken." in text if group == "checks" else "-- Grain:" in text


def test_a_view_uses_tables_only() -> None:
    names = {name for name, _ in sql.load("views")}
    for _, text in sql.load("views"):
        used = duckdb.connect().get_table_names(text.rstrip().removesuffix(";"))
        assert used <= set(LAKE_TABLES) and not used & names


def test_every_check_has_a_broken_case() -> None:
    assert set(BROKEN) == {name for name, _ in sql.load("checks")}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_check_finds_its_broken_row_and_none_in_a_sound_lake(name: str) -> None:
    assert run(lake(SOUND), "checks", name) == []
    assert run(lake({**SOUND, **BROKEN[name]}), "checks", name) != []


def test_causes() -> None:
    rows = run(lake(SOUND), "fleet", "causes")
    assert [(row["cause"], row["incidents"], row["undetermined"]) for row in rows] == [("gpu", 1, 0), (None, 1, 1)]
    assert rows[0]["incidents_with_gpu_hours"] == 1
    assert [row["cause"] for row in run(lake(SOUND), "fleet", "causes", cluster="d")] == [None]
    assert [row["cause"] for row in run(lake(SOUND), "fleet", "causes", until="2026-12-02")] == ["gpu"]


def test_signatures() -> None:
    (row,) = run(lake(SOUND), "fleet", "signatures")
    assert (row["signature"], row["incidents"], row["example"]) == ("gpu/xid", 1, FIRST)
    assert run(lake(SOUND), "fleet", "signatures", since="2026-12-02") == []


def test_nodes() -> None:
    rows = {row["node"]: row for row in run(lake(SOUND), "fleet", "nodes")}
    assert rows["n1"]["accused"] == 1 and rows["n1"]["accused_of_hardware"] == 1 and rows["n1"]["failures_present"] == 1
    assert rows["n2"]["accused"] == 0 and rows["n2"]["failures_present"] == 1


def test_undetermined() -> None:
    gap = {"incident": SECOND, "outcome": "unreachable", "detail": "no answer"}
    tables = {**SOUND, "ledger": [*SOUND["ledger"], gap]}
    (row,) = run(lake(tables), "fleet", "undetermined")
    assert (row["incident"], row["silent_ranks"], row["gaps"], row["example_gap"]) == (SECOND, 1, 1, "no answer")


def test_evidence() -> None:
    (row,) = run(lake(SOUND), "fleet", "evidence")
    assert (row["source"], row["outcome"], row["pieces"], row["bytes_kept"]) == ("collect", "collected", 2, 10)
