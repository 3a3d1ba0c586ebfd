"""Python tracebacks in log lines -> structured exceptions: type, message, frames, chained causes, place.

Lines of different writers are parsed apart; writers that cannot be told apart (a console without rank marks) share one
stream, in which a new header opens a new traceback while the older one is still open. The message of an exception may
go on for many lines (parameter dumps, nested tracebacks of workers); they belong to it and are not events of their own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from collector.model import LogLine

_HEADER = re.compile(r"Traceback \(most recent call last\):(?: \(RANK (?P<rank>\d+)\))?\s*$")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<func>.+))?$')
_FINAL = re.compile(
    r"^\s*(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([A-Za-z_][\w.]*\))?)(?::\s?(?P<message>.*))?\s*$", re.DOTALL
)
_TYPE_LIKE = re.compile(r"(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Timeout|Failure|Abort|Died|Failed)\)?$")
_RICH_HEADER = re.compile(r"^\W*[╭+][─-]* ?Traceback \(most recent call last\)")
_RICH_FRAME = re.compile(r"^\W*[│|] (?P<file>(?:/|[A-Za-z]:)\S+?):(?P<line>\d+) in (?P<func>\S+)")
_RICH_END = re.compile(r"^\W*[╰+][─-]{3,}")
_IGNORED = re.compile(r"^\s*(?:Exception ignored (?:in|on)\b|Error in (?:atexit\._run_exitfuncs|sys\.excepthook)\b)")
_CHAIN = re.compile(
    r"^\s*(?:During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:)"
)
_GROUP = re.compile(r"^\s*[|+][ -]?(?:-+ ?\d* ?-*)?\s?")
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|lib64/python\d|^<|/ray/|/torch/|importlib")
_LAUNCHER = re.compile(
    r"torch/distributed/(?:run|launch|launcher/api|elastic/agent)|deepspeed/launcher|accelerate/commands/launch"
    r"|torch/multiprocessing/spawn\.py|bin/torchrun|ray/_private/worker\.py|ray/train/"
)
_MAX_MESSAGE_LINES = 200
_MAX_BOX = 5000


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback, outermost first in `PyException.frames`."""

    file: str
    lineno: int
    function: str
    source: str = ""


@dataclass(slots=True)
class PyException:
    """One exception as printed. Positions are indexes into the list of lines that was parsed."""

    type: str
    message: str
    line: LogLine
    """The line that names type and message: the one to cite."""
    index: int
    start: int
    """Index of the traceback's first line."""
    end: int
    """Index of the last line that belongs to the message."""
    frames: list[Frame] = field(default_factory=list)
    cause: PyException | None = None
    """The exception that this one was raised from, or while handling."""
    announced_rank: int | None = None
    """Rank named by the header itself: `Traceback ...: (RANK 2)`."""
    before: int | None = None
    """Time of the writer's last stamped line before the traceback, UTC microseconds."""
    ignored: bool = False
    """True if Python itself says that it goes on (`Exception ignored in:`, an atexit handler): never a cause."""
    members: list[int] = field(default_factory=list)
    """Indexes of all lines that belong to the traceback and its message."""

    @property
    def short_type(self) -> str:
        """The class name without its module: `torch.cuda.OutOfMemoryError` -> `OutOfMemoryError`."""
        return self.type.partition("(")[0].rpartition(".")[2]

    @property
    def user_frame(self) -> Frame | None:
        """The innermost frame that is not library code, else the innermost frame."""
        for frame in reversed(self.frames):
            if not _LIBRARY.search(frame.file):
                return frame
        return self.frames[-1] if self.frames else None

    @property
    def has_user_frame(self) -> bool:
        """True if at least one frame is the user's own code."""
        return any(not _LIBRARY.search(frame.file) for frame in self.frames)

    @property
    def by_launcher(self) -> bool:
        """True if the traceback ran through a launcher's own waiting code: it reports a child's end, not a cause."""
        return any(_LAUNCHER.search(frame.file) for frame in self.frames)

    def chain(self) -> list[PyException]:
        """From the first cause to this exception."""
        chain: list[PyException] = [self]
        while chain[0].cause is not None and len(chain) < 30:
            chain.insert(0, chain[0].cause)
        return chain


def read(lines: Sequence[LogLine]) -> list[PyException]:
    """All exceptions with a traceback, in order of their last line. Never raises on content."""
    streams: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        streams[(line.path, line.rank, line.local_rank, line.pid, line.issuer == "rank", line.attempt)].append(index)
    found: list[PyException] = []
    for indexes in streams.values():
        found.extend(_Parser(lines, indexes).run())
    found.sort(key=lambda exception: exception.index)
    return found


