"""Names, Parquet files and schema evolution of the lake."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import lake_sql, lakehouse
from collector import lake, tables
from collector.store import LocalStore, Store, StoreError, StoreRefused, check_key

V1 = Path(__file__).parent / "data" / "lake_v1"


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"path": "a.log", "line": number, "offset": number * 80, "text": f"step {number}", "issuer": "rank", **more}


def test_raw_parts_come_back_in_order_of_origins(store: Store) -> None:
    for origin in ("node-b", "node-a", "head"):
        written = lake.write_raw(store, "log_lines", "slurm-c-1-0", origin, (line(n, node=origin) for n in range(3)))
        assert written == len(store.get(lake.raw_key("log_lines", "slurm-c-1-0", origin)))
    lake.write_raw(store, "log_lines", "slurm-c-1-00", "node-a", [line(9)])
    found = lake.read_raw(store, "log_lines", "slurm-c-1-0")
    assert found.column("node").to_pylist() == ["head"] * 3 + ["node-a"] * 3 + ["node-b"] * 3
    assert set(found.column("incident").to_pylist()) == {"slurm-c-1-0"}
    assert found.schema.equals(tables.SCHEMAS["log_lines"])


def test_a_retry_replaces_its_own_part_only(store: Store) -> None:
    lake.write_raw(store, "ledger", "i", "node-a", [{"path": "x"}])
    lake.write_raw(store, "ledger", "i", "node-b", [{"path": "y"}])
    lake.write_raw(store, "ledger", "i", "node-a", [{"path": "z"}])
    assert lake.read_raw(store, "ledger", "i").column("path").to_pylist() == ["z", "y"]


def test_nothing_reported_is_an_empty_table(store: Store) -> None:
    assert lake.read_raw(store, "artifacts", "nobody").num_rows == 0


def test_a_million_lines_are_written_from_a_generator(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lake.write_raw(store, "log_lines", "i", "node-a", (line(n) for n in range(250_000)))
    file = pq.ParquetFile(io.BytesIO(store.get(lake.raw_key("log_lines", "i", "node-a"))))
    assert file.metadata.num_rows == 250_000 and file.metadata.num_row_groups == 3


def test_text_is_stored_without_a_dictionary() -> None:
    data = lake.to_parquet("log_lines", [line(n) for n in range(100)])
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    stored = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "DELTA_LENGTH_BYTE_ARRAY" in stored["text"].encodings
    assert not any("DICTIONARY" in encoding for encoding in stored["text"].encodings)
    assert any("DICTIONARY" in encoding for encoding in stored["path"].encodings)
    assert {column.compression for column in stored.values()} == {"ZSTD"}


def test_the_schema_travels_with_the_file() -> None:
    schema = pq.read_schema(io.BytesIO(lake.to_parquet("verdicts", [{"incident": "i"}])))
    assert schema.metadata[b"schema_version"] == str(tables.SCHEMA_VERSION).encode()
    assert b"doc" in schema.field("why").metadata


def test_an_unknown_field_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="textt"):
        lake.to_parquet("log_lines", [{"textt": "x"}])


@pytest.mark.parametrize("table", sorted(tables.SCHEMAS))
def test_every_table_makes_the_round_trip(table: str) -> None:
    values: dict[str, Any] = {"string": "x", "int64": 7, "double": 0.5, "bool": True, "binary": b"\x00"}
    row = {}
    for field in tables.SCHEMAS[table]:
        kind = str(field.type)
        row[field.name] = (
            ["x"] if "string" in kind and "list" in kind else [7] if "list" in kind else values.get(kind, 1)
        )
    data = lake.to_parquet(table, [row, {}])
    assert lake.from_parquet(table, data).equals(tables.to_arrow(table, [row, {}]))


def test_a_file_of_an_older_version_lacks_columns() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"incident": ["i"], "status": ["supported"]}), sink)
    (row,) = lake.from_parquet("verdicts", sink.getvalue()).to_pylist()
    assert row["status"] == "supported" and row["why"] is None and row["ranks"] is None


def test_a_file_of_a_newer_version_has_more_and_other_sizes() -> None:
    sink = io.BytesIO()
    newer = pa.table(
        {"line": pa.array([3], pa.int32()), "mood": ["calm"], "incident": pa.array(["i"], pa.large_string())}
    )
    pq.write_table(newer, sink)
    (row,) = lake.from_parquet("log_lines", sink.getvalue()).to_pylist()
    assert row["line"] == 3 and row["incident"] == "i" and "mood" not in row


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet at all" * 50, b"PAR1" + b"\x00" * 100 + b"PAR1"])
def test_what_is_no_parquet_file_is_an_error_in_words(data: bytes) -> None:
    with pytest.raises(StoreError, match=r"where\.parquet"):
        lake.from_parquet("ledger", data, "where.parquet")


def test_a_column_of_another_type_is_an_error_in_words() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"line": ["not a number"]}), sink)
    with pytest.raises(StoreError):
        lake.from_parquet("log_lines", sink.getvalue(), "x")


@given(st.text(max_size=300))
def test_any_text_becomes_a_safe_name(text: str) -> None:
    name = lake.safe_name(text)
    assert check_key(lake.raw_key("ledger", name, name))
    assert lake.safe_name(name) == name


def test_two_names_stay_two() -> None:
    names = ["node/1", "node 1", "node:1", "node-1", "node_1", "", " ", "é", "è", "x" * 300, "x" * 301]
    assert len({lake.safe_name(name) for name in names}) == len(names)
    assert lake.safe_name("node-a.cluster.local") == "node-a.cluster.local"


@pytest.mark.parametrize("bad", ["", "../x", "a/b", ".x", "a b", "x" * 300, "~day", "a.", "a..b"])
def test_bad_names_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="name"):
        lake.raw_key("ledger", "i", bad)
    with pytest.raises(ValueError, match="name"):
        lake.lake_key("verdicts", "2026-12-01", "" if bad == "~day" else bad)


def test_tables_have_their_zones() -> None:
    with pytest.raises(ValueError, match="raw zone"):
        lake.raw_key("verdicts", "i", "o")
    with pytest.raises(ValueError, match="lake zone"):
        lake.lake_key("log_lines", "2026-12-01", "i")
    with pytest.raises(ValueError, match="date"):
        lake.lake_key("verdicts", "2026-12-1", "i")


def test_keys_are_read_back() -> None:
    from collector.store import StoredObject

    version = lake.new_version("0123abcd", None)
    for unit in ("slurm-c-12_3-0", "k8s-c.d-ns-uid-0", lake.DAY_UNIT):
        for given_version in (version, ""):
            key = lake.lake_key("verdicts", "2026-12-01", unit, given_version)
            parsed = lake.parse_lake(StoredObject(key, 1, 0.0))
            assert parsed is not None and parsed[:4] == ("verdicts", "2026-12-01", unit, given_version)
    assert lake.parse_lake(StoredObject("lake/_days/date=2026-12-01.json", 1, 0.0)) is None
    assert lake.parse_lake(StoredObject("lake/other/date=2026-12-01/i.parquet", 1, 0.0)) is None


def test_versions_sort_by_age_whatever_the_clock_says() -> None:
    future = f"v{10**17 - 2:017d}-00000000-0000"
    after = lake.new_version("ffffffff", future)
    assert after > future and lake.version_time(after) == lake.version_time(future) + 1
    assert lake.new_version("0" * 8, None) > ""


def test_the_lake_that_the_first_version_wrote_is_read() -> None:
    """Frozen files of schema 1: raw parts, single files, a superseded version, a day file with its manifest."""
    store = LocalStore(V1)
    rows = lake_sql.query(store, "SELECT incident, status, signature, ranks FROM verdicts ORDER BY incident").rows
    assert rows == [
        ("slurm-first-1-0", "established", "python/uncaught-exception", [2]),
        ("slurm-first-2-0", "established", "exit/killed", [1]),
        ("slurm-first-3-0", "no_failure", None, []),
    ]
    counts = {t: lake_sql.query(store, f"SELECT count(*) FROM {t}").rows[0][0] for t in lake.LAKE_TABLES}
    assert counts["incidents"] == 3 and counts["ledger"] >= 3 and counts["observations"] > 5 and counts["ranks"] == 12
    assert lake_sql.query(store, "SELECT job, gpus FROM allocations ORDER BY job").rows == [("1", 4), ("77", 8)]
    assert lakehouse.check(store) == {}


def test_the_raw_zone_of_the_first_version_is_analysed_again(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(V1 / "raw", tmp_path / "raw")
    store = LocalStore(tmp_path)
    found = {result.incident: result.answer for result in lakehouse.analyze_many(store, ["slurm-first-1-0"])}
    answer = found["slurm-first-1-0"]
    assert answer is not None and answer["verdict"]["ranks"] == [2]


def test_a_store_refuses_a_bad_prefix() -> None:
    with pytest.raises(StoreRefused):
        list(LocalStore(Path("x")).list("../y/"))
