"""Which lines of a log are read: all of a small one; head, tail and what surrounds hits of a large one.

A thousand rank files of 10 MB do not fit in memory as lines, and nearly all of them are progress. What the ranking
needs is how a file begins (identity), how it ends, and the neighbourhood of lines that a prefilter (all signature
patterns in
one pass over the bytes) points at. What is left out is recorded as a gap, never silently.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from collector.readers.blocks import count_newlines

FULL_BYTES = 32 << 20
"""Up to this size a file is read whole, if the line budget allows."""
MAX_LINE = 64 << 10
_CUT_HEAD, _CUT_TAIL = 48 << 10, 15 << 10
_LEFT_OUT = b" ... "
_BEFORE, _AFTER = 6 << 10, 20 << 10
"""Bytes kept around a hit: the traceback's frames stand before its last line, the message's rest after it."""
_LINE = 160
"""Bytes of a typical line: turns a budget of lines into one of bytes."""
_MAX_HITS = 64
"""Hits followed per file end: the first and the last ones; the rest repeat."""

Locate = Callable[[BinaryIO], Iterable[tuple[int, int, int, int]]]
"""Streams a file and yields (pattern, line number, offset of the line, end of the line) of each hit."""


class RawLine(NamedTuple):
    """One line as bytes, without its newline."""

    line: int
    offset: int
    data: bytes


class Gap(NamedTuple):
    """Bytes that were not read into lines; `start` equals `end` where the file broke off and nobody knows its rest."""

    start: int
    end: int
    why: str


class _Hits(NamedTuple):
    """What one pass over a log found."""

    places: list[tuple[int, int, int]]
    """(line, offset, end) of the first and the last hits."""
    size: int
    newlines: int
    broken: str | None
    """Why the file ended before its end, if it did."""


class _Counting:
    """Counts bytes and newlines of what a prefilter reads, so that no second pass is needed to number lines."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.bytes = 0
        self.newlines = 0

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._count(data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        size = int(self._raw.readinto(buffer))  # type: ignore[attr-defined]  # BinaryIO lacks what all of them have
        self._count(buffer[:size])
        return size

    def _count(self, data: bytes | memoryview) -> None:
        self.bytes += len(data)
        self.newlines += count_newlines(io.BytesIO(data), 0, len(data))


def select(
    opener: Callable[[], BinaryIO], max_lines: int, locate: Locate | None = None
) -> tuple[list[RawLine], list[Gap]]:
    """The lines of a log worth reading, in order, and the gaps between them.

    `max_lines` bounds the number of lines (roughly, for files with hits). The first gap is that at the end of the file,
    if it broke off. Raises OSError if the file cannot be read.
    """
    found: _Hits | None = None
    with opener() as file:
        # What will be cut anyway is not read whole first: no memory is mapped anew for each of a thousand files, and a
        # stream stays in the processor's caches. What cannot seek (compressed) would have to be read three times.
        if file.seekable() and file.seek(0, io.SEEK_END) > 2 * _LINE * max_lines:
            found = _hits(opener, locate)
    if found is None or (found.size <= FULL_BYTES and found.newlines <= max_lines):
        with opener() as file:
            data = file.read(FULL_BYTES + 1)
            broken = _broken(file)
        if len(data) <= FULL_BYTES:
            if count_newlines(io.BytesIO(data), 0, len(data)) <= max_lines:
                return _cut_all(list(_split(data, 1, 0)), _no_end(len(data), broken))
            found = _hits(lambda: io.BytesIO(data), locate)._replace(broken=broken)
            return _cut_all(*_windows(lambda: io.BytesIO(data), max_lines, found))
    return _cut_all(*_windows(opener, max_lines, found or _hits(opener, locate)))


def _broken(file: BinaryIO) -> str | None:
    """Why a file that was read to its end had ended early, if it had (`collector.opening` notes it)."""
    note: str | None = getattr(getattr(file, "raw", file), "note", None)
    return note


def _no_end(size: int, broken: str | None) -> list[Gap]:
    return [Gap(size, size, broken)] if broken else []


def _split(data: bytes, line: int, offset: int) -> Iterator[RawLine]:
    parts = data.split(b"\n")
    if parts and not parts[-1]:
        parts.pop()
    for part in parts:
        yield RawLine(line, offset, part)
        line += 1
        offset += len(part) + 1


def _cut_all(lines: list[RawLine], gaps: list[Gap] | None = None) -> tuple[list[RawLine], list[Gap]]:
    """Shorten lines longer than MAX_LINE, keeping their head and tail."""
    gaps = list(gaps or ())
    for i, raw in enumerate(lines):
        if len(raw.data) > MAX_LINE:
            lines[i] = raw._replace(data=raw.data[:_CUT_HEAD] + _LEFT_OUT + raw.data[-_CUT_TAIL:])
            gaps.append(Gap(raw.offset + _CUT_HEAD, raw.offset + len(raw.data) - _CUT_TAIL, "line too long"))
    return lines, gaps


def _hits(opener: Callable[[], BinaryIO], locate: Locate | None) -> _Hits:
    first: list[tuple[int, int, int]] = []
    last: list[tuple[int, int, int]] = []
    with opener() as file:
        counting = _Counting(getattr(file, "raw", file))  # its blocks need no buffer of their own
        if locate is not None:
            for _, line, offset, end in locate(counting):  # type: ignore[arg-type]
                if len(first) < _MAX_HITS:
                    first.append((line, offset, end))
                else:
                    last.append((line, offset, end))
                    if len(last) > 4 * _MAX_HITS:
                        del last[: -2 * _MAX_HITS]
        while counting.read(8 << 20):
            pass
        broken = _broken(file)
    return _Hits(first + last[-_MAX_HITS:], counting.bytes, counting.newlines, broken)


def _windows(opener: Callable[[], BinaryIO], max_lines: int, found: _Hits) -> tuple[list[RawLine], list[Gap]]:
    """Head, tail and neighbourhoods of hits of a file that is too large to hold."""
    hits, size, newlines, broken = found
    head_bytes = min(max(max_lines // 4, 50) * _LINE, 4 << 20)
    tail_bytes = min(max(max_lines // 2, 100) * _LINE, 8 << 20)
    spans = [(0, head_bytes), (max(size - tail_bytes, 0), size)]
    spans += [(max(offset - _BEFORE, 0), min(offset + _AFTER, size)) for _, offset, _ in hits]
    # what a long line ends with is as telling as what it begins with, and what follows it stands there
    long = [(line, end) for line, offset, end in hits if end - offset > _AFTER]
    spans += [(max(end - 2 * _CUT_TAIL, 0), min(end + _AFTER, size)) for _, end in long]
    anchors = sorted({(0, 1), *((offset, line) for line, offset, _ in hits), *((end, line) for line, end in long)})
    kept: list[RawLine] = []
    gaps = _no_end(size, broken)
    end = 0
    with opener() as file:
        for start, stop in _merge(spans):
            if start > end:
                gaps.append(Gap(end, start, "middle of a large log"))
            begin = max(start - 1, 0)  # the byte before tells whether the window begins with a whole line
            _go_on(file, end, begin)
            data = file.read(stop - begin)
            for raw in _numbered(data, begin, size, newlines, anchors):
                if kept and kept[-1].line == raw.line:  # pieces of one line
                    kept[-1] = kept[-1]._replace(data=kept[-1].data + _LEFT_OUT + raw.data)
                else:
                    kept.append(raw)
            end = stop
    return kept, gaps


def _go_on(file: BinaryIO, start: int, stop: int) -> None:
    """Move forward from `start` to `stop`, by reading if the file (a compressed one) cannot seek."""
    if file.seekable():
        file.seek(stop)
        return
    while start < stop and (passed := len(file.read(min(stop - start, 1 << 20)))):
        start += passed


def _merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _numbered(data: bytes, start: int, size: int, newlines: int, anchors: list[tuple[int, int]]) -> Iterator[RawLine]:
    """Lines of a window with their true numbers, counted from a known line inside it or from the end of the file."""
    skip = data.find(b"\n") + 1 if start else 0  # the first, cut line belongs to the gap
    stop = len(data)
    if start + stop < size:  # so does the last one, unless the window is one single huge line
        newline = data.rfind(b"\n")
        stop = newline + 1 if newline >= skip and newline > 0 else stop
    inside = next(((o - start, n) for o, n in anchors if start + skip <= o < start + stop), None)
    inside = inside or next(((o - start, n) for o, n in anchors if start <= o < start + skip), None)
    if inside is not None:
        at, number = inside
        first = number - data.count(b"\n", skip, at) if at >= skip else number + data.count(b"\n", at, skip)
    elif start + len(data) >= size:
        first = newlines + 1 - data.count(b"\n", skip)
    else:
        first = 1
    if skip > _CUT_TAIL:  # but an error at the end of a huge line must be seen
        yield RawLine(first - 1, start + skip - 1 - _CUT_TAIL, data[skip - 1 - _CUT_TAIL : skip - 1])
    yield from _split(data[skip:stop], first, start + skip)
    if len(data) - stop > _CUT_TAIL:  # and whose it is, which its beginning tells
        yield RawLine(first + data.count(b"\n", skip, stop), start + stop, data[stop : stop + _CUT_HEAD])
