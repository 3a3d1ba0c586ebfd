"""Cuts a log of any size into blocks that end at a newline, in bounded memory.

A line longer than `max_line` (a tensor dump, a progress bar without newlines, a binary in a log) keeps its head and its
tail; what lies between is read and dropped, and the block after it says so. Offsets are those of the file throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BLOCK = 512 << 10
"""Bytes per block: from the page cache 2.2 GB/s, and 1.2 GB/s with 8 MiB, which leaves the processor's caches."""
MAX_LINE = 1 << 20


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
    """As Block, but the bytes are `buffer[start:stop]` and change with the next step: nothing is copied."""

    offset: int
    first_line: int
    buffer: bytearray
    start: int
    stop: int
    newlines: int
    gap: tuple[int, int] | None


def scan_blocks(file: BinaryIO, block_size: int = BLOCK, max_line: int = MAX_LINE) -> Iterator[Block]:
    """Yield the file's content from its current position as blocks of about `block_size` bytes.

    Of a line longer than `max_line` bytes the first and the last `max_line // 2` are kept. Memory is bounded by a few
    times `block_size + max_line`. Raises OSError of reading, ValueError for sizes below 2.
    """
    views = scan_views(file, block_size, max_line)
    return (Block(v.offset, v.first_line, bytes(memoryview(v.buffer)[v.start : v.stop]), v.gap) for v in views)


def scan_views(file: BinaryIO, block_size: int = BLOCK, max_line: int = MAX_LINE) -> Iterator[View]:
    """As `scan_blocks`, in one buffer that is used again and again."""
    if block_size < 2 or max_line < 2:
        raise ValueError("block_size and max_line must be at least 2")
    return _views(file, block_size, max_line)


def _views(file: BinaryIO, block_size: int, max_line: int) -> Iterator[View]:
    head, tail = max_line - max_line // 2, max_line // 2
    buffer = bytearray(2 * block_size + max_line)
    offset, line, held = 0, 1, 0  # the buffer begins at `offset` with `held` bytes of an unfinished line
    gap: tuple[int, int] | None = None
    while True:
        size = held + _fill(file, memoryview(buffer)[held : held + block_size])
        ended = size == held
        end = size if ended else buffer.rfind(b"\n", 0, size) + 1
        start = 0
        for cut, resume in [*_long_lines(buffer, end, max_line, head, tail), (end, end)]:
            if start < cut:
                view = View(offset + start, line, buffer, start, cut, buffer.count(b"\n", start, cut), gap)
                yield view
                line += view.newlines
            gap, start = (offset + cut, offset + resume) if cut < resume else None, resume
        if ended:
            return
        held, offset = size - end, offset + end
        buffer[:held] = memoryview(buffer)[end:size]
        if held > max_line:
            yield View(offset, line, buffer, 0, head, 0, None)
            skipped, kept = _skip(file, bytes(buffer[head:held]), block_size, tail)
            gap = (offset + head, offset + head + skipped)
            offset, held = gap[1], len(kept)
            buffer[:held] = kept


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


def _long_lines(buffer: bytearray, end: int, max_line: int, head: int, tail: int) -> Iterator[tuple[int, int]]:
    """(end of its head, start of its tail) of each line of `buffer[:end]` longer than `max_line`."""
    at = 0
    while end - at > max_line:
        found = buffer.rfind(b"\n", at, at + max_line)
        if found < 0:
            stop = buffer.find(b"\n", at, end) + 1 or end
            yield at + head, stop - tail
            at = stop
        else:
            at = found + 1
