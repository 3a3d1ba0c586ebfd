"""Walks a folder that may be hostile: sorted, bounded, through descriptors, never out of the root.

A symbolic link is never followed. One that leads to a place inside the root is passed over in silence, because the
walk meets its target anyway; one that leads out, or nowhere, is a ledger row. Names are bytes that need not be text:
they stay as the file system has them and are shown escaped.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from collector.model import LedgerEntry, Outcome
from collector.opening import file_type

MAX_DEPTH = 32
MAX_ROWS_PER_REASON = 200
SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", "site-packages", ".ipynb_checkpoints",
     ".mypy_cache", ".pytest_cache", ".ruff_cache", ".cache", ".tox", ".idea", ".vscode"}
)  # fmt: skip
"""Folders of tools, never of a run: not entered."""

_SPARE = 10_000
"""Entries listed of one folder beyond the limit of files, for those that are no files."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Found(NamedTuple):
    """A regular file below the root."""

    parts: tuple[str, ...]
    """Names from the root down, as the file system has them (undecodable bytes as surrogates)."""
    size: int
    modified: float
    identity: tuple[int, int]
    """Device and inode: equal for two hard links of one file."""


def shown(parts: Sequence[str]) -> str:
    r"""A path to show and cite: `/` between names, control characters and undecodable bytes as `\n`, `\x1b`, `\xff`."""
    text = "/".join(parts)
    if text.isascii() and text.isprintable():
        return text
    decoded = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in decoded)


def walk(root: Path, source: str, max_files: int) -> Iterator[Found | LedgerEntry]:
    """All regular files below the folder `root`, sorted by name folder by folder, and a ledger row for what was passed.

    At most `max_files` files are yielded; the rest is one ledger row. Raises nothing: a folder that cannot be listed
    is a row.
    """
    walker = _Walk(root, source, max_files)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        yield walker.row((), _outcome(error), f"the folder cannot be opened: {error.strerror}")
        return
    yield from walker.folder(descriptor, ())
    yield from walker.suppressed()


def _outcome(error: OSError) -> Outcome:
    gone = error.errno in (errno.ENOENT, errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT)
    return Outcome.UNREACHABLE if gone else Outcome.REFUSED


class _Walk:
    def __init__(self, root: Path, source: str, max_files: int) -> None:
        self._root, self._source, self._left = os.path.realpath(root), source, max_files
        self._limit = max_files
        self._rows: dict[str, int] = {}
        self._full = False

    def row(self, parts: Sequence[str], outcome: Outcome, detail: str, seen: int = 0) -> LedgerEntry:
        return LedgerEntry(self._source, shown(parts) or ".", outcome, bytes_seen=seen, detail=detail)

    def _counted(self, parts: Sequence[str], outcome: Outcome, detail: str) -> Iterator[LedgerEntry]:
        """A row, unless there are already very many for the same reason (a folder of a million FIFOs)."""
        count = self._rows[detail] = self._rows.get(detail, 0) + 1
        if count <= MAX_ROWS_PER_REASON:
            yield self.row(parts, outcome, detail)

    def suppressed(self) -> Iterator[LedgerEntry]:
        for detail, count in self._rows.items():
            if count > MAX_ROWS_PER_REASON:
                yield self.row((), Outcome.REFUSED, f"{count - MAX_ROWS_PER_REASON} more of: {detail}")

    def folder(self, descriptor: int, parts: tuple[str, ...]) -> Iterator[Found | LedgerEntry]:
        """List the folder behind `descriptor` (closed here) and what is below it."""
        try:
            with os.scandir(descriptor) as listing:
                entries = sorted(islice(listing, self._limit + _SPARE), key=lambda entry: entry.name)
                if next(listing, None) is not None:
                    yield self.row(parts, Outcome.TRUNCATED, f"only {len(entries)} entries of this folder were listed")
            for entry in entries:
                if self._full:
                    return
                yield from self._entry(entry, descriptor, (*parts, entry.name))
        except OSError as error:
            yield self.row(parts, _outcome(error), f"the folder cannot be listed: {error.strerror}")
        finally:
            os.close(descriptor)

    def _entry(self, entry: os.DirEntry[str], folder: int, parts: tuple[str, ...]) -> Iterator[Found | LedgerEntry]:
        try:
            status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            yield self.row(parts, _outcome(error), f"it vanished or cannot be looked at: {error.strerror}")
            return
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            if entry.name in SKIPPED_FOLDERS:
                return
            yield from self._enter(entry.name, folder, parts)
        elif stat.S_ISLNK(mode):
            yield from self._link(parts)
        elif not stat.S_ISREG(mode):
            yield from self._counted(parts, Outcome.REFUSED, f"{file_type(mode)} is never opened")
        elif self._left <= 0:
            self._full = True
            yield self.row((), Outcome.TRUNCATED, f"more than {self._limit} files: the rest was not looked at")
        else:
            self._left -= 1
            yield Found(parts, status.st_size, status.st_mtime, (status.st_dev, status.st_ino))

    def _enter(self, name: str, folder: int, parts: tuple[str, ...]) -> Iterator[Found | LedgerEntry]:
        if len(parts) > MAX_DEPTH:
            yield from self._counted(parts, Outcome.REFUSED, f"folders deeper than {MAX_DEPTH} are not entered")
            return
        try:
            child = os.open(name, _FOLDER, dir_fd=folder)
        except OSError as error:
            yield self.row(parts, _outcome(error), f"the folder cannot be opened: {error.strerror}")
            return
        yield from self.folder(child, parts)

    def _link(self, parts: tuple[str, ...]) -> Iterator[LedgerEntry]:
        path = os.path.join(self._root, *parts)  # noqa: PTH118 - surrogate names; only asked, never opened
        try:
            target = os.path.realpath(path, strict=True)
        except OSError as error:
            reason = "a link in a loop" if error.errno == errno.ELOOP else "a link that leads nowhere"
            yield from self._counted(parts, Outcome.REFUSED, reason)
            return
        if target != self._root and not target.startswith(self._root.rstrip("/") + "/"):
            yield from self._counted(parts, Outcome.REFUSED, "a link that leads out of the folder is not followed")
