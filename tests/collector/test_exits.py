"""Ends of processes: every row of the table, torchrun's block, codes and signals."""

from __future__ import annotations

import re

import pytest

from collector.model import LogLine
from collector.readers import exits

_ROWS = [(row, example) for row in exits.formats()["lines"] for example in row["examples"]]


def line(text: str, number: int = 1, path: str = "a.log") -> LogLine:
    return LogLine(0, path, number, 0, 0, None, None, None, None, None, "launcher", None, None, text)


@pytest.mark.parametrize(("row", "example"), _ROWS, ids=[f"{r['name']}-{i}" for i, (r, _) in enumerate(_ROWS)])
def test_examples_of_the_table(row: dict[str, str], example: str) -> None:
    assert re.search(row["regex"], example)
    found = exits.read([line(example)])
    assert [event["event"] for event in found], "the hint words must let the line through"
    assert found[0]["event"] == row["event"]


def test_task_lists_become_one_row_per_rank() -> None:
    found = exits.read([line("srun: error: n1: tasks 0-2,5: Killed")])
    assert [(event["rank"], event["signal"], event["node"]) for event in found] == [
        (0, 9, "n1"), (1, 9, "n1"), (2, 9, "n1"), (5, 9, "n1")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"exit_code": "-9"}, (None, 9)),
        ({"exit_code": "137"}, (None, 9)),
        ({"exit_code": "1"}, (1, None)),
        ({"exit_code": "0"}, (0, None)),
        ({"signame": "Segmentation fault"}, (None, 11)),
        ({}, (None, None)),
    ],
)
def test_codes_and_signals(groups: dict[str, str | None], expected: tuple[int | None, int | None]) -> None:
    assert exits.exit_and_signal(groups) == expected


def test_torchrun_block_is_read_entry_by_entry() -> None:
    block = [
        "Failures:",
        "[1]:",
        "  time      : 2026-12-01_01:24:22",
        "  host      : gpu-3",
        "  rank      : 9 (local_rank: 1)",
        "  exitcode  : -15 (pid: 31325)  (SIGTERM)",
        "  error_file: <N/A>",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-12-01_01:24:21",
        "  host      : localhost",
        "  rank      : 8 (local_rank: 0)",
        "  exitcode  : 3 (pid: 31326)",
        "  error_file: <N/A>",
    ]
    found = exits.read([line(text, number) for number, text in enumerate(block, 1)])
    assert [(e["rank"], e["local_rank"], e["signal"], e["code"], e["pid"], e.get("node")) for e in found] == [
        (9, 1, 15, None, 31325, "gpu-3"),
        (8, 0, None, 3, 31326, None),
    ]
    assert found[1]["at_lo"] is not None
