"""Copies a job's files, as its user and masked, to a folder of ours: the parent of `collector.user_reader`.

The copy is what is collected from, so a requeue that truncates the log a moment later takes nothing away, and a store
that is down for days neither. A child that says nothing for a while sits on a hung file system: it is killed and never
waited for, and another one goes on behind the file or pattern that it hung on.

Where masking changed lengths or a middle was left out, `shifts` of a file leads from a place in the copy back to the
place in the original.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from collector.model import LedgerEntry, Outcome
from collector.redact import MAX_HELD, Redactor
from collector.walking import shown

MANIFEST = "manifest.json"
STALL = 20.0
"""Seconds without a word from the child after which the file system is taken for hung."""
MAX_CHILDREN = 4
SOURCE = "rank_logs"
_abandoned: list[subprocess.Popen[bytes]] = []
"""Children that could not be killed: kept, so that nobody waits for them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One pattern and what its files are limited to."""

    glob: str
    since: float | None = None
    """Files last changed before that time are somebody else's."""
    owned: bool = False
    """Only files that belong to the user, for folders where everybody writes."""
    regex: str = ""
    """With `only`: matched against the whole path."""
    only: dict[str, list[str]] = field(default_factory=dict)
    """Group of `regex` -> the values it may have."""
    label: dict[str, Any] = field(default_factory=dict)
    """Whatever the caller wants to find again beside the files of this pattern."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the copying may cost."""

    seconds: float = 120.0
    bytes: int = 512 << 20
    file_bytes: int = 64 << 20
    files: int = 5000
    stall: float = STALL


@dataclass(slots=True)
class Copied:
    """One file in the folder."""

    name: str
    """Its name in the folder."""
    path: str
    """Where it was, with unprintable characters escaped."""
    pattern: int
    size: int
    modified: float
    kept: int = 0
    masked: int = 0
    """Secrets masked."""
    shifts: list[tuple[int, int, int]] = field(default_factory=list)
    """(offset in the copy, bytes to add, lines to add) from there on, ascending."""
    gaps: list[tuple[int, int | None]] = field(default_factory=list)
    """[start, stop) in the original of what was left out; stop None where unknown."""
    note: str | None = None

    def original(self, offset: int, line: int) -> tuple[int, int]:
        """(offset, line) in the original of a place in the copy."""
        index = bisect_right(self.shifts, offset, key=lambda shift: shift[0]) - 1
        if index < 0:
            return offset, line
        _, more_bytes, more_lines = self.shifts[index]
        return offset + more_bytes, line + more_lines


@dataclass(slots=True)
class Copies:
    """The folder's content and what could not be copied."""

    files: list[Copied] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    """(path, outcome, why)."""
    labels: list[dict[str, Any]] = field(default_factory=list)
    """Of each pattern its label."""

    def ledger(self) -> Iterator[LedgerEntry]:
        """Rows of what was refused, cut or never came."""
        for path, outcome, why in self.refused:
            yield LedgerEntry(SOURCE, path, Outcome(outcome), detail=why)
        for file in self.files:
            for start, stop in file.gaps:
                yield LedgerEntry(
                    SOURCE, file.path, Outcome.TRUNCATED, bytes_seen=file.size, bytes_kept=file.kept,
                    dropped_from=start, dropped_to=stop, detail="the middle of a large file was left out",
                )  # fmt: skip
            if file.note:
                yield LedgerEntry(SOURCE, file.path, Outcome.TRUNCATED, bytes_seen=file.size, bytes_kept=file.kept,
                                  detail=file.note)  # fmt: skip


