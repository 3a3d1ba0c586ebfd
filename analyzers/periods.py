"""Weeks and months: which span of time a report is about, and which spans it is compared with.

All borders are UTC and a span is half open, [starts, ends): a failure at midnight of Monday belongs to the new week.
Weeks are ISO weeks (Monday first, numbered by their Thursday). A span that is no calendar week or month is compared
with the spans of the same length before it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

HISTORY = 4
"""How many earlier spans a report is compared with."""
_LONG = timedelta(days=93)
"""Spans that are longer are compared with one before them: nobody asks for four years, and they cost the most."""
_WEEK = re.compile(r"(\d{4})-?W(\d{1,2})")
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_ONE_WEEK = timedelta(days=7)


class Period(NamedTuple):
    """A span of time; `period` is 0 for the reported one, -1 for the one before it, and so on."""

    period: int
    label: str
    starts: datetime
    ends: datetime


def moment(text: str) -> datetime:
    """A date, ISO week (2026-W48), month (2026-11) or ISO time as its first moment in UTC; without a zone it is UTC.

    Raises ValueError with what was expected.
    """
    text = text.strip()
    try:
        if week := _WEEK.fullmatch(text):
            return datetime.fromisocalendar(int(week[1]), int(week[2]), 1).replace(tzinfo=UTC)
        if month := _MONTH.fullmatch(text):
            return datetime(int(month[1]), int(month[2]), 1, tzinfo=UTC)
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no time: expected 2026-11-30, 2026-11-30T06:00+01:00, a week 2026-W48, or a month 2026-11"
        ) from error
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def span(kind: str, since: str | None, until: str | None, now: datetime) -> tuple[datetime, datetime]:
    """Borders of a report of `kind` "weekly" or "monthly"; what is not given follows from it.

    Without both: the last whole week or month before `now`. Raises ValueError for texts that are no times, and for a
    span that is empty or ends before it begins.
    """
    starts = moment(since) if since else None
    ends = moment(until) if until else None
    if starts is None and ends is None:
        ends = _month_of(now) if kind == "monthly" else _week_of(now)
    if starts is None:
        assert ends is not None
        starts = _month_of(ends - timedelta(microseconds=1)) if kind == "monthly" else ends - _ONE_WEEK
    if ends is None:
        ends = _month_after(starts) if kind == "monthly" else starts + _ONE_WEEK
    if ends <= starts:
        raise ValueError(f"the span is empty: since {starts:%Y-%m-%d %H:%M} until {ends:%Y-%m-%d %H:%M} UTC")
    return starts, ends


def periods(starts: datetime, ends: datetime) -> list[Period]:
    """The span and the HISTORY spans before it (one, if it is longer than a quarter), oldest first. Borders in UTC."""
    spans = [(starts, ends)]
    monthly = starts == _month_of(starts) and ends == _month_after(starts)
    for _ in range(HISTORY if ends - starts <= _LONG else 1):
        first = spans[-1][0]
        before = _month_of(first - timedelta(microseconds=1)) if monthly else first - (ends - starts)
        spans.append((before, first))
    return [Period(-i, label(a, b), a, b) for i, (a, b) in reversed(list(enumerate(spans)))]


def label(starts: datetime, ends: datetime) -> str:
    """How a span is called: "2026-W48", "2026-11", or its first and last day."""
    if starts == _week_of(starts) and ends - starts == _ONE_WEEK:
        year, week, _ = starts.isocalendar()
        return f"{year}-W{week:02}"
    if starts == _month_of(starts) and ends == _month_after(starts):
        return f"{starts:%Y-%m}"
    if starts.time() == ends.time() == datetime.min.time():
        last = ends - timedelta(days=1)
        return f"{starts:%Y-%m-%d}" if last == starts else f"{starts:%Y-%m-%d} to {last:%Y-%m-%d}"
    return f"{starts:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M}"


def _week_of(at: datetime) -> datetime:
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def _month_of(at: datetime) -> datetime:
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _month_after(at: datetime) -> datetime:
    return _month_of(_month_of(at) + timedelta(days=31))
