"""Listings of files as text: `ls -lR`, `find -printf '%s %time %mode %path'`, `aws s3 ls --recursive`.

Often a checkpoint is too big to be kept and only a listing of it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

_LS = re.compile(
    r"^-[rwxsStT-]{9}[.+@]?\s+\d+\s+\S+\s+\S+\s+(?P<size>\d+)\s+"
    r"(?:(?P<date>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d)(?::(?P<seconds>\d\d)(?:\.\d+)?)?(?:\s*(?P<zone>[+-]\d{4}))?"
    r"|[A-Z][a-z]{2}\s+\d+\s+[\d:]+)\s+(?P<path>.+)$"
)
_FIND = re.compile(
    r"^\s*(?P<size>\d+) (?P<date>\d{4}-\d\d-\d\d)T(?P<time>\d\d:\d\d):(?P<seconds>\d\d)\S* \d{4} (?P<path>.+)$"
)
_S3 = re.compile(r"^(?P<date>\d{4}-\d\d-\d\d) (?P<time>\d\d:\d\d):(?P<seconds>\d\d) +(?P<size>\d+) (?P<path>\S.*)$")
_FOLDER = re.compile(r"^(?P<folder>\S.*):$")


class Listed(NamedTuple):
    """One file of a listing."""

    parts: tuple[str, ...]
    size: int
    modified: float | None
    """Unix seconds if the listing states a whole date; a time without a zone is read as UTC."""


def parse_listing(text: str) -> Iterator[Listed]:
    """The files in `text`; lines of another form are passed over."""
    folder = ""
    entries: list[tuple[str, Listed]] = []
    for line in text.splitlines():
        if header := _FOLDER.match(line):
            folder = header["folder"]
            continue
        match = _LS.match(line) or _FIND.match(line) or _S3.match(line)
        if match is None:
            continue
        path = match["path"] if "/" in match["path"] else f"{folder}/{match['path']}"
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        if parts and parts[-1] != "..":
            entries.append((path, Listed(parts, int(match["size"][:18]), _seconds(match.groupdict()))))
    # find lists folders like files: a path that others lie below is a folder
    above = {entry.parts[:depth] for _, entry in entries for depth in range(1, len(entry.parts))}
    yield from (entry for _, entry in entries if entry.parts not in above)


def _seconds(found: dict[str, str | None]) -> float | None:
    if not found.get("date"):
        return None
    zone = found.get("zone") or "+0000"
    try:
        stamp = datetime.strptime(
            f"{found['date']} {found['time']}:{found.get('seconds') or '00'}{zone}", "%Y-%m-%d %H:%M:%S%z"
        )
    except ValueError:
        return None
    return stamp.astimezone(UTC).timestamp()


def hides_dot_files(text: str) -> bool:
    """True if `text` is that of `ls -l` without `-a`: then a missing dot file proves nothing."""
    lines = [match["path"] for line in text.splitlines() if (match := _LS.match(line))]
    shows = re.search(r"^d[rwxsStT-]{9}.*\s\.\.?$", text, re.MULTILINE)
    return bool(lines) and not shows and not any(path.rpartition("/")[2].startswith(".") for path in lines)
