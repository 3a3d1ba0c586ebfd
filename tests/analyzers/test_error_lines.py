"""Errors in the program's own words: levels, echoes, progress behind them."""

from __future__ import annotations

import pytest
import yaml

from analyzers import own_words
from analyzers.case import Case
from analyzers.detectors import error_lines
from collector.data import data_dir
from collector.model import LogLine

_EXAMPLES = yaml.safe_load((data_dir("signatures") / "_formats" / "levels.yaml").read_text("utf-8"))["examples"]


def line(text: str, number: int, rank: int) -> LogLine:
    return LogLine(0, f"rank{rank}.log", number, 0, 0, None, rank, None, None, None, "rank", None, None, text)


@pytest.mark.parametrize("example", _EXAMPLES, ids=range(len(_EXAMPLES)))
def test_examples_of_the_table(example: dict[str, object]) -> None:
    text = str(example["text"])
    assert own_words.is_error(text) is example["error"]
    assert own_words.speaks_of_others(text) is example["elsewhere"]


def test_last_words_count() -> None:
    lines = [line(f"INFO step {i}/10 loss 1", i, 1) for i in range(1, 5)] + [line("ERROR shard list is empty", 5, 1)]
    (found,) = error_lines.detect(Case("i", lines=lines))
    assert (found.rank, found.role, found.line) == (1, "initiating", 5)
    assert "shard list is empty" in found.title


def test_an_error_that_training_survived_is_silent() -> None:
    lines = [line("ERROR upload failed, will retry", 1, 1)]
    lines += [line(f"INFO step {step}/10 loss 1", step, 1) for step in (5, 6)]
    assert list(error_lines.detect(Case("i", lines=lines))) == []


def test_a_line_about_somebody_else_is_an_echo() -> None:
    (found,) = error_lines.detect(Case("i", lines=[line("ERROR a peer is gone, leaving", 1, 0)]))
    assert found.role == "cascade"
