"""Flight-recorder dumps (pickle or JSON) of one rank become rows of the `collectives` table.

Decision: facts as the recorder states them, one row per entry plus one row per process group that carries the group's
counters (`seq` null), so that a rank with nothing pending is visible too. Two corrections only, both for facts that the
recorder is known not to write: the members of a coalesced group take the state of the group's own entry, and counters
(keyed by the per-process id of a group) are joined to the group's name. Conclusions are the detector's.

Format: PyTorch's `FlightRecorder`, versions 1 (a bare list of entries) to 2.10, written by NCCL timeouts
(`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` + rank), by `_dump_nccl_trace` (pickle) and by `_dump_fr_trace_json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from collector.model import Artifact
from collector.readers.plain_pickle import NotPlain, loads

MAX_BYTES = 256 << 20
"""Largest dump that is read. A dump of 20 000 entries with stacks is about 20 MB."""

_MARKERS = (b"collective_seq_id", b"profiling_name", b"pg_config", b"pg_status", b"nccl_comm_state", b"time_created_ns")
_MAX_FRAMES = 5
_MAX_ITEMS = 50_000
_LIBRARY = re.compile(r"(?:^|/)(?:site|dist)-packages/torch/|(?:^|/)torch/(?:distributed|nn|autograd|utils|_)|^<frozen")
_NAMED_RANK = re.compile(r"rank[-_.]?(\d+)(?!\d)", re.IGNORECASE)
# A bare number, or one behind a word for dumps: `gpu-node-03` is a host.
_NUMBER_LAST = re.compile(
    r"^(?:.*(?:trace|nccl|flight|recorder|dump|fr)[a-z]*[-_.]?)?(\d+)(?:\.(?:json|pkl|pickle|bin))?$", re.IGNORECASE
)
_P2P = re.compile(r"\b(send|recv) (\d+)(?:->|<-)(\d+)")


def looks_like(head: bytes) -> bool:
    """True if the first kilobytes of a file are those of a flight-recorder dump (pickle or JSON)."""
    start = head.lstrip()[:2]
    pickled = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    return (pickled or start[:1] in (b"{", b"[")) and any(marker in head for marker in _MARKERS)


def read(artifact: Artifact) -> list[dict[str, Any]]:
    """Rows of the `collectives` table; empty for a file that cannot be read (see `problem`). Never raises."""
    return read_with_problem(artifact)[0]


def problem(artifact: Artifact) -> str | None:
    """Why the dump gives no rows, for the ledger; None if it is well."""
    return read_with_problem(artifact)[1]


def read_with_problem(artifact: Artifact) -> tuple[list[dict[str, Any]], str | None]:
    """The rows, and why there are none. A dump that cannot be read costs only itself."""
    try:
        with artifact.open() as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return [], f"cannot be opened: {error.strerror or error}"
    if len(data) > MAX_BYTES:
        return [], f"larger than {MAX_BYTES} bytes"
    try:
        dump = _parse(data)
    except (ValueError, RecursionError) as error:  # NotPlain and JSONDecodeError are ValueErrors
        return [], str(error)[:300]
    if isinstance(dump, list):  # version 1: entries and nothing else
        dump = {"entries": dump}
    if not isinstance(dump, dict) or not ({"entries", "pg_config", "pg_status"} & dump.keys()):
        return [], "not a flight-recorder dump"
    return _rows(dump, artifact), None


def _parse(data: bytes) -> Any:
    if not data.strip():
        raise NotPlain("empty file")
    if data[0] == 0x80:
        return loads(data)
    return json.loads(data.decode("utf-8", "replace"))


def _int(value: Any) -> int | None:
    """An int from what dumps call a number: int, or its text in JSON dumps; None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and len(value) < 20 and re.fullmatch(r"-?\d+", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else None


def _text(value: Any) -> str | None:
    return str(value)[:1000] if isinstance(value, str | int) else None


def _json(value: Any) -> str | None:
    """`value` as JSON, None if it is not a list of lists of scalars of sensible size: a shared list may be a bomb."""
    left = _MAX_ITEMS

    def plain(item: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > 3:
            raise ValueError
        if isinstance(item, list | tuple):
            return [plain(inner, depth + 1) for inner in item]
        return item if isinstance(item, int | float) else str(item)[:100]

    try:
        return json.dumps(plain(value, 0)) if isinstance(value, list | tuple) else None
    except ValueError:
        return None


def _both(entry: Mapping[str, Any], what: str) -> str | None:
    """{"in": ..., "out": ...} of an entry's sizes or dtypes."""
    sides = {side: _json(entry.get(f"{name}_{what}")) for side, name in (("in", "input"), ("out", "output"))}
    known = {side: json.loads(text) for side, text in sides.items() if text is not None}
    return json.dumps(known) if known else None


def _members(value: Any) -> list[int] | None:
    """Global ranks of a group from its list or from the text "[0, 1]"; None if not told."""
    if isinstance(value, str):
        inner = value.strip()
        if not re.fullmatch(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]", inner):
            return None
        value = [int(number) for number in re.findall(r"\d{1,9}", inner)]
    if not isinstance(value, list | tuple) or not value or len(value) > 10_000_000:
        return None
    ranks = [_int(rank) for rank in value]
    return [rank for rank in ranks if rank is not None] if None not in ranks else None


Group = tuple[str, str | None, list[int] | None]
"""Name, description, global ranks."""


def _groups(dump: Mapping[str, Any]) -> dict[str, Group]:
    config = dump.get("pg_config")
    groups: dict[str, Group] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict):
            groups[str(key)] = (str(key), _text(value.get("desc")), _members(value.get("ranks")))
    return groups


def _group_of(entry: Mapping[str, Any], groups: Mapping[str, Group]) -> Group:
    """The group that an entry names; configured groups know its members."""
    stated = entry.get("process_group")
    pair = list(stated[:2]) if isinstance(stated, list | tuple) else [stated]
    name = str(pair[0] if pair and pair[0] is not None else entry.get("pg_id"))
    return groups.get(name) or (name, _text(pair[1]) if len(pair) > 1 else None, None)


def _rename_only_group(groups: dict[str, Group], entries: Iterable[Mapping[str, Any]]) -> dict[str, Group]:
    """gloo configures one group called "", whatever its entries say. With several groups in use it tells nothing."""
    used = {(group[0], group[1]) for entry in entries if (group := _group_of(entry, groups))}
    if "" not in groups or len(groups) > 1 or ("", groups[""][1]) in used:
        return groups
    if len(used) != 1:
        return {}
    name, desc = next(iter(used))
    return {name: (name, desc or groups[""][1], groups[""][2])}


def _entries(dump: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = dump.get("entries")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _status(
    dump: Mapping[str, Any], groups: Mapping[str, Group], entries: Iterable[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Counters by group NAME. The dump keys them by the process's own running number of the group.

    Entries tell which number is which name. For groups without entries: numbers and names both rise in the order of
    creation, so when there are as many of each, sorted lists pair up; used only if all known pairs agree.
    """
    raw = dump.get("pg_status")
    status = {str(key): value for key, value in raw.items() if isinstance(value, dict)} if isinstance(raw, dict) else {}
    known = {str(e.get("pg_id")): _group_of(e, groups)[0] for e in entries if e.get("pg_id") is not None}
    if len(status) == len(groups) and all(key.isdigit() for key in (*status, *groups)):
        paired = dict(zip(sorted(status, key=int), sorted(groups, key=int), strict=True))
        if all(paired.get(number, name) == name for number, name in known.items()):
            known = paired
    return {known[number]: counters for number, counters in status.items() if number in known}


def _possible_ranks(
    groups: Iterable[Group], entries: Iterable[Mapping[str, Any]], by_name: Mapping[str, Group]
) -> set[int] | None:
    """Global ranks whose dump this can be by its content; None if the content says nothing.

    A dump lists only groups that its rank is in; a send or receive names the rank's own index in the group.
    """
    possible: set[int] | None = None
    for _, _, ranks in groups:
        if ranks:
            possible = set(ranks) if possible is None else possible & set(ranks)
    for entry in entries:
        match = _P2P.search(str(entry.get("profiling_name")))
        ranks = _group_of(entry, by_name)[2] if match else None
        if match and ranks and int(match[2]) < len(ranks):
            own = {ranks[int(match[2])]}
            possible = own if possible is None else possible & own
    return possible


def _rank(artifact: Artifact, possible: set[int] | None) -> int | None:
    """The rank: by content if that is decisive, else by the source, else by the file's name. Content can veto."""
    if possible and len(possible) == 1:
        return next(iter(possible))
    name = PurePosixPath(artifact.path).name
    named = _NAMED_RANK.findall(name)
    numbered = _NUMBER_LAST.search(name)
    guesses = [artifact.origin.rank, int(named[-1]) if named else None, int(numbered[1]) if numbered else None]
    for guess in guesses:
        if guess is not None and (not possible or guess in possible):
            return guess
    return None


def _frames(entry: Mapping[str, Any]) -> list[str] | None:
    """Innermost frames of the user's own code; torch's own only if there is nothing else."""
    frames = entry.get("frames")
    if not isinstance(frames, list | tuple):
        return None
    shown: list[tuple[str, str]] = []
    for frame in frames[:200]:
        if isinstance(frame, dict):
            file = str(frame.get("filename", "?"))[:500]
            shown.append((file, f"{str(frame.get('name', '?'))[:200]} ({file}:{frame.get('line', '?')})"[:800]))
    own = [text for file, text in shown if not _LIBRARY.search(file)]
    return (own or [text for _, text in shown])[:_MAX_FRAMES] or None


def _micro(value: Any) -> int | None:
    """Microseconds of a nanosecond stamp; the recorder writes 0 or null for "not yet"."""
    number = _int(value)
    return number // 1000 if number else None


def _entry_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    is_p2p = bool(entry.get("is_p2p"))
    seq = _int(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id"))
    created = _micro(entry.get("time_created_ns"))
    last = max(
        filter(None, (created, *(_micro(entry.get(f"time_discovered_{s}_ns")) for s in ("started", "completed")))),
        default=None,
    )
    return {
        "seq": seq if seq is not None else _int(entry.get("seq_id")),
        "op": _text(entry.get("profiling_name")),
        "is_p2p": is_p2p,
        "state": _text(entry.get("state")),
        "sizes": _both(entry, "sizes"),
        "dtypes": _both(entry, "dtypes"),
        "at_lo": created,
        "at_hi": last,
        "frames": _frames(entry),
    }


def _share_coalesced_state(rows: Iterable[dict[str, Any]]) -> None:
    """The recorder never updates the members of a coalesced group, only the entry of the group itself."""
    rows = list(rows)
    states = {(r["pg"], r["is_p2p"], r["seq"]): r["state"] for r in rows if "coalesced" in str(r["op"])}
    for row in rows:
        row["state"] = states.get((row["pg"], row["is_p2p"], row["seq"]), row["state"])


def _rows(dump: Mapping[str, Any], artifact: Artifact) -> list[dict[str, Any]]:
    entries = _entries(dump)
    groups = _rename_only_group(_groups(dump), entries)
    status = _status(dump, groups, entries)
    rank = _rank(artifact, _possible_ranks(groups.values(), entries, groups))
    who = {"node": artifact.origin.node, "rank": rank, "path": artifact.path}
    found: list[dict[str, Any]] = []
    for entry in entries:
        name, desc, ranks = _group_of(entry, groups)
        found.append({**who, "pg": name, "pg_desc": desc, "pg_ranks": ranks, **_entry_row(entry)})
    _share_coalesced_state(found)
    seen = {row["pg"]: (row["pg"], row["pg_desc"], row["pg_ranks"]) for row in found}
    for name, desc, ranks in {**seen, **groups}.values():
        counters = status.get(name, {})
        last = {
            f"last_{what}": _int(counters.get(f"last_{what}_collective"))
            for what in ("enqueued", "started", "completed")
        }
        found.append({**who, "pg": name, "pg_desc": desc, "pg_ranks": ranks, **last})
    return found
