"""Weeks and months: borders in UTC, ISO weeks over the turn of the year, and what a span is compared with."""

import itertools
from datetime import UTC, datetime

import pytest

from analyzers.periods import label, moment, periods, span

NOW = datetime(2026, 12, 1, 5, 0, tzinfo=UTC)  # a Tuesday


def at(*parts):
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-30", at(2026, 11, 30)),
        ("2026-W49", at(2026, 11, 30)),
        ("2026W49", at(2026, 11, 30)),
        ("2026-W01", at(2025, 12, 29)),
        ("2026-W53", at(2026, 12, 28)),
        ("2026-11", at(2026, 11, 1)),
        ("2026-11-30T00:30+01:00", at(2026, 11, 29, 23, 30)),
        ("2026-11-30T06:00:00Z", at(2026, 11, 30, 6)),
        (" 2026-11-30 06:00 ", at(2026, 11, 30, 6)),
    ],
)
def test_moments(text, expected):
    assert moment(text) == expected and moment(text).tzinfo is UTC


@pytest.mark.parametrize("text", ["", "yesterday", "2027-W53", "2026-13", "2026-11-31", "24:00"])
def test_no_moments(text):
    with pytest.raises(ValueError, match="is no time: expected"):
        moment(text)


@pytest.mark.parametrize(
    ("kind", "since", "until", "expected"),
    [
        ("weekly", None, None, (at(2026, 11, 23), at(2026, 11, 30))),
        ("monthly", None, None, (at(2026, 11, 1), at(2026, 12, 1))),
        ("weekly", "2026-W48", None, (at(2026, 11, 23), at(2026, 11, 30))),
        ("weekly", None, "2026-11-30", (at(2026, 11, 23), at(2026, 11, 30))),
        ("monthly", "2026-02", None, (at(2026, 2, 1), at(2026, 3, 1))),
        ("monthly", None, "2026-03-01", (at(2026, 2, 1), at(2026, 3, 1))),
        ("weekly", "2026-01-01", "2026-07-01", (at(2026, 1, 1), at(2026, 7, 1))),
    ],
)
def test_spans(kind, since, until, expected):
    assert span(kind, since, until, NOW) == expected


def test_an_empty_span_is_refused():
    with pytest.raises(ValueError, match="empty"):
        span("weekly", "2026-11-30", "2026-11-30", NOW)


def test_weeks_are_compared_with_weeks_over_the_turn_of_the_year():
    found = periods(at(2026, 1, 12), at(2026, 1, 19))
    assert [p.label for p in found] == ["2025-W51", "2025-W52", "2026-W01", "2026-W02", "2026-W03"]
    assert [p.period for p in found] == [-4, -3, -2, -1, 0]
    assert all(a.ends == b.starts for a, b in itertools.pairwise(found))


def test_months_are_compared_with_months_of_their_own_length():
    found = periods(at(2026, 3, 1), at(2026, 4, 1))
    assert [p.label for p in found] == ["2025-11", "2025-12", "2026-01", "2026-02", "2026-03"]
    assert (found[3].starts, found[3].ends) == (at(2026, 2, 1), at(2026, 3, 1))


def test_other_spans_are_compared_with_spans_of_their_length():
    found = periods(at(2026, 11, 20), at(2026, 11, 23))
    assert [p.label for p in found][:2] == ["2026-11-08 to 2026-11-10", "2026-11-11 to 2026-11-13"]
    assert [p.label for p in periods(at(2026, 1, 1), at(2026, 7, 1))] == [
        "2025-07-04 to 2025-12-31",
        "2026-01-01 to 2026-06-30",
    ]
    assert label(at(2026, 11, 20), at(2026, 11, 21)) == "2026-11-20"
    assert label(at(2026, 11, 20, 6), at(2026, 11, 21, 7)) == "2026-11-20 06:00 to 2026-11-21 07:00"
