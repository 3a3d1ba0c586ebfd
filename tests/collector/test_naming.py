"""Origins from file names: every shape of the table with an example, and what only a set of files can tell."""

from __future__ import annotations

import pytest

from collector.naming import contradicts, origins, read_name, spoken

RAY = "worker-ef5009277bfa38a0cd1cab58b32ba990e582ba7e2a9cf6c2b853378a-01000000-1009"
POD_LOGS = "var/log/pods/team_job-worker-1_0a1b2c3d-1111-2222-3333-444455556666/pytorch"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("ranks/attempt_2/1/stdout.log", {"local_rank": 1, "attempt": 2, "stream": "stdout"}),
        ("n/node1/attempt_0/1/stderr.log", {"node": "node1", "local_rank": 1, "attempt": 0, "stream": "stderr"}),
        ("attempt_0/3/error.json", {"local_rank": 3, "attempt": 0}),
        ("rank_3.log", {"rank": 3}),
        ("rank3.log", {"rank": 3}),
        ("rank-3", {"rank": 3}),
        ("log_rank_3.txt", {"rank": 3}),
        ("train_rank03.err", {"rank": 3, "stream": "stderr"}),
        ("global_rank_5.log", {"rank": 5}),
        ("local_rank_2.log", {"local_rank": 2}),
        ("node_rank_1.log", {}),
        ("node_rank_1/rank_9.log", {"rank": 9}),
        ("2026-12-01-01-02-03_rank0.log", {"rank": 0}),
        ("frank5.log", {}),
        ("crank_3.txt", {}),
        ("out/1/rank.3/stdout", {"rank": 3, "stream": "stdout"}),
        ("slurm-1234.out", {}),
        ("slurm-1234_5.out", {}),
        ("slurm-1234-gpu-node-03.out", {"node": "gpu-node-03"}),
        ("gpu-node-00.log", {"node": "gpu-node-00"}),
        ("node03/rank_1.log", {"node": "node03", "rank": 1}),
        ("dgx-017/dmesg.log", {"node": "dgx-017"}),
        ("ip-10-0-1-2.log", {"node": "ip-10-0-1-2"}),
        ("compute-0-1.local.log", {"node": "compute-0-1.local"}),
        ("node/dmesg.txt", {}),
        ("myjob-worker-2", {"node": "myjob-worker-2"}),
        ("myjob-master-0.log", {"node": "myjob-master-0"}),
        ("train-0-abcde.log", {"node": "train-0-abcde"}),
        (f"{POD_LOGS}/0.log", {"node": "job-worker-1", "attempt": 0}),
        (f"{POD_LOGS}/1.log.20261201-010203.gz", {"node": "job-worker-1", "attempt": 1}),
        (f"ray_logs/{RAY}.err", {"stream": "stderr", "pid": 1009}),
        (f"ray_logs/{RAY}.out", {"stream": "stdout", "pid": 1009}),
        ("pyspy/hang1.rank0.txt", {"rank": 0, "dump": 1}),
        ("pyspy/hang2.rank1.locals.txt", {"rank": 1, "dump": 2}),
        ("stacks_rank3_1.txt", {"rank": 3, "dump": 1}),
        ("fr_trace_rank3_exc.json", {"rank": 3}),
        ("nccl_trace_rank_3", {"rank": 3}),
        ("gpu-node-03.12345.txt", {"node": "gpu-node-03", "pid": 12345}),
        ("merged.log", {}),
        ("step_000010", {}),
        ("rank" + "9" * 40 + ".log", {}),
    ],
)
def test_a_name_says(path: str, expected: dict[str, object]) -> None:
    name = read_name(path)
    origin = name.origin
    said = {
        "node": origin.node, "rank": origin.rank, "local_rank": origin.local_rank, "attempt": origin.attempt,
        "stream": origin.stream, "pid": name.pid, "dump": name.dump,
    }  # fmt: skip
    assert {key: value for key, value in said.items() if value is not None} == expected


@pytest.mark.parametrize(
    ("paths", "ranks"),
    [
        (["log.0", "log.1", "log.2"], [0, 1, 2]),
        (["0", "1", "2", "3"], [0, 1, 2, 3]),
        (["logs/0/out.txt", "logs/1/out.txt"], [0, 1]),
        (["stdout.0", "stdout.1", "stderr.0", "stderr.1"], [0, 1, 0, 1]),
        (["worker_0.err", "worker_0.out", "worker_1.out"], [0, 0, 1]),
        (["1234-0.out", "1234-1.out"], [0, 1]),
        # rotations count up from a file without a number, or from 1
        (["train.log", "train.log.1", "train.log.2"], [None, None, None]),
        (["train.log.1", "train.log.2"], [None, None]),
        (["out", "out.0", "out.1"], [None, None, None]),
        # array tasks are jobs of their own
        (["slurm-12_0.out", "slurm-12_1.out"], [None, None]),
        (["log.3", "log.7"], [None, None]),
        (["log.0"], [None]),
        (["log.0", "log.40"], [None, None]),
    ],
)
def test_a_bare_number_is_a_rank_only_among_siblings(paths: list[str], ranks: list[int | None]) -> None:
    names = origins(paths)
    assert [names[path].origin.rank for path in paths] == ranks


def test_one_missing_sibling_does_not_hide_the_others() -> None:
    paths = [f"log.{n}" for n in range(16) if n != 7]
    assert origins(paths)["log.15"].origin.rank == 15


def test_the_local_rank_is_the_rank_where_there_is_one_agent() -> None:
    names = origins(["a/attempt_0/0/stdout.log", "a/attempt_0/1/stdout.log", "a/attempt_1/1/stderr.log"])
    assert names["a/attempt_1/1/stderr.log"].origin.rank == 1


@pytest.mark.parametrize(
    "paths",
    [
        ["n0/attempt_0/0/stdout.log", "n1/attempt_0/0/stdout.log"],
        ["node1/attempt_0/0/stdout.log"],
    ],
)
def test_the_local_rank_is_no_rank_where_there_are_or_were_other_agents(paths: list[str]) -> None:
    names = origins(paths)
    assert [names[path].origin.rank for path in paths] == [None] * len(paths)
    assert all(names[path].origin.local_rank == 0 for path in paths)


def test_out_is_standard_output_only_beside_err() -> None:
    names = origins(["a.out", "a.err", "b.out"])
    assert [names[path].origin.stream for path in ("a.out", "a.err", "b.out")] == ["stdout", "stderr", None]


@pytest.mark.parametrize(
    ("head", "rank", "wrong"),
    [
        (b"no rank in here\n", 3, False),
        (b"[rank3]: KeyError\n", 3, False),
        (b"[rank2]: KeyError\n", 3, True),
        (b"x rank=0 y\nx rank=1 y\nx rank=2 y\n", 0, True),
        (b"rank=1 says that rank=0 left\n", 1, False),
    ],
)
def test_the_content_wins_over_the_name(head: bytes, rank: int, wrong: bool) -> None:
    assert contradicts(spoken(head), rank) is wrong
