from pathlib import Path
from typing import Any

from analyzers import log_stacks
from analyzers.diagnose import diagnose
from collector.model import LogLine

SITE = "/opt/conda/lib/python3.11/site-packages/torch"
WAITS = [
    "Timeout (0:10:00)!",
    "Thread 0x00007fe856654b80 (most recent call first):",
    f'  File "{SITE}/distributed/distributed_c10d.py", line 3252 in all_reduce',
    f'  File "{SITE}/distributed/c10d_logger.py", line 83 in wrapper',
    '  File "/home/alice/llm/train.py", line 88 in reduce_metrics',
    '  File "/home/alice/llm/train.py", line 120 in <module>',
]
LOADS = [
    "Timeout (0:10:00)!",
    "Thread 0x00007fe856654b80 (most recent call first):",
    '  File "/home/alice/llm/corpus.py", line 31 in read_shard',
    '  File "/home/alice/llm/train.py", line 71 in batches',
    '  File "/home/alice/llm/train.py", line 120 in <module>',
]
CPP = "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):"


def log(rank: int | None, texts: list[str], path: str | None = None, attempt: int | None = None) -> list[LogLine]:
    name = path or f"rank{rank}.log"
    return [
        LogLine(attempt, name, n, 10 * n, 0, None, rank, None, None, None, "rank", None, None, text)
        for n, text in enumerate(texts, 1)
    ]


def read(lines: list[LogLine], dumped: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    return log_stacks.read(lines, [{"rank": 0, "node": "n1", "pid": 77}], dumped or [])


def test_rows_cite_the_lines_of_the_log() -> None:
    rows = read(log(0, ["step 1", *WAITS, "Fatal: giving up"]))
    assert [row["function"] for row in rows] == ["all_reduce", "wrapper", "reduce_metrics", "<module>"]
    assert [row["line"] for row in rows] == [4, 5, 6, 7]
    assert {(row["rank"], row["node"], row["pid"], row["path"], row["dump"]) for row in rows} == {
        (0, "n1", 77, "rank0.log", 0)
    }


def test_a_second_timeout_is_a_second_dump() -> None:
    rows = read(log(0, [*WAITS, "", *WAITS]))
    assert {row["dump"] for row in rows} == {0, 1}


def test_stacks_of_ranks_that_share_a_console_are_told_apart_by_their_rank() -> None:
    pairs = zip(log(0, WAITS, "console.log"), log(1, LOADS + ["-"], "console.log"), strict=True)
    rows = read([line._replace(line=n) for n, line in enumerate((line for pair in pairs for line in pair), 1)])
    assert [row["function"] for row in rows if row["rank"] == 1] == ["read_shard", "batches", "<module>"]


def test_what_is_not_read() -> None:
    assert read(log(None, WAITS, "console.log")) == []
    assert read(log(0, [CPP, "frame #0: c10::Error::Error(...)"])) == []
    assert read(log(0, WAITS), [{"rank": 0, "path": "rank0.pyspy"}]) == []


def test_a_copy_in_the_console_is_the_same_dump() -> None:
    rows = read(log(0, WAITS) + log(0, ["step 9", *WAITS], "console.log"))
    assert {(row["path"], row["dump"]) for row in rows} == {("rank0.log", 0), ("console.log", 0)}
    assert len({(row["rank"], row["node"], row["pid"]) for row in rows}) == 1


def test_a_hang_that_the_program_dumped_itself(tmp_path: Path) -> None:
    for rank in range(4):
        steps = [f"rank {rank} world_size=4", *(f"rank {rank} step {step} loss 2.{step}" for step in range(1, 6))]
        text = "\n".join([*steps, *(LOADS if rank == 2 else WAITS)]) + "\n"
        (tmp_path / f"rank{rank}.log").write_text(text, encoding="utf-8")
    verdict = diagnose(tmp_path)["verdict"]
    assert (verdict["signature"], verdict["ranks"]) == ("stacks/outside-collective", [2])
    assert verdict["evidence"][0]["path"] == "rank2.log" and verdict["evidence"][0]["line"] == 9
