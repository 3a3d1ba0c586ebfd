"""Stack dumps of processes: rows of `stack_frames`, whatever tool took the dump.

People take dumps with what is at hand, so one reader understands py-spy (text with or without --locals, --native,
--subprocesses; JSON), CPython's faulthandler (also inside a rank's log), pystack and gdb. Every line is first freed of
the prefix that `srun --label`, pdsh or torchrun put in front, and each prefix is parsed as a stream of its own, because
the outputs of many nodes interleave. Frames keep the position of their line: a report must be able to cite them.

The rank is what the place (`Artifact.origin`), a `[rankN]:` prefix or the file's name says; otherwise it stays null and
the pid tells. A file name such as `hang2.rank0.json` means dump 2 of rank 0; a process that appears again in the same
file is the next dump of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from collector.model import Artifact

Row = dict[str, Any]

MAX_BYTES = 64 << 20
"""Larger dumps are cut: py-spy writes about 5 kB per thread, so this is some ten thousand threads."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(
    r"\[(?P<kind>rank|default)(?P<n>\d+)\]:|(?: {0,5}(?P<task>\d+)|(?P<host>[A-Za-z][\w.-]*)):(?: (?=\S| {2})|$)"
)

_PROCESS = re.compile(r"Process (\d+): ")
_ATTACHED = re.compile(r"Attaching to process (\d+)|\[process (\d+)\]")
_SPY_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]+|\d+) \((idle|active|active\+gil)\)(?:: "(.*)")?\s*$')
_SPY_FRAME = re.compile(r" {4}(\S.*) \(([^()]*?)(?::(\d+))?\)\s*$")
_FAULT_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*?)\])? \(most recent call first\):")
_FAULT_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*?)\s*$')
_GDB_THREAD = re.compile(r'Thread \d+ \(Thread 0x[0-9a-f]+ \(LWP (\d+)\)(?: "(.*?)")?.*\):?\s*$')
_GDB_FRAME = re.compile(
    r"#\d+ +(?:0x[0-9a-f]+ in )?(?P<function>[^ (].*?) \(.*\)(?: (?:at|from) (?P<file>\S+?)(?::(?P<line>\d+))?)?\s*$"
)
_PYSTACK_THREAD = re.compile(r"Traceback for thread (\d+)(?: \((.*?)\))? .*\(most recent call last\):")
_PYSTACK_FRAME = re.compile(r' {4}\((Python|C|Other)\) File "(.*)", line (\d+), in (.*?)(?: \(\S+\))?\s*$')
_HEADERS = (
    ("spy", _SPY_THREAD),
    ("fault", _FAULT_THREAD),
    ("gdb", _GDB_THREAD),
    ("pystack", _PYSTACK_THREAD),
)
_STATES = {"idle": "idle", "active": "active", "active+gil": "gil"}

_PYTHON_FILE = re.compile(r"\.(?:py|pyx|pyi|pyc)$|^<|^/tmp/ipykernel")
_JSON_FRAME = re.compile(rb'"name":\s*"(?:[^"\\]|\\.)*",\s*"filename":')
_JSON_HEAD = re.compile(rb'\s*\[\s*\{.*?"(?:thread_id|os_thread_id|owns_gil)"\s*:', re.DOTALL)
_NAME_RANK = re.compile(
    r"(?:(?P<word>[A-Za-z]*)[._-]?(?P<dump>(?<!\d)\d{1,4})[._-]+)?(?<![A-Za-z])(?<!local[._-])rank[._-]?(?P<rank>\d{1,7})",
    re.IGNORECASE,
)
_NO_DUMP = {"node", "host", "gpu", "worker", "job", "pid", "attempt", "restart", "world", "n"}
"""Words whose number in a file name counts something else than dumps."""
_NAME_DUMP = re.compile(r"(?:dump|hang|sample|snapshot|stacks?|round|pyspy|py-spy)[._-]?(\d{1,4})(?!\d)", re.I)


def looks_like(head: bytes) -> bool:
    """True if `head` (the first kilobytes of a file) is a stack dump rather than a log that contains one.

    A log that begins with `Fatal Python error` stays a log: its other lines matter more than its stack.
    """
    if _JSON_HEAD.match(head[:8192]) and b'"frames"' in head:
        return True
    lines = [_strip(text)[1] for text in head[:8192].decode("utf-8", "replace").splitlines() if text.strip()]
    for index, line in enumerate(lines[:40]):
        if _PROCESS.match(line) and any(after.startswith("Python v") for after in lines[index + 1 : index + 3]):
            return True
        if _SPY_THREAD.match(line) or _PYSTACK_THREAD.match(line):
            return True
        if _GDB_THREAD.match(line) and any(after.startswith("#0 ") for after in lines[index + 1 : index + 2]):
            return True
    return bool(lines) and any(_FAULT_THREAD.match(line) for line in lines[:2]) and "Fatal" not in lines[0]


