"""The traceback of a collective that timed out is a stack: it shows where the rank waited.

Without a py-spy dump this is the only picture of a hang that ended by itself, so it is given to the stack detector
in the form of a dump. Dumps win where there are any. Tracebacks name functions without their class; two `forward`s are
told apart by where they stand in the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analyzers.case import Case
from analyzers.classify import Classified, classify_all
from collector.data import lookup


def rows(case: Case) -> list[dict[str, Any]]:
    """Rows of `stack_frames` from the echoes that say "timed out", one stack per rank; empty if real dumps exist."""
    if case.rows("stack_frames"):
        return []
    patient = set(lookup("echoes")["timed_out"])
    stacks: dict[int, Classified] = {}
    for judged in classify_all(case):
        if judged.rank is not None and judged.hit is not None and judged.hit.signature in patient:
            stacks.setdefault(judged.rank, judged)
    if len(stacks) < 2:
        return []
    return [row for rank, judged in sorted(stacks.items()) for row in _stack(rank, judged)]


def _stack(rank: int, judged: Classified) -> Iterator[dict[str, Any]]:
    line = judged.element.line
    for depth, frame in enumerate(reversed(judged.element.frames)):
        function = frame.function
        if function == "forward" and "-packages" not in frame.file:
            function = f"forward at {frame.file.rpartition('/')[2]}:{frame.lineno}"
        yield {
            "node": line.node,
            "rank": rank,
            "pid": line.pid,
            "dump": 0,
            "thread": "MainThread",
            "state": "idle",
            "depth": depth,
            "function": function,
            "file": frame.file,
            "lineno": frame.lineno,
            "native": False,
            "path": line.path,
            "line": line.line,
            "offset": line.offset,
        }
