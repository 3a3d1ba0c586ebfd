"""PatternSet: many regular expressions over many bytes in one scan.

Meaning, whatever the engine: `scan` finds exactly the pairs (pattern, line) for which `re.search(pattern, line)`
matches, where lines are what `b"\\n"` separates, less one `b"\\r"` at their end.

How: the data is cut at newlines into pieces that fit a processor cache. For each piece an engine says which patterns
may occur in it at all (Hyperscan in one pass, or a search for each pattern's required literals); only for these the
lines are sought out and shown to `re`, which has the last word. So an engine can only err by being slow, both engines
share the code that decides, a pattern in every line costs one callback per piece, and a rare one nothing elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from mmap import mmap
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from collector import engines, usercache
from collector.locators import literals
from collector.readers.blocks import after_last_newline, after_next_newline, scan_views

Data = bytes | bytearray | memoryview | mmap
Engine = Literal["auto", "hyperscan", "re"]

PIECE = 128 << 10
"""Bytes shown to an engine at a time: few, so that a hit narrows things down; enough to amortise the call."""
SMALL = 256 << 10
"""Bytes up to which searching literals is cheaper than compiling a Hyperscan database (0.3 s for 500 patterns)."""


class LineHit(NamedTuple):
    """A pattern matches a line."""

    pattern: int
    """Index of the pattern in the set."""
    start: int
    """Offset of the line's first byte."""
    end: int
    """Offset after the line's last byte, without its newline and a carriage return before it."""


class PatternSet:
    """Compiled patterns. Made by `compile_patterns`; threads may share it."""

    def __init__(self, patterns: Sequence[str], engine: Engine, cache: Path | None) -> None:
        self.patterns = tuple(patterns)
        self._sources = [pattern.encode() for pattern in patterns]
        self._rules: dict[int, _Rule] = {}
        self._engine = engine
        self._cache = cache
        self._seen = 0
        self._looked = False
        self._literals: engines.LiteralSearch | None = None
        self._database: engines.Database | None = None

    def __len__(self) -> int:
        return len(self.patterns)

    def scan(self, data: Data, *, limit: int | None = None) -> list[LineHit]:
        """All (pattern, line) that match, ordered by (start, pattern), each once.

        `limit`: of each pattern only its first so many lines, for callers who do not want a progress line a million
        times. Raises nothing on content.
        """
        hits: list[LineHit] = []
        taken = [0] * len(self.patterns)
        with memoryview(data) as view:
            if not view.nbytes:
                return hits
            engine = self._choose(view.nbytes)
            for at, piece in _pieces(view):
                present = engine.present(piece)
                if limit is not None:
                    present = [index for index in present if taken[index] < limit]
                if not present:
                    continue
                block = _Block(piece)
                pairs: list[tuple[int, int, int]] = []
                for index in present:
                    lines = self._rule(index).lines(block, None if limit is None else limit - taken[index])
                    taken[index] += len(lines)
                    pairs += [(at + start, index, at + end) for start, end in lines]
                pairs.sort()
                hits += [LineHit(index, start, end) for start, index, end in pairs]
        return hits

    def _rule(self, index: int) -> _Rule:
        rule = self._rules.get(index)
        if rule is None:
            rule = self._rules[index] = _Rule(self._sources[index])
        return rule

    def _choose(self, size: int) -> engines.LiteralSearch | engines.Database:
        """The engine for the next `size` bytes: Hyperscan once it is free (cached) or pays for its compilation."""
        self._seen += size
        if self._database is None and self._engine != "re":
            if not self._looked:
                self._looked = True
                self._database = engines.load(self._sources, self._cache)
            if self._database is None and (self._engine == "hyperscan" or self._seen > SMALL):
                self._database = engines.build(self._sources, self._cache)
                if self._database is None:
                    self._engine = "re"  # not available here: do not try again
        if self._database is not None:
            return self._database
        if self._literals is None:
            self._literals = engines.LiteralSearch(range(len(self._sources)), self._sources)
        return self._literals


