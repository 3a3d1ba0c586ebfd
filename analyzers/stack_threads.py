"""One thread of a dump: what it is doing, read off its frames.

Which frame means what is data (`signatures/_lookup/stack_frames.yaml`); this module only applies it. The innermost
frame that says something decides, because what a thread waits in is further in than what it does so for; a parameter
gather claims the collective inside it, because its model is what tells two gathers apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


def is_users(frame: Frame) -> bool:
    """True for a named function of the program's own code."""
    return frame.short not in _ANONYMOUS and not is_plumbing(frame)


def is_helper(frame: Frame) -> bool:
    """True for a frame by which its process is known to be a loader worker, a launcher or the like."""
    return _any(frame, _table()["helpers"])


def is_child(frames: Sequence[Frame]) -> bool:
    """True for the frames of a child of multiprocessing that torch did not spawn as a rank."""
    table = _table()
    spawned = any(_any(frame, [table["spawned_rank"]]) for frame in frames)
    return not spawned and any(_any(frame, [table["child_process"]]) for frame in frames)


def dead_thread(line: str) -> str | None:
    """Name of the thread whose death by an exception `line` reports, unless it is a mere background thread."""
    found = _compiled(_table()["thread_death"]).match(line)
    if found is None or _compiled(_table()["background"]["threads"]).fullmatch(found["thread"]):
        return None
    return found["thread"]


def is_echo(line: str) -> bool:
    """True for the last line of an exception that only says that a peer or a collective failed."""
    return bool(_compiled(_table()["echo"]).search(line))


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
        elif not is_users(frame):
            continue
        elif found := forward.fullmatch(frame.function.replace("<locals>.", "")):
            if found["class"]:
                (around if engine else inside).append(found["class"])
        elif not caller:
            caller = frame.short
    if in_backward:
        return Model((), caller, True)
    return Model((*inside[-1:], *around), caller, False)


def make_thread(name: str, rows: Sequence[Mapping[str, Any]]) -> Thread:
    """The thread called `name` from its rows of `stack_frames`, in any order, at least one."""
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