def read(artifact: Artifact) -> list[Row]:
    """Rows of `stack_frames` (without `incident`) of one dump file. Raises OSError only if it cannot be opened."""
    with artifact.open() as stream:
        data = stream.read(MAX_BYTES)
    rank, dump = place(artifact.path)
    origin = artifact.origin
    who = {"node": origin.node, "rank": origin.rank if origin.rank is not None else rank, "path": artifact.path}
    if data.lstrip()[:1] == b"[" and (rows := _read_json(data, dump)) is not None:
        return [{**row, **who} for row in rows]
    return _parse(_lines(data), who, dump)


def parse_text(
    text: str, *, path: str = "", rank: int | None = None, node: str | None = None, dump: int = 0
) -> list[Row]:
    """Rows of `stack_frames` of the dumps inside `text`, such as faulthandler output in a rank's log.

    `dump` is the number of the first dump in it. Lines that belong to no dump are passed over.
    """
    return _parse(_lines(text.encode("utf-8", "replace")), {"node": node, "rank": rank, "path": path}, dump)


def place(path: str) -> tuple[int | None, int]:
    """(global rank or None, number of the dump) as the name of a dump file tells them."""
    pure = PurePosixPath(path)
    found = _NAME_RANK.search(pure.name)
    rank = int(found["rank"]) if found else None
    if found and found["dump"] and found["word"].lower() not in _NO_DUMP:
        return rank, int(found["dump"])
    rest = pure.name.replace(found.group(), "") if found else pure.name
    for text in (rest, pure.parent.name):
        if numbered := _NAME_DUMP.search(text):
            return rank, int(numbered[1])
    return rank, 0


def _lines(data: bytes) -> Iterator[tuple[int, int, str]]:
    """(line number, byte offset, text) of each line of `data`."""
    offset = 0
    for number, raw in enumerate(data.split(b"\n"), 1):
        yield number, offset, raw.decode("utf-8", "replace").rstrip("\r")
        offset += len(raw) + 1


def _strip(text: str) -> tuple[re.Match[str] | None, str]:
    """The prefix of a labelled line (or None) and the line without it and without colours."""
    text = _ANSI.sub("", text)
    found = _PREFIX.match(text)
    if not found:
        return None, text
    rest = text[found.end() :]
    return found, rest[1:] if found["kind"] == "rank" and rest.startswith(" ") else rest


def _is_native(file: str) -> bool:
    return not _PYTHON_FILE.search(file)


@dataclass(slots=True)
class _Thread:
    """One thread while its frames are read."""

    pid: int | None
    dump: int
    ident: str
    name: str
    state: str
    style: str
    frames: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class _Stream:
    """The state of one stream of lines: which process and which thread the next frame belongs to."""

    rank: int | None
    node: str | None
    first_dump: int
    pid: int | None = None
    child: bool = False
    """py-spy --subprocesses repeats the children of a process after each of its threads: not a dump of its own."""
    open: _Thread | None = None
    threads: list[_Thread] = field(default_factory=list)
    seen: dict[int | None, tuple[int, set[str]]] = field(default_factory=dict)

    def take(self, text: str, where: Row) -> None:
        """Understand one line."""
        if found := _PROCESS.match(text):
            self.pid, self.child, self.open = int(found[1]), False, None
        elif text.startswith("Parent Process "):
            self.child = True
        elif found := _ATTACHED.search(text):
            self.pid, self.open = int(found[1] or found[2]), None
        elif header := next(((style, m) for style, rx in _HEADERS if (m := rx.match(text))), None):
            self._begin(*header)
        elif self.open is not None:
            frame = _FRAMES[self.open.style](text)
            if frame is not None:
                self.open.frames.append({**frame, **where})
            elif text.strip() and not text.startswith("        "):
                self.open = None  # any line that is neither a frame nor a local variable or source line ends it

    def _begin(self, style: str, header: re.Match[str]) -> None:
        ident = header[1]
        state = _STATES[header[2]] if style == "spy" else "unknown"
        name = header[3] if style == "spy" else header[2]
        dump, idents = self.seen.get(self.pid, (self.first_dump, set()))
        if ident in idents:
            if self.child:
                self.open = None
                return
            dump, idents = dump + 1, set()
        self.seen[self.pid] = (dump, idents | {ident})
        self.open = _Thread(self.pid, dump, ident, name or "", state, style)
        self.threads.append(self.open)


def _spy_frame(text: str) -> Row | None:
    if not (found := _SPY_FRAME.match(text)):
        return None
    return _frame(found[1], found[2], found[3], _is_native(found[2]))


def _fault_frame(text: str) -> Row | None:
    if not (found := _FAULT_FRAME.match(text)):
        return None
    return _frame(found[3], found[1], found[2], False)


def _gdb_frame(text: str) -> Row | None:
    if not (found := _GDB_FRAME.match(text)):
        return None
    return _frame(found["function"], found["file"] or "", found["line"], True)


