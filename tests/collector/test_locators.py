"""What is necessary for a match is derived right: a wrong literal would lose evidence silently."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector import locators
from collector.expressions import Ordinary, expression
from collector.locators import Literals, literals

NOTHING = Ordinary(b"")


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (rb"CUDA error: (.+)", Literals((b"CUDA error: ",), False)),
        (rb"(?i)Out Of Memory", Literals((b"out of memory",), True)),
        (rb"(?:gloo|nccl)Error\d", Literals((b"glooError", b"ncclError"), False)),
        (rb"gh[po]_[a-z]", Literals((b"gho_", b"ghp_"), False)),
        (rb"(?:a|b|.)cde", Literals((b"cde",), False)),
        (rb"sigkill|sigterm", Literals((b"sigkill", b"sigterm"), False)),
        (rb"cat|mouse", Literals((b"cat", b"mouse"), False)),
        (rb"(?:abc)?def", Literals((b"def",), False)),
        (rb"(?:abcd)+x", Literals((b"abcd",), False)),
        (rb"ab(?P<n>cd)ef", Literals((b"abcdef",), False)),
        (rb"abc(?i:DEF)g", Literals((b"abc",), False)),
        (rb"^abc\b def$", Literals((b"abc def",), False)),
        (rb"(?=abcdef)x", None),
        (rb"a.b", None),
        (rb"abcd|.", None),
        (rb"(?L)abcd", None),
        (rb"ab[cd\n]e(?:.|\n)", Literals((b"abce", b"abde"), False)),
        (rb"abcd\nef", Literals((b"abcd",), False)),
        (rb"ab(?:c|[^x]*d)ef", None),
        (rb"abc(?:d|[^x]*efgh)", Literals((b"abcd", b"efgh"), False)),
        (rb"a['\"]?bc", Literals((b'a"bc', b"a'bc", b"abc"), False)),
    ],
)
def test_literals(pattern: bytes, wanted: Literals | None) -> None:
    assert literals(pattern) == wanted


def test_expression_takes_the_rarest_bytes_that_ordinary_logs_lack() -> None:
    ordinary = Ordinary(b"iteration 10 | loss 2.0 | elapsed time per iteration of X")
    assert expression(rb"iteration \d+ time of XYZWVU!", ordinary) == rb"\x20XYZWVU\x21"
    assert expression(rb"elapsed time per [A-Z]", ordinary) == rb"elapsed\x20time\x20per\x20[\x41-\x5a]"
    # A number that is always there and seldom counts: what no ordinary line holds is the number itself.
    assert expression(rb"skipped: {1,2}[89]", Ordinary(b"skipped:   0 skipped:  10")) == (
        rb"ipped\x3a\x208|ipped\x3a\x209|pped\x3a\x20\x208|pped\x3a\x20\x209"
    )
    # Each alternative has a rare part of its own, and what stands before it belongs to it.
    assert expression(rb"NCCL (?:Init.*XYZWV|loss .*UUUUU)", Ordinary(b"NCCL Init of NCCL loss a")) == b"UUUUU|XYZWV"
    assert expression(rb"wandb (?:ERROR .|WARN .)", Ordinary(b"wandb INFO ERROR a WARN a")) == (
        rb"wandb\x20ER|wandb\x20WA"
    )
    # Of very many spellings the last bytes stand for all: they are few.
    found = expression(
        rb"[Ll]oss['\"]? {0,8}[:=] {0,8}\t?['\"]?(?:tensor\()?[Nn]a[Nn]", Ordinary(b"loss: 1.0 of nan loss")
    )
    assert found is not None
    assert 10 < found.count(b"|") < locators.MAX_ALTERNATIVES
    for text in (
        b"loss: nan",
        b"Loss=NaN",
        b"'loss': nan",
        b"loss =         nan",
        b'"loss": "NaN"',
        b"loss: tensor(nan",
    ):
        assert re.search(found, text)
    assert not re.search(found, b"number of nan iterations: 0")
    assert expression(rb"(?i)XYZWV", ordinary) == rb"[\x58\x78][\x59\x79][\x5a\x7a][\x57\x77][\x56\x76]"


@pytest.mark.parametrize("pattern", [rb"x*", rb"^$", rb"(?=a)", rb"a?b*", rb"(?L)abc", rb"(a)\1", rb"\n"])
def test_no_expression_where_none_is_safe(pattern: bytes) -> None:
    assert expression(pattern, NOTHING) is None


@pytest.mark.parametrize("pattern", [rb"[^x]y", rb"\sy", rb"\Dy", rb"\Wy", rb"[\s\S]y", rb"(?s).y", rb"[^\n]y"])
def test_expressions_stay_in_their_line(pattern: bytes) -> None:
    found = expression(pattern, NOTHING)
    assert found is not None
    assert not re.search(found, b"\ny", re.MULTILINE)
    assert re.search(found, b" y" if b"s" in pattern.lower() else b"-y", re.MULTILINE)


def test_bad_patterns_say_so() -> None:
    with pytest.raises(re.error):
        literals(b"(")
    with pytest.raises(re.error):
        expression(b"*", NOTHING)


PARTS = [
    "a", "b", "[ab]", "[abc]?", "(?:a|bb)", "(?:ab)?", "c{0,3}", "(?:[ab]|c)", "(?:a|.b)", "(?:abab|bbab|cab)",
    "(?:abab|bbab|cab){0,2}", "(?:aab|[^c]*ba)", "(?:c|(?:abcab|bbcab|cbcab))", ".",
]  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), data=st.data(), most=st.integers(1, 5))
def test_nothing_that_matches_lacks_them(parts: list[str], data: st.DataObject, most: int) -> None:
    """However few alternatives are allowed: texts that were cut must forget what stood before."""
    pattern = "".join(parts)
    line = data.draw(st.from_regex(pattern, fullmatch=True, alphabet="abc")).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locators, "MAX_ALTERNATIVES", most)
        patch.setattr(locators, "MIN_LITERAL", 1)
        patch.setattr(locators, "WINDOW", 3)
        needed = literals(pattern.encode())
        assert needed is None or any(text in line for text in needed.any_of)
        found = expression(pattern.encode(), NOTHING)
        assert found is None or re.search(found, line)


def test_a_text_that_was_cut_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locators, "MAX_ALTERNATIVES", 1)
    assert literals(rb"(?:cxabab|bxabab|aaabab){2}") == Literals((b"abab",), False)
