"""What all ranks are doing: one state per process, classes of equal stacks, who moved.

Of a process with many threads one thread speaks for it (the main thread, unless that merely waits for another). A class
is a set of processes whose speaking threads have the same frames without their line numbers, because two ranks in one
collective may have entered it from neighbouring lines; whether a process MOVED between two dumps is decided with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzers.stack_threads import Frame, Model, Thread, is_child, is_helper, is_users, make_thread

INNERMOST, OUTERMOST = 200, 100
"""Frames that are kept of each end of a stack: a runaway recursion tells nothing new in its middle."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one dump."""

    rank: int | None
    node: str | None
    pid: int | None
    dump: int
    threads: tuple[Thread, ...]
    """Without background threads unless there is nothing else."""
    speaker: Thread
    helper: bool = False
    """True for loader workers, launchers and the like, which are no ranks."""
    left_out: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Thread -> frames between the INNERMOST and the OUTERMOST that are not kept."""

    @property
    def kind(self) -> str:
        """waits | neutral | outside: a process whose threads only wait for each other is outside."""
        return "outside" if self.speaker.kind == "lock" else self.speaker.kind

    @property
    def name(self) -> str:
        """`rank 3`, else `process 4711 on n1`."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"process {self.pid}" + (f" on {self.node}" if self.node else "")

    @property
    def root(self) -> tuple[str, str] | None:
        """(function, file) of the outermost frame of its program's own code: the same in ranks of one program."""
        mains = [t for t in self.threads if t.frames[-1].short == "<module>" or t.name == "MainThread"]
        for thread in (*mains, self.speaker):
            for frame in reversed(thread.python):
                if is_users(frame):
                    return frame.function, frame.file
        return None

    @property
    def identity(self) -> tuple[int | str | None, ...]:
        """What makes it the same process in another dump."""
        return (self.rank, self.node, self.pid)

    @property
    def gathers(self) -> tuple[Model, ...]:
        """Models whose ZeRO-3 parameters its threads are gathering."""
        return tuple(t.model for t in self.threads if t.role == "gather" and t.model is not None)


@dataclass(slots=True)
class StackClass:
    """Processes whose speaking threads have equal stacks."""

    processes: list[Process] = field(default_factory=list)

    @property
    def thread(self) -> Thread:
        """The stack they share (with the first one's line numbers)."""
        return self.processes[0].speaker

    @property
    def left_out(self) -> int:
        """Frames that each of their stacks had between the INNERMOST and the OUTERMOST ones."""
        return _depth(self.processes[0])

    def gap(self) -> Frame | None:
        """What stands for the frames that were left out, None if there are none."""
        return Frame(f"... {self.left_out:,} frames left out ...", "", native=True) if self.left_out else None


def _depth(process: Process) -> int:
    return process.left_out.get(process.speaker.name, 0)


def _speaker(threads: Sequence[Thread], pid: int | None) -> Thread:
    """The thread that speaks for its process: the main one, unless it waits for another or others wait for ranks."""
    main = next(
        (t for t in threads if t.name in ("MainThread", str(pid)) or t.frames[-1].short == "<module>"), threads[0]
    )
    waiters = sorted((t for t in threads if t.kind == "waits"), key=lambda t: (t is not main, t.role != "gather"))
    if main.kind == "outside" and main.role != "user_code":
        return main
    if waiters:
        return waiters[0]
    if main.kind == "lock":
        return next((t for t in threads if t.kind in ("outside", "neutral")), main)
    return main


