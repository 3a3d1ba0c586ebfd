"""Large logs: which lines are kept, that they carry their true numbers, and that nothing is left out silently."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.readers import windows
from collector.readers.windows import Gap, RawLine

NEEDLE = b"KeyError"


def locate(file: BinaryIO) -> Iterator[tuple[int, int, int, int]]:
    """The plainest prefilter: lines that hold NEEDLE."""
    offset = 0
    for number, line in enumerate(file.read().split(b"\n"), 1):
        if NEEDLE in line:
            yield 0, number, offset, offset + len(line)
        offset += len(line) + 1


def select(data: bytes, max_lines: int) -> tuple[list[RawLine], list[Gap]]:
    return windows.select(lambda: io.BytesIO(data), max_lines, locate)


def check(data: bytes, lines: list[RawLine], gaps: list[Gap]) -> None:
    """Kept lines are where they say; a line that is not kept lies in a gap, at least in part."""
    true, offset = {}, 0
    whole = data.split(b"\n")
    if not whole[-1]:
        whole.pop()
    for number, text in enumerate(whole, 1):
        true[number] = (offset, text)
        offset += len(text) + 1
    assert [line.line for line in lines] == sorted({line.line for line in lines})
    for line in lines:
        assert (line.offset, line.data) == true[line.line]
    kept = {line.line for line in lines}
    for number, (start, text) in true.items():
        if number not in kept:
            assert any(gap.start < start + len(text) + 1 and start < gap.end for gap in gaps), number
    assert all(gap.start < gap.end and gap.why for gap in gaps)


def test_a_small_log_is_kept_whole() -> None:
    data = b"".join(b"step %d\n" % i for i in range(100))
    lines, gaps = select(data, 1000)
    assert len(lines) == 100 and gaps == []
    check(data, lines, gaps)


def test_no_newline_at_the_end_and_empty_lines() -> None:
    lines, gaps = select(b"a\n\nb", 10)
    assert lines == [RawLine(1, 0, b"a"), RawLine(2, 2, b""), RawLine(3, 3, b"b")] and gaps == []
    assert select(b"", 10) == ([], [])


def test_beyond_the_budget_head_tail_and_hits_stay_with_their_true_numbers() -> None:
    body = [b"step %06d loss 2.0 lr 0.001 tokens 12345" % i for i in range(40_000)]
    for hit in (12_345, 12_346, 30_000):
        body[hit - 1] = b"KeyError: 'labels' at %d" % hit
    data = b"\n".join(body) + b"\n"
    lines, gaps = select(data, 2000)
    numbers = {line.line for line in lines}
    assert {1, 2, 40_000, 12_345, 12_346, 30_000} <= numbers
    assert {12_345 - 20, 12_345 + 20} <= numbers, "the traceback stands before its last line, the rest after it"
    assert len(lines) < 12_000
    assert len(gaps) == 3
    check(data, lines, gaps)


def test_without_hits_head_and_tail_stay() -> None:
    data = b"".join(b"step %06d loss 2.0\n" % i for i in range(50_000))
    lines, gaps = windows.select(lambda: io.BytesIO(data), 1000, None)
    assert lines[0].line == 1 and lines[-1].line == 50_000 and len(gaps) == 1
    check(data, lines, gaps)


def test_a_million_hits_are_bounded_and_the_first_and_the_last_ones_stay() -> None:
    data = b"".join(b"KeyError: 'labels' and many words more to make it long %07d\n" % i for i in range(60_000))
    lines, gaps = select(data, 400)
    assert lines[0].line == 1 and lines[-1].line == 60_000
    assert len(lines) < 20_000
    check(data, lines, gaps)


def test_one_huge_line_between_two_short_ones(tmp_path: Path) -> None:
    """200 MB without a newline (sparse): memory stays bounded, the short lines stay, the gap is said."""
    path = tmp_path / "one_line.log"
    with path.open("wb") as file:
        file.write(b"first\n")
        file.truncate(200 << 20)
        file.seek(0, io.SEEK_END)
        file.write(b"\nlast\n")
    lines, gaps = windows.select(lambda: path.open("rb"), 600_000, None)
    texts = {line.line: line.data for line in lines}
    assert texts[1] == b"first" and texts[3] == b"last"
    assert sum(len(line.data) for line in lines) < 1 << 20
    assert sum(gap.end - gap.start for gap in gaps) > 180 << 20


def test_a_huge_line_that_is_all_there_is(tmp_path: Path) -> None:
    path = tmp_path / "one_line.log"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    lines, gaps = windows.select(lambda: path.open("rb"), 600_000, None)
    assert {line.line for line in lines} <= {1}
    assert sum(len(line.data) for line in lines) < 1 << 20
    assert gaps


class Unseekable(io.BufferedReader):
    """What a decompressor gives: bytes in order, once."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation("seek")


@pytest.mark.parametrize("whole", [1 << 10, 32 << 20], ids=["larger than what is held", "held"])
def test_compressed_logs_are_read_like_others(monkeypatch: pytest.MonkeyPatch, whole: int) -> None:
    monkeypatch.setattr(windows, "FULL_BYTES", whole)
    body = [b"step %06d loss 2.0 lr 0.001 tokens 12345" % i for i in range(40_000)]
    body[20_000] = b"KeyError: 'labels'"
    data = b"\n".join(body) + b"\n"
    lines, gaps = windows.select(lambda: Unseekable(data), 500, locate)
    assert {1, 20_001, 40_000} <= {line.line for line in lines} and len(gaps) == 2
    assert (lines, gaps) == select(data, 500)
    check(data, lines, gaps)


def test_long_lines_are_kept_if_they_are_few() -> None:
    data = b"".join(b"%03d " % i + b"x" * 2000 + b"\n" for i in range(300))
    lines, gaps = select(data, 400)
    assert len(lines) == 300 and not gaps
    check(data, lines, gaps)


def test_a_long_line_keeps_head_and_tail() -> None:
    (line,), (gap,) = select(b"HEAD" + b"x" * 300_000 + b"TAIL\n", 10)
    assert line.data.startswith(b"HEAD") and line.data.endswith(b"TAIL") and len(line.data) < 80_000
    assert 0 < gap.start < gap.end < 300_008


def test_an_unreadable_file_is_the_callers_to_report() -> None:
    def refuse() -> BinaryIO:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        windows.select(refuse, 10)


def test_a_window_that_begins_exactly_at_a_line_loses_none() -> None:
    data = (b"x" * 15 + b"\n") * 5000
    check(data, *select(data, 10))


LINE = st.one_of(
    st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")),
    st.just(NEEDLE),
    st.integers(1, 60).map(lambda n: b"x" * n * 100),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=120), st.integers(1, 40), st.integers(1, 30))
def test_numbers_and_gaps_are_true_for_any_lines(body: list[bytes], repeat: int, budget: int) -> None:
    data = b"\n".join(body * repeat) + b"\n"
    lines, gaps = select(data, budget)
    check(data, lines, gaps)
