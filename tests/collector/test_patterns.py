"""Both engines mean exactly what `re.search` on each line means, whatever the patterns and the bytes."""

from __future__ import annotations

import io
import re
import threading
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collector import engines, patterns
from collector.patterns import LineHit, Located, compile_patterns, locate

PATTERNS = [
    "CUDA error: (?P<what>.+)",
    r"Xid \(PCI:[0-9A-Fa-f:.]+\): (?P<xid>\d+)",
    r"(?i)out of memory",
    r"exit(?:ed with)? code:?\s*-?\d+$",
    r"^Traceback \(most recent",
    r"a[^x]*b",
    r"foo\s+bar",
    r"\bkilled\b",
    r"(?<!not )killed",
    r"(a|b)\1",
    r"^$",
    r"x*",
    r"(?:gloo|nccl)\w*Error",
    r"loss[=:]\s*(?:nan|inf)\Z",
    r"\w+ = \S{2,40}\.",
    r"(?i:rank) \d|RANK:\d",
    r"é|\xff",
    r"end\B",
    r"ran \d$",
]
NEEDLES = [
    "CUDA error: ", "CUDA", "Xid (PCI:0000:0a): 79", "OUT of Memory", "exit code: 1", "exited with code 12",
    "Traceback (most recent", "a", "b", "x", "foo", "bar", " ", "\t", "\v", "killed", "not ", "glooError",
    "ncclInternalError", "loss=nan", "loss: inf", "z = ab.", "Rank 1", "RANK:2", "é", "end", "ran", "\n", "\r\n", "1",
]  # fmt: skip

ENGINES = ["re", pytest.param("hyperscan", marks=pytest.mark.skipif(not engines.available(), reason="no hyperscan"))]


def expected(sources: list[str], data: bytes) -> list[LineHit]:
    """The definition."""
    found, start = [], 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        if number == len(lines) - 1 and not line:
            break  # what follows the last newline is no line
        text = line[:-1] if line.endswith(b"\r") else line
        for index, source in enumerate(sources):
            if re.search(source.encode(), text):
                found.append(LineHit(index, start, start + len(text)))
        start += len(line) + 1
    return found


def texts() -> st.SearchStrategy[bytes]:
    parts = st.sampled_from([needle.encode() for needle in NEEDLES]) | st.binary(max_size=3)
    return st.lists(parts, max_size=40).map(b"".join)


@pytest.fixture(scope="module", params=ENGINES)
def compiled(request: pytest.FixtureRequest) -> patterns.PatternSet:
    return compile_patterns(PATTERNS, engine=request.param, cache=None)


@settings(max_examples=400, deadline=None)
@given(data=texts())
@example(data=b"exit code: 1\r\nloss: inf\r\n\r\n\r\r\n")
@example(data=b"exit code: 1")
@example(data=b"foo\vbar\n")
@example(data=b"foo\x0cbar\n")
@example(data=b"foo\x1cbar\n")
@example(data=b"ran 1\r\n")
@example(data=b"z = ab.\xff\x00RANK 7\nOuT oF mEmOrY\n")
@example(data=b"x\nend\n\n")
def test_means_re_search_on_each_line(compiled: patterns.PatternSet, data: bytes) -> None:
    assert compiled.scan(data) == expected(PATTERNS, data)


@settings(max_examples=150, deadline=None)
@given(data=texts(), piece=st.integers(1, 30))
def test_pieces_change_nothing(compiled: patterns.PatternSet, data: bytes, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "PIECE", piece)
        wanted = expected(PATTERNS, data)
        assert compiled.scan(data) == wanted
        assert compiled.scan(memoryview(data)) == wanted


ATOMS = st.sampled_from(
    [r"\d", r"\s", r"\w", r"\S", ".", "[^a]", "[a-c]", "a", "b", "A", "é", " ", r"\b", "^", "$", r"\n", "(?:ab|c)"]
)  # fmt: skip
COUNTS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "*?", "{0,40}"])


@st.composite
def regexes(draw: st.DrawFn) -> str:
    items = []
    for _ in range(draw(st.integers(1, 7))):
        atom = draw(ATOMS)
        items.append(atom if atom in (r"\b", "^", "$") else atom + draw(COUNTS))
    source = "".join(items)
    if draw(st.booleans()):
        source = f"{source}|{draw(ATOMS)}"
    return draw(st.sampled_from(["", "(?i)", "(?s)", "(?m)"])) + source


