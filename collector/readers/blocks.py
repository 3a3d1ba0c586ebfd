"""Cuts a log of any size into blocks that end at a newline, in bounded memory.

A line longer than `max_line` (a tensor dump, a progress bar without newlines, a binary in a log) keeps its head and its
tail; what lies between is read and dropped, and the block after it says so. Offsets are those of the file throughout.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BLOCK = 256 << 10
"""Bytes per block: from the page cache 2.2 GB/s, and 1.2 GB/s with 8 MiB, which leaves the processor's caches."""
MAX_LINE = 1 << 20
_NEAR = 4 << 10
"""Bytes looked at first where a newline or an impression is wanted."""
_AS_LINES = BLOCK
"""Bytes held as lines at a time."""
_SHORT = 80
"""Bytes per line up to which newlines are counted byte by byte (measured: equal at 60, a third of the time at 250)."""


class Block(NamedTuple):
    """Consecutive bytes of a file."""

    offset: int
    """Offset of the first byte in the (decompressed) file."""
    first_line: int
    """1-based number of the line that the first byte belongs to."""
    data: bytes
    """Ends with a newline, except at the end of the file and before a gap."""
    gap: tuple[int, int] | None = None
    """(from, to): file offsets of the bytes dropped directly before this block, all of line `first_line`, whose tail is
    the first line of `data`; its head ends the block before."""


class View(NamedTuple):
    """As Block, but the bytes change with the next step: nothing is copied."""

    offset: int
    first_line: int
    data: memoryview
    gap: tuple[int, int] | None


def scan_blocks(file: BinaryIO, block_size: int = BLOCK, max_line: int = MAX_LINE) -> Iterator[Block]:
    """Yield the file's content from its current position as blocks of about `block_size` bytes.

    Of a line longer than `max_line` bytes the first and the last `max_line // 2` are kept. Memory is bounded by a few
    times `block_size + max_line`. Raises OSError of reading, ValueError for sizes below 2.
    """
    views = scan_views(file, block_size, max_line)
    return (Block(view.offset, view.first_line, bytes(view.data), view.gap) for view in views)


def scan_views(file: BinaryIO, block_size: int = BLOCK, max_line: int = MAX_LINE) -> Iterator[View]:
    """As `scan_blocks`, in one buffer that is used again and again."""
    if block_size < 2 or max_line < 2:
        raise ValueError("block_size and max_line must be at least 2")
    return _views(file, block_size, max_line)


def count_newlines(data: io.BytesIO, start: int, stop: int) -> int:
    """Newlines in bytes [start, stop) of `data`.

    `bytes.count` looks at one byte per cycle; `readlines` leaps from newline to newline with memchr, a third of the
    time where lines are as long as they mostly are in logs.
    """
    data.seek(start)
    leap = data.read(min(_NEAR, stop - start)).count(b"\n") * _SHORT <= _NEAR
    data.seek(start)
    found = 0
    while (at := data.tell()) < stop:
        size = min(_AS_LINES, stop - at)
        found += len(data.readlines(size)) if leap else data.read(size).count(b"\n")
    if leap and start < stop:
        data.seek(stop - 1)
        found -= data.read(1) != b"\n"  # the last line goes on
    return found


def after_last_newline(view: memoryview, start: int, stop: int) -> int:
    """Offset after the last newline in [start, stop), 0 if there is none. Looks at the end first, to copy little."""
    for low in (max(start, stop - _NEAR), start):
        found = bytes(view[low:stop]).rfind(b"\n")
        if found >= 0:
            return low + found + 1
    return 0


def after_next_newline(view: memoryview, start: int, stop: int) -> int:
    """Offset after the first newline in [start, stop), `stop` if there is none."""
    size = _NEAR
    while start < stop:
        found = bytes(view[start : min(start + size, stop)]).find(b"\n")
        if found >= 0:
            return start + found + 1
        start, size = start + size, 2 * size
    return stop


def _views(file: BinaryIO, block_size: int, max_line: int) -> Iterator[View]:
    head, tail = max_line - max_line // 2, max_line // 2
    buffer = io.BytesIO(bytes(2 * block_size + max_line))
    content = buffer.getbuffer()
    offset, line, held = 0, 1, 0  # the buffer begins at `offset` with `held` bytes of an unfinished line
    gap: tuple[int, int] | None = None
    while True:
        size = held + _fill(file, content[held : held + block_size])
        ended = size == held
        end = size if ended else after_last_newline(content, 0, size)
        start = 0
        for cut, resume in [*_long_lines(content, end, max_line, head, tail), (end, end)]:
            if start < cut:
                yield View(offset + start, line, content[start:cut], gap)
                line += count_newlines(buffer, start, cut)
            gap, start = (offset + cut, offset + resume) if cut < resume else None, resume
        if ended:
            return
        held, offset = size - end, offset + end
        content[:held] = bytes(content[end:size])
        if held > max_line:
            yield View(offset, line, content[:head], None)
            skipped, kept = _skip(file, bytes(content[head:held]), block_size, tail)
            gap = (offset + head, offset + head + skipped)
            offset, held = gap[1], len(kept)
            content[:held] = kept


def _fill(file: BinaryIO, target: memoryview) -> int:
    """Read into `target`; bytes read, 0 at the end of the file."""
    readinto = getattr(file, "readinto", None)
    if readinto is not None:
        return int(readinto(target) or 0)
    data = file.read(len(target))
    target[: len(data)] = data
    return len(data)


def _skip(file: BinaryIO, seen: bytes, block_size: int, keep: int) -> tuple[int, bytes]:
    """Read on to the end of the line of which `seen` is a part: (bytes dropped, its last `keep` bytes and the rest)."""
    dropped = 0
    while True:
        if len(seen) > keep:
            dropped += len(seen) - keep
            seen = seen[-keep:]
        chunk = file.read(block_size)
        stop = chunk.find(b"\n") + 1
        if stop or not chunk:
            line = seen + chunk[:stop]
            return dropped + max(len(line) - keep, 0), line[-keep:] + chunk[stop:]
        seen += chunk


def _long_lines(content: memoryview, end: int, max_line: int, head: int, tail: int) -> Iterator[tuple[int, int]]:
    """(end of its head, start of its tail) of each line of `content[:end]` longer than `max_line`."""
    at = 0
    while end - at > max_line:
        found = after_last_newline(content, at, at + max_line)
        if not found:
            stop = after_next_newline(content, at + max_line, end)
            yield at + head, stop - tail
            found = stop
        at = found