def _pystack_frame(text: str) -> Row | None:
    if not (found := _PYSTACK_FRAME.match(text)):
        return None
    return _frame(found[4], found[2], found[3], found[1] != "Python")


_FRAMES = {"spy": _spy_frame, "fault": _fault_frame, "gdb": _gdb_frame, "pystack": _pystack_frame}


def _frame(function: str, file: str, line: str | None, native: bool) -> Row:
    number = int(line) if line and line.isdigit() and len(line) < 10 else None
    return {"function": function, "file": file, "lineno": number or None, "native": native}


def _parse(lines: Iterable[tuple[int, int, str]], who: Row, dump: int) -> list[Row]:
    """Parse text dumps. A line whose prefix hides no dump line simply belongs to a stream without threads."""
    streams: dict[str, _Stream] = {}
    for number, offset, raw in lines:
        prefix, text = _strip(raw)
        key = prefix.group() if prefix else ""
        if key not in streams:
            streams[key] = _stream(prefix, who, dump)
        streams[key].take(text, {"path": who["path"], "line": number, "offset": offset})
    return [row for stream in streams.values() for row in _rows(stream)]


def _stream(prefix: re.Match[str] | None, who: Row, dump: int) -> _Stream:
    """A stream for lines behind `prefix`: `[rankN]:` names the rank, a word the node; srun's task number is no rank."""
    rank, node = who["rank"], who["node"]
    if prefix and prefix["kind"] == "rank":
        rank = int(prefix["n"])
    elif prefix and prefix["host"]:
        node = node or prefix["host"]
    return _Stream(rank, node, dump)


def _rows(stream: _Stream) -> Iterator[Row]:
    """The rows of all threads of a stream; equal thread names of one process are told apart by their ids."""
    names = Counter((t.pid, t.dump, t.name) for t in stream.threads)
    for thread in stream.threads:
        unique = thread.name and names[thread.pid, thread.dump, thread.name] == 1
        label = thread.name if unique else f"{thread.name} ({thread.ident})" if thread.name else thread.ident
        frames = reversed(thread.frames) if thread.style == "pystack" else thread.frames
        for depth, frame in enumerate(frames):
            yield {
                **frame,
                "node": stream.node,
                "rank": stream.rank,
                "pid": thread.pid,
                "dump": thread.dump,
                "thread": label,
                "state": thread.state,
                "depth": depth,
            }


def _read_json(data: bytes, dump: int) -> list[Row] | None:
    """Rows of `py-spy dump --json`: one array of threads per process, several arrays with --subprocesses.

    None if the bytes are not such JSON. Lines are those of the frames' names, found in the text in the same order.
    """
    threads = [thread for block in _json_blocks(data.decode("utf-8", "replace")) for thread in block]
    stream, spans = _Stream(None, None, dump), _json_positions(data)
    count = 0
    for thread in threads:
        if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list):
            continue
        frames = [frame for frame in thread["frames"] if isinstance(frame, dict)]
        stream.threads.append(_json_thread(thread, dump))
        stream.threads[-1].frames.extend(
            {**_json_frame(frame), **(spans[count + i] if count + i < len(spans) else {})}
            for i, frame in enumerate(frames)
        )
        count += len(frames)
    if count != len(spans):  # names inside local variables shifted them: better no line than a wrong one
        for frame in (frame for thread in stream.threads for frame in thread.frames):
            frame.update(line=None, offset=None)
    return list(_rows(stream)) if stream.threads else None


def _json_blocks(text: str) -> Iterator[list[Any]]:
    decoder, at = json.JSONDecoder(), 0
    while (start := text.find("[", at)) >= 0:
        try:
            block, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        if isinstance(block, list):
            yield block


def _json_positions(data: bytes) -> list[Row]:
    positions, line, last = [], 1, 0
    for found in _JSON_FRAME.finditer(data):
        line += data.count(b"\n", last, found.start())
        last = found.start()
        positions.append({"line": line, "offset": last})
    return positions


def _json_thread(thread: dict[str, Any], dump: int) -> _Thread:
    pid = thread.get("pid")
    state = "gil" if thread.get("owns_gil") else "active" if thread.get("active") else "idle"
    opaque = thread.get("thread_id")
    ident = str(thread.get("os_thread_id") or (f"0x{opaque:X}" if isinstance(opaque, int) else opaque) or "")
    return _Thread(pid if isinstance(pid, int) else None, dump, ident, str(thread.get("thread_name") or ""), state, "")


def _json_frame(frame: dict[str, Any]) -> Row:
    file = str(frame.get("short_filename") or frame.get("filename") or "")
    line = frame.get("line")
    native = bool(frame.get("module")) or _is_native(file)
    return _frame(str(frame.get("name") or "?"), file, str(line) if isinstance(line, int) else None, native)
