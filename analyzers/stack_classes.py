"""What all ranks are doing, read off their stacks: one state per process, classes of equal stacks, who moved.

Which frame means what is data (`signatures/_lookup/stack_frames.yaml`); this module only applies it. Of a process with
many threads one thread speaks for it (the main thread, unless that merely waits for another). A class is a set of
processes whose speaking threads have the same frames without their line numbers, because two ranks in one collective
may have entered it from neighbouring lines; whether a process MOVED between two dumps is decided with them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from collector.data import lookup

_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages)/|^.*/lib(?:64)?/python3?\.?\d*/(?:lib-dynload/)?")
_ANONYMOUS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>", "<module>"}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as printed, with its file shortened to what follows the folder of installed packages."""

    function: str
    file: str
    lineno: int | None = None
    native: bool = False
    path: str | None = None
    line: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        place = self.file if self.lineno is None else f"{self.file}:{self.lineno}"
        return f"{self.function} ({place})"

    @property
    def short(self) -> str:
        """Last part of the qualified name."""
        return self.function.rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True)
class Model:
    """Whose parameters a gather fetches, as far as the frames below the hooks tell."""

    classes: tuple[str, ...]
    """Class inside the engine, then the classes around it, innermost first; empty in a backward pass."""
    caller: str
    """The user's function that called the model; empty if its frames are in another thread."""
    backward: bool

    def differs(self, other: Model) -> int:
        """2 if the classes say that these are different models, 1 if only the callers do, 0 if nothing does."""
        if self.backward or other.backward:
            return int(self.backward == other.backward and self._called_apart(other))
        if self.classes and other.classes and self.classes != other.classes:
            return 2
        return int(self._called_apart(other))

    def _called_apart(self, other: Model) -> bool:
        return bool(self.caller and other.caller and self.caller != other.caller)

    def name(self) -> str:
        """The class nearest to the user's code, or the function that called it."""
        return self.classes[-1] if self.classes else self.caller


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of one dump and what it is doing."""

    name: str
    state: str
    frames: tuple[Frame, ...]
    """Innermost first."""
    role: str
    """Name of a role of the table, or `user_code`, or `native` if it has no Python frame."""
    kind: str
    """waits | neutral | lock | outside."""
    frame: Frame
    """The frame that decides the role."""
    background: bool
    model: Model | None = None

    @property
    def python(self) -> tuple[Frame, ...]:
        """The frames of Python code."""
        return tuple(frame for frame in self.frames if not frame.native)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """Class key: functions and files, without line numbers."""
        return tuple((frame.function, frame.file) for frame in self.python or self.frames)

    @property
    def exact(self) -> tuple[tuple[str, str, int | None], ...]:
        """The same with line numbers: equal in two dumps means that the thread did not move."""
        return tuple((frame.function, frame.file, frame.lineno) for frame in self.python or self.frames)

    @property
    def doing(self) -> str:
        """What it is doing, in words: `all_reduce`, `ZeRO-3 parameter gather of Actor`, `data loading`."""
        if self.role in ("collective", "barrier", "p2p"):
            return self.frame.function if self.frame.native else self.frame.short
        if self.model is not None and (name := self.model.name()):
            return f"{_words(self.role)} of {name}"
        return f"{_words(self.role)} ({self.frame.short})" if self.kind == "outside" else _words(self.role)


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
                if frame.short not in _ANONYMOUS and not is_plumbing(frame):
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


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = lookup("stack_frames")
    return table


def _words(role: str) -> str:
    words: str = _table()["roles"].get(role, {}).get("words", "user code" if role == "user_code" else role)
    return words


def is_plumbing(frame: Frame) -> bool:
    """True for a frame that only carries a call from one place to another (torch, threading, hooks)."""
    return bool(_compiled(_table()["plumbing"]).search(frame.file))


def dead_thread(line: str) -> str | None:
    """Name of the thread whose death by an exception `line` reports, unless it is a mere background thread."""
    found = _compiled(_table()["thread_death"]).match(line)
    if found is None or _compiled(_table()["background"]["threads"]).fullmatch(found["thread"]):
        return None
    return found["thread"]


def cause_of(role: str) -> str:
    """Cause class of a rank that is stuck in `role` while its peers wait for it."""
    cause: str = _table()["roles"].get(role, {}).get("cause", "user_code" if role == "user_code" else "unknown")
    return cause


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=65536)
def _matches(function: str, file: str, native: bool, pattern: tuple[str, str]) -> bool:
    wanted, place = pattern
    if native != (place == "native"):
        return False
    if not native and not _compiled(place).search(file):
        return False
    plain = function.replace("<locals>.", "")
    rule = _compiled(wanted)
    return bool(rule.fullmatch(plain) or (not native and rule.fullmatch(plain.rsplit(".", 1)[-1])))


def _any(frame: Frame, patterns: Iterable[Sequence[str]]) -> bool:
    return any(_matches(frame.function, frame.file, frame.native, (p[0], p[1])) for p in patterns)


@lru_cache(maxsize=65536)
def _role(function: str, file: str, native: bool) -> str | None:
    frame = Frame(function, file, native=native)
    return next((role for role, rule in _table()["roles"].items() if _any(frame, rule["frames"])), None)


def _classify(frames: Sequence[Frame]) -> tuple[str, int]:
    """(role, index of the deciding frame): the innermost frame that says something, unless a caller claims it."""
    roles = _table()["roles"]
    innermost = next((i for i, frame in enumerate(frames) if not frame.native), len(frames))
    found: tuple[str, int] | None = None
    lock: tuple[str, int] | None = None
    for index, frame in enumerate(frames):
        role = _role(frame.function, frame.file, frame.native)
        if role is None:
            continue
        if role == "lock":
            lock = lock or ((role, index) if index <= innermost else None)
            continue
        claims = roles[role].get("claims") and not (found and roles[found[0]].get("claims"))
        if found is None or (claims and roles[found[0]]["kind"] in ("waits", "neutral")):
            found = (role, index)
    if decided := found or lock:
        return decided
    if innermost == len(frames):
        return "native", 0
    inside_module = any(_any(frame, [_table()["module_call"]]) for frame in frames[innermost:])
    return ("compute" if inside_module or is_plumbing(frames[innermost]) else "user_code"), innermost


def _model(frames: Sequence[Frame], at: int) -> Model:
    """The model whose parameters the gather at index `at` fetches."""
    table = _table()
    forward, backward = _compiled(table["forward"]), _compiled(table["backward_call"])
    inside: list[str] = []  # classes further in than the innermost engine
    around: list[str] = []
    engine, caller, in_backward = False, "", False
    for frame in frames[at:]:
        if frame.native:
            continue
        in_backward = in_backward or bool(backward.fullmatch(frame.short))
        if _any(frame, [table["engine"]]):
            engine = True
        elif is_plumbing(frame) or frame.short in _ANONYMOUS:
            continue
        elif found := forward.fullmatch(frame.function.replace("<locals>.", "")):
            if found["class"]:
                (around if engine else inside).append(found["class"])
        elif not caller:
            caller = frame.short
    if in_backward:
        return Model((), caller, True)
    return Model((*inside[-1:], *around), caller, False)


def _thread(name: str, rows: Sequence[Mapping[str, Any]]) -> Thread:
    frames = tuple(_frame(row) for row in sorted(rows, key=lambda row: row.get("depth") or 0))
    role, at = _classify(frames)
    background = _table()["background"]
    calm = next((f for f in frames if not f.native and _role(f.function, f.file, f.native) != "lock"), frames[-1])
    idle = (
        bool(_compiled(background["threads"]).fullmatch(name))
        or any(_any(frame, background["frames"]) for frame in frames)
        or _any(calm, background["idle"])
    )
    kind = "neutral" if role == "native" else _table()["roles"].get(role, {}).get("kind", "outside")
    model = _model(frames, at) if role == "gather" else None
    return Thread(name, str(rows[0].get("state") or "unknown"), frames, role, kind, frames[at], idle, model)


def _frame(row: Mapping[str, Any]) -> Frame:
    file = _INSTALLED.sub("", str(row.get("file") or ""))
    return Frame(
        str(row.get("function") or "?"), file, row.get("lineno"), bool(row.get("native")),
        row.get("path"), row.get("line"), row.get("offset"),
    )  # fmt: skip


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
    every = [_thread(name, _best(variants)) for name, variants in threads.items()]
    shown = [thread for thread in every if not thread.background] or every
    frames = [frame for thread in every for frame in thread.frames]
    table = _table()
    child = any(_any(frame, [table["child_process"]]) for frame in frames)
    spawned = any(_any(frame, [table["spawned_rank"]]) for frame in frames)
    helper = any(_any(frame, table["helpers"]) for frame in frames) or (child and not spawned)
    speaker = _speaker(shown, pid)
    if rank is not None and speaker.kind == "waits":
        helper = False
    return Process(rank, node, pid, dump, tuple(shown), speaker, helper)


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
    old = {p.identity: {t.name: t.exact for t in p.threads} for p in before}
    return {p.identity: {t.name: t.exact for t in p.threads} != old[p.identity] for p in after if p.identity in old}


def classes(listed: Iterable[Process]) -> list[StackClass]:
    """Classes of equal stacks, the largest first."""
    found: dict[tuple[Any, ...], StackClass] = defaultdict(StackClass)
    for process in listed:
        found[process.speaker.role, process.speaker.key].processes.append(process)
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
