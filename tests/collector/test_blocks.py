"""Blocks end at newlines, lose nothing but the middle of a line that is too long, and say where."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.readers.blocks import Block, scan_blocks


class Dribble(io.BytesIO):
    """A pipe: reads return less than asked for."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 3))


def check(data: bytes, block_size: int, max_line: int, blocks: list[Block]) -> None:
    at, line, kept = 0, 1, bytearray()
    for number, block in enumerate(blocks):
        assert block.data
        if block.gap:
            start, stop = block.gap
            assert start == at < stop == block.offset
            assert b"\n" not in data[start:stop]
            assert not blocks[number - 1].data.endswith(b"\n")
            head = data.rfind(b"\n", 0, start) + 1
            end = data.find(b"\n", stop) + 1 or len(data)
            assert end - head > max_line
            assert start - head == max_line - max_line // 2
            assert end - stop == max_line // 2
        else:
            assert block.offset == at
            assert number == 0 or blocks[number - 1].data.endswith(b"\n")
        assert block.first_line == line
        assert data[block.offset : block.offset + len(block.data)] == block.data
        assert len(block.data) <= block_size + 2 * max_line
        at = block.offset + len(block.data)
        line += block.data.count(b"\n")
        kept += block.data
    assert at == len(data)
    assert all(len(text) <= 2 * max_line for text in bytes(kept).split(b"\n"))


@settings(max_examples=500, deadline=None)
@given(
    lines=st.lists(st.integers(0, 40), max_size=20),
    closed=st.booleans(),
    block_size=st.integers(2, 60),
    max_line=st.integers(2, 20),
    dribble=st.booleans(),
)
def test_blocks(lines: list[int], closed: bool, block_size: int, max_line: int, dribble: bool) -> None:
    data = b"\n".join(bytes(97 + i % 26 for i in range(size)) for size in lines) + (b"\n" if closed else b"")
    file = Dribble(data) if dribble else io.BytesIO(data)
    blocks = list(scan_blocks(file, block_size, max_line))
    check(data, block_size, max_line, blocks)
    if all(size < max_line for size in lines):
        assert b"".join(block.data for block in blocks) == data


def test_a_long_line_keeps_head_and_tail() -> None:
    data = b"first\n" + b"H" * 600 + b"x" * 5000 + b"T" * 600 + b"\nlast\n"
    blocks = list(scan_blocks(io.BytesIO(data), 256, 1000))
    assert b"".join(block.data for block in blocks) == b"first\n" + b"H" * 500 + b"T" * 499 + b"\nlast\n"
    (gap,) = [block.gap for block in blocks if block.gap]
    assert gap == (506, len(data) - len(b"\nlast\n") - 499)


def test_sizes_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        scan_blocks(io.BytesIO(b""), 0)