def compile_patterns(
    patterns: Sequence[str], *, engine: Engine = "auto", cache: Path | Literal["user"] | None = "user"
) -> PatternSet:
    """Make a PatternSet; cheap, the work is done by the first scan.

    Patterns are Python `re` syntax and are matched as UTF-8 bytes (`\\w`, `\\d`, `(?i)` mean ASCII). `engine`: "auto"
    uses Hyperscan where it is installed and pays; "hyperscan" insists on it; "re" does without. `cache`: folder for
    compiled databases, "user" for the user's cache folder, None for none.

    Raises RuntimeError if `engine` is "hyperscan" and it is missing. A pattern that is no regular expression raises
    re.error when it is first needed: whoever loads rules from files checks them there.
    """
    if engine == "hyperscan" and not engines.available():
        raise RuntimeError("the hyperscan package is not installed: use engine 'auto' or 're'")
    return PatternSet(patterns, engine, usercache.default_folder() if cache == "user" else cache)


class Located(NamedTuple):
    """A pattern matches a line of a file."""

    pattern: int
    line: int
    """1-based number of the line."""
    start: int
    """Offset of the line in the file."""
    end: int
    """Offset after the line, without its newline."""


def locate(source: Path | BinaryIO, patterns: PatternSet, *, limit: int | None = None) -> Iterator[Located]:
    """Which patterns match where in a file of any size, in file order, in bounded memory.

    `limit`: of each pattern at most so many lines per block. Lines longer than the block reader's
    limit count as two, their head and their tail. Raises OSError of opening and reading.
    """
    if isinstance(source, Path):
        with source.open("rb", buffering=0) as file:
            yield from locate(file, patterns, limit=limit)
        return
    for block in scan_views(source):
        line, counted = block.first_line, 0
        for hit in patterns.scan(block.data, limit=limit):
            line += bytes(block.data[counted : hit.start]).count(b"\n")
            counted = hit.start
            yield Located(hit.pattern, line, block.offset + hit.start, block.offset + hit.end)


class _Block:
    """A piece as bytes, and in lower case if anybody asks."""

    def __init__(self, piece: memoryview) -> None:
        self.text = bytes(piece)
        self._lower: bytes | None = None

    @property
    def lower(self) -> bytes:
        if self._lower is None:
            self._lower = self.text.lower()
        return self._lower


class _Rule:
    """One pattern, ready to be tried on lines."""

    def __init__(self, source: bytes) -> None:
        self._search = re.compile(source).search
        self._needed = literals(source)

    def lines(self, block: _Block, limit: int | None) -> list[tuple[int, int]]:
        """(start, end) of the lines of `block` that match, in order; the first `limit` of them."""
        if self._needed is None:
            candidates = _lines_with(block.text, block.text, b"")
        elif len(self._needed.any_of) == 1:
            candidates = _lines_with(
                block.text, block.lower if self._needed.folded else block.text, *self._needed.any_of
            )
        else:
            haystack = block.lower if self._needed.folded else block.text
            found = {line for literal in self._needed.any_of for line in _lines_with(block.text, haystack, literal)}
            candidates = iter(sorted(found))
        search, text = self._search, block.text
        matching = ((start, end) for start, end in candidates if search(text[start:end]))
        return list(matching if limit is None else islice(matching, limit))


def _lines_with(text: bytes, haystack: bytes, literal: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of each line of `text` in which `haystack` holds `literal`, end without newline, carriage return."""
    size, at = len(text), haystack.find(literal)
    while 0 <= at < size:
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        if end < 0:
            end = size
        yield start, (end - 1 if end > start and text[end - 1] == 0x0D else end)
        at = haystack.find(literal, end + 1)


def _pieces(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(offset, bytes) of pieces of about PIECE bytes that end at a newline; a longer line is not divided."""
    start, size = 0, view.nbytes
    while start < size:
        stop = start + PIECE
        if stop < size:
            stop = after_last_newline(view, start, stop) or after_next_newline(view, stop, size)
        yield start, view[start:stop]
        start = stop
