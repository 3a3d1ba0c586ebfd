"""Side files in which a wrapper script wrote what it ran and how that ended: JSON with a command and return codes.

There is no standard for them, so a file is understood only if both are there under their usual names; the rest of such
a file is not looked at. A negative return code is a signal (subprocess.Popen), 128 + N is a shell's account of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from collector.model import Artifact

MAX_BYTES = 4 << 20
_COMMANDS = ("command", "argv", "cmd", "args", "cmdline")
_CODES = ("returncode", "return_code", "exit_code", "exitcode", "exit_status", "rc",
          "rcs", "returncodes", "return_codes", "exit_codes", "exitcodes")  # fmt: skip
_ENDS = ("ended", "end", "end_time", "finished", "finished_at", "ended_at")
_COMMAND_KEY = re.compile(rb'"(?:%s)"\s*:\s*[\["]' % "|".join(_COMMANDS).encode())
_CODE_KEY = re.compile(rb'"(?:%s)"\s*:\s*[\[\d-]' % "|".join(_CODES).encode())
_OBJECT = re.compile(rb'\s*\{\s*"')


def looks_like(head: bytes) -> bool:
    """True for one JSON object that states a command and return codes (`head` is the first 64 KiB)."""
    if not (_OBJECT.match(head) and _COMMAND_KEY.search(head) and _CODE_KEY.search(head)):
        return False
    # a log of one object per line may well contain both words
    try:
        return isinstance(json.loads(head), dict)
    except (ValueError, RecursionError):
        return False


def read(artifact: Artifact) -> list[dict[str, Any]]:
    """Rows of table `scheduler_events` (without `incident`), one for each return code: event `exit`, with `code`, or
    `signal` where a signal ended the process. Never raises on content.
    """
    try:
        with artifact.open() as stream:
            whole = json.loads(stream.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(whole, dict):
        return []
    command = next((whole[key] for key in _COMMANDS if isinstance(whole.get(key), list | str) and whole[key]), None)
    codes = list(_codes(whole))
    if command is None or not codes:
        return []
    words = command if isinstance(command, str) else " ".join(str(word) for word in command)
    at = next((when for key in _ENDS if (when := _at(whole.get(key))) is not None), None)
    return [_row(artifact, code, words, at) for code in codes]


def _codes(whole: dict[str, Any]) -> Iterator[int]:
    for key in _CODES:
        value = whole.get(key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int) and not isinstance(each, bool) and -128 <= each <= 0xFFFF:
                yield each


def _row(artifact: Artifact, code: int, words: str, at: int | None) -> dict[str, Any]:
    signal = -code if code < 0 else code - 128 if 128 < code <= 128 + 64 else None
    return {
        "node": artifact.origin.node,
        "rank": artifact.origin.rank,
        "local_rank": artifact.origin.local_rank,
        "attempt": artifact.origin.attempt,
        "at_lo": at,
        "at_hi": at,
        "path": artifact.path,
        "event": "exit" if code >= 0 else "signal",
        "code": code if code >= 0 else None,
        "signal": signal,
        "text": f"return code {code}: {words[:400]}",
    }


def _at(value: object) -> int | None:
    """Unix seconds or ISO 8601 as UTC microseconds; a time without a zone is read as UTC."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * 1_000_000) if 1e9 < value < 1e11 else None
    if not isinstance(value, str):
        return None
    try:
        stamp = datetime.fromisoformat(value)
    except ValueError:
        return None
    return int((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp() * 1_000_000)
