"""The child that reads a job's files as the job's user: `python -I -m collector.user_reader`, request in, frames out.

It starts as root with a clean environment, imports all it needs, gives up every privilege for good (groups, uid,
no_new_privs, limits), and only then looks at a path. Whatever a user prepared - links to secrets, FIFOs, devices, a
hung file system - meets a process that has no more rights than the user and that nobody waits for.

Frames on standard output: a line of JSON, followed by `n` bytes where its type is `data`.
    look {pattern}            about to list that pattern
    file {pattern, path, size, modified, id}, data {n}, gap {start, stop, newlines}, end {note}
    refused {pattern, path, outcome, why}
    bye {seen}
"""

from __future__ import annotations

import ctypes
import errno
import fnmatch
import json
import os
import pwd
import re
import resource
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from collector.opening import RegularFile, compression, content, file_type, open_file

MAX_LISTED = 300_000
"""Entries of folders looked at for all patterns together."""
MAX_DEPTH = 6
"""Folders below `**`."""
LEAST = 256 << 10
"""Bytes that every file gets at least, as long as the total allows."""
SKIMMED = 16 << 30
"""Bytes read only to count lines in the part of a large file that is dropped."""
_BLOCK = 1 << 20
_PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 38, 4
_WILD = re.compile(r"[*?\[]")


class Frames:
    """Writes frames."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def send(self, kind: str, data: bytes | memoryview | None = None, **fields: Any) -> None:
        """One frame; `data` follows its line."""
        row = {"t": kind, **fields}
        if data is not None:
            row["n"] = len(data)
        # paths may be any bytes: surrogates travel as \udcXX
        self._out.write(json.dumps(row).encode("ascii") + b"\n")
        if data is not None:
            self._out.write(data)
        self._out.flush()


def drop_privileges(uid: int, seconds: float) -> None:
    """Become `uid` with its groups, for good. Raises OSError or KeyError; then nothing may be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if os.geteuid() != uid:
        try:
            entry = pwd.getpwuid(uid)
            gid, groups = entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
        except KeyError:
            # a user of a cluster whose node has no entry for it: no group of this machine is its own
            gid, groups = 65534, []
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid):
        raise OSError(errno.EPERM, "the user could not be changed")
    # nobody of that user may look into this process, whose standard output root reads
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    cpu = int(seconds) + 5
    for limit, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, 2 << 30),
    ):
        most = resource.getrlimit(limit)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (value, value))


