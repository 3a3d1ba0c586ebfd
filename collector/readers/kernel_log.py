"""Kernel logs -> `kernel_events`: dmesg, `journalctl -k` (text or JSON), syslog, pstore, and cgroup memory counters.

Decision: only lines that match a pattern of `signatures/_lookup/kernel_events.yaml` become rows. A big syslog is
searched block by block for the patterns' literals, so memory stays bounded and a line without news costs nothing. One
OOM kill is one row although the kernel prints up to three lines about it. `text` is the message without its prefix.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, BinaryIO, NamedTuple

from collector.data import lookup
from collector.model import Artifact
from collector.pci import pci_address
from collector.readers.kernel_prefix import Line, split
from collector.readers.kernel_sniff import is_counters, looks_like

__all__ = ["Pattern", "find", "looks_like", "node_name", "patterns", "read"]

_BLOCK = 4 << 20
_MAX_LINE = 64 << 10
"""A longer line is no kernel message; its tail is ignored."""
_MAX_MESSAGE = 2000
"""The kernel's own limit is about 1000 characters."""
_KEEP = 250
"""Rows kept of the first and of the last lines of one event on one device: a dying disk prints thousands."""
_BOOT_SECONDS = 300.0
_SAME_KILL = 200
"""Lines within which a second line about the same pid belongs to the same OOM kill (the task dump lies between)."""


class Pattern(NamedTuple):
    """One entry of `patterns` in kernel_events.yaml."""

    event: str
    needs: tuple[str, ...]
    regex: re.Pattern[str]
    userspace: bool
    boot: bool


@cache
def patterns() -> tuple[Pattern, ...]:
    """The patterns in the order in which they are tried."""
    listed = []
    for entry in lookup("kernel_events")["patterns"]:
        needs = entry["needs"]
        literals = (needs,) if isinstance(needs, str) else tuple(needs)
        flags = bool(entry.get("userspace", False)), bool(entry.get("boot", False))
        listed.append(Pattern(entry["event"], literals, re.compile(entry["regex"]), *flags))
    return tuple(listed)


def find(message: str, kernel: bool = True) -> tuple[Pattern, re.Match[str]] | None:
    """The first pattern that matches a message (without prefix). `kernel` is False for a line of another program."""
    for pattern in patterns():
        if pattern.userspace == kernel or not any(literal in message for literal in pattern.needs):
            continue
        if match := pattern.regex.search(message):
            return pattern, match
    return None


@dataclass(slots=True)
class _Rows:
    """Rows of one artifact, capped per event and device, with the lines of one OOM kill merged."""

    heads: dict[tuple[Any, ...], list[dict[str, Any]]] = field(default_factory=dict)
    tails: dict[tuple[Any, ...], deque[dict[str, Any]]] = field(default_factory=dict)
    kills: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, row: dict[str, Any]) -> None:
        if row["event"] == "oom_kill" and row["pid"] is not None and self._merged(row):
            return
        key = (row["event"], row["code"], row["device"], row["node"])
        head = self.heads.setdefault(key, [])
        if len(head) < _KEEP:
            head.append(row)
        else:
            self.tails.setdefault(key, deque(maxlen=_KEEP)).append(row)

    def _merged(self, row: dict[str, Any]) -> bool:
        known = self.kills.get(row["pid"])
        if known is None or row["line"] - known["last"] > _SAME_KILL:
            self.kills[row["pid"]] = {"row": row, "last": row["line"]}
            return False
        known["last"] = row["line"]
        if _kill_words(row["text"]) > _kill_words(known["row"]["text"]):
            known["row"].update(text=row["text"], line=row["line"], offset=row["offset"])
        return True

    def all(self) -> list[dict[str, Any]]:
        listed = [row for rows in (*self.heads.values(), *self.tails.values()) for row in rows]
        return sorted(listed, key=lambda row: row["line"])


def _kill_words(text: str) -> int:
    """How well a line describes a kill: it is the one to cite."""
    if "Kill process" in text or "Killed process" in text:
        return 3 if "of memory" in text else 2
    return 1 if "constraint=" in text else 0


def read(artifact: Artifact) -> list[dict[str, Any]]:
    """Rows of `kernel_events`, in the order of the lines. Content of any kind gives rows or nothing, never an error."""
    try:
        with artifact.open() as stream:
            return _read(artifact, stream)
    except OSError:
        return []


def _read(artifact: Artifact, stream: BinaryIO) -> list[dict[str, Any]]:
    rows = _Rows()
    year: int | None = None
    for index, (offset, line, data) in enumerate(_blocks(stream)):
        if index == 0:
            if is_counters(data):
                return _counters(artifact, data)
            year = _year(artifact, data)
        for start, number in _candidates(data, line):
            raw = data[start : start + _MAX_LINE].split(b"\n", 1)[0]
            text = raw.decode("utf-8", "replace").strip()
            where = {"line": number, "offset": offset + start}
            for parsed in _messages(text, year, artifact.modified):
                row = _row(artifact, parsed if parsed.prefixed else _inherit(parsed, data, start, year, artifact))
                if row is not None:
                    rows.add(_with_device(row, data, start) | where)
    return rows.all()


