"""From raw parts to the lake: the same verdict as from the folder, each incident once, late parts, one ranking call."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from analyzers import lake_sql, lakehouse, raw_evidence, snapshot
from analyzers.diagnose import diagnose
from collector import lake
from collector.collect import collect
from collector.lake import LAKE_TABLES
from collector.model import Budget, RunRef
from collector.sources.log_dir import LogDir
from collector.store import LocalStore, Store, StoreError, StoreUnavailable

CASES = Path(__file__).parent.parent / "cases"
DIRECT = (
    "a01_keyerror_one_rank_4r/plain", "a03_sigkill_external_4r/plain", "a06_sigsegv_4r/plain",
    "a14b_rank0_only_barrier_fr_3r/tee", "b06_empty_ckpt_file_2r/tee", "c08_unused_params_all_3r/tee",
    "d01_ds_latest_missing_dir_2r/plain", "h01_healthy_ddp_4r/plain", "own_hang_cancelled_2r/plain",
    "own_lock_hang_pyspy_3r/plain",
)  # fmt: skip
"""Tracebacks, signals, flight-recorder dumps, checkpoints, stacks, a hang and a run without a failure."""


def report(
    store: Store, incident: str, case: str, origin: str = "node-n1",
    extra: Mapping[str, Iterable[Mapping[str, Any]]] | None = None,
) -> None:  # fmt: skip
    """What a node would write of a labelled case."""
    collect(RunRef(incident=incident), [LogDir(CASES / case)], Budget(), store, origin=origin, extra=extra)


def head(store: Store, incident: str, *nodes: str, **facts: Any) -> None:
    """What a head would write: the scheduler's facts and who must report."""
    origins = [(f"node-{node}", node, None) for node in nodes]
    row = {"scheduler": "slurm", "cluster": "c", "nodes": list(nodes), **facts}
    extra = {"incidents": [row], "ledger": list(lake.expected_rows(incident, origins))}
    collect(RunRef(incident=incident), [], Budget(), store, origin="head", extra=extra)


def verdicts(store: Store) -> list[tuple[Any, ...]]:
    return lake_sql.query(store, "SELECT incident, status, signature, ranks FROM verdicts ORDER BY incident").rows


def lake_files(store: Store) -> list[str]:
    return sorted(item.key for item in store.list("lake/"))


@pytest.mark.parametrize("case", DIRECT)
def test_the_lake_says_what_the_folder_says(tmp_path: Path, case: str) -> None:
    store = LocalStore(tmp_path)
    report(store, "slurm-c-1-0", case)
    answer = lakehouse.analyze(store, "slurm-c-1-0")
    direct = diagnose(CASES / case)
    same = ("status", "signature", "cause", "scope", "ranks", "nodes", "at", "title", "why", "resume_from")
    assert {name: answer["verdict"][name] for name in same} == {name: direct["verdict"][name] for name in same}
    assert answer["verdict"]["evidence"][0] == direct["verdict"]["evidence"][0]
    assert sorted(map(str, answer["verdict"]["evidence"])) == sorted(map(str, direct["verdict"]["evidence"]))
    assert [c["signature"] for c in answer["candidates"]] == [c["signature"] for c in direct["candidates"]]
    assert answer["incident"] == {**direct["incident"], "id": "slurm-c-1-0", "scheduler": "slurm"}


def test_an_incident_goes_through_the_store(store: Store) -> None:
    head(store, "slurm-c-1-0", "n1", "n2", job="1", gpus=4, state="FAILED", started=1_000_000, ended=3_601_000_000)
    report(store, "slurm-c-1-0", DIRECT[0])
    answer = lakehouse.analyze(store, "slurm-c-1-0")
    assert answer["verdict"]["ranks"] == [2]
    assert any("node-n2" in gap for gap in answer["ledger"]["gaps"])
    assert verdicts(store) == [("slurm-c-1-0", "established", "python/uncaught-exception", [2])]
    ((job, hours, date),) = lake_sql.query(store, "SELECT job, gpu_hours, date FROM failures").rows
    assert (job, hours, date) == ("1", 4.0, "2026-12-01")
    gaps = lake_sql.query(store, "SELECT path, node, outcome FROM gaps").rows
    assert gaps == [("node-n2", "n2", "unreachable")]
    assert lakehouse.check(store) == {}
    assert json.loads(lakehouse.dumps(answer))["schema"] == 1


