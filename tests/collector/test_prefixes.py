"""Prefixes of launchers and collectors: every row of the table, votes, chains."""

from __future__ import annotations

import pytest

from collector.readers import prefixes

_ROWS = [(row, example) for row in prefixes.table()["prefixes"] for example in row["examples"]]


@pytest.mark.parametrize(("row", "example"), _ROWS, ids=[f"{r['name']}-{i}" for i, (r, _) in enumerate(_ROWS)])
def test_examples_of_the_table(row: dict[str, object], example: dict[str, str]) -> None:
    # a shape that needs a vote is given a file full of it
    sample = [example["text"]] * 10 if row.get("vote") else []
    peeled = prefixes.Grammar(sample).peel(example["text"])
    if "rest" in example and row["stage"] != "mark":
        # further layers may be peeled off the rest too; what is left must stand at its end
        assert example["rest"].endswith(peeled.text)
    for field in ("rank", "local_rank", "pid"):
        if field in example:
            assert getattr(peeled, field) == int(example[field]), field
    for field in ("node", "stream"):
        if field in example:
            assert getattr(peeled, field) == example[field], field


def test_local_rank_never_becomes_global_rank() -> None:
    peeled = prefixes.Grammar().peel("[default1]: plain text")
    assert (peeled.rank, peeled.local_rank, peeled.text) == (None, 1, " plain text")


def test_three_prefixes_and_two_numberings() -> None:
    peeled = prefixes.Grammar().peel("[default1]:[rank3]: KeyError: 'labels'")
    assert (peeled.rank, peeled.local_rank, peeled.text) == (3, 1, "KeyError: 'labels'")


def test_one_numbered_line_proves_nothing() -> None:
    lines = ["epoch 1", "2: second item of a list", "loss 3", "done"]
    assert prefixes.Grammar(lines).peel("2: second item of a list").rank is None


def test_a_numbered_list_is_not_a_set_of_ranks() -> None:
    lines = [f"{i}: item" for i in range(20)]
    assert prefixes.Grammar(lines).peel("3: item").rank is None


def test_srun_labels_are_believed_when_the_whole_file_has_them() -> None:
    lines = [f"{i % 4}: step {i}" for i in range(40)]
    assert prefixes.Grammar(lines).peel("3: step 7").rank == 3


def test_a_rank_in_prose_is_not_the_writer() -> None:
    peeled = prefixes.Grammar().peel("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 12000 ms")
    assert peeled.rank == 0
    assert prefixes.Grammar().peel("waiting for rank 7 to join").rank is None


@pytest.mark.parametrize(
    ("text", "issuer"),
    [
        ("srun: error: n1: task 2: Exited with exit code 1", "scheduler"),
        ("W1201 01:24:21.871000 31251 torch/distributed/elastic/multiprocessing/api.py:1028] Sending", "launcher"),
        ("[2022-05-15 00:12:57,785] [INFO] [launch.py:178:sigkill_handler] Killing subprocess 97277", "launcher"),
        ("step 12 loss 0.3", None),
    ],
)
def test_issuers(text: str, issuer: str | None) -> None:
    assert prefixes.Grammar().peel(text).issuer == issuer
