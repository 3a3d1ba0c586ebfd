"""Takes the prefix off a kernel-log line: time, host, priority. One place for all of dmesg, journalctl and syslog.

A wall-clock time without a zone is the node's local time and is read as if it were UTC, as everywhere in this product
where a log does not name its zone: a node's logs then agree with each other. Times of `dmesg -T` are computed by dmesg
from the boot time and drift from the real ones, so they get a second of slack on both sides. Seconds since boot have no
known origin and give no time at all, only the uptime.

Formats: dmesg(1) (default, -T, -x, --time-format iso), /dev/kmsg, journalctl(1) short, short-iso, short-full and
short-unix, RFC 3164, RFC 5424 and rsyslog's ISO form, pstore.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

_MONTH = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MONTHS = {name: number for number, name in enumerate(_MONTH.split("|"), 1)}
_DAY = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_FACILITY = "kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7]"

_PRIORITY = re.compile(rf"<\d{{1,3}}>(?:1 )?|(?:{_FACILITY})\s*:[a-z]+\s*:\s?")
_UPTIME = re.compile(r"\[\s*(\d+\.\d{6})\](?:\[\s*[TC]\d+\])?\s?")
_RELATIVE = re.compile(rf"\[(?:\s*\+\d+\.\d{{6}}|(?:{_MONTH})\s?\d+ \d\d:\d\d)\]\s?")
_KMSG = re.compile(r"\d+,\d+,(\d+),[^;]{0,40};")
_CTIME = re.compile(rf"\[(?:{_DAY}) ({_MONTH})\s+(\d+) (\d\d):(\d\d):(\d\d) (\d{{4}})\]\s?")
_ISO = re.compile(
    rf"(?:(?:{_DAY}) )?(\d{{4}})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{{1,9}}))?"
    r"(?: ?(Z|UTC|[+-]\d\d:?\d\d)| [A-Z]{3,4}\b)?\s+"
)
_DMESG_ISO = re.compile(r"\S+T\S+,\d{6}[+-]\d\d:?\d\d\s")
"""`dmesg --time-format iso` writes a comma before the microseconds, and nothing but the message behind the time."""
_BSD = re.compile(rf"({_MONTH})\s+(\d+) (\d\d):(\d\d):(\d\d)(?:\.(\d{{1,6}}))?\s+")
_UNIX = re.compile(r"(\d{10})\.(\d{6}) ")
_SENDER = re.compile(r"(?:(?!kernel:)([\w.:-]+) )?([\w./@()-]+?)(?:\[\d+\])?: ")
_RFC5424 = re.compile(r"([\w.:-]+) ([\w./@-]+) \S+ \S+ (?:-|\[.*?\]) ")

_SECOND = 1_000_000
_DRIFT = _SECOND
"""Slack for the times of `dmesg -T`, microseconds."""


class Line(NamedTuple):
    """A line without its prefix."""

    at_lo: int | None
    """Earliest time, UTC microseconds; None if the prefix has no wall-clock time."""
    at_hi: int | None
    uptime: float | None
    """Seconds since boot, if stated."""
    host: str | None
    message: str
    kernel: bool
    """False if the line names another sender than the kernel; its `message` then starts with that sender."""
    prefixed: bool
    """True if any prefix was recognised."""


def split(text: str, year: int | None = None, latest: float | None = None) -> Line:
    """Split one line. `year` is used where the format has none (RFC 3164); without it such a time is unknown.

    `latest` (Unix seconds, such as the file's modification time) makes a date that would lie in its future fall into
    the year before.
    """
    rest, prefixed = _strip_priority(text)
    host: str | None = None
    kernel = True
    if match := _UPTIME.match(rest):
        return Line(None, None, float(match[1]), None, rest[match.end() :], True, True)
    if match := _CTIME.match(rest):
        month, day, hour, minute, second, full_year = match.groups()
        micros = _micros(int(full_year), _MONTHS[month], int(day), int(hour), int(minute), int(second))
        lo, hi = (None, None) if micros is None else (micros - _DRIFT, micros + _DRIFT + _SECOND - 1)
        return Line(lo, hi, None, None, rest[match.end() :], True, True)
    if match := _RELATIVE.match(rest) or _KMSG.match(rest):
        return Line(None, None, None, None, rest[match.end() :], True, True)
    match, at = _wall_clock(rest, year, latest)
    if match is not None:
        stamp, rest, prefixed = match.group(), rest[match.end() :], True
        if not _DMESG_ISO.match(stamp):
            host, kernel, rest = _sender(rest)
    uptime = None
    if nested := _UPTIME.match(rest):
        uptime, rest = float(nested[1]), rest[nested.end() :]
    elif rest.startswith("kernel: "):
        rest = rest.removeprefix("kernel: ")
    lo, hi = at or (None, None)
    return Line(lo, hi, uptime, host, rest, kernel, prefixed)


def _strip_priority(text: str) -> tuple[str, bool]:
    match = _PRIORITY.match(text)
    return (text[match.end() :], True) if match else (text, False)


def _wall_clock(
    text: str, year: int | None, latest: float | None
) -> tuple[re.Match[str] | None, tuple[int, int] | None]:
    if match := _ISO.match(text):
        numbers = [int(part) for part in match.groups()[:6]]
        micros = _micros(*numbers)
        return match, _interval(micros, match[7], _zone(match[8]))
    if match := _BSD.match(text):
        month, day, hour, minute, second, fraction = match.groups()
        if year is None:
            return match, None
        moment = (_MONTHS[month], int(day), int(hour), int(minute), int(second))
        micros = _micros(year, *moment)
        if micros is not None and latest is not None and micros > (latest + 86_400) * _SECOND:
            micros = _micros(year - 1, *moment)
        return match, _interval(micros, fraction, 0)
    if match := _UNIX.match(text):
        micros = int(match[1]) * _SECOND + int(match[2])
        return match, (micros, micros)
    return None, None


def _sender(text: str) -> tuple[str | None, bool, str]:
    """(host, written by the kernel, message) of what follows a syslog time."""
    match = _RFC5424.match(text) or _SENDER.match(text)
    if match is None:
        return None, True, text
    host, program, end = match[1], match[2], match.end()
    if program == "kernel":
        return host, True, text[end:]
    return host, False, f"{program}: {text[end:]}"


def _zone(text: str | None) -> int:
    """Offset from UTC in microseconds; 0 for UTC and for no zone."""
    if not text or text in ("Z", "UTC"):
        return 0
    digits = text[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return (-minutes if text[0] == "-" else minutes) * 60 * _SECOND


def _interval(micros: int | None, fraction: str | None, zone: int) -> tuple[int, int] | None:
    if micros is None:
        return None
    if fraction is None:
        return micros - zone, micros - zone + _SECOND - 1
    exact = micros - zone + int(fraction.ljust(6, "0")[:6])
    return exact, exact


def _micros(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) * _SECOND
