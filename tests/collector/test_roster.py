"""Who took part: ranks, processes, attempts and sizes, from what lines say, and no number that nobody stated."""

from __future__ import annotations

import pytest
import yaml

from collector.data import data_dir
from collector.model import LogLine
from collector.readers import roster

FORMATS = yaml.safe_load((data_dir("signatures") / "_formats" / "progress.yaml").read_text("utf-8"))


def line(text: str, number: int = 1, **told: object) -> LogLine:
    blank = LogLine(None, "job.log", number, 0, 0, None, None, None, None, None, "rank", None, None, text)
    return blank._replace(**told)  # type: ignore[arg-type]


def lines(*texts: str, **told: object) -> list[LogLine]:
    return [line(text, number, **told) for number, text in enumerate(texts, 1)]


def test_examples_of_progress_are_progress() -> None:
    for row in FORMATS["progress"]:
        for example in row["examples"]:
            assert roster.progress_step(example) is not None, example


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("step 5/40 loss=5.7354", 5),
        (" iteration    43680/  311541 | consumed samples", 43680),
        ('{"step": 12, "loss": 0.3}', 12),
        ("Epoch: [3][ 120/5004] Time 0.2", 120),
        ("  1%|          | 12/1000 [00:51<2:51:03, 51.58s/it]", 12),
        ("KeyError: 'labels'", None),
        ("Loading checkpoint shards", None),
        ('  File "/opt/train/steps.py", line 3, in step', None),
        ("", None),
    ],
)
def test_steps(text: str, step: int | None) -> None:
    assert roster.progress_step(text) == step


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("training finished after 40 steps", True),
        ("Training completed. Do not forget to share your model", True),
        ("{'train_runtime': 12.3, 'train_loss': 2.0}", True),
        ("step 5/40", False),
        ("failed to complete the handshake", False),
        ("RuntimeError: Expected to have finished reduction in the prior iteration", False),
    ],
)
def test_what_says_that_a_run_ended_well(text: str, end: bool) -> None:
    assert roster.says_finished(text) is end


def test_a_row_per_rank_with_its_last_word() -> None:
    found = roster.build([
        line("step 1/10", 1, rank=0, at_lo=1_000_000, at_hi=1_000_000),
        line("step 1/10", 2, rank=1, at_lo=1_000_000, at_hi=1_000_000),
        line("step 2/10", 3, rank=0, at_lo=2_000_000, at_hi=2_000_000),
        line("", 4, rank=0),
    ])  # fmt: skip
    first, second = found.ranks
    assert (first["rank"], first["step"], first["last_text"], first["last_line"]) == (0, 2, "step 2/10", 3)
    assert (first["first_line_at"], first["last_line_at"]) == (1_000_000, 2_000_000)
    assert (second["rank"], second["step"], second["finished"]) == (1, 1, False)
    assert found.world_size == 2


def test_the_size_that_the_job_states_wins_over_the_ranks_seen() -> None:
    assert roster.build(lines("rank 0 of world_size=8 ready", rank=0)).world_size == 8
    assert roster.build(lines("nothing about sizes", rank=3)).world_size == 4
    assert roster.build(lines("nothing at all")).world_size is None


def test_a_size_smaller_than_a_rank_seen_is_not_the_jobs() -> None:
    assert roster.build([*lines("world_size=2 in this group", rank=0), line("here", rank=5)]).world_size == 6


def test_identity_comes_from_a_line_that_states_it() -> None:
    (row,) = roster.build(lines("ready host=gpu-node-01 pid=4711 local_rank=2 world_size=4", rank=3)).ranks
    assert (row["node"], row["pid"], row["local_rank"]) == ("gpu-node-01", 4711, 2)


# --- processes known only by their number -----------------------------------------------------------------------------


def ray(pid: int, *texts: str) -> list[LogLine]:
    return lines(*texts, pid=pid)


def test_a_process_that_always_says_its_number_has_that_rank() -> None:
    found = roster.build([*ray(10, "learner 0 ready", "learner 0 step 1"), *ray(11, "learner 1 ready", "no number")])
    assert found.pids == {10: 0, 11: 1}
    assert [at.rank for at in found.lines] == [0, 0, 1, 1]


