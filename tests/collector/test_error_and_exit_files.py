"""torchelastic error files and the return codes of wrapper scripts."""

from __future__ import annotations

import io
import json

import pytest

from collector.model import Artifact, ArtifactKind, Origin
from collector.readers import error_file, exit_file

ERROR = {
    "message": {
        "message": "FloatingPointError: non-finite loss nan at step 9",
        "extraInfo": {
            "py_callstack": 'Traceback (most recent call last):\n  File "t.py", line 14, in f\nFloatingPointError: x\n',
            "timestamp": "1796089566",
        },
    }
}
EXIT = {"command": ["torchrun", "train.py"], "ended": "2026-12-01T01:22:06.820703Z", "rcs": [1, -9, 137, 0]}


def artifact(content: object, kind: ArtifactKind = ArtifactKind.ERROR_FILE) -> Artifact:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    origin = Origin(node="n0", rank=3, local_rank=1, attempt=2)
    return Artifact(kind, "attempt_2/1/error.json", origin, len(data), lambda: io.BytesIO(data))


def test_an_error_file() -> None:
    (row,) = error_file.read(artifact(ERROR))
    assert error_file.looks_like(json.dumps(ERROR).encode())
    assert (row["rank"], row["local_rank"], row["attempt"], row["node"]) == (3, 1, 2, "n0")
    assert (row["type"], row["message"]) == ("FloatingPointError", "non-finite loss nan at step 9")
    assert row["at"] == 1796089566000000
    assert row["traceback"][1] == '  File "t.py", line 14, in f'


def test_an_error_code_and_a_message_without_a_type() -> None:
    (row,) = error_file.read(
        artifact({"message": {"message": "it went wrong", "errorCode": 75, "timestamp": 1796089566}})
    )
    assert (row["type"], row["message"], row["error_code"], row["at"]) == (None, "it went wrong", 75, 1796089566000000)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"3", b'{"message": 3}', b'{"message": {"message": []}}', b"[" * 100_000,
     b'{"message": {"message": "x", "extraInfo": [], "timestamp": "later"}}'],
)  # fmt: skip
def test_a_damaged_error_file_raises_nothing(content: bytes) -> None:
    rows = error_file.read(artifact(content))
    assert all(row["at"] is None for row in rows)


def test_other_json_is_no_error_file() -> None:
    assert not error_file.looks_like(b'{"message": "hello", "level": "INFO"}')
    assert not error_file.looks_like(b'{"level": "INFO", "message": {"extraInfo": 1}}')


def test_return_codes() -> None:
    one = artifact(EXIT, ArtifactKind.EXIT_FILE)
    assert exit_file.looks_like(json.dumps(EXIT, indent=1).encode())
    rows = exit_file.read(one)
    assert [(row["event"], row["code"], row["signal"]) for row in rows] == [
        ("exit", 1, None),
        ("signal", None, 9),
        ("exit", 137, 9),
        ("exit", 0, None),
    ]
    assert {row["at_lo"] for row in rows} == {1796088126820703}
    assert rows[0]["text"] == "return code 1: torchrun train.py"


@pytest.mark.parametrize(
    "content",
    [
        {"rcs": [1]},
        {"command": ["x"], "rcs": ["1", True, None]},
        {"command": [], "returncode": 1},
        {"argv": "x", "events": [{"rank": 1, "what": "killed"}]},
        [1, 2],
        b"{",
    ],
)
def test_what_states_no_command_and_code_says_nothing(content: object) -> None:
    assert exit_file.read(artifact(content, ArtifactKind.EXIT_FILE)) == []


def test_a_log_of_objects_is_no_exit_file() -> None:
    assert not exit_file.looks_like(b'{"command": "x", "exit_code": 0}\n{"command": "y", "exit_code": 1}\n')
