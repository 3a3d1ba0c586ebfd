"""Logs that once misled the whole chain, kept as they were composed: padded lines, dropped exceptions, bare last lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyzers.diagnose import diagnose


def verdict(folder: Path, **files: str) -> dict[str, Any]:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text)
    found: dict[str, Any] = diagnose(folder)["verdict"]
    return found


def padded(ranks: int, steps: int) -> str:
    return "".join(
        f"[rank{r}] 2026-11-30 10:00:{s:02d},000 INFO step {s:04d} loss {3 - s * 0.01:.4f} lr 3.0e-04\n"
        for s in range(steps)
        for r in range(ranks)
    )


def test_lines_of_one_length_are_not_wrapped(tmp_path: Path) -> None:
    log = padded(4, 30) + "[rank2] RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    found = verdict(tmp_path, job=log)
    assert found["ranks"] == [2]
    assert found["evidence"][0]["line"] == 121


def test_a_killed_run_of_padded_lines_is_not_healthy(tmp_path: Path) -> None:
    assert verdict(tmp_path, job=padded(1, 60) + "Killed\n")["status"] != "no_failure"


_IGNORED = (
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n"
    "Traceback (most recent call last):\n"
    '  File "/x/torch/utils/data/dataloader.py", line 1479, in __del__\n'
    "    self._shutdown_workers()\n"
    "AttributeError: no dump\n"
)


def test_ignored_exceptions_do_not_make_a_finished_run_fail(tmp_path: Path) -> None:
    log = "step 1 loss 2.0\nstep 2 loss 1.9\nTraining complete.\n" + _IGNORED
    assert verdict(tmp_path, rank_0=log, rank_1=log)["status"] == "no_failure"


def test_ignored_exceptions_accuse_nobody(tmp_path: Path) -> None:
    steps = "step 1 loss 2.0\nstep 2 loss 1.9\n"
    echo = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1234\n"
    found = verdict(tmp_path, rank_0=steps + echo + _IGNORED, rank_1=steps)
    assert found["ranks"] != [0]


@pytest.mark.parametrize("last", ["[rank3]: ValueError: bad sample 17 in shard 3", "ERROR: ValueError: bad sample 17"])
def test_a_bare_last_line_is_seen(tmp_path: Path, last: str) -> None:
    steps = "step 1 loss 2.0\nstep 14 loss 1.9\n"
    found = verdict(tmp_path, rank_0=steps, rank_1=steps, rank_2=steps, rank_3=f"{steps}{last}\n")
    assert found["status"] != "no_failure"
    assert found["ranks"] == [3]
