"""Collective counters that ranks print when they time out become rows of the `collectives` table.

Decision: the watchdog's text and the flight recorder state the same facts, so they become the same rows and go through
the same rules. What a line leaves open (older versions name no process group) is filled from the other lines of that
rank, or stays in a group of its own that nobody is compared with. Wordings are data: `_lookup/collective_lines.yaml`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from collector.data import lookup
from collector.model import LogLine

UNNAMED = "(unnamed)"
"""Group of lines that name none, where the printed rank is the global rank: in practice the default group."""
FINGERPRINT = "(fingerprint)"
"""Group of the DETAIL wrapper's statements: each rank's collective at one common point, whatever its number."""

_TOP_NAMES = ("default_pg", "0")


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    """The compiled patterns by name."""
    return {name: re.compile(entry["regex"]) for name, entry in lookup("collective_lines")["patterns"].items()}


def counters(lines: Sequence[LogLine]) -> list[dict[str, Any]]:
    """Rows of the `collectives` table stated by `lines`; `seq` and `op` are null in rows that hold counters only.

    A timed-out collective is `scheduled` from `at_lo`, the time of the report minus the time it ran, and last known at
    `at_hi`, the time of the report. A rank's repeated statements of one fact give one row. Needs no time and no rank
    prefix; lines that name no rank at all give nothing.
    """
    needles = tuple(lookup("collective_lines")["needles"])
    stated = (row for line in lines if any(n in line.text for n in needles) for row in _of_line(line))
    rows = _once(_name_groups(_once(stated)))  # named again: a repetition may name the group that the first did not
    for row in rows:
        row.pop("at_work", None)
        row.pop("group_rank", None)
    return rows


def _once(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each fact. The first report of a call counts: later ones repeat its duration with a later time."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["rank"], row["pg"], row.get("seq"), row.get("op"))
        old = kept.get(key)
        if old is None or (row.get("op") and old["at_lo"] is None and row["at_lo"] is not None):
            kept[key] = row
        elif row.get("last_enqueued") is not None:
            kept[key] = row  # the last counters count
    return list(kept.values())


def _of_line(line: LogLine) -> Iterable[dict[str, Any]]:
    found = {name: pattern.search(line.text) for name, pattern in patterns().items()}
    base = {"node": line.node, "path": line.path, "line": line.line, "offset": line.offset}
    if found["mismatch"]:
        yield from _fingerprints(line, base)
        return
    group = found["group"]
    inner = group or found["group_rank"]
    base["group_rank"] = int(inner["group_rank"]) if inner else None
    if group:
        base["pg"], base["pg_desc"] = group["guid"] or group["id"], group["desc"]
    else:
        base["pg"] = base["pg_desc"] = None
    base["rank"] = _global_rank(line, base)
    if base["rank"] is None:
        return
    if found["timeout"]:
        yield base | _timed_out(line, found["timeout"])
    if found["counters"]:
        yield base | _counts(line, found["counters"], found["at_work"])
    if found["dump_signal"] and not found["counters"]:
        yield base | {"at_lo": line.at_lo, "at_hi": line.at_hi}


def _global_rank(line: LogLine, base: dict[str, Any]) -> int | None:
    """The line's own rank; the rank within the group only where the group is the default one, or none is named."""
    if line.rank is not None:
        return line.rank
    default = base["pg"] is None or base["pg_desc"] == _TOP_NAMES[0] or base["pg"] == _TOP_NAMES[1]
    inner: int | None = base["group_rank"]
    return inner if default else None


def _sizes(match: re.Match[str]) -> str | None:
    """Numbers of elements as JSON, in the form of the flight recorder's sizes."""
    got = match.groupdict()
    if got.get("shape"):
        return json.dumps({"in": [[int(number) for number in re.findall(r"\d+", got["shape"])]]})
    sides = {side: [[int(got[name])]] for side, name in (("in", "numel_in"), ("out", "numel_out")) if got.get(name)}
    return json.dumps(sides) if sides else None


def _timed_out(line: LogLine, match: re.Match[str]) -> dict[str, Any]:
    ran = int(match["ran_ms"]) * 1000 if match["ran_ms"] else None
    started = line.at_lo - ran if line.at_lo is not None and ran is not None else None
    return {
        "seq": int(match["seq"]) if match["seq"] else None,
        "op": "nccl:" + match["op"].lower(),
        "is_p2p": match["op"] in ("SEND", "RECV"),
        "state": "scheduled",
        "sizes": _sizes(match),
        "at_lo": started,
        "at_hi": line.at_hi if started is not None else None,
    }


def _counts(line: LogLine, match: re.Match[str], at_work: re.Match[str] | None) -> dict[str, Any]:
    enqueued, completed = int(match["enqueued"]), int(match["completed"])
    return {
        "last_enqueued": enqueued,
        # Uninitialised in some versions: a group cannot have completed what was never enqueued.
        "last_completed": completed if completed <= enqueued else None,
        "at_lo": line.at_lo,
        "at_hi": line.at_hi,
        "at_work": int(at_work["seq"]) if at_work else None,
    }


def _fingerprints(line: LogLine, base: dict[str, Any]) -> Iterable[dict[str, Any]]:
    stated = list(patterns()["mismatch"].finditer(line.text))
    if line.rank is not None and int(stated[0]["rank"]) != line.rank:
        return  # numbered within a subgroup: the other rank cannot be told
    for match in stated:
        yield base | {
            "rank": int(match["rank"]),
            "pg": FINGERPRINT,
            "pg_desc": None,
            "seq": int(match["seq"]) if match["seq"] else None,
            "op": match["op"].lower(),
            "is_p2p": False,
            "state": "scheduled",
            "sizes": _sizes(match),
            "dtypes": json.dumps({"in": [match["dtype"]]}) if match["dtype"] else None,
            "at_lo": line.at_lo,
            "at_hi": line.at_hi,
            "node": line.node if match is stated[0] else None,
        }


def _name_groups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give timeouts that name no group the group of the same rank's status line for the same sequence number."""
    at_work = {(row["rank"], row["at_work"]): row for row in rows if row.get("at_work") is not None}
    for row in rows:
        if row["pg"] is not None:
            continue
        status = at_work.get((row["rank"], row.get("seq")))
        if status:
            row["pg"], row["pg_desc"] = status["pg"], status["pg_desc"]
        if row["pg"] is None:
            inner = row["group_rank"]
            row["pg"] = UNNAMED if inner is None or inner == row["rank"] else f"(subgroup of rank {row['rank']})"
    named = {(row["pg"], row["pg_desc"]) for row in rows if row.get("op") and row["pg"] not in (UNNAMED, FINGERPRINT)}
    if len(named) == 1:  # one group timed out: a rank whose status line was lost timed out in it too
        for row in rows:
            if row["pg"] == UNNAMED and row.get("op"):
                row["pg"], row["pg_desc"] = next(iter(named))
    return rows
