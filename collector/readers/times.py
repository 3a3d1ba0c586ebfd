"""Time stamps of log lines as intervals of UTC microseconds.

The formats are data (`signatures/_formats/times.yaml`). A stamp that is printed to the second covers that whole second:
two events are ordered only when their intervals do not overlap, so false precision would invent an order. A stamp
without a year takes the year of the file; a stamp without a zone is local time of a node whose zone nobody knows. It is
read as UTC and marked `naive`; where one file mixes naive and zoned stamps, `zone_shift` recovers the offset.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from collector.data import data_dir

SEARCH_WIDTH = 72
"""A stamp further right in the line is a number in a message, not the time of the line."""

_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_DAY = 86_400_000_000


class Stamp(NamedTuple):
    """A parsed time stamp: the interval [lo, hi] in UTC microseconds and where it stood in the text."""

    lo: int
    hi: int
    naive: bool
    """True if the text named no zone."""
    start: int
    end: int


@cache
def formats() -> list[dict[str, Any]]:
    """The rows of `times.yaml`."""
    import yaml

    path = data_dir("signatures") / "_formats" / "times.yaml"
    loaded = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    rows: list[dict[str, Any]] = loaded["formats"]
    return rows


@cache
def _compiled() -> list[re.Pattern[str]]:
    return [re.compile(row["regex"]) for row in formats()]


class Clock:
    """Parses the stamps of one file. Remembers the format that matched last, because a file rarely mixes many."""

    def __init__(self, year: int | None = None, near: float | None = None) -> None:
        """`near`: Unix seconds of a moment near the lines (the file's last change), for stamps without a date."""
        self.year = year or datetime.now(UTC).year
        self._near: int | None = int(near * 1_000_000) if near else None
        self._order = list(_compiled())

    def parse(self, text: str) -> Stamp | None:
        """The first time stamp near the start of `text`, or None."""
        for i, pattern in enumerate(self._order):
            match = pattern.search(text, 0, SEARCH_WIDTH)
            if match is None:
                continue
            stamp = self._stamp(match)
            if stamp is None:
                continue
            if i:
                self._order.insert(0, self._order.pop(i))
            self._near = stamp.lo
            return stamp
        return None

    def _stamp(self, match: re.Match[str]) -> Stamp | None:
        groups = match.groupdict()
        if groups.get("epoch"):
            whole, _, fraction = groups["epoch"].partition(".")
            lo = int(whole) * 1_000_000
            naive = False
        else:
            moment = self._moment(groups)
            if moment is None:
                return None
            lo, naive, fraction = moment, not groups.get("z"), groups.get("f") or ""
        digits = min(len(fraction), 6)
        lo += int(fraction[:6].ljust(6, "0") or 0)
        # launchers pad milliseconds to microseconds: a trailing 000 is precision nobody measured
        if len(fraction) == 6 and fraction.endswith("000"):
            digits = 3
        return Stamp(lo, lo + 10 ** (6 - digits) - 1, naive, match.start(), match.end())

    def _nearest_order(self, groups: dict[str, str | None], year: int) -> int | None:
        """12/01 may be December or January: the reading nearer to the last stamp or to the file's last change."""
        numbers = (int(groups["m"] or 0), int(groups["d"] or 0))
        time_of_day = (int(groups["H"] or 0), int(groups["M"] or 0), int(groups["S"] or 0))
        moments = []
        for month, day in (numbers, numbers[::-1]):
            try:
                moments.append((datetime(year, month, day, *time_of_day, tzinfo=UTC) - _EPOCH) // _MICRO)
            except ValueError:
                continue
        if not moments or self._near is None:
            return moments[0] if moments else None
        return min(moments, key=lambda moment: abs(moment - (self._near or 0)))

    def _on_the_nearest_day(self, groups: dict[str, str | None]) -> int | None:
        """A time of day on the day that brings it closest to the last dated stamp; None if no date is known."""
        if self._near is None:
            return None
        seconds = int(groups["H"] or 0) * 3600 + int(groups["M"] or 0) * 60 + int(groups["S"] or 0)
        midnight = self._near // _DAY * _DAY
        moments = [midnight + days * _DAY + seconds * 1_000_000 for days in (-1, 0, 1)]
        return min(moments, key=lambda moment: abs(moment - (self._near or 0)))

    def _moment(self, groups: dict[str, str | None]) -> int | None:
        if "d" not in groups:
            return self._on_the_nearest_day(groups)
        year = int(groups.get("Y") or self.year)
        if year < 100:
            year += 2000
        if match_day_first(groups):
            return self._nearest_order(groups, year)
        month = _MONTHS.get(groups.get("b") or "", 0) or int(groups.get("m") or 0)
        try:
            when = datetime(
                year, month, int(groups["d"] or 0), int(groups["H"] or 0), int(groups["M"] or 0), int(groups["S"] or 0)
            )
        except ValueError:
            return None
        micros = (when.replace(tzinfo=UTC) - _EPOCH) // _MICRO
        return micros - _zone_offset(groups.get("z"))


def match_day_first(groups: dict[str, str | None]) -> bool:
    """True for a date with slashes whose day and month could be swapped (`12/01/2026`)."""
    return groups.get("swap") is not None and groups.get("z") is None


def _zone_offset(zone: str | None) -> int:
    """Offset of a zone text in microseconds east of UTC; 0 for Z, UTC and none."""
    if not zone or zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return (-seconds if zone[0] == "-" else seconds) * 1_000_000


def year_of(unix_seconds: float | None) -> int | None:
    """The year of a file's modification time: the best guess for stamps without a year."""
    return datetime.fromtimestamp(unix_seconds, UTC).year if unix_seconds else None


def zone_shift(stamps: Iterable[tuple[int, bool]]) -> int:
    """Microseconds to ADD to naive stamps of a file that also has zoned ones, in file order (lo, naive).

    Neighbouring lines of one file were written within moments of one another, so the typical difference between a
    zoned stamp and the naive one beside it, rounded to a quarter of an hour, is the node's offset. 0 if the file has
    only one kind or if fewer than 3 neighbours agree.
    """
    quarter = 15 * 60 * 1_000_000
    votes: dict[int, int] = {}
    previous: tuple[int, bool] | None = None
    for lo, naive in stamps:
        if previous is not None and previous[1] != naive:
            difference = previous[0] - lo if naive else lo - previous[0]
            rounded = round(difference / quarter) * quarter
            if abs(difference - rounded) < quarter // 3:
                votes[rounded] = votes.get(rounded, 0) + 1
        previous = (lo, naive)
    if not votes:
        return 0
    best, count = max(votes.items(), key=lambda item: item[1])
    return best if count >= 3 and abs(best) <= 14 * 3600 * 1_000_000 else 0


def iso(micros: int | None) -> str | None:
    """UTC microseconds as ISO 8601 with Z, with as many digits as it has; None stays None."""
    if micros is None:
        return None
    when = _EPOCH + timedelta(microseconds=micros)
    text = when.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{when.microsecond // 1000:03d}Z" if when.microsecond else f"{text}Z"
