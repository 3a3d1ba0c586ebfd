"""The ranking's queries themselves: they run in order, keep their grain, and say in words what they count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from analyzers import rank, sql
from analyzers.case import Observation
from collector.tables import SCHEMAS

TABLES = ("events", "explanations", "candidates_raw", "candidates", "collateral")


def seen(signature: str, who: int | None, role: str = "initiating", **told: Any) -> Observation:
    return Observation(
        "signatures", signature, role, "unknown", signature, f"{signature} {who}", rank=who, path="a", **told
    )


OBSERVED = {
    "one": [
        seen("a/a", 1, seq=1, at_lo=10, at_hi=10), seen("a/a", 1, seq=5, at_lo=90, at_hi=90),
        seen("b/b", 1, seq=2, at_lo=20, at_hi=20), seen("e/e", 0, "cascade", seq=3), seen("e/e", 2, "cascade", seq=4),
        seen("t/t", 3, "teardown"), seen("w/w", None, "wrapper"), seen("c/c", None, "context"),
    ],
    "two": [seen("a/a", 3, seq=1)],
    "three": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """All queries of the ranking run over three incidents at once, every table still there."""
    opened = sql.connect()
    opened.register("observations", rank._input(OBSERVED))
    opened.register("relations", pa.table({"effect": ["e/e"], "cause": ["a/a"]}))
    opened.register("incidents", pa.table({"incident": list(OBSERVED), "world_size": [4, 4, None]}))
    for _, text in sql.load("rank"):
        opened.execute(text)
    yield opened
    opened.close()


def fetch(connection: Any, query: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
    return rows


def test_queries_are_numbered_and_documented() -> None:
    names = [name for name, _ in sql.load("rank")]
    assert names == sorted(names) and all(re.match(r"\d\d_[a-z]+$", name) for name in names)
    for name, text in sql.load("rank"):
        assert text.startswith("-- ") and "-- Grain: " in text, f"{name} says what one row is"


def test_every_table_is_made(connection: Any) -> None:
    for table in TABLES:
        connection.execute(f"SELECT * FROM {table}")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("events", "incident, id"),
        ("explanations", "incident, effect_id, cause_id, how"),
        ("candidates_raw", "incident, failure"),
        ("candidates", "incident, failure"),
        ("collateral", "incident, signature"),
    ],
)
def test_grain(connection: Any, table: str, key: str) -> None:
    assert fetch(connection, f"SELECT {key}, count(*) FROM {table} GROUP BY {key} HAVING count(*) > 1") == []
    assert fetch(connection, f"SELECT count(*) FROM {table} WHERE incident IS NULL") == [(0,)]


def test_context_and_wrappers_are_no_events(connection: Any) -> None:
    roles = {role for (role,) in fetch(connection, "SELECT DISTINCT role FROM events")}
    assert roles == {"initiating", "cascade", "teardown"}


def test_incidents_do_not_see_each_other(connection: Any) -> None:
    assert fetch(connection, "SELECT DISTINCT incident FROM candidates ORDER BY 1") == [("one",), ("two",)]
    assert fetch(connection, "SELECT rivals, echoes FROM candidates WHERE incident = 'two'") == [(0, 0)]


def test_what_came_after_on_the_same_rank_is_explained(connection: Any) -> None:
    found = fetch(connection, "SELECT signature FROM candidates WHERE incident = 'one'")
    assert found == [("a/a",)]
    how = fetch(connection, "SELECT how FROM explanations WHERE incident = 'one'")
    assert how and all(text for (text,) in how)


def test_no_event_explains_itself_and_no_two_each_other(connection: Any) -> None:
    assert fetch(connection, "SELECT * FROM explanations WHERE effect_id = cause_id") == []
    both = """SELECT * FROM explanations AS a JOIN explanations AS b
              ON a.incident = b.incident AND a.effect_id = b.cause_id AND a.cause_id = b.effect_id"""
    assert fetch(connection, both) == []


def test_echoes_count_the_ranks_that_only_echo(connection: Any) -> None:
    assert fetch(connection, "SELECT echoes, ranks FROM candidates WHERE incident = 'one'") == [(2, [1])]


def test_scores_are_numbers_for_json_and_for_the_lake(connection: Any) -> None:
    (kind,) = {kind for (kind,) in fetch(connection, "SELECT typeof(score) FROM candidates")}
    assert kind == "DOUBLE" and str(SCHEMAS["candidates"].field("score").type) == "double"


def test_the_connection_reads_no_files(connection: Any) -> None:
    import duckdb

    with pytest.raises(duckdb.Error):
        connection.execute("SELECT * FROM read_text('/etc/hostname')")


def test_a_group_that_does_not_exist_is_empty() -> None:
    assert sql.load("no-such-group") == ()
