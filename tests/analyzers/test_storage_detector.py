from typing import Any

import pytest

from analyzers.case import Case, Observation
from analyzers.detectors import storage
from analyzers.signatures import load
from collector.model import LogLine
from collector.readers import tracebacks

KNOWN = load(None)
ERROR = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 941056 vs 940948"


def log(*texts: str, rank: int = 0) -> list[LogLine]:
    return [
        LogLine(0, f"r{rank}.log", n, 0, 0, "n1", rank, 0, None, None, "rank", None, None, t)
        for n, t in enumerate(texts, 1)
    ]


def save(path: str, error: str = ERROR, rank: int = 0) -> list[LogLine]:
    call = f'    torch.save(state, "{path}")' if path else "    torch.save(state, target)"
    said = [f"saving to {path}"] if path else ["saving"]
    head = [*said, "Traceback (most recent call last):", '  File "/home/alice/train.py", line 5, in <module>', call]
    return log(*head, error, rank=rank)


def fact(name: str, value: str, node: str | None = "n1") -> dict[str, Any]:
    return {"name": name, "value": value, "node": node, "path": "df.txt", "line": 3}


FULL = fact("disk:/ckpt", "full: 0 of 3.5T free")


def detect(lines: list[LogLine], *facts: dict[str, Any]) -> list[Observation]:
    ranks = [{"rank": 0, "node": "n1", "lines": 5}, {"rank": 1, "node": "n2", "lines": 5}]
    tables = {"environment": facts, "ranks": ranks}
    case = Case("i", lines, KNOWN.match(lines), KNOWN.by_id, tracebacks.read(lines), 2, tables)
    return list(storage.detect(case))


def test_a_failed_write_to_a_full_file_system() -> None:
    (seen,) = detect(save("/ckpt/llm/step_10.pt"), FULL, fact("disk:/data", "33% used: 1T of 3T free"))
    assert (seen.signature, seen.rank, seen.node, seen.cause) == ("storage/no-space-left", 0, "n1", "storage")
    assert seen.title.startswith("The file system /ckpt is full (0 of 3.5T free)")


def test_no_path_and_one_full_file_system() -> None:
    assert len(detect(save(""), FULL)) == 1
    assert not detect(save(""), FULL, fact("disk:/data", "full: 0 of 1T free"))


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (save("/elsewhere/step_10.pt"), [FULL]),
        (save("/ckpt/llm/step_10.pt", "KeyError: 'optimizer'"), [FULL]),
        (save("/ckpt/llm/step_10.pt"), [fact("disk:/ckpt", "99% used: 30G of 3.5T free")]),
        (save("/ckpt/llm/step_10.pt"), [fact("disk:/ckpt", "full: 0 of 3.5T free", node="n2")]),
        (log("step 1", "step 2"), [FULL]),
    ],
    ids=["other path", "other error", "not full", "other node", "no failure"],
)
def test_a_full_file_system_alone_accuses_nobody(lines: list[LogLine], facts: list[dict[str, Any]]) -> None:
    assert detect(lines, *facts) == []


def test_a_used_up_quota_names_a_server() -> None:
    (seen,) = detect(save("/ckpt/step.pt"), fact("quota:filer:/export/ckpt", "full: 2T of 2T"))
    assert seen.signature == "storage/quota-exceeded"
    assert not detect(save("/ckpt/step.pt"), fact("quota:/scratch", "full: 2T of 2T"))
