"""Finds logs that repeat another log, so that one event does not speak twice.

A console is often kept twice: as it was, and with a receive time in front of every line; or once per node and once for
all nodes. Line ends are compared, because a prefix changes only the front. Of two copies the poorer goes: the one
without the prefix; and a log that was merged from the logs of nodes, with or without a prefix, because a file's node is
certain where one in a line has to be guessed. Only logs that no rank's name is on are compared: the console and the
files of the ranks say the same lines with different attribution, and whoever reads them joins those. Heads are compared
first, so that logs that differ are not read.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import BinaryIO, NamedTuple

MAX_COMPARED = 256
"""Logs compared with each other; beyond that no copies are looked for."""
MAX_LINES = 300_000
"""Lines compared of one log."""
_END = 32
"""Bytes of a line's end that are compared; shorter lines are not, because a prefix would become part of their end."""
_MAX_LINE = 1 << 16
_FIRST = 30
_MIN_LINES = 3
_SHARE = 0.98
_HEAD_SHARE = 0.8


class Text(NamedTuple):
    """One log to compare."""

    path: str
    node: str | None
    head: bytes
    """Its first bytes (64 KiB will do)."""
    open: Callable[[], BinaryIO]


class _Lines(NamedTuple):
    """The lines of a log by their ends."""

    ends: dict[int, list[int]]
    """Hash of the end -> [how often, length of the first such line]."""
    total: int


def _lines(stream: BinaryIO) -> _Lines:
    ends: dict[int, list[int]] = {}
    total = 0
    while total < MAX_LINES and (line := stream.readline(_MAX_LINE)):
        line = line.rstrip()
        if len(line) < _END:
            continue
        total += 1
        key = hash(line[-_END:])
        ends.setdefault(key, [0, len(line)])[0] += 1
    return _Lines(ends, total)


def _held(part: _Lines, whole: _Lines) -> float:
    """Share of the lines of `part` whose ends `whole` has, each as often."""
    # the end of a short line with a prefix is the prefix: such lines say nothing about equality
    shortest = _END + max(0, -_longer(part, whole))
    looked_at = [(key, count) for key, (count, length) in part.ends.items() if length >= shortest]
    total = sum(count for _, count in looked_at)
    held = sum(min(count, whole.ends[key][0]) for key, count in looked_at if key in whole.ends)
    return held / total if total else 0.0


def _longer(part: _Lines, whole: _Lines) -> int:
    """How many bytes longer the lines of `whole` are than the same lines of `part`, usually."""
    difference = Counter(whole.ends[key][1] - length for key, (_, length) in part.ends.items() if key in whole.ends)
    return difference.most_common(1)[0][0] if difference else 0


def _alike(texts: Sequence[Text]) -> list[tuple[Text, Text]]:
    """Pairs of which one begins with lines that the head of the other has."""
    heads = {text.path: _lines(io.BytesIO(text.head[: text.head.rfind(b"\n") + 1])) for text in texts}
    first = {path: list(head.ends)[:_FIRST] for path, head in heads.items()}

    def begins(a: Text, b: Text) -> bool:
        keys = first[a.path]
        return len(keys) >= _MIN_LINES and sum(k in heads[b.path].ends for k in keys) >= _HEAD_SHARE * len(keys)

    return [(a, b) for a, b in combinations(texts, 2) if begins(a, b) or begins(b, a)]


def find_copies(texts: Sequence[Text]) -> dict[str, str]:
    """The logs to leave out: path -> path of the log that says the same and more. A log that cannot be read stays.

    Reads each log that looks like another once; memory grows with the number of different lines, at most MAX_LINES.
    """
    if not 2 <= len(texts) <= MAX_COMPARED:
        return {}
    pairs = _alike(texts)
    read: dict[str, _Lines] = {}
    for text in {text.path: text for pair in pairs for text in pair}.values():
        try:
            with text.open() as stream:
                read[text.path] = _lines(stream)
        except OSError:
            continue
    copies = _merged([text for text in texts if text.path in read], read)
    for pair in pairs:
        if all(text.path in read and text.path not in copies for text in pair):
            part, whole = sorted(pair, key=lambda text: (read[text.path].total, text.path))
            if poorer := _poorer(part, whole, read):
                copies[poorer] = whole.path if poorer == part.path else part.path
    return copies


def _poorer(part: Text, whole: Text, read: dict[str, _Lines]) -> str | None:
    """The one of two logs that adds nothing to the other, if there is one. `whole` has at least as many lines."""
    a, b = read[part.path], read[whole.path]
    if _held(a, b) < _SHARE:
        return None
    if part.node != whole.node:
        return None
    longer = _longer(a, b)
    if longer < 0 and _held(b, a) >= _SHARE:
        return whole.path
    return part.path


def _merged(texts: Sequence[Text], read: dict[str, _Lines]) -> dict[str, str]:
    """Logs without a node of which every line is in the log of some node."""
    nodes = [text for text in texts if text.node is not None]
    ends: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for text in nodes:
        for key, (count, length) in read[text.path].ends.items():
            ends[key] = [ends[key][0] + count, length]
    union = _Lines(ends, sum(read[text.path].total for text in nodes))
    return {
        text.path: nodes[0].path
        for text in texts
        if nodes and text.node is None and _held(read[text.path], union) >= _SHARE
    }
