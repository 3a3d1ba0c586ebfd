"""Masks secrets before anything is written: lines stay lines, a mask names the rule that made it.

What is a secret is data (`signatures/_redaction/*.yaml`). All rules look at the bytes in one scan by
`collector.patterns`; only lines with a hit are touched, so a log without secrets costs that scan. Of each match only
the group `secret` is replaced. Private keys span lines and are the one thing with a state, kept by `Redactor`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from collector.data import data_dir
from collector.patterns import PatternSet, compile_patterns

MAX_HELD = 1 << 20
"""Bytes of an unfinished line that a stream holds back before it gives up waiting for the newline."""
MARGIN = 64 << 10
"""Of such a line the last so many bytes stay: more than any secret with its name."""

_KEY_BEGIN = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----\W*$|\bPrivate-Lines: \d+"
_KEY_END = re.compile(rb"-----END |\bPrivate-MAC: ")
_KEY_LINE = re.compile(rb"(?P<secret>[A-Za-z0-9+/=]+)[\"',\\]*$")
_KEY_LINE_LENGTH = 32
"""PEM lines have 64 to 76 characters of base64; the last one may be shorter."""
_FOREIGN_LINES = 8
"""Lines of other ranks that may stand between the lines of one key."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of secret."""

    id: str
    title: str
    pattern: str
    """`re` syntax with a group `secret`, for one line as UTF-8 bytes."""
    entropy: float | None
    """Least Shannon entropy of the secret in bits per byte; with it, the secret must hold a letter and a digit."""
    match: tuple[str, ...]
    no_match: tuple[str, ...]

    def is_secret(self, value: bytes) -> bool:
        """False for what only stands in a secret's place: placeholders, and words where a random string must be."""
        if not value or _placeholders().fullmatch(value):
            return False
        if self.entropy is None:
            return True
        known = any(chr(byte).isalpha() for byte in value) and any(chr(byte).isdigit() for byte in value)
        return known and _entropy(value) >= self.entropy


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order in which they are applied: those of vendors before the generic ones.

    Raises FileNotFoundError if the data folder is missing, TypeError or KeyError for a malformed rule.
    """
    files = sorted(
        (path for path in (data_dir("signatures") / "_redaction").glob("*.yaml") if not path.name.startswith("_")),
        key=lambda path: (path.name == "generic.yaml", path.name),
    )
    return tuple(
        Rule(
            id=item["id"],
            title=item["title"],
            pattern=item["pattern"],
            entropy=item.get("entropy"),
            match=tuple(text.replace("¦", "") for text in item["match"]),
            no_match=tuple(text.replace("¦", "") for text in item["no_match"]),
        )
        for path in files
        for item in _parsed(path.read_bytes())
    )


def redact(text: str) -> tuple[str, int]:
    """`text` with its secrets masked, and how many were."""
    raw = text.encode("utf-8", "surrogatepass")
    masked, count = redact_bytes(raw)
    return (masked.decode("utf-8", "surrogatepass"), count) if count else (text, 0)


def redact_bytes(data: bytes) -> tuple[bytes, int]:
    """`data` with its secrets masked, and how many were. The number of newlines never changes."""
    redactor = Redactor()
    return redactor.feed(data), redactor.count


def redact_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Mask a stream cut anywhere: the bytes of `redact_bytes` of the whole, given out as lines become complete.

    Only a line longer than MAX_HELD is given out in parts, cut where no secret is.
    """
    redactor = Redactor()
    held = b""
    for chunk in chunks:
        held += chunk
        cut = held.rfind(b"\n") + 1
        if not cut and len(held) > MAX_HELD:
            cut = redactor.safe_cut(held)
        if cut:
            yield redactor.feed(held[:cut])
            held = held[cut:]
    if held:
        yield redactor.feed(held)


