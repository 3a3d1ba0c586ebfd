"""A broken checkpoint is the cause only of a failed load of it; and where to resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from analyzers.case import Case, Observation
from analyzers.detectors.checkpoints import detect, distinct, resume_from
from collector.model import LogLine
from collector.readers import tracebacks

LOADER = 'File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1626, in load'
DEEPSPEED = 'File "/venv/lib/python3.11/site-packages/deepspeed/runtime/engine.py", line 4447, in load_checkpoint'
OTHER = 'File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 10, in forward'


def row(path: str, status: str = "complete", **more: Any) -> dict[str, Any]:
    return {
        "path": path,
        "status": status,
        "why": f"{status} because of a.pt",
        "format": "torch",
        "step": None,
        "latest": False,
    } | more


def script(rank: int, announce: str, frame: str, final: str) -> list[str]:
    return [
        announce,
        "Traceback (most recent call last):",
        '  File "/home/a/resume.py", line 21, in main',
        "    state = read(path)",
        f"  {frame}",
        "    return go(f)",
        final,
    ]


def case(texts: Mapping[int, list[str]], rows: list[dict[str, Any]], world_size: int | None = 2) -> Case:
    lines = [
        LogLine(
            0,
            f"rank{rank}.log",
            number,
            0,
            0,
            "n0",
            rank,
            rank,
            None,
            "stderr",
            "rank",
            1000 + number,
            1000 + number,
            text,
        )
        for rank, each in texts.items()
        for number, text in enumerate(each, 1)
    ]
    return Case("i", lines, exceptions=tracebacks.read(lines), world_size=world_size, tables={"checkpoints": rows})


def run(
    announce: str, frame: str, final: str, rows: list[dict[str, Any]], ranks: tuple[int, ...] = (0, 1)
) -> list[Observation]:
    return list(detect(case({rank: script(rank, announce, frame, final) for rank in ranks}, rows)))


BAD = row("ckpt/step_10", "corrupt", step=10)


def test_a_checkpoint_that_failed_to_load_is_the_cause() -> None:
    first, second = run("resuming from ckpt/step_10", LOADER, "EOFError", [BAD])
    assert (first.signature, first.role, first.cause, first.strength) == (
        "checkpoint/corrupt",
        "initiating",
        "storage",
        3,
    )
    assert (first.scope, first.entity, first.rank, second.rank) == ("job", "ckpt/step_10", 0, 1)
    assert (first.path, first.line, first.text) == ("rank0.log", 7, "EOFError")
    assert "corrupt because of a.pt" in first.title
    assert first.detail["step"] == 10


def test_a_shard_that_one_rank_reads_is_that_ranks_failure() -> None:
    (one,) = run("resuming from ckpt/step_10", LOADER, "EOFError", [BAD], ranks=(1,))
    assert (one.scope, one.rank) == ("rank", 1)


def test_the_tracker_tells_which_one_was_loaded() -> None:
    rows = [row("run/ckpt/global_step12", "partial", latest=True), row("run/ckpt/global_step6")]
    found = run("resuming from ckpt", DEEPSPEED, "AssertionError", rows)
    assert {(one.signature, one.role, one.entity) for one in found} == {
        ("checkpoint/incomplete", "initiating", "run/ckpt/global_step12")
    }


def test_the_exception_itself_may_name_it() -> None:
    final = "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/step_10/.metadata'"
    assert {one.role for one in run("starting", LOADER, final, [BAD])} == {"initiating"}


@pytest.mark.parametrize(
    ("announce", "frame", "final", "rows"),
    [
        # nothing says that it was loaded
        ("starting", LOADER, "EOFError", [BAD]),
        # another one was
        ("resuming from ckpt/step_20", LOADER, "EOFError", [BAD, row("ckpt/step_20")]),
        ("resuming from ckpt/step_100", LOADER, "EOFError", [BAD]),
        # it failed elsewhere
        ("resuming from ckpt/step_10", OTHER, "RuntimeError: x", [BAD]),
        # for another reason
        ("resuming from ckpt/step_10", LOADER, "torch.cuda.OutOfMemoryError: CUDA out of memory.", [BAD]),
        (
            "resuming from ckpt/step_10",
            LOADER,
            "RuntimeError: Error(s) in loading state_dict for M: size mismatch",
            [BAD],
        ),
        # it is whole, or nobody knows
        ("resuming from ckpt/step_10", LOADER, "EOFError", [row("ckpt/step_10")]),
        ("resuming from ckpt/step_10", LOADER, "EOFError", [row("ckpt/step_10", "unknown")]),
    ],
)
def test_nothing_is_accused_without_proof(announce: str, frame: str, final: str, rows: list[dict[str, Any]]) -> None:
    assert run(announce, frame, final, rows) == []


def test_a_broken_checkpoint_that_lies_there_confirms_only_if_a_tracker_points_to_it() -> None:
    texts = {0: ["step 1"]}
    (one,) = detect(case(texts, [row("ckpt/global_step6", "partial", latest=True)]))
    assert (one.role, one.scope, one.strength, one.rank) == ("confirmation", "job", 2, None)
    assert list(detect(case(texts, [row("ckpt/global_step6", "partial")]))) == []
    assert list(detect(case(texts, []))) == []


def test_a_listing_yields_to_the_files() -> None:
    seen = row("run/ckpt/step_10", "corrupt")
    listed = row("ckpt/step_10", "unknown") | {"why": "only its listing is here (listed in ls.txt)"}
    assert distinct([listed, seen]) == [seen]
    assert distinct([listed]) == [listed]
    assert len(distinct([row("a/step_1"), row("b/step_1")])) == 2


def test_resume_from_the_newest_complete_one() -> None:
    rows = [row("s/step_5", step=5), row("s/step_20", "partial", step=20, latest=True), row("s/step_10", step=10)]
    assert resume_from(rows, None) == rows[2]
    assert resume_from(rows[1:2], None) is None
    assert resume_from([], None) is None


def test_resume_from_nothing_that_a_later_run_wrote() -> None:
    rows = [row("a/step_5", step=5, saved_at=100), row("b/step_9", step=9, saved_at=300)]
    assert resume_from(rows, 200) == rows[0]
    # all later: the files were copied, their times say nothing
    assert resume_from(rows, 50) == rows[1]


def test_weights_alone_are_no_place_to_resume_from() -> None:
    base = row("base/model.safetensors", format="safetensors")
    assert resume_from([base], None) is None
    assert resume_from([base, row("last.ckpt")], None) == row("last.ckpt")
    assert resume_from([base | {"step": 7}], None) == base | {"step": 7}
