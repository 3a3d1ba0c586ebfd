"""The folder source: what it takes, what it passes over, and whose evidence it says a file is."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import pytest

from collector import piped
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, Outcome, RunRef
from collector.sources.log_dir import LogDir

RUN = RunRef("test")
LINES = "".join(
    f"[default{n % 2}]:2026-12-01 01:21:{n % 60:02d},100 [rank{n % 2}] INFO step {n} loss 0.5\n" for n in range(90)
)


def collect(root: object, budget: Budget | None = None) -> tuple[dict[str, Artifact], dict[str, LedgerEntry]]:
    found = list(LogDir(root).collect(RUN, budget or Budget()))  # type: ignore[arg-type]
    artifacts = {one.path: one for one in found if isinstance(one, Artifact)}
    ledger = {one.path: one for one in found if isinstance(one, LedgerEntry)}
    assert len(found) == len(artifacts) + len(ledger), "a path was reported twice"
    return artifacts, ledger


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def test_a_torchrun_folder(tmp_path: Path) -> None:
    rank0 = "2026-12-01 01:21:01,000 [rank0] INFO step 1\n"
    rank1 = "2026-12-01 01:21:01,000 [rank1] INFO step 1\nKeyError: 'labels'\n"
    write(
        tmp_path,
        {
            "merged.log": LINES,
            "merged.stamped.log": "".join(f"2026-12-01T01:21:00.000001Z {line}\n" for line in LINES.splitlines()),
            "ranks/attempt_0/0/stderr.log": rank0,
            "ranks/attempt_0/0/stdout.log": "",
            "ranks/attempt_0/1/stderr.log": rank1,
            "train.py": "raise KeyError('never mind')\n",
            "truth.jsonl": '{"t": 1.0, "rank": 1, "what": "fault"}\n',
        },
    )
    artifacts, ledger = collect(tmp_path)
    assert sorted(artifacts) == ["merged.stamped.log", "ranks/attempt_0/0/stderr.log", "ranks/attempt_0/1/stderr.log"]
    one = artifacts["ranks/attempt_0/1/stderr.log"]
    assert one.kind is ArtifactKind.RANK_LOG
    assert (one.origin.rank, one.origin.local_rank, one.origin.attempt, one.origin.stream) == (1, 1, 0, "stderr")
    with one.open() as stream:
        assert stream.read() == rank1.encode()
    assert artifacts["merged.stamped.log"].origin.stream == "console"
    assert ledger["merged.log"].detail == "copy of merged.stamped.log"
    empty = ledger["ranks/attempt_0/0/stdout.log"]
    assert (empty.outcome, empty.origin.rank, empty.origin.stream) == (Outcome.EMPTY, 0, "stdout")
    assert ledger["truth.jsonl"].outcome is Outcome.NOT_CONFIGURED
    assert "train.py" not in ledger


def test_a_rank_in_the_name_that_the_content_denies_is_dropped(tmp_path: Path) -> None:
    write(
        tmp_path, {"logs/attempt_0/0/stderr.log": "[rank4]: KeyError\n", "logs/attempt_0/1/stderr.log": "[rank5]: x\n"}
    )
    artifacts, _ = collect(tmp_path)
    assert {one.origin.rank for one in artifacts.values()} == {None}
    assert {one.origin.local_rank for one in artifacts.values()} == {0, 1}


def test_checkpoints_are_one_artifact_each_and_their_logs_are_logs(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "run/ckpt/latest": "global_step20\n",
            "run/ckpt/global_step10/mp_rank_00_model_states.pt": b"x",
            "run/ckpt/global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt": b"x",
            "run/ckpt/global_step10/save.log": LINES,
            "run/ckpt/zero_to_fp32.py": "import torch\n",
            "run/out/checkpoint-500/global_step500/mp_rank_00_model_states.pt": b"x",
            "run/out/checkpoint-500/latest": "global_step500",
            "run/out/checkpoint-500/trainer_state.json": '{"global_step": 500}',
            "run/features.pt": b"x",
            "run/best_model.pt": b"x",
        },
    )
    artifacts, ledger = collect(tmp_path)
    names = {path: [Path(m).name for m in one.members] for path, one in artifacts.items() if one.members}
    assert names == {
        "run/best_model.pt": ["best_model.pt"],
        "run/ckpt/global_step10": ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"],
        "run/ckpt/global_step20": ["latest"],
        "run/out/checkpoint-500": ["mp_rank_00_model_states.pt", "trainer_state.json", "latest"],
    }
    assert artifacts["run/ckpt/global_step10/save.log"].kind is ArtifactKind.RANK_LOG
    assert not ledger


def test_compressed_logs_are_read_and_archives_refused(tmp_path: Path) -> None:
    write(tmp_path, {"rank_0.log.gz": gzip.compress(LINES.encode()), "logs.tar": b"x" * 257 + b"ustar\0" + b"x" * 300})
    artifacts, ledger = collect(tmp_path)
    with artifacts["rank_0.log.gz"].open() as stream:
        assert stream.read() == LINES.encode()
    assert artifacts["rank_0.log.gz"].origin.rank == 0
    assert ledger["logs.tar"].outcome is Outcome.REFUSED


def test_one_file_several_paths_and_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a/run.log": LINES, "b/run.log": "step 1\n", "b/c/rank_3.log": "step 2\n"})
    monkeypatch.chdir(tmp_path)
    artifacts, _ = collect(Path("a/run.log"))
    assert list(artifacts) == ["run.log"]
    artifacts, _ = collect([Path("a/run.log"), Path("b"), Path("a/run.log")])
    assert sorted(artifacts) == ["a/run.log", "b/c/rank_3.log", "b/run.log"]
    artifacts, ledger = collect(Path("nowhere"))
    assert not artifacts
    assert ledger["nowhere"].outcome is Outcome.UNREACHABLE
    assert collect([]) == ({}, {})


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "real", {"run.log": LINES})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert list(collect(tmp_path / "link")[0]) == ["run.log"]


def test_hard_links_are_one_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.log": LINES})
    os.link(tmp_path / "a.log", tmp_path / "b.log")
    artifacts, ledger = collect(tmp_path)
    assert list(artifacts) == ["a.log"]
    assert ledger["b.log"].detail == "copy of a.log (the same file)"


def test_the_order_does_not_depend_on_the_file_system(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}/x.log": f"step {name}\n" for name in ("c", "a", "b", "a.b")})
    assert list(collect(tmp_path)[0]) == ["a.b/x.log", "a/x.log", "b/x.log", "c/x.log"]


def test_budgets_are_kept_and_said(tmp_path: Path) -> None:
    write(tmp_path, {f"rank_{n}.log": "step 1\n" * 100 for n in range(10)})
    artifacts, ledger = collect(tmp_path, Budget(files=4))
    assert len(artifacts) == 4
    assert ledger["."].outcome is Outcome.TRUNCATED
    artifacts, ledger = collect(tmp_path, Budget(bytes=1500))
    assert len(artifacts) == 2
    assert {row.outcome for row in ledger.values()} == {Outcome.REFUSED}
    artifacts, ledger = collect(tmp_path, Budget(seconds=0))
    assert not artifacts
    assert {row.outcome for row in ledger.values()} == {Outcome.TIMED_OUT}


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts, ledger = collect(io.BytesIO(gzip.compress(LINES.encode())))
    one = artifacts["-"]
    assert (one.kind, one.origin.stream, ledger) == (ArtifactKind.RANK_LOG, "console", {})
    for _ in range(2):
        with one.open() as stream:
            assert stream.read() == LINES.encode()
    assert collect(io.BytesIO(b""))[1]["-"].outcome is Outcome.EMPTY
    monkeypatch.setattr(piped, "HEAD", 1 << 20)
    monkeypatch.setattr(piped, "TAIL", 1 << 20)
    long = b"".join(b"line %9d\n" % n for n in range(500_000))
    source = list(LogDir(io.BytesIO(long)).collect(RUN, Budget()))
    row = next(one for one in source if isinstance(one, LedgerEntry))
    artifact = next(one for one in source if isinstance(one, Artifact))
    with artifact.open() as stream:
        kept = stream.read()
    assert row.outcome is Outcome.TRUNCATED
    assert row.dropped_from is not None and row.dropped_to is not None
    assert long[: row.dropped_from] + long[row.dropped_to :] == kept
    assert kept.endswith(long[-(1 << 20) :])