@settings(max_examples=250, deadline=None)
@given(sources=st.lists(regexes(), min_size=1, max_size=4), data=texts() | st.text("abcAé 1\n\r\v").map(str.encode))
@pytest.mark.parametrize("engine", ENGINES)
def test_any_pattern(engine: patterns.Engine, sources: list[str], data: bytes) -> None:
    assert compile_patterns(sources, engine=engine, cache=None).scan(data) == expected(sources, data)


def test_a_match_across_lines_hides_none_inside(compiled: patterns.PatternSet) -> None:
    data = b"a\na b\nfoo\nfoo \r\nbar foo bar\n"
    assert [hit for hit in compiled.scan(data) if PATTERNS[hit.pattern] in (r"a[^x]*b", r"foo\s+bar")] == [
        LineHit(PATTERNS.index("a[^x]*b"), 2, 5),
        LineHit(PATTERNS.index("a[^x]*b"), 16, 27),
        LineHit(PATTERNS.index(r"foo\s+bar"), 16, 27),
    ]


def test_mmap_and_real_log(compiled: patterns.PatternSet, tmp_path: Path) -> None:
    data = b"".join(b"step %d ok\r\n" % n if n % 97 else b"CUDA error: %d\n" % n for n in range(20_000))
    path = tmp_path / "rank0.log"
    path.write_bytes(data)
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
        found = compiled.scan(mapped)
    assert found == compiled.scan(data)
    assert sum(hit.pattern == 0 for hit in found) == len(range(0, 20_000, 97))


def test_limit_keeps_the_first(compiled: patterns.PatternSet) -> None:
    data = b"killed\n" * 50_000 + b"CUDA error: x\n"
    found = [hit for hit in compiled.scan(data, limit=2) if hit.pattern in (0, 7)]
    assert found == [LineHit(7, 0, 6), LineHit(7, 7, 13), LineHit(0, 350_000, 350_013)]


def test_locate_counts_lines(compiled: patterns.PatternSet) -> None:
    lines = [b"nothing\n"] * 700_000
    lines[3], lines[650_000] = b"CUDA error: a\n", b"CUDA error: b\r\n"
    data = b"".join(lines)
    found = [hit for hit in locate(io.BytesIO(data), compiled, limit=5) if hit.pattern == 0]
    assert [(hit.line, data[hit.start : hit.end]) for hit in found] == [
        (4, b"CUDA error: a"),
        (650_001, b"CUDA error: b"),
    ]
    assert isinstance(found[0], Located)


def test_threads_share_a_set(compiled: patterns.PatternSet) -> None:
    data = b"ok\nkilled\n" * 30_000
    wanted, found = compiled.scan(data), list[list[LineHit]]()
    threads = [threading.Thread(target=lambda: found.append(compiled.scan(data))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 4


def test_small_input_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("compiled for ten lines")

    monkeypatch.setattr(engines, "build", never)
    assert compile_patterns(["killed"], cache=None).scan(b"a\n" * 9 + b"killed\n") == [LineHit(0, 18, 24)]


@pytest.mark.skipif(not engines.available(), reason="no hyperscan")
def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    data = b"killed\n" * 9

    def scanned() -> list[LineHit]:
        return compile_patterns(PATTERNS, engine="hyperscan", cache=tmp_path / "cache").scan(data)

    wanted = scanned()
    (file,) = (tmp_path / "cache").iterdir()
    good = file.read_bytes()
    for damaged in (b"", good[:200], good[:-1], good[:300] + b"\0\0\0\0" + good[304:], b"firstfault patterns 1\n\n\n"):
        file.write_bytes(damaged)
        assert scanned() == wanted
        assert file.read_bytes() == good
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


@pytest.mark.skipif(not engines.available(), reason="no hyperscan")
def test_the_cache_spares_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [pattern.encode() for pattern in PATTERNS]
    assert engines.load(sources, tmp_path) is None
    assert engines.build(sources, tmp_path) is not None
    monkeypatch.setattr(engines, "_compiled", lambda _: pytest.fail("compiled again"))
    loaded = engines.load(sources, tmp_path)
    assert loaded is not None
    assert 7 in loaded.present(memoryview(b"killed\n"))
    assert engines.load(sources[1:], tmp_path) is None


def test_without_hyperscan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "available", lambda: False)
    data = b"ok\n" * 100_000 + b"killed\n"
    assert compile_patterns(PATTERNS[:8], cache=None).scan(data) == [LineHit(7, 300_000, 300_006)]
    with pytest.raises(RuntimeError, match="hyperscan"):
        compile_patterns(PATTERNS, engine="hyperscan")
