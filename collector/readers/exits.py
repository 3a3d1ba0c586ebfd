"""What launchers and schedulers say about the end of processes -> rows of `scheduler_events`.

The wordings are data (`signatures/_formats/exits.yaml`). A launcher's statement about WHO ended HOW is a fact; its
statement about who was first ("Root Cause") is only the first exit it happened to see, and is not taken over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from collector.data import data_dir
from collector.model import LogLine
from collector.readers.times import Clock

_HINTS = (
    "exit", "signal", "Sending process", "oom", "OOM", "CANCELLED", "Killed", "Terminat", "terminat", "Segmentation",
    "Aborted", "Process name", "SIGTERM", "srun: error", "lost communication", "Bus error",
)  # fmt: skip


@cache
def formats() -> dict[str, Any]:
    """The parsed `exits.yaml`."""
    import yaml

    path = data_dir("signatures") / "_formats" / "exits.yaml"
    loaded: dict[str, Any] = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded


@cache
def _lines() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    return tuple((row["name"], row["event"], re.compile(row["regex"])) for row in formats()["lines"])


@cache
def _block() -> dict[str, re.Pattern[str]]:
    return {key: re.compile(value) for key, value in formats()["torchrun_block"].items()}


def read(lines: Sequence[LogLine]) -> list[dict[str, Any]]:
    """Rows of `scheduler_events` (one per process that a statement names), in reading order."""
    return [*_statements(lines), *_torchrun_blocks(lines)]


def _statements(lines: Sequence[LogLine]) -> Iterator[dict[str, Any]]:
    for line in lines:
        text = line.text
        if not any(hint in text for hint in _HINTS):
            continue
        for name, event, pattern in _lines():
            match = pattern.search(text)
            if match:
                yield from _rows(line, name, event, match.groupdict())
                break


def _rows(line: LogLine, name: str, event: str, groups: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    code, signal = exit_and_signal(groups)
    if name == "mpirun-exit" and code is None:
        code = 1  # Open MPI prints this block only for a process that ended with a nonzero code, stated elsewhere
    base = {
        "attempt": line.attempt,
        "node": groups.get("node") or line.node,
        "at_lo": line.at_lo,
        "at_hi": line.at_hi,
        "path": line.path,
        "line": line.line,
        "offset": line.offset,
        "event": event,
        "code": code,
        "signal": signal,
        "local_rank": _int(groups.get("local_rank")),
        "pid": _int(groups.get("pid")),
        "text": line.text,
        "rank": _int(groups.get("rank")),
    }
    tasks = expand(groups.get("tasks"))
    if tasks:
        for task in tasks:
            yield {**base, "rank": task}
    else:
        yield base


def claim_block_lines(lines: Sequence[LogLine]) -> list[LogLine]:
    """Give the traceback that torchrun's failure block quotes for a rank (from its error file) to that rank.

    The quoted lines lose their indentation, so that they parse like the rank's own output.
    """
    patterns = _block()
    result: list[LogLine] = []
    inside: str | None = None
    owner: int | None = None
    quoting = False
    for line in lines:
        text = line.text
        if patterns["header"].match(text):
            inside, owner, quoting = line.path, None, False
        elif inside is not None and (line.path != inside or text.startswith(("====", "----", "["))):
            owner, quoting = None, False
            inside = inside if line.path == inside and not text.startswith("====") else None
        elif inside is not None:
            if match := patterns["rank"].match(text):
                owner, quoting = int(match["rank"]), False
            elif (match := patterns["traceback"].match(text)) and match["v"].startswith("Traceback ("):
                quoting = owner is not None
                text = match["v"]
            elif quoting:
                text = text[2:] if text.startswith("  ") else text
            if quoting:
                line = line._replace(rank=owner, issuer="rank", text=text)
        result.append(line)
    return result


def exit_and_signal(groups: dict[str, str | None]) -> tuple[int | None, int | None]:
    """(exit code, signal) from the captures of a statement; a negative code and 128+n are signals."""
    signal = _int(groups.get("signal"))
    name = groups.get("signame")
    if signal is None and name:
        signal = formats()["signals"].get(name)
    code = _int(groups.get("exit_code"))
    if code is None:
        return None, signal
    if code < 0:
        return None, -code
    if 128 < code <= 128 + 64:
        return None, code - 128
    return code, signal


def expand(text: str | None, limit: int = 65_536) -> list[int]:
    """A task list such as `0-3,5` as numbers; empty for None or nonsense."""
    numbers: list[int] = []
    for part in (text or "").split(","):
        low, _, high = part.partition("-")
        if not low.isdigit():
            continue
        last = int(high) if high.isdigit() else int(low)
        numbers.extend(range(int(low), min(last, int(low) + limit) + 1))
    return numbers[:limit]


def _torchrun_blocks(lines: Sequence[LogLine]) -> Iterator[dict[str, Any]]:
    patterns = _block()
    clock = Clock()
    inside: str | None = None
    entry: dict[str, Any] = {}
    for line in lines:
        if patterns["header"].match(line.text):
            inside, entry = line.path, {}
            continue
        if inside is None:
            continue
        if line.path != inside:
            inside, entry = None, {}
            continue
        text = line.text
        if match := patterns["time"].match(text):
            stamp = clock.parse(match["v"])
            entry = {"at_lo": stamp.lo, "at_hi": stamp.hi} if stamp else {}
        elif match := patterns["host"].match(text):
            entry["node"] = None if match["v"] == "localhost" else match["v"]
        elif match := patterns["rank"].match(text):
            entry.update(rank=int(match["rank"]), local_rank=_int(match["local_rank"]))
        elif (match := patterns["exitcode"].match(text)) and "rank" in entry:
            code, signal = exit_and_signal(match.groupdict())
            yield {
                **entry, "attempt": line.attempt, "event": "signal" if signal else "exit", "code": code,
                "signal": signal, "pid": _int(match["pid"]), "path": line.path, "line": line.line,
                "offset": line.offset, "text": text.strip(),
            }  # fmt: skip
            entry = {}


def _int(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None