def load(folder: Path) -> Copies | None:
    """What a finished copying left in `folder`, or None if there is none."""
    try:
        raw = json.loads((folder / MANIFEST).read_bytes())
        files = [Copied(**row) for row in raw["files"]]
        for file in files:
            file.shifts = [(a, b, c) for a, b, c in file.shifts]
            file.gaps = [(a, b) for a, b in file.gaps]
        return Copies(files, [(a, b, c) for a, b, c in raw["refused"]], raw["labels"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def copy(folder: Path, uid: int, wanted: Sequence[Wanted], limits: Limits, *, mask: bool = True) -> Copies:
    """Copy what the patterns find into `folder`, as user `uid`. Returns and leaves a manifest when all is there.

    Raises OSError if `folder` cannot be written (a full disk); never for anything about the user's files.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    work = _Work(folder, uid, wanted, limits, mask)
    copies = work.run()
    from collector.spool import write_atomically

    copies.labels = [one.label for one in wanted]
    manifest = {"files": [asdict(file) for file in copies.files], "refused": copies.refused, "labels": copies.labels}
    write_atomically(folder / MANIFEST, json.dumps(manifest).encode(), folder)
    return copies


class _Work:
    def __init__(self, folder: Path, uid: int, wanted: Sequence[Wanted], limits: Limits, mask: bool) -> None:
        self._folder, self._uid, self._wanted, self._limits, self._mask = folder, uid, wanted, limits, mask
        self._deadline = time.monotonic() + limits.seconds
        self._copies = Copies()
        self._skip: set[int] = set()
        self._done: set[str] = set()
        self._left = limits.bytes

    def run(self) -> Copies:
        for _ in range(MAX_CHILDREN):
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._refuse("", "timed_out", f"{self._limits.seconds:g} s were over")
                break
            hung = self._child(left)
            if hung is None:
                break
            pattern, path = hung
            if path is None:
                self._skip.add(pattern)
            else:
                self._done.add(path)
            what = shown((path,)) if path is not None else self._wanted[pattern].glob if self._wanted else ""
            self._refuse(what, "timed_out", f"no answer for {self._limits.stall:g} s: its file system may hang")
        return self._copies

    def _refuse(self, path: str, outcome: str, why: str) -> None:
        row = (path, outcome, why)
        if row not in self._copies.refused and len(self._copies.refused) < 2000:
            self._copies.refused.append(row)

    def _child(self, seconds: float) -> tuple[int, str | None] | None:
        """Let one child work. None if it answered all, else (pattern, path or None) where it was stuck."""
        request = {
            "uid": self._uid,
            "patterns": [asdict(one) for one in self._wanted],
            "bytes": self._left,
            "file_bytes": self._limits.file_bytes,
            "files": self._limits.files,
            "seconds": seconds,
            "skip_patterns": sorted(self._skip),
            "done": sorted(self._done),
        }
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "collector.user_reader"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        answer = _Answer(self, child)
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(request).encode())
                child.stdin.close()
            return answer.read(min(time.monotonic() + seconds, self._deadline))
        finally:
            answer.close()
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    try:
        child.wait(timeout=2)
    except subprocess.TimeoutExpired:
        abandon(child)


def abandon(child: subprocess.Popen[bytes]) -> None:
    """Let go of a killed child that does not end: it waits in the kernel, and nobody waits for it."""
    _abandoned[:] = [one for one in _abandoned if one.poll() is None]
    _abandoned.append(child)


class _Answer:
    """Reads one child's frames and writes the copies."""

    def __init__(self, work: _Work, child: subprocess.Popen[bytes]) -> None:
        self._work, self._child = work, child
        self._pattern = 0
        self._path: str | None = None
        self._current: tuple[Copied, _Masker] | None = None
        self._bye = False
        self._buffer = bytearray()
        self._need = 0

    def read(self, deadline: float) -> tuple[int, str | None] | None:
        """Handle frames until `bye`, the deadline or silence."""
        assert self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        os.set_blocking(descriptor, False)
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not self._bye:
                wait = min(self._work._limits.stall, max(deadline - time.monotonic(), 0.0))
                if not selector.select(wait):
                    break
                data = os.read(descriptor, 1 << 20)
                if not data:
                    break
                self._feed(data)
        if self._bye:
            return None
        if time.monotonic() >= deadline:
            self._work._refuse(shown((self._path or "",)), "timed_out", f"{self._work._limits.seconds:g} s were over")
            return None
        return self._pattern, self._path

    def close(self) -> None:
        """Keep what came of a file that did not end."""
        if self._current is not None:
            self._finish("it was cut off: the reading process ended or hung")

    def _feed(self, data: bytes) -> None:
        self._buffer += data
        while True:
            if self._need:
                if len(self._buffer) < self._need:
                    return
                block = bytes(self._buffer[: self._need])
                del self._buffer[: self._need]
                self._need = 0
                if self._current is not None:
                    self._current[1].feed(block)
                continue
            newline = self._buffer.find(b"\n")
            if newline < 0:
                return
            row = json.loads(bytes(self._buffer[:newline]))
            del self._buffer[: newline + 1]
            self._frame(row)

    def _frame(self, row: dict[str, Any]) -> None:
        kind, work = row["t"], self._work
        if kind == "data":
            self._need = int(row["n"])
        elif kind == "look":
            self._pattern, self._path = row["pattern"], None
        elif kind == "file":
            self._pattern, self._path = row["pattern"], row["path"]
            name = str(len(work._copies.files))
            path = shown((row["path"],))
            file = Copied(name, path, row["pattern"], int(row["size"]), float(row["modified"]))
            self._current = (file, _Masker(file, (work._folder / name).open("wb"), work._mask))
        elif kind == "gap" and self._current is not None:
            self._current[1].gap(row["start"], row["stop"], row["newlines"])
        elif kind == "end":
            self._finish(row.get("note"), ok=bool(row.get("ok", True)))
        elif kind == "refused":
            work._refuse(shown((row["path"],)), row["outcome"], row["why"])
        elif kind == "cannot":
            work._refuse("", "refused", row["why"])
            self._bye = True
        elif kind == "bye":
            self._bye = True

    def _finish(self, note: str | None, ok: bool = True) -> None:
        if self._current is None:
            return
        file, masker = self._current
        self._current = None
        masker.close()
        if self._path is not None:
            self._work._done.add(self._path)
        if not ok:
            self._work._refuse(file.path, "refused", note or "it cannot be read")
            (self._work._folder / file.name).unlink(missing_ok=True)
            return
        file.note = note
        self._work._left -= file.kept
        self._work._copies.files.append(file)


class _Masker:
    """Writes a stream masked, and notes where places moved."""

    def __init__(self, file: Copied, out: BinaryIO, mask: bool) -> None:
        self._file, self._out = file, out
        self._redactor = Redactor() if mask else None
        self._held = b""
        self._written = 0
        self._more_bytes = self._more_lines = 0

    def feed(self, data: bytes) -> None:
        """The next bytes of the original."""
        self._file.kept += len(data)
        if self._redactor is None:
            self._write(data)
            return
        self._held += data
        cut = self._held.rfind(b"\n") + 1
        if not cut and len(self._held) > MAX_HELD:
            cut = self._redactor.safe_cut(self._held)
        if cut:
            block, self._held = self._held[:cut], self._held[cut:]
            self._mask(self._redactor, block)

    def gap(self, start: int, stop: int | None, newlines: int | None) -> None:
        """Bytes of the original are left out here."""
        self.flush()
        self._file.gaps.append((start, stop))
        if stop is not None:
            self._more_bytes += stop - start
            self._more_lines += newlines or 0
            self._file.shifts.append((self._written, self._more_bytes, self._more_lines))

    def flush(self) -> None:
        """Write what waits for the end of its line."""
        if self._held and self._redactor is not None:
            block, self._held = self._held, b""
            self._mask(self._redactor, block)

    def close(self) -> None:
        """Write the rest and sync. Raises OSError on a full disk."""
        try:
            self.flush()
            if self._redactor is not None:
                self._file.masked = self._redactor.count
            self._out.flush()
            os.fsync(self._out.fileno())
        finally:
            self._out.close()

    def _mask(self, redactor: Redactor, block: bytes) -> None:
        masked = redactor.feed(block)
        if masked != block and len(masked) != len(block):
            at = self._written
            for before, after in zip(io.BytesIO(block), io.BytesIO(masked), strict=False):
                at += len(after)
                if len(before) != len(after):
                    self._more_bytes += len(before) - len(after)
                    self._file.shifts.append((at, self._more_bytes, self._more_lines))
        self._write(masked)

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._written += len(data)
