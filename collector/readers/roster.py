"""Who took part: one row of `ranks` per rank and attempt, from what its own lines say.

Launchers that number processes by pid (Ray) or restart them in the same console need the whole set of lines to be told
apart, so this reader runs after the line reader and returns the lines with rank and attempt filled in. A number next to
the word rank or worker is believed only if all lines of one process agree and no two processes share it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from collector.data import data_dir
from collector.model import LogLine
from collector.pci import nccl_bus_id
from collector.readers import exits

_PROGRESS_HINTS = ("tep", "ter", "poch", "atch", "pdate", "<")
_FINISH_HINTS = ("inish", "omplete", "done", "Done", "train_runtime", "stopped", "exit", "ended", "succeeded", "bye")
_MENTIONED_PID = re.compile(r"\bpid[=:] ?(\d+)")


class Roster(NamedTuple):
    """The lines with rank and attempt filled in, the rows of `ranks`, and the size of the job if stated."""

    lines: list[LogLine]
    ranks: list[dict[str, Any]]
    world_size: int | None
    pids: dict[int, int]
    """Process id -> global rank."""


@cache
def _patterns() -> Mapping[str, Any]:
    import yaml

    path = data_dir("signatures") / "_formats" / "progress.yaml"
    data = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {
        "progress": [re.compile(row["regex"]) for row in data["progress"]],
        "finished": re.compile("|".join(data["finished"])),
        "world_size": [re.compile(text) for text in data["world_size"]],
        "identity": {key: re.compile(text) for key, text in data["identity"].items()},
        "pid_rank": re.compile(data["pid_rank"]),
        "worker_number": re.compile(data["worker_number"]),
        "agent_failed": re.compile(data["agent_failed"]),
        "agent_gave_up": re.compile(data["agent_gave_up"]),
        "restart": re.compile("|".join(data["restart"])),
    }


@lru_cache(maxsize=1 << 18)
def progress_step(text: str) -> int | None:
    """The step or iteration counter of a progress line, or None for any other line.

    Remembered, because the roster, the detectors and the ranking all ask for the same lines.
    """
    if not any(hint in text for hint in _PROGRESS_HINTS):
        return None
    for pattern in _patterns()["progress"]:
        match = pattern.search(text)
        if match:
            return int(match["step"][:15])
    return None


def says_finished(text: str) -> bool:
    """True if the line says that the run came to its end."""
    return any(hint in text for hint in _FINISH_HINTS) and _patterns()["finished"].search(text) is not None


def build(lines: Sequence[LogLine], dumped: Mapping[int, int | None] | None = None) -> Roster:
    """The roster of a run. `lines` in reading order, of all files; `dumped`: rank -> pid, as names of dumps say."""
    dumped = dumped or {}
    attributed = exits.claim_block_lines(_by_attempt(lines))
    pids = _pid_ranks(attributed)
    pids.update({pid: rank for rank, pid in dumped.items() if pid is not None})
    attributed = [
        line._replace(rank=pids[line.pid]) if line.rank is None and line.pid is not None and line.pid in pids else line
        for line in attributed
    ]
    least = max(dumped) + 1 if dumped and set(dumped) == set(range(max(dumped) + 1)) else None
    attributed = _one_node(attributed, least)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for line in attributed:
        if line.rank is not None:
            _note(rows, line)
    world = _world_size(attributed, rows) or least
    for (_, rank), row in rows.items():
        if row.get("pid") is not None:
            pids.setdefault(row["pid"], rank)
    return Roster(attributed, [rows[key] for key in sorted(rows)], world, pids)


def _by_attempt(lines: Sequence[LogLine]) -> list[LogLine]:
    """Number the attempts of consoles in which a launcher restarted the ranks."""
    restart = _patterns()["restart"]
    attempts: dict[str, int] = {}
    silent = _silent_restarts(lines)
    result = []
    for index, line in enumerate(lines):
        if line.attempt is None:
            if index in silent:
                result.append(line._replace(attempt=attempts.get(line.path, 0)))
                attempts[line.path] = attempts.get(line.path, 0) + 1
                continue
            if line.issuer != "rank" and "restart" in line.text and restart.search(line.text):
                result.append(line._replace(attempt=attempts.get(line.path, 0)))
                attempts[line.path] = attempts.get(line.path, 0) + 1
                continue
            line = line._replace(attempt=attempts.get(line.path, 0))
        result.append(line)
    return result


_BLOCK_RANK = re.compile(r"^\s*rank\s*:\s*(\d+) \(local_rank: (\d+)\)")


def _silent_restarts(lines: Sequence[LogLine]) -> set[int]:
    """Indexes of torchrun's `failed (exitcode` lines behind which the agent started the ranks again without a word.

    An agent that gives up raises ChildFailedError next; one that restarts goes on to the next such line or to the end.
    """
    failed, gave_up = _patterns()["agent_failed"], _patterns()["agent_gave_up"]
    ends: dict[tuple[str, str], list[int]] = defaultdict(list)
    final: dict[str, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        if line.attempt is None and line.issuer != "rank":
            if "failed (exitcode" in line.text and (match := failed.search(line.text)):
                ends[(line.path, match["agent"])].append(index)
            elif ("Error" in line.text or "SignalException" in line.text) and gave_up.search(line.text):
                final[line.path].append(index)
    boundaries = set()
    for (path, _), indexes in ends.items():
        for index, following in zip(indexes, [*indexes[1:], len(lines)], strict=True):
            if not any(index < end < following for end in final[path]) and _goes_on(lines, index, path):
                boundaries.add(index)
    return boundaries


def _goes_on(lines: Sequence[LogLine], index: int, path: str) -> bool:
    """True if ranks still write much after this line: more than the last words of a terminated process."""
    later = [line for line in lines[index + 1 :] if line.path == path and line.issuer in ("rank", "unknown")]
    return len(later) >= 3


def _one_node(lines: list[LogLine], dumped: int | None) -> list[LogLine]:
    """Take local ranks for global ones where the job had one node: as many of them as ranks, and no pair differs."""
    local = {line.local_rank for line in lines if line.local_rank is not None}
    if not local or all(line.rank is not None or line.local_rank is None for line in lines):
        return lines
    pairs = {(line.rank, line.local_rank) for line in lines if line.rank is not None and line.local_rank is not None}
    for line in lines:
        if line.issuer != "rank" and (match := _BLOCK_RANK.match(line.text)):
            pairs.add((int(match[1]), int(match[2])))
    world = _world_size(lines, {}) or dumped
    complete = local == set(range(len(local))) and (world == len(local) or (world is None and bool(pairs)))
    if not complete or any(rank != number for rank, number in pairs):
        return lines
    return [
        line._replace(rank=line.local_rank) if line.rank is None and line.local_rank is not None else line
        for line in lines
    ]


def _pid_ranks(lines: Iterable[LogLine]) -> dict[int, int]:
    """Process id -> rank, for processes known only by pid, where their own lines agree on a number."""
    number = _patterns()["worker_number"]
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    actors: set[int] = set()
    mentioned: set[int] = set()
    stated: dict[int, int] = {}
    for line in lines:
        if "pid" in line.text and (match := _patterns()["pid_rank"].search(line.text)):
            stated[int(match["pid"])] = int(match["rank"])
        if line.pid is not None and line.rank is None:
            actors.add(line.pid)
            match = number.search(line.text[:120])
            if match:
                votes[line.pid][int(match["n"])] += 1
        elif line.pid is not None and line.rank is not None:
            votes[line.pid][line.rank] += 1
        elif "pid" in line.text and (match := _MENTIONED_PID.search(line.text)):
            mentioned.add(int(match[1]))
    agreed = {pid: next(iter(c)) for pid, c in votes.items() if len(c) == 1}
    owners = Counter(agreed.values())
    known = {pid: n for pid, n in agreed.items() if owners[n] == 1}
    known.update(stated)
    # one number missing in 0..max and one process without a number: it can only be that one
    gaps = set(range(max(known.values(), default=-1) + 1)) - set(known.values())
    nameless = (actors | mentioned) - known.keys() - votes.keys()
    if len(known) >= 2 and len(gaps) == 1 and len(nameless) == 1:
        known[nameless.pop()] = gaps.pop()
    return known


def _note(rows: dict[tuple[int, int], dict[str, Any]], line: LogLine) -> None:
    """Add one line of a rank to its row."""
    key = (line.attempt or 0, line.rank if line.rank is not None else -1)
    row = rows.get(key)
    if row is None:
        row = rows[key] = {"attempt": key[0], "rank": key[1], "lines": 0, "finished": False}
    row["lines"] += 1
    if line.node and not row.get("node"):
        row["node"] = line.node
    for field in ("local_rank", "pid"):
        if row.get(field) is None and getattr(line, field) is not None:
            row[field] = getattr(line, field)
    if "=" in line.text or ":" in line.text or "busId" in line.text:
        _identify(row, line.text)
    if line.at_lo is not None:
        row["first_line_at"] = min(row.get("first_line_at") or line.at_lo, line.at_lo)
        row["last_line_at"] = max(row.get("last_line_at") or line.at_lo, line.at_lo)
    if line.text.strip():
        row["last_path"], row["last_line"], row["last_text"] = line.path, line.line, line.text
    step = progress_step(line.text)
    if step is not None and (line.at_lo is None or line.at_lo >= (row.get("step_at") or 0)):
        row["step"] = step
        row["step_at"] = line.at_lo
    if says_finished(line.text):
        row["finished"] = True


def _identify(row: dict[str, Any], text: str) -> None:
    identity = _patterns()["identity"]
    if "busId" in text and row.get("device") is None and (match := identity["device"].search(text)):
        row["device"] = nccl_bus_id(match["v"])
    if "host" not in text and "pid" not in text and "node" not in text:
        return
    for field, key in (("host", "node"), ("pid", "pid"), ("local_rank", "local_rank")):
        if row.get(key) is None and (match := identity[field].search(text)):
            row[key] = match["v"] if key == "node" else int(match["v"][:18])


def _world_size(lines: Sequence[LogLine], rows: Mapping[tuple[int, int], Any]) -> int | None:
    votes: Counter[int] = Counter()
    for line in lines:
        text = line.text
        if "orld" in text or "ORLD" in text or "nranks" in text or "MEMBER" in text or "num_processes" in text:
            for pattern in _patterns()["world_size"]:
                match = pattern.search(text)
                if match:
                    votes[int(match["n"][:9])] += 1
                    break
    highest = max((rank for _, rank in rows), default=-1) + 1
    fitting = [size for size in votes if size >= highest and size > 0]
    if fitting:
        return max(fitting, key=lambda size: votes[size])
    return highest or None