def _blocks(stream: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(byte offset, number of the first line, bytes) of blocks that end at a line's end where possible."""
    offset, line, rest = 0, 1, b""
    while chunk := stream.read(_BLOCK):
        data = rest + chunk
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            if len(data) < 2 * _BLOCK:
                rest = data
                continue
            cut = len(data)
        yield offset, line, data[:cut]
        line += data.count(b"\n", 0, cut)
        offset += cut
        rest = data[cut:]
    if rest:
        yield offset, line, rest


@cache
def _needles() -> tuple[bytes, ...]:
    literals = {literal.encode() for pattern in patterns() for literal in pattern.needs}
    # a journal's message that is an array of bytes hides the literals
    return (*sorted(literals), b'"MESSAGE":[', b'"MESSAGE" : [', b'"MESSAGE": [')


def _candidates(data: bytes, first: int) -> Iterator[tuple[int, int]]:
    """(start, line number) of the lines of a block that contain a literal of any pattern."""
    starts: set[int] = set()
    for needle in _needles():
        at = data.find(needle)
        while at >= 0:
            starts.add(data.rfind(b"\n", 0, at) + 1)
            end = data.find(b"\n", at)
            at = data.find(needle, end) if end >= 0 else -1
    number, seen = first, 0
    for start in sorted(starts):
        number += data.count(b"\n", seen, start)
        seen = start
        yield start, number


def _messages(text: str, year: int | None, modified: float | None) -> Iterator[Line]:
    """The message of a text line, or the messages of a line of `journalctl -o json`."""
    if not text.startswith("{"):
        yield split(text, year, modified)
        return
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        yield split(text, year, modified)  # not a journal after all: such as `{1}[Hardware Error]: ...`
        return
    message = entry.get("MESSAGE") if isinstance(entry, dict) else None
    if isinstance(message, list):  # the journal writes text that is not UTF-8 as an array of bytes
        message = bytes(b for b in message if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
    if not isinstance(message, str):
        return
    stamp = str(entry.get("__REALTIME_TIMESTAMP", ""))
    at = int(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) <= 17 else None
    program = entry.get("SYSLOG_IDENTIFIER")
    kernel = entry.get("_TRANSPORT") == "kernel" or program == "kernel"
    host = entry.get("_HOSTNAME")
    for part in message.splitlines():
        shown = part if kernel else f"{program}: {part}"
        yield Line(at, at, None, host if isinstance(host, str) else None, shown, kernel, True)


def _inherit(parsed: Line, data: bytes, start: int, year: int | None, artifact: Artifact) -> Line:
    """A continuation line has no prefix of its own: it takes time and host of one of the lines just above it."""
    for _ in range(4):
        if start <= 0:
            break
        start = data.rfind(b"\n", 0, start - 1) + 1
        above = data[start : start + 512].split(b"\n", 1)[0].decode("utf-8", "replace").strip()
        line = split(above, year, artifact.modified)
        if line.prefixed:
            return line._replace(message=parsed.message)
    return parsed


def _row(artifact: Artifact, line: Line) -> dict[str, Any] | None:
    found = find(line.message[:_MAX_MESSAGE], line.kernel)
    if found is None:
        return None
    pattern, match = found
    if pattern.boot and line.uptime is not None and line.uptime < _BOOT_SECONDS:
        return None
    groups = {name: value for name, value in match.groupdict().items() if value}
    device = pci_address(groups.get("pci")) or next(
        (groups[name] for name in groups if name.startswith("device")), None
    )
    return {
        "node": node_name(artifact.origin.node, line.host),
        "rank": artifact.origin.rank,
        "at_lo": line.at_lo,
        "at_hi": line.at_hi,
        "path": artifact.path,
        "event": pattern.event,
        "code": _number(groups.get("code")),
        "device": device,
        "pid": _number(groups.get("pid")),
        "process": None if groups.get("process") in (None, "<unknown>") else groups["process"],
        "text": line.message.strip()[:_MAX_MESSAGE],
    }


def _with_device(row: dict[str, Any], data: bytes, start: int) -> dict[str, Any]:
    """The driver's three-line report of a lost GPU names the device two lines above the words that say it is lost."""
    if row["event"] == "gpu_lost" and row["device"] is None:
        above = data[max(0, start - 400) : start].decode("utf-8", "replace")
        named = re.findall(r"The NVIDIA GPU ([0-9A-Fa-f:.]+)", above)
        row["device"] = pci_address(named[-1]) if named else None
    return row


def node_name(place: str | None, host: str | None) -> str | None:
    """The node of a line: its own host name, spelled as the place spells it where both mean the same node."""
    if host is None or host in ("localhost", "-"):
        return place
    return place if place is not None and place.split(".")[0] == host.split(".")[0] else host


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 18 else None


def _year(artifact: Artifact, head: bytes) -> int | None:
    """The year for times without one: of the file's last change, or the first that the file itself names."""
    if artifact.modified is not None and artifact.modified > 0:
        try:
            return datetime.fromtimestamp(artifact.modified, UTC).year
        except (ValueError, OverflowError, OSError):
            return None
    match = re.search(rb"\b(20\d\d)-\d\d-\d\d[T ]\d\d:|\d\d:\d\d:\d\d (20\d\d)\]", head[: 1 << 20])
    return int(match[1] or match[2]) if match else None


def _counters(artifact: Artifact, data: bytes) -> list[dict[str, Any]]:
    for number, line in enumerate(data.splitlines(), 1):
        name, _, value = line.strip().partition(b" ")
        kills = _number(value.decode("ascii", "replace"))
        if name == b"oom_kill" and kills:
            row = {"node": artifact.origin.node, "rank": artifact.origin.rank, "path": artifact.path, "line": number}
            text = line.decode("utf-8", "replace").strip()
            nothing = {"at_lo": None, "at_hi": None, "offset": None, "device": None, "pid": None, "process": None}
            return [row | nothing | {"event": "oom_kill", "code": kills, "text": text}]
    return []
