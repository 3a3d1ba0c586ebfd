"""Tickets on local disk between those who see a job end and those who collect: nothing is lost, nothing is done twice.

    <spool>/new/<name>              a ticket: put there by rename, complete or not at all
    <spool>/new/<name>.retry        JSON: attempts, when to try again, what went wrong
    <spool>/evidence/<name>/        files that belong to it
    <spool>/dead/<name>             tickets that were given up, each with `<name>.why`
    <spool>/marks/<key>             memory of what was done

A claim is a lock (flock) on the ticket's file and not a time written somewhere: the kernel ends it with its holder,
whether that is killed, reboots, or the clock jumps. The ticket is removed last, after its work is acknowledged, so a
death at any instruction repeats work but loses none; whoever repeats it writes the same objects again. A hook has
neither time nor need to sync; an empty ticket after a crash still has its name, and names carry what matters.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIRST_RETRY, LAST_RETRY = 5.0, 1800.0
"""Seconds before the second attempt, doubled from there, and the most between two."""
MAX_ATTEMPTS = 200
"""About four days at LAST_RETRY: a store may be down over a long weekend."""
ORPHAN_AGE = 3600.0
MARK_AGE = 30 * 86400.0
_NAME_MAX = 200
_RETRY = ".retry"


class SpoolError(Exception):
    """The spool folder cannot be used; the message says why."""


@dataclass(slots=True)
class Ticket:
    """A claimed ticket. Its lock lives as long as the object is not released (done, fail, defer)."""

    name: str
    body: bytes
    created: float
    """Unix seconds of its last change: when the hook wrote it."""
    evidence: Path
    """Folder for its files; may not exist."""
    attempts: int = 0
    """Failed attempts so far."""
    state: dict[str, Any] = field(default_factory=dict)
    """What the holder wants to remember until the next attempt; JSON values only."""
    descriptor: int = -1


class Spool:
    """One folder of tickets. Several processes may work on it at once."""

    def __init__(
        self, path: Path | str, *, clock: Callable[[], float] = time.time, max_attempts: int = MAX_ATTEMPTS
    ) -> None:
        """Creates the folder (mode 0700) if it is not there. Raises SpoolError if that fails or it is a link."""
        self.path = Path(path)
        self._clock = clock
        self._max_attempts = max_attempts
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.path.is_symlink():
                raise SpoolError(f"{self.path} is a link")
            self._owner = _foreign_owner(self.path)
            for name in ("new", "tmp", "evidence", "dead", "marks"):
                (self.path / name).mkdir(exist_ok=True, mode=0o700)
                if self._owner is not None:
                    # root works for the hook's user, who must be able to go on alone
                    os.chown(self.path / name, *self._owner, follow_symlinks=False)
        except OSError as error:
            raise SpoolError(f"the spool {self.path} cannot be used: {error.strerror}") from error

    # --- putting and claiming -----------------------------------------------------------------------------------------

    def put(self, name: str, body: bytes = b"", state: dict[str, Any] | None = None) -> None:
        """Add a ticket, replacing one of the same name, durable when this returns. Raises OSError, ValueError."""
        _safe(name)
        if state is not None:
            self._write(self.path / "new" / f"{name}{_RETRY}", json.dumps({"state": state}).encode())
        self._write(self.path / "new" / name, body)

    def names(self) -> list[str]:
        """Names of the waiting tickets, oldest first."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.path / "new") as listing:
            for entry in listing:
                if not entry.name.endswith(_RETRY):
                    with contextlib.suppress(OSError):
                        found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        return [name for _, name in sorted(found)]

    def claim(self, *, due: bool = True) -> Ticket | None:
        """The oldest ticket that nobody holds and, with `due`, whose time has come; None if there is none."""
        return next((t for name in self.names() if (t := self.claim_named(name, due=due)) is not None), None)

    def claims(self) -> Iterator[Ticket]:
        """Each due ticket once."""
        for name in self.names():
            ticket = self.claim_named(name)
            if ticket is not None:
                yield ticket

    def claim_named(self, name: str, *, due: bool = True) -> Ticket | None:
        """That ticket, or None if it is gone, held by another, not yet due, or no regular file."""
        path = self.path / "new" / name
        retry = self._retry(name)
        if due and not self._is_due(retry):
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine, there = os.fstat(descriptor), path.lstat()
            if not stat.S_ISREG(mine.st_mode):
                raise OSError(errno.EINVAL, "no regular file")
            if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
                raise OSError(errno.ESTALE, "it was replaced or done meanwhile")
            body = os.read(descriptor, 1 << 20)
        except OSError:
            os.close(descriptor)
            return None
        # another holder may have put it off between our first look and our lock
        retry = self._retry(name)
        if due and not self._is_due(retry):
            os.close(descriptor)
            return None
        attempts, state = retry.get("attempts", 0), retry.get("state", {})
        evidence = self.path / "evidence" / name
        return Ticket(name, body, mine.st_mtime, evidence, attempts, state, descriptor)

    def _is_due(self, retry: dict[str, Any]) -> bool:
        """A time further away than any back-off is that of a clock that was wrong."""
        wait = float(retry.get("not_before", 0)) - self._clock()
        return wait <= 0 or wait > float(retry.get("longest", LAST_RETRY)) + 60

    # --- ending a claim -----------------------------------------------------------------------------------------------

    def done(self, ticket: Ticket) -> None:
        """The work is acknowledged: remove the ticket, then what belonged to it."""
        self._remove(ticket.name)
        self._release(ticket)

    def fail(self, ticket: Ticket, why: str, *, fatal: bool = False) -> bool:
        """Try again later, or give up (`fatal`, or too often): then it goes to `dead/`. True if it is dead."""
        ticket.attempts += 1
        if fatal or ticket.attempts >= self._max_attempts:
            self._bury(ticket, why)
            return True
        wait = min(FIRST_RETRY * 2.0 ** min(ticket.attempts - 1, 20), LAST_RETRY)
        self._put_off(ticket, wait, why)
        return False

    def defer(self, ticket: Ticket, seconds: float, why: str) -> None:
        """Look again in `seconds`: nothing failed, somebody else has to speak first."""
        self._put_off(ticket, seconds, why)

    def keep(self, ticket: Ticket) -> None:
        """Write `ticket.state` down and go on holding it. Raises OSError."""
        self._write(self.path / "new" / f"{ticket.name}{_RETRY}", self._retry_bytes(ticket, 0.0, ""))

    def _put_off(self, ticket: Ticket, wait: float, why: str) -> None:
        # on a full disk the ticket stays due, which is safe
        with contextlib.suppress(OSError):
            path = self.path / "new" / f"{ticket.name}{_RETRY}"
            self._write(path, self._retry_bytes(ticket, wait, why))
        self._release(ticket)

    def _retry_bytes(self, ticket: Ticket, wait: float, why: str) -> bytes:
        row = {
            "attempts": ticket.attempts,
            "not_before": self._clock() + wait if wait else 0,
            "longest": max(wait, LAST_RETRY),
            "why": why,
            "state": ticket.state,
        }
        return json.dumps(row).encode()

    def _bury(self, ticket: Ticket, why: str) -> None:
        text = f"{why}\n(given up after {ticket.attempts} attempts)\n"
        with contextlib.suppress(OSError):
            self._write(self.path / "dead" / f"{ticket.name}.why", text.encode())
        try:
            (self.path / "new" / ticket.name).rename(self.path / "dead" / ticket.name)
        except OSError:
            self._put_off(ticket, LAST_RETRY, why)
            return
        (self.path / "new" / f"{ticket.name}{_RETRY}").unlink(missing_ok=True)
        self._release(ticket)

    def _remove(self, name: str) -> None:
        (self.path / "new" / name).unlink(missing_ok=True)
        (self.path / "new" / f"{name}{_RETRY}").unlink(missing_ok=True)
        shutil.rmtree(self.path / "evidence" / name, ignore_errors=True)

    @staticmethod
    def _release(ticket: Ticket) -> None:
        if ticket.descriptor >= 0:
            os.close(ticket.descriptor)
            ticket.descriptor = -1

    # --- marks and the dead -------------------------------------------------------------------------------------------

    def mark(self, key: str, text: str = "") -> None:
        """Remember that `key` was done. Raises OSError."""
        self._write(self.path / "marks" / _safe(key), text.encode())

    def marked(self, key: str) -> str | None:
        """The text remembered under `key`, or None."""
        try:
            return (self.path / "marks" / _safe(key)).read_text("utf-8", "replace")
        except OSError:
            return None

    def last_mark(self) -> float | None:
        """Unix seconds of the newest mark, None if there is none."""
        return max((path.lstat().st_mtime for path in _entries(self.path / "marks")), default=None)

    def why(self, name: str) -> str:
        """Why a waiting ticket waits, "" if nobody has said so."""
        return str(self._retry(name).get("why") or "")

    def dead(self) -> dict[str, str]:
        """Name -> why, of the tickets that were given up."""
        folder = self.path / "dead"
        names = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".why"))
        return {name: _text(folder / f"{name}.why") for name in names}

    def revive(self, name: str) -> bool:
        """Put a dead ticket back among the waiting ones; False if there is none of that name."""
        try:
            (self.path / "dead" / _safe(name)).rename(self.path / "new" / name)
        except OSError:
            return False
        (self.path / "dead" / f"{name}.why").unlink(missing_ok=True)
        return True

    # --- keeping house ------------------------------------------------------------------------------------------------

    def tidy(self, max_bytes: int) -> list[tuple[str, int]]:
        """Remove what belongs to no ticket any more; above `max_bytes` drop the oldest big evidence.

        Returns (ticket name, bytes) of what was dropped; a file `DROPPED` in the evidence folder says it to whoever
        collects the ticket.
        """
        living = {*self.names(), *self.dead()}
        now = self._clock()
        sizes: list[tuple[float, str, int]] = []
        for folder in _entries(self.path / "evidence"):
            try:
                changed = folder.lstat().st_mtime
            except OSError:
                continue
            if folder.name not in living:
                # a hook makes the folder after its ticket; a minute old one belongs to nobody
                if abs(now - changed) > ORPHAN_AGE:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            sizes.append((changed, folder.name, _size(folder)))
        memories = [p for p in _entries(self.path / "new") if p.suffix == _RETRY and p.stem not in living]
        for path in (*memories, *_entries(self.path / "tmp"), *_entries(self.path / "marks")):
            limit = MARK_AGE if path.parent.name == "marks" else ORPHAN_AGE
            with contextlib.suppress(OSError):
                if abs(now - path.lstat().st_mtime) > limit:
                    path.unlink()
        return self._shrink(sizes, max_bytes)

    def _shrink(self, sizes: list[tuple[float, str, int]], max_bytes: int) -> list[tuple[str, int]]:
        dropped: list[tuple[str, int]] = []
        total = sum(size for _, _, size in sizes)
        for _, name, size in sorted(sizes):
            if total <= max_bytes:
                break
            if size < 4096:
                continue
            folder = self.path / "evidence" / name
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, exist_ok=True)
                (folder / "DROPPED").write_text(f"{size} bytes dropped: the spool was over its {max_bytes} bytes\n")
            dropped.append((name, size))
            total -= size
        return dropped

    def _retry(self, name: str) -> dict[str, Any]:
        try:
            row = json.loads((self.path / "new" / f"{name}{_RETRY}").read_bytes())
        except (OSError, ValueError):
            return {}
        return row if isinstance(row, dict) else {}

    def _write(self, path: Path, data: bytes) -> None:
        """Write `path` so that it is there whole or not at all, also after a power cut."""
        write_atomically(path, data, self.path / "tmp", self._owner)


def _foreign_owner(path: Path) -> tuple[int, int] | None:
    """(uid, gid) of the folder's owner if we are root and somebody else is it."""
    status = path.stat()
    return (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid != 0 else None


def write_atomically(path: Path, data: bytes, tmp: Path, owner: tuple[int, int] | None = None) -> None:
    """Write and sync a file in `tmp` (of the same file system), then rename it to `path`. Raises OSError."""
    draft = tmp / f"{path.name}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if owner is not None:
                os.fchown(descriptor, *owner)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _safe(name: str) -> str:
    if not name or len(name) > _NAME_MAX or name.startswith(".") or "/" in name or not name.isprintable():
        raise ValueError(f"no name for a ticket: {name[:40]!r}")
    return name


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