class _Parser:
    """Walks the lines of one writer."""

    def __init__(self, lines: Sequence[LogLine], indexes: list[int]) -> None:
        self._lines = lines
        self._indexes = indexes
        self._open: list[tuple[int, list[Frame], int | None, list[int]]] = []
        self._last: PyException | None = None
        self._chained = False
        self._stamp: int | None = None
        self._nested_in: PyException | None = None
        self._rich: tuple[int, list[Frame], list[int]] | None = None
        """A traceback that rich draws in a box: first line, frames, lines."""

    def run(self) -> Iterator[PyException]:
        for index in self._indexes:
            line = self._lines[index]
            text = line.text
            if text.lstrip().startswith(("|", "+-")):
                text = _GROUP.sub("", text)
            exception = self._step(index, line, text)
            if exception is not None:
                yield exception
            if line.at_lo is not None and not self._open:
                self._stamp = line.at_lo

    def _step(self, index: int, line: LogLine, text: str) -> PyException | None:
        if self._rich is not None:
            return self._boxed(index, line, text)
        if "Traceback (" in text and _RICH_HEADER.match(text):
            self._rich = (index, [], [index])
            return None
        header = _HEADER.search(text) if "Traceback (" in text else None
        if header:
            rank = header["rank"]
            self._open.append((index, [], int(rank) if rank else None, [index]))
            self._nested_in = self._wrapper(index) if rank or "Original" in text or self._announces() else None
            return None
        frame = _FRAME.match(text) if 'File "' in text else None
        if frame:
            if not self._open:  # the log begins inside a traceback, or a task error lists frames without a header
                self._open.append((index, [], None, []))
                self._nested_in = self._wrapper(index)
            opened = self._open[-1]
            opened[1].append(Frame(frame["file"], int(frame["line"][:9]), frame["func"] or ""))
            opened[3].append(index)
            return None
        if self._open:
            return self._inside(index, line, text)
        self._outside(index, line, text)
        return None

    def _is_ignored(self, start: int) -> bool:
        """True if the line before the traceback says that the interpreter drops the exception."""
        before = self._before(start)
        text = self._lines[before].text if before >= 0 else ""
        return _IGNORED.search(text) is not None or _IGNORED.search(self._lines[start].text) is not None

    def _boxed(self, index: int, line: LogLine, text: str) -> PyException | None:
        """A line of a box that rich draws; the exception stands on the line behind it."""
        assert self._rich is not None
        start, frames, members = self._rich
        members.append(index)
        if frame := _RICH_FRAME.match(text):
            frames.append(Frame(frame["file"], int(frame["line"][:9]), frame["func"]))
            return None
        if text.strip()[:1] in ("│", "|", "❱") or _RICH_END.match(text) or not text.strip():
            if len(members) > _MAX_BOX:
                self._rich = None
            return None
        self._rich = None
        final = _FINAL.match(text)
        if final is None or not _TYPE_LIKE.search(final["type"]):
            return None
        self._last = PyException(
            final["type"], (final["message"] or "").strip(), line, index, start, index, frames,
            before=self._stamp, members=members,
        )  # fmt: skip
        return self._last

    def _wrapper(self, index: int) -> PyException | None:
        """The exception whose message this traceback stands in, if it follows it without a gap."""
        return self._last if self._last is not None and self._last.end == self._before(index) else None

    def _announces(self) -> bool:
        """True if the message so far ends by announcing another process's traceback."""
        return self._last is not None and self._last.message.rstrip().endswith(":")

    def _before(self, index: int) -> int:
        """Index of the writer's previous non-empty line."""
        position = self._indexes.index(index) if len(self._indexes) < 64 else _bisect(self._indexes, index)
        while position > 0:
            position -= 1
            if self._lines[self._indexes[position]].text.strip():
                return self._indexes[position]
        return -1

    def _inside(self, index: int, line: LogLine, text: str) -> PyException | None:
        start, frames, rank, members = self._open[-1]
        stripped = text.strip()
        indented = text[:1] in " \t"
        if not stripped or _CHAIN.match(text):
            return None
        final = _FINAL.match(text)
        named = final is not None and (bool(_TYPE_LIKE.search(final["type"])) or (not indented and not frames))
        if frames and (indented or stripped.startswith(("~", "^"))) and not (named and final and final["message"]):
            if not stripped.strip("~^"):
                members.append(index)
                return None
            if frames[-1].source == "":
                frames[-1] = Frame(frames[-1].file, frames[-1].lineno, frames[-1].function, stripped)
            members.append(index)
            return None
        if final is None or not (named or not indented):
            return None
        if not named and (line.at_lo is not None or " " in final["type"]):
            return None  # an ordinary log line of the same writer in between
        self._open.pop()
        members.append(index)
        exception = PyException(
            final["type"], (final["message"] or "").strip(), line, index, start, index, frames,
            announced_rank=rank, before=self._stamp, members=members, ignored=self._is_ignored(start),
        )  # fmt: skip
        if self._last is not None and (self._chained or self._nested_in is self._last):
            # a worker's nested traceback comes AFTER the wrapper's line but is its cause
            if self._nested_in is self._last and not self._chained:
                root = self._last
                while root.cause is not None:
                    root = root.cause
                root.cause = exception
            else:
                exception.cause = self._last
        self._chained, self._nested_in = False, None
        self._last = exception
        return exception

    def _outside(self, index: int, line: LogLine, text: str) -> None:
        if _CHAIN.match(text):
            self._chained = self._last is not None
            return
        last = self._last
        if last is None or len(last.members) - len(last.frames) * 3 > _MAX_MESSAGE_LINES:
            return
        others = ("launcher", "scheduler")
        if line.at_lo is not None or (line.issuer in others and last.line.issuer not in others):
            self._last = None  # the next log line, or another program's: the message is over
            return
        if last.end == self._before(index):
            last.end = index
            last.members.append(index)
            if len(last.message) < 2000:
                last.message = f"{last.message}\n{text.rstrip()}" if text.strip() else last.message


def _bisect(indexes: list[int], value: int) -> int:
    import bisect

    return bisect.bisect_left(indexes, value)