def test_the_verdict_row_says_how_it_was_made(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    report(store, "slurm-c-1-0", DIRECT[0])
    answer = lakehouse.analyze(store, "slurm-c-1-0")
    row = lakehouse.incident_rows(store, "slurm-c-1-0")["verdicts"][0]
    assert row["signature_set"] == answer["details"]["signature_set"] and len(row["signature_set"]) >= 16
    assert abs(row["analyzed_at"].timestamp() - time.time()) < 600
    assert row["version"] == answer["details"]["version"]
    assert row["at_lo"] is not None and row["at_lo"] <= row["at_hi"]
    assert row["line"] == answer["verdict"]["evidence"][0]["line"]


def test_analysing_again_replaces(store: Store) -> None:
    report(store, "slurm-c-1-0", DIRECT[0])
    lakehouse.analyze(store, "slurm-c-1-0")
    before = {table: lake_sql.query(store, f"SELECT count(*) FROM {table}").rows for table in LAKE_TABLES}
    files = lake_files(store)
    lakehouse.analyze(store, "slurm-c-1-0")
    after = {table: lake_sql.query(store, f"SELECT count(*) FROM {table}").rows for table in LAKE_TABLES}
    assert after == before
    assert len(lake_files(store)) == len(files) and not set(files) & set(lake_files(store))


def test_nothing_reported_is_an_error(store: Store) -> None:
    with pytest.raises(StoreError, match="nothing was reported"):
        lakehouse.analyze(store, "slurm-c-404-0")


def test_pending_until_analysed_and_again_when_a_late_part_comes(store: Store) -> None:
    head(store, "slurm-c-1-0", "n1", "n2")
    report(store, "slurm-c-1-0", DIRECT[0], "node-n1")
    (one,) = lakehouse.pending(store)
    assert (one.incident, one.analysed, len(one.parts)) == ("slurm-c-1-0", False, 2)
    assert not lakehouse.complete(store, one, deadline=10_000)
    assert lakehouse.complete(store, one, deadline=10_000, now=time.time() + 20_000)
    lakehouse.analyze(store, "slurm-c-1-0")
    assert lakehouse.pending(store) == []
    report(store, "slurm-c-1-0", "h01_healthy_ddp_4r/plain", "node-n2")
    (again,) = lakehouse.pending(store)
    assert again.analysed and lakehouse.complete(store, again, deadline=10_000)
    answer = lakehouse.analyze(store, "slurm-c-1-0")
    assert not any("node-n2" in gap for gap in answer["ledger"]["gaps"])
    assert lakehouse.pending(store) == []


def test_without_a_head_only_the_deadline_closes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    report(store, "slurm-c-1-0", DIRECT[0])
    (one,) = lakehouse.pending(store)
    assert not lakehouse.complete(store, one, deadline=10_000)
    assert lakehouse.complete(store, one, deadline=0)


def test_parts_without_a_ledger_wait(tmp_path: Path) -> None:
    """The ledger part comes last: without it the origin is still writing."""
    store = LocalStore(tmp_path)
    lake.write_raw(store, "log_lines", "slurm-c-1-0", "node-n1", [{"path": "a", "line": 1, "text": "x"}])
    assert lakehouse.pending(store) == []


def test_a_part_that_arrives_while_others_are_read_is_not_lost(tmp_path: Path) -> None:
    """Reported lines must never be covered by a verdict that did not see them."""
    store = LocalStore(tmp_path)
    head(store, "slurm-c-1-0", "n1", "n2")
    report(store, "slurm-c-1-0", DIRECT[0], "node-n1")

    class Racing(LocalStore):
        raced = False

        def list(self, prefix: str) -> Any:
            found = list(super().list(prefix))
            if prefix.startswith("raw/log_lines/") and not self.raced:
                Racing.raced = True
                report(store, "slurm-c-1-0", DIRECT[1], "node-n2")
            return iter(found)

    lakehouse.analyze(Racing(tmp_path), "slurm-c-1-0")
    assert [one.incident for one in lakehouse.pending(store)] == ["slurm-c-1-0"]


def test_a_damaged_part_costs_itself(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    report(store, "slurm-c-1-0", DIRECT[0], "node-n1")
    report(store, "slurm-c-1-0", DIRECT[0], "node-n2")
    store.put(lake.raw_key("log_lines", "slurm-c-1-0", "node-n2"), b"cut off")
    answer = lakehouse.analyze(store, "slurm-c-1-0")
    assert answer["verdict"]["ranks"] == [2]
    assert any("node-n2.parquet" in gap for gap in answer["ledger"]["gaps"])


def test_a_store_that_is_down_is_not_a_verdict(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    report(store, "slurm-c-1-0", DIRECT[0])
    report(store, "slurm-c-2-0", DIRECT[0])

    class Down(LocalStore):
        def get(self, key: str) -> bytes:
            if "slurm-c-1-0" in key:
                raise StoreUnavailable("down")
            return super().get(key)

    found = {r.incident: r for r in lakehouse.analyze_many(Down(tmp_path), ["slurm-c-1-0", "slurm-c-2-0"])}
    assert found["slurm-c-1-0"].answer is None and found["slurm-c-1-0"].error == "down"
    assert found["slurm-c-2-0"].answer is not None
    assert [one.incident for one in lakehouse.pending(store)] == ["slurm-c-1-0"]


def test_a_store_that_fails_while_publishing_shows_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    report(store, "slurm-c-1-0", DIRECT[0])

    class Full(LocalStore):
        def put(self, key: str, data: bytes | Path) -> None:
            if key.startswith("lake/verdicts/"):
                raise StoreUnavailable("full")
            super().put(key, data)

    (result,) = lakehouse.analyze_many(Full(tmp_path), ["slurm-c-1-0"])
    assert result.answer is None and result.error == "full"
    assert all(lake_sql.query(store, f"SELECT count(*) FROM {table}").rows == [(0,)] for table in LAKE_TABLES)
    lakehouse.analyze(store, "slurm-c-1-0")
    assert len(verdicts(store)) == 1 and lakehouse.check(store) == {}


def test_many_incidents_share_one_ranking_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from analyzers import rank

    store = LocalStore(tmp_path)
    cases = [DIRECT[0], DIRECT[1], "h01_healthy_ddp_4r/plain"]
    for number, case in enumerate(cases):
        report(store, f"slurm-c-{number}-0", case)
    calls: list[int] = []
    real = rank.rank

    def counted(observed: Any, *rest: Any) -> Any:
        calls.append(len(observed))
        return real(observed, *rest)

    monkeypatch.setattr(rank, "rank", counted)
    list(lakehouse.analyze_many(store, [f"slurm-c-{number}-0" for number in range(3)]))
    assert calls == [3]
    assert verdicts(store) == [
        ("slurm-c-0-0", "established", "python/uncaught-exception", [2]),
        ("slurm-c-1-0", "established", "exit/killed", [1]),
        ("slurm-c-2-0", "no_failure", None, []),
    ]


def test_two_nodes_may_report_files_of_one_name(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for node in ("n1", "n2"):
        rows = [{"path": "out.log", "line": 1, "offset": 0, "node": node, "text": f"hello from {node}"}]
        lake.write_raw(store, "log_lines", "i", f"node-{node}", rows)
        lake.write_raw(store, "ledger", "i", f"node-{node}", [{"path": "out.log", "outcome": "collected"}])
    evidence = raw_evidence.evidence(raw_evidence.fetch(store, "i"), store.uri)
    assert [(line.path, line.node) for line in evidence.lines] == [("node-n1/out.log", "n1"), ("node-n2/out.log", "n2")]


def test_facts_of_the_scheduler_complete_what_the_logs_say(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    head(store, "slurm-c-1-0", "n1", world_size=2, exit_code=1, name="train", user="ada", gpus=8)
    report(store, "slurm-c-1-0", DIRECT[0])
    lakehouse.analyze(store, "slurm-c-1-0")
    (row,) = lakehouse.incident_rows(store, "slurm-c-1-0")["incidents"]
    assert (row["name"], row["user"], row["gpus"], row["exit_code"], row["nodes"]) == ("train", "ada", 8, 1, ["n1"])
    assert row["world_size"] == 4, "two launchers, four ranks"
    assert row["started"] is not None and row["started"] < row["ended"]


def test_rank_rows_of_the_scheduler_and_of_the_logs_are_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    rows = [{"rank": rank, "attempt": 0, "node": "n1", "device": f"GPU-{rank}"} for rank in range(4)]
    report(store, "slurm-c-1-0", DIRECT[0], extra={"ranks": rows})
    lakehouse.analyze(store, "slurm-c-1-0")
    found = lakehouse.incident_rows(store, "slurm-c-1-0")["ranks"]
    assert [row["rank"] for row in found] == [0, 1, 2, 3]
    assert [row["device"] for row in found] == [f"GPU-{rank}" for rank in range(4)]
    assert all(row["lines"] for row in found if row["rank"] == 2)


def test_values_that_fit_no_column_cost_themselves(tmp_path: Path) -> None:
    from analyzers.lake_rows import _fitting

    row = {"code": "many", "pid": 2**70, "text": "a\udcffb", "node": 7, "odd": 1, "line": 3.0}
    fitted = _fitting("kernel_events", "i", row)
    assert lake.to_parquet("kernel_events", [fitted])
    assert fitted["line"] == 3 and fitted["node"] == "7" and fitted["incident"] == "i"
    assert fitted["code"] is None and fitted["pid"] is None and "odd" not in fitted


def test_a_verdict_of_other_signatures_is_outdated(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    report(store, "slurm-c-1-0", DIRECT[0])
    lakehouse.analyze(store, "slurm-c-1-0")
    assert lakehouse.outdated(store, "2026-01-01") == []
    assert lakehouse.outdated(store, "2026-01-01", again=True) == ["slurm-c-1-0"]
    assert lakehouse.outdated(store, "2027-01-01", again=True) == []
    (file,) = snapshot.take(store, ["verdicts"]).files["verdicts"]
    old = lake.from_parquet("verdicts", store.get(file.object.key))
    index = old.schema.get_field_index("signature_set")
    import pyarrow as pa

    changed = old.set_column(index, old.schema.field(index), pa.array(["another"], pa.string()))
    store.put(file.object.key, lake.to_parquet("verdicts", changed))
    assert lakehouse.outdated(store, "2026-01-01") == ["slurm-c-1-0"]


def test_an_incident_that_moves_to_another_day_stays_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lines = [{"path": "a.log", "line": 1, "offset": 0, "text": "step 1 loss 2", "rank": 0, "issuer": "rank"}]
    lake.write_raw(store, "log_lines", "i", "head", lines)
    lake.write_raw(store, "incidents", "i", "head", [{"ended": 86_400_000_000}])
    lake.write_raw(store, "ledger", "i", "head", [{"path": "a.log", "outcome": "collected"}])
    lakehouse.analyze(store, "i")
    assert lake_sql.query(store, "SELECT date FROM verdicts").rows == [("1970-01-02",)]
    lake.write_raw(store, "incidents", "i", "head", [{"ended": 10 * 86_400_000_000}])
    lakehouse.analyze(store, "i")
    assert lake_sql.query(store, "SELECT date FROM verdicts").rows == [("1970-01-11",)]
    assert {key.split("/")[2] for key in lake_files(store)} == {"date=1970-01-11"}


def test_exposure_of_successes_has_no_verdict(store: Store) -> None:
    rows = [{"job": "7", "cluster": "c", "node": "n1", "gpus": 8, "started": 0, "ended": 3_600_000_000}]
    lake.publish_allocations(store, "c-7", "1970-01-01", rows)
    lake.publish_allocations(store, "c-7", "1970-01-01", [{**rows[0], "gpus": 4}])
    assert lake_sql.query(store, "SELECT job, gpus, date FROM allocations").rows == [("7", 4, "1970-01-01")]
