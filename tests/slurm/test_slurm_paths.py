"""File patterns as Slurm expands them, and what a batch script says about outputs."""

from __future__ import annotations

import re

import pytest

from collector.slurm_paths import config_pattern, of_record, of_script, pattern, values
from collector.slurm_record import JobRecord
from collector.slurm_ticket import expand_nodes, parse

RECORD = JobRecord(58, "FAILED", user="alice", name="train", work_dir="/w", stdout="/w/train-58.out")
ARRAY = JobRecord(63, "FAILED", user="alice", name="a", work_dir="/w", array=61, task=2)


def globs(script: str, record: JobRecord = RECORD) -> list[str]:
    return [one.glob for one in of_script(script, record)]


@pytest.mark.parametrize(
    ("text", "record", "glob"),
    [
        ("slurm-%j.out", RECORD, "/w/slurm-58.out"),
        ("slurm-%A_%a.out", ARRAY, "/w/slurm-61_2.out"),
        ("slurm-%8j.out", RECORD, "/w/slurm-00000058.out"),
        ("%x/%u-%%.log", RECORD, "/w/train/alice-%.log"),
        ("/abs/%j-%t.log", RECORD, "/abs/58-*.log"),
        ("%N/%n/%s", RECORD, "/w/*/*/*"),
        ("../up.log", RECORD, "/up.log"),
        ("\\%j.log", RECORD, "/w/%j.log"),
        ("odd[1]*.log", RECORD, "/w/odd[[]1[]][*].log"),
    ],
)
def test_percent_letters(text: str, record: JobRecord, glob: str) -> None:
    found = pattern(text, values(record), "/w")
    assert found is not None
    assert found.glob == glob


@pytest.mark.parametrize("text", ["", "none", "/dev/null", "all", "3"])
def test_what_is_no_file(text: str) -> None:
    assert pattern(text, {}, "/w") is None


def test_a_found_name_says_whose_it_is() -> None:
    found = pattern("r-%4t-%N-%n.%j.log", values(RECORD), "/w")
    assert found is not None
    match = re.fullmatch(found.regex, "/w/r-0012-gpu-07-3.58.log")
    assert match is not None
    assert match.groupdict() == {"rank": "0012", "node": "gpu-07", "nodeid": "3"}
    assert re.fullmatch(found.regex, "/w/r-x-gpu-07-3.58.log") is None


def test_record_without_output_has_the_default_name() -> None:
    assert [one.glob for one in of_record(ARRAY)] == ["/w/slurm-61_2.out"]
    apart = JobRecord(5, "FAILED", work_dir="/w", stdout="/w/a.out", stderr="/w/a.err")
    assert [(one.glob, one.stream) for one in of_record(apart)] == [("/w/a.out", "stdout"), ("/w/a.err", "stderr")]
    same = JobRecord(5, "FAILED", work_dir="/w", stdout="/w/a.out", stderr="/w/a.out")
    assert [(one.glob, one.stream) for one in of_record(same)] == [("/w/a.out", None)]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("srun -o r-%t.log python x.py", ["/w/r-*.log"]),
        ("srun --output=r-%t.log -e e-%t.log ./x", ["/w/r-*.log", "/w/e-*.log"]),
        ("srun -or-%j.log ./x", ["/w/r-58.log"]),
        ("srun python x.py -o model.bin --output=foo", []),
        ("LOG=logs/$SLURM_JOB_ID\nsrun -o $LOG/r-%t.log ./x", ["/w/logs/58/r-*.log"]),
        ("export LOG=${SCRATCH:-/scratch}/x\nsrun -o ${LOG}/r-%t.log ./x", ["/scratch/x/r-*.log"]),
        ("srun -o $UNKNOWN/r-%t.log ./x", ["/w/*/r-*.log"]),
        ("srun -o $(date +%F)/r-%t.log ./x", ["/w/*/r-*.log"]),
        ("cd sub\nsrun \\\n  -o r.log \\\n  ./x", ["/w/sub/r.log"]),
        ("time srun -N2 -o a.log ./a && srun -o b.log ./b &", ["/w/a.log", "/w/b.log"]),
        ("# srun -o no.log ./x", []),
        ("torchrun --log-dir=logs --nproc 4 x.py", ["/w/logs/**/attempt_*/*/*"]),
        ("srun torchrun --log_dir /t/logs x.py", ["/t/logs/**/attempt_*/*/*"]),
        ("echo 'unbalanced\nsrun -o r.log ./x", ["/w/r.log"]),
        ("srun -o /dev/null ./x", []),
    ],
)
def test_scripts(script: str, expected: list[str]) -> None:
    assert globs("#!/bin/bash\n#SBATCH -o ignored.log\n" + script + "\n") == expected


def test_globs_of_the_configuration() -> None:
    known = {**values(RECORD), "N": "n1"}
    assert config_pattern("/scratch/%u/%j/**/*.log", known, "/w").glob == "/scratch/alice/58/**/*.log"
    assert config_pattern("logs/%t.log", known, "/w").glob == "/w/logs/*.log"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10],login", ["n08", "n09", "n10", "login"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("n1", ["n1"]),
        ("", []),
        ("(null)", []),
        (None, []),
        ("n[a-b]", []),
    ],
)
def test_node_lists(text: str | None, names: list[str]) -> None:
    assert expand_nodes(text) == names


def test_node_list_without_end_is_bounded() -> None:
    assert len(expand_nodes("n[1-999999999]", limit=1000)) == 1000


def test_tickets_survive_damage() -> None:
    """The name alone is enough; half a body is believed up to the cut."""
    body = b"v=1\njob=5\nuid=1000\nnodes=n[1-4]\nstart=1796101871\nend=1\n"
    whole = parse("n.5.1.143.0.77", body, 9.0)
    assert whole is not None
    assert (whole.job, whole.restart, whole.code, whole.uid, whole.start, whole.clean) == (
        5,
        1,
        143,
        1000,
        1796101871,
        False,
    )
    empty = parse("h.5.0.0.15.77", b"", 9.0)
    assert empty is not None
    assert (empty.role, empty.job, empty.signal, empty.uid, empty.clean) == ("head", 5, 15, None, False)
    cut = parse("n.5.1.143.0.77", body[: body.index(b"[1-4")], 9.0)
    assert cut is not None
    assert (cut.uid, cut.nodes) == (1000, None)
    assert parse("n.5.1", b"", 9.0) is None
    assert parse("../etc/passwd", b"", 9.0) is None