def test_a_process_that_says_two_numbers_has_none() -> None:
    found = roster.build([*ray(10, "worker 0 ready", "worker 3 joined"), *ray(11, "worker 1 ready")])
    assert 10 not in found.pids


def test_a_number_that_two_processes_share_names_neither() -> None:
    found = roster.build([*ray(10, "worker 0 of host a"), *ray(11, "worker 0 of host b")])
    assert found.pids == {}
    assert {at.rank for at in found.lines} == {None}


def test_the_one_number_missing_is_that_of_the_one_process_without_a_number() -> None:
    known = [*ray(10, "worker 0 ready"), *ray(12, "worker 2 ready")]
    assert roster.build([*known, *ray(11, "hello")]).pids[11] == 1
    two = roster.build([*known, *ray(11, "hello"), *ray(13, "hello")])
    assert 11 not in two.pids and 13 not in two.pids


def test_names_of_dumps_pair_processes_with_ranks() -> None:
    found = roster.build(ray(77, "hello"), {4: 77})
    assert found.lines[0].rank == 4


# --- one node or several ----------------------------------------------------------------------------------------------


def local(number: int, text: str, **told: object) -> LogLine:
    return line(text, local_rank=number, **told)


def test_on_one_node_local_ranks_are_the_ranks() -> None:
    found = roster.build([local(0, "world_size=2 ready"), local(1, "world_size=2 ready")])
    assert [at.rank for at in found.lines] == [0, 1]


def test_half_of_a_job_of_two_nodes_keeps_its_ranks_unknown() -> None:
    found = roster.build([local(0, "world_size=4 ready"), local(1, "world_size=4 ready")])
    assert [at.rank for at in found.lines] == [None, None]


def test_local_ranks_of_a_job_of_unknown_size_name_nobody() -> None:
    found = roster.build([local(0, "ready"), local(1, "ready")])
    assert [at.rank for at in found.lines] == [None, None]


def test_a_pair_that_differs_shows_a_second_node() -> None:
    found = roster.build([
        local(0, "world_size=2 ready"), local(1, "world_size=2 ready"), local(1, "step", rank=3),
    ])  # fmt: skip
    assert found.lines[0].rank is None


# --- attempts ---------------------------------------------------------------------------------------------------------


def test_lines_behind_a_restart_belong_to_the_next_attempt() -> None:
    found = roster.build([
        line("step 1/10", 1, rank=0),
        line("[default] 2/2 attempts left; will restart worker group", 2, issuer="launcher"),
        line("step 1/10", 3, rank=0),
    ])  # fmt: skip
    assert [at.attempt for at in found.lines] == [0, 0, 1]
    assert [(row["attempt"], row["rank"]) for row in found.ranks] == [(0, 0), (1, 0)]


def test_a_rank_that_writes_about_restarts_restarts_nothing() -> None:
    found = roster.build(lines("restarting all workers of the loader", "step 2/10", rank=0))
    assert {at.attempt for at in found.lines} == {0}


def test_the_folder_knows_the_attempt_better() -> None:
    found = roster.build(lines("step 1/10", rank=0, attempt=2))
    assert found.ranks[0]["attempt"] == 2


FAILED = (
    "E1201 01:22:04.534000 29033 torch/distributed/elastic/x/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 7)"
)


def test_an_agent_that_goes_on_without_a_word_has_restarted() -> None:
    tail = [line(f"step {n}/10", 10 + n, rank=0) for n in range(4)]
    found = roster.build([line("step 1/10", 1, rank=0), line(FAILED, 2, issuer="launcher"), *tail])
    assert [at.attempt for at in found.lines] == [0, 0, 1, 1, 1, 1]
    gave_up = line("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", 3, issuer="launcher")
    ended = roster.build([line("step 1/10", 1, rank=0), line(FAILED, 2, issuer="launcher"), gave_up, *tail])
    assert {at.attempt for at in ended.lines} == {0}