class Reader:
    """Lists the files of patterns, then sends them within the budget."""

    def __init__(self, request: dict[str, Any], frames: Frames) -> None:
        self._request, self._frames = request, frames
        self._deadline = time.monotonic() + float(request["seconds"])
        self._listed = 0
        self._files: list[tuple[int, str, str, os.stat_result]] = []
        """(pattern, real folder, name, status)"""
        self._seen: set[tuple[int, int]] = set()

    def run(self) -> None:
        """Everything; ends with `bye`."""
        skip = set(self._request.get("skip_patterns", ()))
        for index, pattern in enumerate(self._request["patterns"]):
            if index in skip:
                continue
            self._frames.send("look", pattern=index)
            for path in self._glob(pattern["glob"]):
                if len(self._files) >= int(self._request["files"]):
                    self._refuse(index, path, "truncated", f"more than {len(self._files)} files")
                    break
                self._note(index, path, pattern)
        wanted = [one for one in self._files if os.path.join(one[1], one[2]) not in set(self._request.get("done", ()))]  # noqa: PTH118
        left = int(self._request["bytes"])
        for number, (index, folder, name, status) in enumerate(wanted):
            share = max(left // (len(wanted) - number), min(LEAST, left))
            left -= self._send(index, folder, name, status, min(share, int(self._request["file_bytes"])))
        self._frames.send("bye", seen=len(self._files))

    # --- listing ------------------------------------------------------------------------------------------------------

    def _glob(self, glob: str) -> Iterator[str]:
        parts = [part for part in glob.split("/") if part]
        yield from self._expand("/", parts, MAX_DEPTH)

    def _expand(self, folder: str, parts: list[str], depth: int) -> Iterator[str]:
        if not parts:
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self._expand(folder, rest, depth)
            if depth > 0:
                for name in self._names(folder, "*", folders=True):
                    yield from self._expand(os.path.join(folder, name), parts, depth - 1)  # noqa: PTH118
            return
        names = self._names(folder, first) if _WILD.search(first) else [first]
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - names may be no text
            if rest:
                yield from self._expand(path, rest, depth)
            elif os.path.lexists(path):
                yield path

    def _names(self, folder: str, pattern: str, folders: bool = False) -> list[str]:
        match = re.compile(fnmatch.translate(pattern)).match
        found = []
        try:
            with os.scandir(folder) as listing:
                for entry in listing:
                    self._listed += 1
                    if self._listed > MAX_LISTED:
                        break
                    if entry.name.startswith(".") and not pattern.startswith("."):
                        continue
                    if match(entry.name) and (not folders or entry.is_dir(follow_symlinks=False)):
                        found.append(entry.name)
        except OSError:
            return []
        return sorted(found)

    def _note(self, index: int, path: str, pattern: dict[str, Any]) -> None:
        """Look at one file without opening it."""
        if pattern.get("only") and not _allowed(path, pattern):
            return
        folder, name = os.path.split(path)
        real = os.path.realpath(folder)
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                target = os.path.realpath(path, strict=True)
                if not target.startswith(real.rstrip("/") + "/"):
                    self._refuse(index, path, "refused", "a link that leads out of its folder is not followed")
                    return
                real, name = os.path.split(target)
                status = os.lstat(target)
        except OSError as error:
            self._refuse(index, path, "unreachable", f"it cannot be looked at: {error.strerror}")
            return
        if not stat.S_ISREG(status.st_mode):
            if not stat.S_ISDIR(status.st_mode):
                self._refuse(index, path, "refused", f"{file_type(status.st_mode)} is never opened")
            return
        since = pattern.get("since")
        owned = pattern.get("owned")
        if (since and status.st_mtime < float(since)) or (owned and status.st_uid != int(self._request["uid"])):
            return
        if (status.st_dev, status.st_ino) not in self._seen:
            self._seen.add((status.st_dev, status.st_ino))
            self._files.append((index, real, name, status))

    def _refuse(self, index: int, path: str, outcome: str, why: str) -> None:
        self._frames.send("refused", pattern=index, path=path, outcome=outcome, why=why)

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send(self, index: int, folder: str, name: str, status: os.stat_result, limit: int) -> int:
        path = os.path.join(folder, name)  # noqa: PTH118
        if limit <= 0:
            self._refuse(index, path, "refused", "over the budget of bytes")
            return 0
        if time.monotonic() > self._deadline:
            self._refuse(index, path, "timed_out", f"{self._request['seconds']:g} s were over")
            return 0
        self._frames.send(
            "file", pattern=index, path=path, size=status.st_size, modified=status.st_mtime,
            id=[status.st_dev, status.st_ino],
        )  # fmt: skip
        try:
            with open_file(Path(folder), (name,)) as file:
                head = file.read(8) or b""
                file.seek(0)
                if compression(head):
                    return self._inflated(file, limit)
                return self._plain(file, limit)
        except (OSError, ValueError, ImportError) as error:
            self._frames.send("end", note=f"it cannot be read: {getattr(error, 'strerror', None) or error}", ok=False)
            return 0

    def _inflated(self, file: RegularFile, limit: int) -> int:
        """The beginning of what a compressed file holds; where it ends is known only by reading it all."""
        sent = 0
        stream = content(file)
        while sent < limit and (block := stream.read(min(_BLOCK, limit - sent))):
            self._frames.send("data", block)
            sent += len(block)
        rest = bool(stream.read(1))
        if rest:
            # the number of dropped bytes is unknown
            self._frames.send("gap", start=sent, stop=None, newlines=None)
        self._frames.send("end", note=getattr(stream.raw, "note", None), ok=True)  # type: ignore[attr-defined]
        return sent

    def _plain(self, file: RegularFile, limit: int) -> int:
        if file.size <= limit:
            sent = self._copy(file, 0, file.size)
        else:
            head_end = _line_end(file, limit // 4)
            tail_start = max(_line_start(file, file.size - (limit - head_end)), head_end)
            sent = self._copy(file, 0, head_end)
            newlines = self._count(file, head_end, tail_start)
            self._frames.send("gap", start=head_end, stop=tail_start, newlines=newlines)
            sent += self._copy(file, tail_start, file.size)
        self._frames.send("end", note=file.note, ok=True)
        return sent

    def _copy(self, file: RegularFile, start: int, stop: int) -> int:
        file.seek(start)
        sent = 0
        while start + sent < stop and (block := file.read(min(_BLOCK, stop - start - sent))):
            self._frames.send("data", block)
            sent += len(block)
        return sent

    def _count(self, file: RegularFile, start: int, stop: int) -> int | None:
        """Newlines in a part of the file; holes have none. None if it is too much to read."""
        total, read, at = 0, 0, start
        while at < stop:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                end = min(os.lseek(file.fileno(), at, os.SEEK_HOLE), stop)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return total
                end = stop
            while at < min(end, stop):
                block = os.pread(file.fileno(), min(4 * _BLOCK, min(end, stop) - at), at)
                if not block:
                    return total
                total += block.count(b"\n")
                at += len(block)
                read += len(block)
                if read > SKIMMED or time.monotonic() > self._deadline:
                    return None
                if read % (256 << 20) < 4 * _BLOCK:
                    self._frames.send("alive")
        return total


def _allowed(path: str, pattern: dict[str, Any]) -> bool:
    """True if what the name says is among the values asked for; numbers are compared as numbers (`0003` is 3)."""
    match = re.fullmatch(pattern.get("regex") or ".*", path)
    if match is None:
        return False
    said = match.groupdict()
    return all(
        said.get(name) is None or said[name] in values or said[name].lstrip("0") in [v.lstrip("0") for v in values]
        for name, values in pattern["only"].items()
    )


def _line_end(file: RegularFile, near: int) -> int:
    """The end of the last line that ends at or before `near`, or `near` where lines are longer than a megabyte."""
    start = max(near - _BLOCK, 0)
    block = os.pread(file.fileno(), near - start, start)
    found = block.rfind(b"\n")
    return start + found + 1 if found >= 0 else near


def _line_start(file: RegularFile, near: int) -> int:
    """The start of the first line that starts at or after `near`, or `near`."""
    block = os.pread(file.fileno(), _BLOCK, near)
    found = block.find(b"\n")
    return near + found + 1 if found >= 0 and near + found + 1 < file.size else near


def main() -> int:
    """Read one request from standard input and answer it: 0, or 3 if privileges could not be dropped."""
    try:
        import zstandard  # noqa: F401 - once the privileges are gone, its files may not be readable
    except ImportError:
        pass
    frames = Frames(os.fdopen(os.dup(1), "wb"))
    request = json.loads(sys.stdin.buffer.read())
    try:
        drop_privileges(int(request["uid"]), float(request["seconds"]))
    except (OSError, ValueError) as error:
        frames.send("cannot", why=f"cannot become user {request['uid']}: {error}")
        return 3
    os.chdir("/")
    Reader(request, frames).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
