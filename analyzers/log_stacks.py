"""Stacks that faulthandler printed into the ranks' own logs become rows of `stack_frames`.

A hang that nobody dumped with a tool is often dumped by the program itself (`faulthandler.dump_traceback_later`, a
fatal error, SIGABRT after a watchdog). Only lines whose rank is known count: in a console that ranks share without a
prefix, frames of several processes interleave. A rank with a dump file keeps that: two kinds of dumps of one process
are not two moments to compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collector.model import LogLine

_NEEDLE = "most recent call first"
_HEADER = "hread 0x"
"""C++ exceptions of torch say `most recent call first` too, but of no thread."""
_FRAMES = 110
"""faulthandler prints at most 100 frames of a thread."""
_WITHIN = 20 * _FRAMES
"""Lines of a console, of all ranks, in which the frames of one thread are looked for."""


def read(
    lines: Sequence[LogLine], ranks: Iterable[Mapping[str, Any]], dumped: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of `stack_frames` (with `attempt`) of the ranks that have none in `dumped`, the rows of dump files.

    `lines` attributed by the roster, `ranks` its rows: they give node and process. Each row cites its own log line.
    """
    headers = [i for i, line in enumerate(lines) if _NEEDLE in line.text and _HEADER in line.text]
    if not headers:
        return []
    from collector.readers import stacks

    known = {row["rank"]: row for row in ranks}
    have = {row.get("rank") for row in dumped}
    found: list[dict[str, Any]] = []
    for (path, rank, attempt), block in _blocks(lines, headers).items():
        if rank in have:
            continue
        place = known.get(rank, {})
        text = "\n".join(line.text for line in block)
        for row in stacks.parse_text(text, path=path, rank=rank, node=place.get("node")):
            cited = block[row["line"] - 1]
            # the same stack in a console and in the rank's own file is one process
            found.append(
                {**row, "line": cited.line, "offset": cited.offset, "pid": place.get("pid"), "attempt": attempt}
            )
    return found


def _blocks(lines: Sequence[LogLine], headers: Sequence[int]) -> dict[tuple[str, int, int | None], list[LogLine]]:
    """(path, rank, attempt) -> headers and frames of that rank in that file, in order."""
    wanted: dict[tuple[str, int, int | None], dict[int, LogLine]] = defaultdict(dict)
    for header in headers:
        first = lines[header]
        if first.rank is not None:
            wanted[(first.path, first.rank, first.attempt)].update(_block(lines, header))
    return {key: [block[index] for index in sorted(block)] for key, block in wanted.items()}


def _block(lines: Sequence[LogLine], header: int) -> dict[int, LogLine]:
    """Index -> line of one thread's stack: the header and the rank's indented lines behind it, and what ended them."""
    first = lines[header]
    block = {header: first}
    for index in range(header + 1, min(header + _WITHIN, len(lines))):
        line = lines[index]
        if line.path != first.path:
            break
        if line.rank == first.rank and line.attempt == first.attempt:
            block[index] = line
            if not line.text.startswith("  ") or len(block) > _FRAMES:
                break
    return block
