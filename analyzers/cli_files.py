"""Files that the command line is told to read or write: what they must be before anybody touches them.

A wrong name must cost a sentence, never evidence: a page is not written over a log, and is written beside its target
and renamed, so that no reader sees half of it. What is read whole must be a regular file of bounded size, because a
FIFO never answers and a device never ends.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import click

MAX_READ = 64 << 20
"""Bytes of a file that is read whole (an old incident, a signature)."""
_LOOKED_AT = 200_000
"""Names below the inputs that are compared with a page that has several names."""
_PAGE = (b"<!doctype html", b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'")
"""What the first kilobyte of every page of ours holds (analyzers/report/templates)."""


def reason(error: OSError | ValueError) -> str:
    """Why the system refused, in its own words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def status(path: Path) -> os.stat_result | None:
    """`stat` of what `path` leads to, None if there is nothing. Any other refusal is a usage error."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be looked at: {reason(error)}") from error


def read_regular(path: Path) -> bytes:
    """The content of a regular file of at most MAX_READ bytes; a usage error in words otherwise."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_READ + 1)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {reason(error)}") from error
    if len(content) > MAX_READ:  # it grew, or a file system lies about sizes
        raise click.UsageError(f"{path} is larger than {MAX_READ >> 20} MB")
    return content


def check_regular(path: Path) -> None:
    """Usage error unless `path` is a regular file of at most MAX_READ bytes."""
    found = status(path)
    if found is None:
        raise click.UsageError(f"{path} does not exist")
    if not stat.S_ISREG(found.st_mode):
        raise click.UsageError(f"{path} is not a regular file")
    if found.st_size > MAX_READ:
        raise click.UsageError(f"{path} is larger than {MAX_READ >> 20} MB")


def check_signatures(folder: Path | None) -> int:
    """How many signature files a folder holds. Usage error if one of them is no regular file of bounded size."""
    from analyzers.signatures import _files

    if folder is None:
        return 0
    try:
        files = _files(folder)
    except OSError as error:
        raise click.UsageError(f"{error.filename or folder} cannot be read: {reason(error)}") from error
    for path in files:
        check_regular(path)
    return len(files)


def check_page(page: Path, inputs: Sequence[Path]) -> None:
    """Usage error if writing `page` would destroy evidence, or if it is no regular file.

    Refused are an input itself under any name, and what is already there below a folder among the inputs, unless it is
    an earlier page of ours.
    """
    found = status(page)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise click.UsageError(f"{page} is not a regular file; the page can only be written to one")
    identity = (found.st_dev, found.st_ino)
    if identity in {(at.st_dev, at.st_ino) for at in (_standard_input(), *map(status, inputs)) if at is not None}:
        raise click.UsageError(f"{page} is one of the inputs; nothing was written. Give the page another name")
    folders = [Path(os.path.realpath(path)) for path in inputs if path.is_dir()]
    inside = any(Path(os.path.realpath(page)).is_relative_to(folder) for folder in folders)
    if (inside or (found.st_nlink > 1 and _linked(identity, folders))) and not _is_page(page):
        raise click.UsageError(
            f"{page} is a file of the run and no page of firstfault; nothing was written. Give the page another name"
        )


def _standard_input() -> os.stat_result | None:
    try:
        found = os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _linked(identity: tuple[int, int], folders: Iterable[Path]) -> bool:
    """True if a file below `folders` is the same one under another name (a hard link)."""
    left = _LOOKED_AT
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names[:left]:
                with suppress(OSError, ValueError):
                    at = (Path(parent) / name).lstat()
                    if (at.st_dev, at.st_ino) == identity:
                        return True
            left = max(left - len(names), 0)
            if not left:
                return False
    return False


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(1024).lstrip()
    except OSError:
        return False
    return head.startswith(_PAGE[0]) and _PAGE[1] in head


def write_page(page: Path, text: str) -> None:
    """Write `page` whole or not at all: beside its target first, then renamed over it."""
    target = Path(os.path.realpath(page))
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode("utf-8", "replace"))
            with suppress(FileNotFoundError):
                beside.chmod(stat.S_IMODE(target.stat().st_mode))
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        raise click.UsageError(f"cannot write {page}: {reason(error)}") from error
