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


def scan_blocks(file: BinaryIO, block_size: int = BLOCK, max_line: int = MAX_LINE) -> Iterator[Block]:
    """Yield the file's content from its current position as blocks of about `block_size` bytes.

    Of a line longer than `max_line` bytes the first and the last `max_line // 2` are kept. At most
    `block_size + 2 * max_line` bytes are held. Raises OSError of reading, ValueError for sizes below 2.
    """
    if block_size < 2 or max_line < 2:
        raise ValueError("block_size and max_line must be at least 2")
    return _blocks(file, block_size, max_line)


def _blocks(file: BinaryIO, block_size: int, max_line: int) -> Iterator[Block]:
    head, tail = max_line - max_line // 2, max_line // 2
    offset, line, held = 0, 1, b""  # `held` begins at `offset` and is an unfinished line
    gap: tuple[int, int] | None = None
    while True:
        chunk = file.read(block_size)
        data = held + chunk if held else chunk
        end = data.rfind(b"\n") + 1 if chunk else len(data)
        start = 0
        for lo, hi in _long_lines(data, end, max_line):
            kept = data[start : lo + head]
            yield Block(offset + start, line, kept, gap)
            line += kept.count(b"\n")
            gap, start = (offset + lo + head, offset + hi - tail), hi - tail
        if start < end:
            kept = data[start:end]
            yield Block(offset + start, line, kept, gap)
            line += kept.count(b"\n")
            gap = None
        if not chunk:
            return
        offset, held = offset + end, data[end:]
        if len(held) > max_line:
            yield Block(offset, line, held[:head], gap)
            skipped, held = _skip(file, held[head:], block_size, tail)
            gap = (offset + head, offset + head + skipped)
            offset = gap[1]


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


def _long_lines(data: bytes, end: int, max_line: int) -> Iterator[tuple[int, int]]:
    """(start, end with newline) of the lines of `data[:end]` that are longer than `max_line`; looks at few bytes."""
    at = 0
    while end - at > max_line:
        found = data.rfind(b"\n", at, at + max_line)
        if found < 0:
            stop = data.find(b"\n", at, end) + 1 or end
            yield at, stop
            at = stop
        else:
            at = found + 1
