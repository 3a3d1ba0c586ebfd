"""SQL over the lake: what it can read, and that there is no way from SQL to anything else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from analyzers import lakehouse
from analyzers.lake_sql import QueryError, query
from collector import lake
from collector.store import LocalStore, Store, StoreError


@pytest.fixture
def small(store: Store) -> Store:
    for number, (date, cause) in enumerate((("2026-11-30", "gpu"), ("2026-12-01", "data"), ("2026-12-01", "gpu"))):
        incident = f"slurm-{'ab'[number % 2]}-{number}-0"
        version = lake.new_version("0" * 8, None)
        rows = {
            "incidents": [{"incident": incident, "cluster": "ab"[number % 2], "gpus": 8, "nodes": ["n1", f"n{number}"],
                           "started": 0, "ended": 3_600_000_000, "world_size": 8}],
            "ledger": [{"incident": incident, "path": "x", "outcome": "collected"}],
            "verdicts": [{"incident": incident, "status": "established", "cause": cause, "date": date, "scope": "rank",
                          "ranks": [number], "signature": "gpu/xid", "path": "a", "line": 1, "text": "t",
                          "nodes": ["n1"]}],
        }  # fmt: skip
        for table, listed in rows.items():
            store.put(lake.lake_key(table, date, incident, version), lake.to_parquet(table, listed))
    return store


def test_tables_views_and_the_day(small: Store) -> None:
    assert query(small, "SELECT count(*) FROM verdicts").rows == [(3,)]
    assert query(small, "SELECT incident FROM incidents WHERE date >= '2026-12-01' ORDER BY 1").rows == [
        ("slurm-a-2-0",), ("slurm-b-1-0",),
    ]  # fmt: skip
    assert query(small, "SELECT sum(gpu_hours) FROM failures").rows == [(24.0,)]
    assert query(small, "SELECT rank FROM accused_ranks ORDER BY rank").rows == [(0,), (1,), (2,)]
    found = query(small, "DESCRIBE verdicts")
    assert [row[0] for row in found.rows][:3] == ["incident", "date", "status"]
    assert query(small, "EXPLAIN SELECT * FROM verdicts").rows
    assert query(small, "WITH x AS (SELECT 1 AS a) SELECT a FROM x").rows == [(1,)]


def test_an_empty_lake_has_all_tables(store: Store) -> None:
    for table in lake.LAKE_TABLES:
        assert query(store, f"SELECT * FROM {table}").rows == []
    assert {row[0] for row in query(store, "SHOW TABLES").rows} >= {*lake.LAKE_TABLES, "failures"}


def test_parameters(small: Store) -> None:
    text = "SELECT count(*) FROM failures WHERE date >= coalesce(CAST($since AS VARCHAR), '')"
    assert query(small, text).rows == [(3,)]
    assert query(small, text, {"since": "2026-12-01", "cluster": "a"}).rows == [(2,)]
    with pytest.raises(QueryError, match="sincce"):
        query(small, "SELECT $sincce")


def test_times_are_utc(small: Store) -> None:
    ((started,),) = query(small, "SELECT started FROM incidents LIMIT 1").rows
    assert started.utcoffset().total_seconds() == 0 and started.timestamp() == 0
    assert query(small, "SELECT hour(started) FROM incidents LIMIT 1").rows == [(0,)]


SECRET = Path("/etc/passwd")


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM read_csv('{SECRET}')", f"SELECT * FROM read_text('{SECRET}')", f"SELECT * FROM '{SECRET}'",
        f"SELECT * FROM read_blob('{SECRET}')", f"SELECT * FROM read_json('{SECRET}')", "SELECT * FROM glob('/etc/*')",
        f"SELECT * FROM sniff_csv('{SECRET}')", "SELECT * FROM read_parquet('/x.parquet')",
        "SELECT * FROM read_parquet('s3://b/x.parquet')", "SELECT * FROM read_csv('http://127.0.0.1:1/x')",
        "SELECT * FROM parquet_metadata('/x.parquet')", "SELECT getenv('HOME')", "SELECT * FROM duckdb_secrets()",
        f"SELECT * FROM query('SELECT * FROM read_text(''{SECRET}'')')", f"EXPLAIN ANALYZE COPY verdicts TO '{SECRET}'",
    ],
)  # fmt: skip
def test_no_way_out_in_a_select(small: Store, text: str) -> None:
    with pytest.raises(QueryError):
        query(small, text)


@pytest.mark.parametrize(
    "text",
    [
        "COPY verdicts TO '{out}'", "COPY (SELECT 1) TO '{out}' (FORMAT parquet)", "EXPORT DATABASE '{out}'",
        "ATTACH '{out}' AS x", "ATTACH ':memory:' AS x", "INSTALL httpfs", "LOAD httpfs", "LOAD '{out}'",
        "SET enable_external_access = true", "RESET enable_external_access", "SET lock_configuration = false",
        "PRAGMA enable_profiling", "CREATE TABLE x AS SELECT 1", "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')",
        "DROP VIEW verdicts", "INSERT INTO verdicts VALUES (1)", "DELETE FROM verdicts", "UPDATE verdicts SET line = 1",
        "CREATE MACRO f() AS 1", "CALL pragma_version()", "CHECKPOINT", "VACUUM", "USE main", "IMPORT DATABASE '{out}'",
        "SELECT 1; SELECT 2", "SELECT 1; COPY (SELECT 1) TO '{out}'", "", "-- nothing", "SELEC 1",
        "PREPARE x AS SELECT 1", "BEGIN TRANSACTION",
    ],
)  # fmt: skip
def test_only_one_select(small: Store, tmp_path: Path, text: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(QueryError):
        query(small, text.format(out=out))
    assert not out.exists()


def test_python_is_out_of_reach(small: Store) -> None:
    import pyarrow as pa

    leaked = pa.table({"a": [1]})
    with pytest.raises(QueryError, match="leaked"):
        query(small, "SELECT * FROM leaked")
    del leaked


def test_a_connection_that_is_handed_out_is_locked_too(small: Store, tmp_path: Path) -> None:
    import duckdb

    connection = lakehouse.connect(small)
    assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (3,)
    for text in (
        f"COPY verdicts TO '{tmp_path / 'x'}'", f"ATTACH '{tmp_path / 'x'}'", "INSTALL httpfs",
        "SET enable_external_access = true", f"SELECT * FROM read_text('{SECRET}')",
    ):  # fmt: skip
        with pytest.raises(duckdb.Error):
            connection.execute(text)
    assert os.listdir(tmp_path) in ([], ["store"])  # noqa: PTH208
    connection.close()


def test_credentials_are_unknown_to_sql(s3: Any) -> None:
    from collector.store import open_store

    store = open_store(f"s3://{s3.bucket}/none", options=s3.options)
    rows = query(store, "SELECT name, value FROM duckdb_settings()").rows
    assert not [row for row in rows if "testwritersecret" in str(row) or "TESTWRITER" in str(row)]


def test_a_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    key = lake.lake_key("verdicts", "2026-12-01", "i", lake.new_version("0" * 8, None))
    store.put(key, b"no parquet")
    with pytest.raises((QueryError, StoreError)) as caught:
        query(store, "SELECT * FROM verdicts")
    assert "parquet" in str(caught.value).lower()


def test_an_old_lake_and_a_new_one_side_by_side(tmp_path: Path) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    store = LocalStore(tmp_path)
    for number, columns in enumerate(
        ({"status": ["supported"]}, {"status": ["suspected"], "mood": ["calm"], "line": [3]})
    ):
        sink = io.BytesIO()
        pq.write_table(pa.table({"incident": [f"i{number}"], **columns}), sink)
        store.put(lake.lake_key("verdicts", "2026-12-01", f"i{number}"), sink.getvalue())
    rows = query(store, "SELECT incident, status, line, ranks FROM verdicts ORDER BY incident").rows
    assert rows == [("i0", "supported", None, None), ("i1", "suspected", 3, None)]


def test_only_the_tables_that_a_query_needs_are_listed(tmp_path: Path) -> None:
    asked: list[str] = []

    class Watched(LocalStore):
        def list(self, prefix: str) -> Any:
            asked.append(prefix)
            return super().list(prefix)

    query(Watched(tmp_path), "SELECT count(*) FROM failures")
    assert {prefix.split("/")[1] for prefix in asked} == {"verdicts", "incidents", "_days"}


def test_other_engines_read_the_folders_as_they_are(tmp_path: Path) -> None:
    """Spark, Trino and the like see a hive layout: single files and day files of one schema, manifests hidden."""
    import duckdb
    import pyarrow.dataset as ds

    from analyzers import compaction

    store = LocalStore(tmp_path)
    for number in range(3):
        row = {"incident": f"i{number}", "date": "2026-12-01", "status": "suspected", "ranks": [number]}
        key = lake.lake_key("verdicts", "2026-12-01", f"i{number}", lake.new_version("0" * 8, None))
        store.put(key, lake.to_parquet("verdicts", [row]))
        if number == 1:
            compaction.compact(store)
    folder = tmp_path / "lake" / "verdicts"
    loaded = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    assert sorted(loaded.column("incident").to_pylist()) == ["i0", "i1", "i2"]
    assert set(loaded.column("date").to_pylist()) == {"2026-12-01"}
    text = (
        f"SELECT incident, ranks FROM read_parquet('{folder}/*/*.parquet', hive_partitioning = true) ORDER BY incident"
    )
    assert duckdb.connect().execute(text).fetchall() == [("i0", [0]), ("i1", [1]), ("i2", [2])]