def _best(variants: Mapping[str, list[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """One of several files that show the same thread: JSON decides the frames, text that agrees adds native ones."""

    def python(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        ordered = sorted(rows, key=lambda row: row.get("depth") or 0)
        return [(row.get("function"), row.get("lineno")) for row in ordered if not row.get("native")]

    base = variants[min(variants, key=lambda path: (not path.endswith(".json"), len(path), path))]
    same = {path: rows for path, rows in variants.items() if python(rows) == python(base)}
    return same[min(same, key=lambda path: (-len(same[path]), path.endswith(".json"), len(path), path))]


def processes(rows: Iterable[Mapping[str, Any]], ranks: Iterable[Mapping[str, Any]] = ()) -> list[Process]:
    """The processes in rows of `stack_frames`, each dump of each once, helpers included but marked.

    `ranks` (rows of that table) name the rank of a pid where the dump does not. Of several processes that carry the
    same rank (py-spy --subprocesses on a rank) only one is the rank: the one of a known pid, else the first that is no
    helper.
    """
    known = {(row.get("node"), row.get("pid")): row.get("rank") for row in ranks if row.get("pid") is not None}
    known |= {(None, pid): rank for (_, pid), rank in list(known.items())}
    found: dict[tuple[Any, ...], dict[str, dict[str, list[Mapping[str, Any]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        pid, node, rank = row.get("pid"), row.get("node"), row.get("rank")
        if rank is None and pid is not None:
            rank = known.get((node, pid), known.get((None, pid)) if node is None else None)
        nameless = row.get("path") if rank is None and pid is None else None
        key = (row.get("dump") or 0, rank, node, pid, nameless)
        found[key][str(row.get("thread"))][str(row.get("path"))].append(row)
    listed = [_process(key, threads) for key, threads in found.items()]
    return _one_per_rank(listed, {pid for _, pid in known})


def _process(key: tuple[Any, ...], threads: Mapping[str, Mapping[str, list[Mapping[str, Any]]]]) -> Process:
    dump, rank, node, pid, _ = key
    best = {name: _ends(_best(variants)) for name, variants in threads.items()}
    every = [make_thread(name, rows) for name, (rows, _) in best.items()]
    shown = [thread for thread in every if not thread.background] or every
    frames = [frame for thread in every for frame in thread.frames]
    helper = is_child(frames) or any(is_helper(frame) for frame in frames)
    speaker = _speaker(shown, pid)
    if rank is not None and speaker.kind == "waits":
        helper = False
    left_out = {name: count for name, (_, count) in best.items() if count}
    return Process(rank, node, pid, dump, tuple(shown), speaker, helper, left_out)


def _ends(rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], int]:
    """The rows of both ends of a stack and how many lay between them."""
    between = len(rows) - INNERMOST - OUTERMOST
    if between <= 0:
        return rows, 0
    ordered = sorted(rows, key=lambda row: row.get("depth") or 0)
    return [*ordered[:INNERMOST], *ordered[-OUTERMOST:]], between


def _one_per_rank(listed: Sequence[Process], known: set[Any]) -> list[Process]:
    chosen: dict[tuple[Any, ...], Process] = {}
    for process in sorted(listed, key=lambda p: (p.helper, p.pid not in known)):
        name = process.identity if process.rank is None else (process.rank,)
        chosen.setdefault((process.dump, *name), process)
    return sorted(chosen.values(), key=lambda p: (p.dump, p.rank is None, p.rank or 0, p.node or "", p.pid or 0))


def snapshots(listed: Iterable[Process]) -> list[list[Process]]:
    """The ranks (no helpers) of each dump, in time."""
    by_dump: dict[int, list[Process]] = defaultdict(list)
    for process in listed:
        if not process.helper:
            by_dump[process.dump].append(process)
    return [by_dump[dump] for dump in sorted(by_dump)]


def moved(before: Iterable[Process], after: Iterable[Process]) -> dict[tuple[Any, ...], bool]:
    """For each process that is in both dumps: did any of its threads move?"""
    old = {p.identity: _exact(p) for p in before}
    return {p.identity: _exact(p) != old[p.identity] for p in after if p.identity in old}


def _exact(process: Process) -> dict[str, tuple[Any, ...]]:
    return {t.name: (t.exact, process.left_out.get(t.name, 0)) for t in process.threads}


def classes(listed: Iterable[Process]) -> list[StackClass]:
    """Classes of equal stacks, the largest first."""
    found: dict[tuple[Any, ...], StackClass] = defaultdict(StackClass)
    for process in listed:
        found[process.speaker.role, process.speaker.key, _depth(process)].processes.append(process)
    return sorted(found.values(), key=lambda c: (-len(c.processes), c.processes[0].rank or 0))


def members(listed: Sequence[Process], most: int = 6) -> str:
    """`rank 9`, `ranks 0-2, 4`, `126 ranks` (more than `most` spans), or `3 processes` where ranks are not known."""
    if len(listed) == 1:
        return listed[0].name
    ranks = sorted({p.rank for p in listed if p.rank is not None})
    if len(ranks) < len(listed):
        return f"{len(listed)} processes"
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    if len(spans) > most:
        return f"{len(ranks)} ranks"
    return "ranks " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