class Redactor:
    """Masks consecutive pieces of one text, each of whole lines."""

    def __init__(self) -> None:
        self.count = 0
        """Secrets masked so far."""
        self._key: _Key | None = None

    def feed(self, data: bytes) -> bytes:
        """The next lines, masked."""
        hits: dict[int, tuple[int, list[int]]] = {}
        for rule, start, end in _pattern_set().scan(data):
            hits.setdefault(start, (end, []))[1].append(rule)
        if not hits and self._key is None:
            return data
        return b"".join(self._parts(data, hits))

    def _parts(self, data: bytes, hits: dict[int, tuple[int, list[int]]]) -> Iterator[bytes]:
        waiting = iter([*sorted(hits), len(data)])
        start, at = next(waiting), 0
        while at < len(data):
            if self._key is None:  # up to the next line with a hit nothing can change
                yield data[at:start]
                at = start
                if at == len(data):
                    return
            newline = data.find(b"\n", at)
            stop = len(data) if newline < 0 else newline
            end, found = hits.get(at, (stop, []))
            yield self._line(data[at:end], found)
            yield data[end : stop + 1]
            at = stop + 1
            while start < at and start < len(data):
                start = next(waiting)

    def _line(self, line: bytes, found: list[int]) -> bytes:
        if self._key is not None:
            line, masked = self._key.line(line)
            self.count += masked
            if self._key.over:
                self._key = None
        if len(rules()) in found:
            self._key = _Key()
        parts, at = [], 0
        for start, end, rule in _spans(line, found):
            parts += [line[at:start], _mask(rules()[rule].id)]
            at = end
            self.count += 1
        return b"".join([*parts, line[at:]]) if parts else line

    @staticmethod
    def safe_cut(line: bytes) -> int:
        """An offset before the last MARGIN bytes of an unfinished `line` that is not inside a match of any rule."""
        cut = len(line) - MARGIN
        matches = (match for hit in _pattern_set().scan(line) for match in _compiled(hit.pattern).finditer(line))
        for start, end in sorted((match.span() for match in matches), reverse=True):
            if start < cut < end:
                cut = start
        return max(cut, 0)


def _spans(line: bytes, found: list[int]) -> list[tuple[int, int, int]]:
    """(start, end, rule) of what is to be masked, in order and disjoint.

    All rules look at the line as it was, so that none is led astray by the mask of another; where they overlap, the
    first rule gives the name.
    """
    wanted = sorted(
        (*match.span("secret"), index)
        for index in found
        if index < len(rules())
        for match in _compiled(index).finditer(line)
        if rules()[index].is_secret(match["secret"])
    )
    merged: list[tuple[int, int, int]] = []
    for start, end, rule in wanted:
        if merged and start < merged[-1][1]:
            before = merged.pop()
            start, end, rule = before[0], max(end, before[1]), min(rule, before[2])
        merged.append((start, end, rule))
    return merged


class _Key:
    """Inside a private key: masks its lines, passes a few foreign ones, knows when it is over."""

    def __init__(self) -> None:
        self.over = False
        self._foreign = 0
        self._column: int | None = None

    def line(self, line: bytes) -> tuple[bytes, int]:
        """The line, masked if it belongs to the key, and 1 if so."""
        if _KEY_END.search(line):
            self.over = True
            return line, 0
        match = _KEY_LINE.search(line.rstrip())
        # The last line is short; what tells it from a word of prose is that it starts where its predecessor did.
        if match and (len(match["secret"]) >= _KEY_LINE_LENGTH or match.start() == self._column):
            self._column = match.start() if len(match["secret"]) >= _KEY_LINE_LENGTH else None
            return line[: match.start()] + _mask("private-key") + line[match.end("secret") :], 1
        self._foreign += 1
        self.over = self._foreign > _FOREIGN_LINES
        return line, 0


def _mask(name: str) -> bytes:
    return f"[redacted:{name}]".encode()


def _entropy(value: bytes) -> float:
    """Shannon entropy of the bytes of `value`, in bits per byte."""
    return -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())


@cache
def _pattern_set() -> PatternSet:
    return compile_patterns([*(rule.pattern for rule in rules()), _KEY_BEGIN])


@cache
def _compiled(index: int) -> re.Pattern[bytes]:
    return re.compile(_pattern_set().patterns[index].encode())


@cache
def _placeholders() -> re.Pattern[bytes]:
    listed = _parsed((data_dir("signatures") / "_redaction" / "_placeholders.yaml").read_bytes())
    return re.compile("|".join(f"(?:{item})" for item in listed).encode(), re.IGNORECASE)


def _parsed(content: bytes) -> Any:
    import yaml

    return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
