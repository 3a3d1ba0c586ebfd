"""A folder (or files, or standard input) that a dead job left: the source behind `firstfault diagnose DIR`.

Three passes, so that a file is judged among its siblings: the walk finds regular files and never leaves the root; each
file's head says what it is; then names give origins, copies are dropped and checkpoints are put together. Content is
opened again, lazily, by whoever reads the artifact.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from collector import checkpoint_names, naming, piped
from collector.classify import HEAD_BYTES, TEXT_BYTES, Kind, classify, never_evidence
from collector.copies import MAX_COMPARED, Text, find_copies
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, Origin, Outcome, RunRef
from collector.opening import Inflated, RegularFile, content, file_type, open_file, opener
from collector.walking import Found, shown, walk

_SMALL = 4096
_COUNTED = 64 << 20
_COUNTING_SECONDS = 10.0
_Answer = Artifact | LedgerEntry


@dataclass(frozen=True, slots=True)
class _File:
    """A file below one folder, with the name to show for it."""

    root: Path
    parts: tuple[str, ...]
    """Below the root."""
    path: str
    size: int
    modified: float
    identity: tuple[int, int]

    def open(self) -> Callable[[], BinaryIO]:
        return opener(self.root, self.parts)

    @property
    def absolute(self) -> str:
        return os.path.join(self.root, *self.parts)  # noqa: PTH118 - names may be no text; never opened from here


@dataclass(frozen=True, slots=True)
class _Judged:
    file: _File
    kind: ArtifactKind
    ranks: frozenset[int]
    """Global ranks that the head of a log names. The heads themselves are not kept: there may be 200,000 files."""
    compressed: bool


class LogDir:
    """Source over files that are already there."""

    name = "log_dir"

    def __init__(self, root: Path | Sequence[Path] | BinaryIO) -> None:
        """`root`: a folder, a file, several of them, or an open binary stream such as standard input."""
        self._stream: BinaryIO | None = None
        self._roots: list[Path] = []
        if isinstance(root, Path | str):
            self._roots = [Path(root)]
        elif isinstance(root, Sequence):
            self._roots = [Path(each) for each in root]
        else:
            self._stream = root

    def collect(self, run: RunRef, budget: Budget) -> Iterator[_Answer]:
        """Artifacts, sorted by path, and a ledger row for whatever was not taken. Raises nothing."""
        if self._stream is not None:
            yield from piped.collect(self.name, self._stream, budget)
            return
        deadline = time.monotonic() + budget.seconds
        files: list[_File] = []
        for found in self._files(budget):
            if isinstance(found, LedgerEntry):
                yield found
            else:
                files.append(found)
        yield from self._take(files, budget, deadline)

    def _files(self, budget: Budget) -> Iterator[_File | LedgerEntry]:
        several = len(self._roots) > 1
        seen: dict[tuple[int, int], str] = {}
        left = budget.files
        for root in self._roots:
            for found in _below(root, self.name, left, several):
                if isinstance(found, _File):
                    left -= 1
                    if found.identity in seen and found.identity != (0, 0):
                        first = seen[found.identity]
                        yield self._row(found, Outcome.COLLECTED, f"copy of {first} (the same file)")
                        continue
                    seen[found.identity] = found.path
                yield found

    def _row(self, file: _File, outcome: Outcome, detail: str, kind: ArtifactKind | None = None) -> LedgerEntry:
        return LedgerEntry(self.name, file.path, outcome, kind=kind, bytes_seen=file.size, detail=detail)

    def _take(self, files: list[_File], budget: Budget, deadline: float) -> Iterator[_Answer]:
        checkpoints, used = self._checkpoints(files)
        judged: list[_Judged] = []
        empty: list[LedgerEntry] = []
        for file in files:
            if file.path in used or (never_evidence(file.path) and not _known_to_readers(file)):
                continue
            if time.monotonic() > deadline:
                yield self._row(
                    file, Outcome.TIMED_OUT, f"{budget.seconds:g} s were over; later files were not looked at"
                )
                break
            answer = self._judge(file)
            if isinstance(answer, _Judged):
                judged.append(answer)
            elif answer is not None and answer.outcome is Outcome.EMPTY:
                empty.append(answer)
            elif answer is not None:
                yield answer
        # an empty log of a rank says something about that rank: the row carries its origin
        named = naming.origins([one.file.path for one in judged] + [row.path for row in empty])
        yield from (replace(row, origin=named[row.path].origin) for row in empty)
        names = self._origins(judged, named)
        copies = find_copies(_consoles(judged, names))
        artifacts: list[_Answer] = list(checkpoints)
        for one in judged:
            if one.file.path in copies:
                detail = f"copy of {copies[one.file.path]}"
                artifacts.append(self._row(one.file, Outcome.COLLECTED, detail, one.kind))
            else:
                artifacts.append(_artifact(one, names[one.file.path]))
                artifacts.extend(self._damage(one, deadline) if one.compressed else ())
        yield from self._within(sorted(artifacts, key=lambda answer: answer.path), budget)

    def _within(self, answers: list[_Answer], budget: Budget) -> Iterator[_Answer]:
        """Refuse what would go over the byte budget."""
        left = budget.bytes
        for answer in answers:
            if isinstance(answer, Artifact) and answer.kind is not ArtifactKind.CHECKPOINT:
                left -= answer.size
                if left < 0:
                    yield LedgerEntry(self.name, answer.path, Outcome.REFUSED, answer.origin, answer.kind, answer.size,
                                      detail=f"over the budget of {budget.bytes} bytes")  # fmt: skip
                    continue
            yield answer

    def _judge(self, file: _File) -> _Judged | LedgerEntry | None:
        if file.size == 0:
            return self._row(file, Outcome.EMPTY, "0 bytes")
        try:
            with file.open()() as stream:
                head = stream.read(HEAD_BYTES)
                raw: Any = getattr(stream, "raw", None)
                note = getattr(raw, "note", None)
        except FileNotFoundError:
            return self._row(file, Outcome.UNREACHABLE, "it vanished before it was read")
        except (OSError, ValueError, ImportError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return self._row(file, Outcome.REFUSED, f"it cannot be opened: {reason}")
        if not head:
            return self._row(file, Outcome.EMPTY if not note else Outcome.TRUNCATED, note or "nothing inside")
        kind: Kind = classify(file.path, head)
        if kind.kind is not None:
            ranks = naming.spoken(head[:TEXT_BYTES]) if kind.kind is ArtifactKind.RANK_LOG else frozenset[int]()
            return _Judged(file, kind.kind, ranks, isinstance(raw, Inflated))
        return self._row(file, kind.outcome, kind.detail or "") if kind.outcome else None

    def _damage(self, one: _Judged, deadline: float) -> Iterator[LedgerEntry]:
        """A row for a compressed file that is cut off or expands without end: known only by reading it through."""
        try:
            with open_file(one.file.root, one.file.parts) as stored:
                if stored.size > _COUNTED:
                    return
                seen, note = _read_through(stored, min(deadline, time.monotonic() + _COUNTING_SECONDS))
        except (OSError, ImportError):
            return
        if note:
            yield LedgerEntry(self.name, one.file.path, Outcome.TRUNCATED, kind=one.kind, bytes_seen=seen,
                              bytes_kept=seen, dropped_from=seen, detail=note)  # fmt: skip

    @staticmethod
    def _origins(judged: list[_Judged], names: dict[str, naming.Name]) -> dict[str, naming.Name]:
        """`names` corrected by what the heads of the files say."""
        for one in judged:
            name = names[one.file.path]
            if one.kind is not ArtifactKind.RANK_LOG:
                continue
            if name.origin.rank is not None and naming.contradicts(one.ranks, name.origin.rank):
                name = replace(name, origin=replace(name.origin, rank=None))
            origin = name.origin
            if origin.rank is None and origin.local_rank is None and name.pid is None:
                name = replace(name, origin=replace(origin, stream="console"))
            names[one.file.path] = name
        return names

    def _checkpoints(self, files: list[_File]) -> tuple[list[Artifact], set[str]]:
        """Artifacts of the checkpoints among the files, and the paths of the files that belong to them."""
        artifacts: list[Artifact] = []
        used: set[str] = set()
        for root in {file.root: None for file in files}:
            inside = {file.parts: file for file in files if file.root == root}

            def read_small(parts: tuple[str, ...], root: Path = root) -> bytes | None:
                try:
                    with open_file(root, parts) as stream:
                        return stream.read(_SMALL)
                except OSError:
                    return None

            for group in checkpoint_names.group(inside, read_small):
                members = [inside[parts] for parts in dict.fromkeys((*group.members, *group.trackers))]
                used.update(member.path for member in members)
                artifacts.append(_checkpoint(group, members))
        return artifacts, used


def _known_to_readers(file: _File) -> bool:
    """A pickle without a telling suffix may be a flight-recorder dump; files with these suffixes never are."""
    return "." not in file.path.rpartition("/")[2]


def _below(root: Path, source: str, left: int, several: bool) -> Iterator[_File | LedgerEntry]:
    """The files of one root: itself, or what is below it. Of several roots each keeps its name in front."""
    label = shown((str(root) if several else root.name or str(root),))
    try:
        # what the user names is taken at its word: a link there is followed, once
        real = root.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError, ValueError) as error:
        yield LedgerEntry(source, label, Outcome.UNREACHABLE, detail=f"it is not there: {error}")
        return
    if not stat.S_ISDIR(status.st_mode):
        if stat.S_ISREG(status.st_mode):
            identity = (status.st_dev, status.st_ino)
            yield _File(real.parent, (real.name,), label, status.st_size, status.st_mtime, identity)
        else:
            detail = f"{file_type(status.st_mode)}; only regular files and folders are read"
            yield LedgerEntry(source, label, Outcome.REFUSED, detail=detail)
        return
    before = (label,) if several else ()
    for found in walk(real, source, left):
        if isinstance(found, Found):
            path = "/".join((*before, shown(found.parts)))
            yield _File(real, found.parts, path, found.size, found.modified, found.identity)
        else:
            yield replace(found, path="/".join((*before, found.path)))


def _consoles(judged: list[_Judged], names: dict[str, naming.Name]) -> list[Text]:
    """The logs among which copies are looked for; none if there are too many to compare."""
    consoles = [
        one.file
        for one in judged
        if one.kind is ArtifactKind.RANK_LOG and names[one.file.path].origin.stream == "console"
    ]
    if not 2 <= len(consoles) <= MAX_COMPARED:
        return []
    texts = []
    for file in consoles:
        try:
            with file.open()() as stream:
                texts.append(Text(file.path, names[file.path].origin.node, stream.read(HEAD_BYTES), file.open()))
        except (OSError, ImportError):
            continue
    return texts


def _artifact(one: _Judged, name: naming.Name) -> Artifact:
    file = one.file
    return Artifact(one.kind, file.path, name.origin, file.size, file.open(), file.modified)


def _checkpoint(group: checkpoint_names.Group, members: list[_File]) -> Artifact:
    one = members[0]
    # what stands in front of the parts of every file of this root
    before = one.path[: len(one.path) - len(shown(one.parts))]
    path = one.path if group.path == one.parts else before + shown(group.path)
    return Artifact(
        ArtifactKind.CHECKPOINT,
        path or ".",
        Origin(),
        sum(member.size for member in members),
        one.open(),
        max(member.modified for member in members),
        tuple(member.absolute for member in members),
    )


def _read_through(stored: RegularFile, deadline: float) -> tuple[int, str | None]:
    """Decompressed size and what is wrong with the data. Stops at the deadline, saying nothing."""
    seen = 0
    stream = content(stored)
    while block := stream.read(1 << 20):
        seen += len(block)
        if time.monotonic() > deadline:
            return seen, None
    return seen, stream.raw.note  # type: ignore[attr-defined]
