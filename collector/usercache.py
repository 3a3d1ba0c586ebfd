"""A folder of the user's own for things that are expensive to make again, and never worth failing for.

Root and users run this on shared machines: what lies in the cache is loaded by a C library, so only folders and files
that belong to us and that nobody else may write are believed. Everything else counts as "not there".
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_BYTES = 64 << 20
"""A cached value larger than this is not ours."""


def default_folder() -> Path | None:
    """`$XDG_CACHE_HOME/firstfault`, else `~/.cache/firstfault`; None where the environment names no absolute home.

    Source: XDG Base Directory Specification (a relative XDG_CACHE_HOME is to be ignored).
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():
        home = os.environ.get("HOME", "")
        if not Path(home).is_absolute():
            return None
        base = str(Path(home) / ".cache")
    return Path(base) / "firstfault"


def get(folder: Path | None, name: str) -> bytes | None:
    """The bytes stored as `name` in `folder`; None if there are none or they cannot be trusted. No OSError."""
    if folder is None or not _trusted_folder(folder):
        return None
    try:
        # O_NOFOLLOW: a link could lead to somebody else's file. O_NONBLOCK: a pipe must not hold us up.
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _ours(status) or status.st_size > MAX_BYTES:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def put(folder: Path | None, name: str, content: bytes) -> bool:
    """Store `content` as `name`, atomically, readable by us alone. False where that is not possible. No OSError."""
    if folder is None:
        return False
    import tempfile  # slow to load, and most runs only read

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _trusted_folder(folder):
            return False
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(folder / name)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            return False
    except OSError:
        return False
    return True


def _trusted_folder(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and _ours(status)


def _ours(status: os.stat_result) -> bool:
    """Ours, and nobody else may write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
