"""Collection of one origin: what sources give becomes masked raw parts; nothing but the store stops it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.collect import Masking, collect
from collector.lake import raw_parts, read_raw
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, Origin, Outcome, RunRef
from collector.pseudonyms import Pseudonymiser
from collector.store import LocalStore, StoreUnavailable

RUN = RunRef("slurm-c-1-0", "slurm", "1", "c")
TOKEN = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"


class Fixed:
    """A source of fixed things; an exception among them is raised."""

    def __init__(self, *found: Any) -> None:
        self.name = "fixed"
        self._found = found

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        for one in self._found:
            if isinstance(one, Exception):
                raise one
            yield one


def artifact(content: bytes | Exception, kind: ArtifactKind = ArtifactKind.RANK_LOG, path: str = "r.log") -> Artifact:
    def opened() -> io.BytesIO:
        if isinstance(content, Exception):
            raise content
        return io.BytesIO(content)

    return Artifact(kind, path, Origin(node="n1", rank=3), len(content) if isinstance(content, bytes) else 0, opened)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def rows(store: LocalStore, table: str) -> list[dict[str, Any]]:
    return read_raw(store, table, RUN.incident).to_pylist()


def test_lines_small_files_and_ledger(store: LocalStore) -> None:
    log = artifact(b"step 1 loss 2\nRuntimeError: x\n")
    smi = artifact(b"No devices were found\n", ArtifactKind.GPU_STATE, "n1/nvidia-smi.txt")
    collect(RUN, [Fixed(log, smi)], Budget(), store, origin="node-n1", extra={"ranks": [{"rank": 3, "node": "n1"}]})
    lines = rows(store, "log_lines")
    assert [(line["text"], line["line"], line["rank"], line["node"]) for line in lines] == [
        ("step 1 loss 2", 1, 3, "n1"),
        ("RuntimeError: x", 2, 3, "n1"),
    ]
    (small,) = rows(store, "artifacts")
    assert (small["kind"], small["path"], small["content"]) == (
        "gpu_state",
        "n1/nvidia-smi.txt",
        b"No devices were found\n",
    )
    assert rows(store, "ranks")[0]["rank"] == 3
    assert {(row["path"], row["outcome"]) for row in rows(store, "ledger")} == {
        ("r.log", "collected"),
        ("n1/nvidia-smi.txt", "collected"),
    }


def test_secrets_are_masked_and_counted(store: LocalStore) -> None:
    log = artifact(f"a\nexport HF_TOKEN={TOKEN}\nb\n".encode())
    env = artifact(f"HF_TOKEN={TOKEN}\nA=b\n".encode(), ArtifactKind.ENVIRONMENT, "env.txt")
    collect(RUN, [Fixed(log, env)], Budget(), store, origin="head")
    stored = str(rows(store, "log_lines")) + str(rows(store, "artifacts"))
    assert TOKEN not in stored
    assert stored.count("[redacted:") == 2
    assert all("1 secret masked" in (row["detail"] or "") for row in rows(store, "ledger"))


def test_pickles_pass_unchanged(store: LocalStore) -> None:
    dump = b"\x80\x04\x95" + bytes(range(256)) * 4
    collect(RUN, [Fixed(artifact(dump, ArtifactKind.FLIGHT_RECORDER, "d"))], Budget(), store, origin="head")
    assert rows(store, "artifacts")[0]["content"] == dump


def test_names_become_pseudonyms_everywhere(store: LocalStore) -> None:
    names = Pseudonymiser(b"0123456789abcdef")
    hidden = names.host("n1")
    log = artifact(b"rank 3 on n1 in /home/alice/run failed\n", path="home/alice/r.log")
    masking = Masking(names=names)
    collect(
        RUN, [Fixed(log, artifact(b"0", ArtifactKind.KERNEL_LOG, "k"))], Budget(), store, origin="o", masking=masking
    )
    for table in ("log_lines", "artifacts", "ledger"):
        for row in rows(store, table):
            assert row["node"] == hidden
            assert "alice" not in (row.get("text") or "")


def test_source_that_breaks_costs_itself(store: LocalStore) -> None:
    broken = Fixed(artifact(b"one line\n", path="first"), RuntimeError("bug"))
    ledger = collect(RUN, [broken, Fixed(artifact(b"more\n", path="second"))], Budget(), store, origin="o")
    assert {line["path"] for line in rows(store, "log_lines")} == {"first", "second"}
    assert any(row.outcome is Outcome.UNREACHABLE and "bug" in (row.detail or "") for row in ledger)


@pytest.mark.parametrize("kind", [ArtifactKind.RANK_LOG, ArtifactKind.KERNEL_LOG])
def test_file_that_cannot_be_read_is_a_row(store: LocalStore, kind: ArtifactKind) -> None:
    collect(RUN, [Fixed(artifact(OSError("stale handle"), kind))], Budget(), store, origin="o")
    (row,) = rows(store, "ledger")
    assert (row["outcome"], row["path"]) == ("unreachable", "r.log")


def test_too_large_and_empty_small_files(store: LocalStore) -> None:
    big = artifact(b"x" * 101, ArtifactKind.GPU_STATE, "big")
    none = artifact(b"", ArtifactKind.GPU_STATE, "none")
    collect(RUN, [Fixed(big, none)], Budget(), store, origin="o", artifact_bytes=100)
    assert {(row["path"], row["outcome"]) for row in rows(store, "ledger")} == {("big", "refused"), ("none", "empty")}


def test_after_the_time_everything_is_a_row(store: LocalStore) -> None:
    budget = Budget(seconds=0.0)
    files = [artifact(b"a\n", path=f"{n}.log") for n in range(3)] + [artifact(b"b", ArtifactKind.GPU_STATE, "smi")]
    time.sleep(0.01)
    collect(RUN, [Fixed(*files)], budget, store, origin="o")
    assert {row["outcome"] for row in rows(store, "ledger")} == {"timed_out"}
    assert len(rows(store, "ledger")) == 4


def test_line_budget_keeps_head_and_tail_of_each(store: LocalStore) -> None:
    text = "".join(f"step {n} loss 1.0\n" for n in range(20_000)).encode()
    collect(RUN, [Fixed(artifact(text, path="a"), artifact(text, path="b"))], Budget(lines=2000), store, origin="o")
    lines = rows(store, "log_lines")
    for path in "ab":
        mine = [line for line in lines if line["path"] == path]
        assert (mine[0]["line"], mine[-1]["line"]) == (1, 20_000)
        assert len(mine) < 10_000
    assert any(row["outcome"] == "truncated" and row["dropped_from"] for row in rows(store, "ledger"))


def test_ledger_is_last_and_a_retry_writes_the_same(tmp_path: Path) -> None:
    """A store that fails in the middle leaves an origin that has not reported; again gives the same objects."""
    order: list[str] = []

    class Failing(LocalStore):
        left = 1

        def put(self, key: str, data: bytes | Path) -> None:
            if Failing.left == 0:
                raise StoreUnavailable("gone")
            Failing.left -= 1
            order.append(key.split("/")[1])
            super().put(key, data)

    failing = Failing(tmp_path / "store")
    source = Fixed(artifact(b"a\n"), artifact(b"b", ArtifactKind.GPU_STATE, "smi"))
    with pytest.raises(StoreUnavailable):
        collect(RUN, [source], Budget(), failing, origin="o")
    assert not list(raw_parts(failing, "ledger"))
    Failing.left = 100
    collect(RUN, [source], Budget(), failing, origin="o")
    first = {key: failing.get(key) for key in (item.key for item in failing.list("raw/log_lines/"))}
    collect(RUN, [source], Budget(), failing, origin="o")
    assert order[-1] == "ledger"
    assert len(list(raw_parts(failing, "log_lines"))) == 1
    assert first == {key: failing.get(key) for key in first}
