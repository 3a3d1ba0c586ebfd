"""What a file is, by content first and name second."""

from __future__ import annotations

import json

import pytest

from collector.classify import classify, is_text, never_evidence
from collector.model import ArtifactKind, Outcome

LOG = b"2026-12-01 01:21:50,732 [rank2] INFO train: step 5/30 loss 5.73\n"
PY_SPY = b"""Process 7: python3 -u t.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    wait (a.py:3)
"""
ERROR = b'{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "T", "timestamp": "1796089566"}}}'
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w-0"}, "status": {"phase": "Failed"}}


@pytest.mark.parametrize(
    ("path", "head", "kind"),
    [
        ("merged.log", LOG, ArtifactKind.RANK_LOG),
        ("notes", LOG, ArtifactKind.RANK_LOG),
        ("a.txt", b"Traceback (most recent call last):\n", ArtifactKind.RANK_LOG),
        ("a.log", b"hello\n", ArtifactKind.RANK_LOG),
        ("a.log", b"\0" * 4096, ArtifactKind.RANK_LOG),
        ("a.out", b"\xff\xfe\x01" * 100, ArtifactKind.RANK_LOG),
        ("train.txt", b"[2026-12-01 01:08:17,637] [INFO] [engine.py:1] x\n", ArtifactKind.RANK_LOG),
        ("train.txt", b"[rank0]: Traceback (most recent call last):\n", ArtifactKind.RANK_LOG),
        ("c.json", b'{"log":"step 1\\n","stream":"stderr","time":"2026-12-01T01:00:00Z"}\n', ArtifactKind.RANK_LOG),
        ("app.jsonl", b'{"ts": 1, "level": "ERROR", "msg": "boom"}\n', ArtifactKind.RANK_LOG),
        ("x.txt", PY_SPY, ArtifactKind.STACK_DUMP),
        ("error.json", ERROR, ArtifactKind.ERROR_FILE),
        ("whatever.log", ERROR, ArtifactKind.ERROR_FILE),
        ("x", b'{"argv": ["torchrun", "t.py"], "returncode": 1}', ArtifactKind.EXIT_FILE),
        ("p.json", json.dumps(POD).encode(), ArtifactKind.SCHEDULER),
        (
            "p.yaml",
            b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: w\nstatus:\n  phase: Failed\n",
            ArtifactKind.SCHEDULER,
        ),
        ("job.txt", b"JobId=12 JobName=train\n   UserId=a(1) JobState=FAILED\n", ArtifactKind.SCHEDULER),
        ("sacct.txt", b"JobID|JobName|State|ExitCode\n12|train|FAILED|1:0\n", ArtifactKind.SCHEDULER),
        ("events.txt", b"LAST SEEN   TYPE      REASON      OBJECT   MESSAGE\n", ArtifactKind.SCHEDULER),
        ("memory.events", b"low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\n", ArtifactKind.KERNEL_LOG),
        ("ls.txt", b"total 8\n-rw-r--r-- 1 a a 10 2026-12-01 01:46 step_10/state.pt\n", ArtifactKind.CHECKPOINT),
        ("ls.txt", b"      131 2026-12-01T01:50:53.374758Z 0755 ckpt/step_000010/state.pt\n", ArtifactKind.CHECKPOINT),
    ],
)
def test_evidence(path: str, head: bytes, kind: ArtifactKind) -> None:
    assert classify(path, head).kind is kind


@pytest.mark.parametrize(
    ("path", "head", "outcome"),
    [
        ("a.tar", b"x" * 257 + b"ustar\0", Outcome.REFUSED),
        ("a.log", b"PK\x03\x04....", Outcome.REFUSED),
        (
            "truth.jsonl",
            b'{"t": 1796088120.7, "rank": 2, "pid": 29095, "what": "malformed record read"}\n',
            Outcome.NOT_CONFIGURED,
        ),
        ("scenario.json", b'{"id": "x", "ground_truth": {"initiating_ranks": [2]}}', Outcome.NOT_CONFIGURED),
        ("ds_config.json", b'{"train_batch_size": 8}', Outcome.NOT_CONFIGURED),
        ("corpus.txt", b"It was a dark and stormy night, and the rain fell.\n", Outcome.NOT_CONFIGURED),
        ("wandb/run-1/logs/debug-internal.log", LOG, Outcome.NOT_CONFIGURED),
        ("deploy.yaml", b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: w\nspec: {}\n", None),
        ("df.txt", b"total 8\ndrwxr-xr-x 2 a a 40 2026-12-01 01:46:17.525 +0000 ckpt\n", Outcome.NOT_CONFIGURED),
        (
            "free.txt",
            b"               total        used        free\nMem:        24032852     2210044    17302212 01:02:03\n",
            Outcome.NOT_CONFIGURED,
        ),
        ("ps.txt", b"USER  PID %CPU COMMAND\na  1 0.0 torchrun --nproc 4 01:02:03\n", Outcome.NOT_CONFIGURED),
        ("data", b"\x93NUMPY\x01\0", None),
        ("noise", bytes(range(256)) * 8, None),
    ],
)
def test_no_evidence(path: str, head: bytes, outcome: Outcome | None) -> None:
    kind = classify(path, head)
    assert kind.kind is None
    assert kind.outcome is outcome


@pytest.mark.parametrize(
    ("path", "never"),
    [
        ("train.py", True), ("x/job.sbatch", True), ("config.yaml.gz", False), ("README", True), ("README.log", True),
        ("events.out.tfevents.1796.host.1.0", True), ("features.pt", True), ("core.1234", True), ("a.log", False),
        ("requirements.txt", True), ("slurm-1.out", False), ("stdout", False), ("rank_0", False), ("fig.PNG", True),
        ("run.log.gz", False), ("script.sh.gz", True), (".env", False), (".gitignore", True), ("error.json", False),
    ],
)  # fmt: skip
def test_names_that_are_never_opened(path: str, never: bool) -> None:
    assert never_evidence(path) is never


def test_text_may_be_dirty_but_not_binary() -> None:
    assert is_text("schöne Grüße \x1b[31mrot\x1b[0m\r".encode() + b"\xff\0")
    assert not is_text(bytes(range(32)) * 10)
    assert not is_text(b"")


def test_any_bytes_get_an_answer() -> None:
    for head in (
        b"",
        b"{",
        b"[" * 60000,
        b'{"a":' * 10000,
        b"\x80\x04",
        b"\n" * 65536,
        b"-" * 65536,
        b"JobId=" * 10000,
    ):
        classify("x.json", head)
        classify("x", head)


def test_tables_of_full_file_systems_are_evidence() -> None:
    head = b"Filesystem      Size  Used Avail Use% Mounted on\ntmpfs 4.0M 4.0M 0 100% /ckpt\n"
    assert classify("df.txt", head).kind is ArtifactKind.ENVIRONMENT
