"""What stands in front of a line: who wrote it and when, by the grammar in `signatures/_formats/prefixes.yaml`.

A line can carry three prefixes and two rank numberings (`[default1]:[rank3]:` is local rank 1, global rank 3). They
are peeled from the left. Shapes that prove nothing on one line (`2: `, `host: `) are believed only if most lines of the
file
have them: `Grammar` votes on a sample of the file first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from collector.data import data_dir

_MAX_LAYERS = 6
_MARK_WIDTH = 110
_VOTE_SHARE = 0.8
_JSON_RANK = re.compile(r'(?<!\\)"(?:global_)?rank" ?: ?"?(\d{1,6})\b')
"""The key of a JSON line, wherever it stands; in a quoted text its quotes would be escaped."""
_PID = re.compile(r"\bpid[=: ]+(\d+)")


class Peeled(NamedTuple):
    """A line without its prefixes and what they said."""

    text: str
    time_text: str | None
    rank: int | None
    local_rank: int | None
    node: str | None
    pid: int | None
    stream: str | None
    actor: str | None
    issuer: str | None
    marked: bool
    """True if a launcher prefix says that a rank (not the launcher) wrote the line."""


@cache
def table() -> dict[str, Any]:
    """The parsed `prefixes.yaml`."""
    import yaml

    path = data_dir("signatures") / "_formats" / "prefixes.yaml"
    loaded: dict[str, Any] = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded


class _Row(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    issuer: str | None


@cache
def _rows(stages: tuple[str, ...], voted: bool) -> tuple[_Row, ...]:
    return tuple(
        _Row(row["name"], re.compile(row["regex"]), row.get("issuer"))
        for row in table()["prefixes"]
        if row["stage"] in stages and bool(row.get("vote")) == voted
    )


@cache
def _mention() -> re.Pattern[str]:
    """Ends the text in front of a mark that names another rank, not the writer."""
    return re.compile(table()["mention"])


@cache
def _issuers() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["issuer"], re.compile(row["regex"])) for row in table()["issuers"])


class Grammar:
    """The prefixes that one file uses."""

    def __init__(self, sample: Sequence[str] = ()) -> None:
        """`sample`: some hundred lines of the file, used to vote on the shapes that need a vote."""
        self._strip = _rows(("container", "launcher"), False) + self._elected(sample)
        self._marks = _rows(("mark",), False)

    @staticmethod
    def _elected(sample: Sequence[str]) -> tuple[_Row, ...]:
        lines = [line for line in sample if line.strip()]
        if len(lines) < 3:
            return ()
        elected = []
        for row in _rows(("container", "launcher"), True):
            found = [m for m in map(row.pattern.match, lines) if m]
            names = Counter(m.group(m.lastgroup or 0) for m in found)
            # every rank or host prints more than once; a list of numbered items or of "key: value" does not repeat
            repeated = sum(count for count in names.values() if count > 1)
            if len(found) >= _VOTE_SHARE * len(lines) and repeated >= 0.6 * len(found):
                elected.append(row)
        return tuple(elected)

    def peel(self, line: str) -> Peeled:
        """Strip the prefixes of `line` and collect what they and the marks in its head say."""
        found: dict[str, str] = {}
        issuer: str | None = None
        position = 0
        marked = False
        for _ in range(_MAX_LAYERS):
            first = line[position : position + 1]
            if not first or not (first in "[( " or first.isalnum()):
                break
            for row in self._strip:
                match = row.pattern.match(line, position)
                if match:
                    for key, value in match.groupdict().items():
                        if value is not None:
                            found.setdefault(key, value)
                    issuer = issuer or row.issuer
                    marked = marked or "rank" in match.groupdict() or "local_rank" in match.groupdict()
                    position = match.end()
                    break
            else:
                break
        text = line[position:]
        self._read_marks(text, found)
        if issuer is None and text:
            issuer = next((name for name, pattern in _issuers() if pattern.match(text)), None)
        return Peeled(
            text,
            found.get("time"),
            _number(found.get("rank")),
            _number(found.get("local_rank")),
            found.get("node"),
            _number(found.get("pid")),
            found.get("stream"),
            found.get("actor") or found.get("pod"),
            issuer,
            marked or "actor" in found,
        )

    def _read_marks(self, text: str, found: dict[str, str]) -> None:
        head = text[:_MARK_WIDTH]
        other = _PID.search(head)
        if other and "pid" in found and other[1] != found["pid"]:
            return  # a controller writes about one of its workers
        lowered = text.lower() if text.startswith("{") else head.lower()
        if "rank" not in lowered and " NCCL " not in head and not head.startswith("R") and "[r" not in lowered:
            return
        if text.startswith("{") and (own := _JSON_RANK.search(text)):
            found.setdefault("rank", own[1])
        for row in self._marks:
            match = row.pattern.search(head)
            if match and not _mention().search(head, 0, match.start()):
                for key, value in match.groupdict().items():
                    if value is not None:
                        found.setdefault(key, value)


def _number(text: str | None) -> int | None:
    return int(text) if text else None
