"""Object storage behind five verbs, so that a laptop's folder and a fleet's bucket are the same lake.

A key is a relative path of safe segments; an object appears whole or not at all, and writing it again replaces it.
Nothing else is asked of a store (no locks, no conditional writes, no rename), because that is what every S3-compatible
server can do. The folder is the embedded default; S3 lives in `collector.store_s3`, imported only when it is named.
Errors say what a spool must know: try again later, or have a person mend the configuration.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

_SEGMENT = re.compile(r"[A-Za-z0-9_=~+@,%:-][A-Za-z0-9_=~+@,%:.-]*")
"""No leading dot (hidden and temporary files), no separators, spaces or control characters: the same key is legal in a
folder, in a bucket and in a URL."""
_MAX_SEGMENT = 240
_MAX_KEY = 900
"""File systems allow 255 bytes for a name, S3 1,024 for a key: both with room for a prefix."""
_TEMPORARY = ".tmp"
_STALE = 24 * 3600.0
_LATER = {
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.EREMOTEIO,
}  # fmt: skip
"""What goes away by itself or without a change of configuration: a full disk, a file server that is down."""
_COPY = 4 << 20
_counter = itertools.count()


class StoreError(Exception):
    """Something about a store went wrong; the message is for a person."""


class StoreUnavailable(StoreError):
    """It may work later: network, server or disk trouble, throttling, a wrong clock."""


class StoreRefused(StoreError):
    """It will not work until a person changes something: address, credentials, permissions, a missing bucket."""


class StoreMissing(StoreError):
    """There is no object of that key."""


class StoredObject(NamedTuple):
    """One line of a listing."""

    key: str
    size: int
    """Bytes."""
    modified: float
    """Unix seconds by the clock of the store."""
    etag: str = ""
    """Changes when the content does (S3: the ETag; folder: time of change and size)."""


class Store(Protocol):
    """A place for objects."""

    uri: str
    """Where it is, without credentials."""

    def put(self, key: str, data: bytes | Path) -> None:
        """Write an object whole or not at all, replacing an older one. A Path is streamed, never held in memory."""
        ...

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises StoreMissing if there is none."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose key begins with `prefix` (a string prefix, as in S3), in no particular order."""
        ...

    def exists(self, key: str) -> bool:
        """True if there is an object of that key."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; none being there is no error."""
        ...

    def filesystem(self) -> tuple[Any, str]:
        """A `pyarrow.fs.FileSystem` and the path in it that stands for the empty key, for readers of parts of files."""
        ...


def open_store(uri: str, *, options: Mapping[str, Any] | None = None) -> Store:
    """The store at `uri`: `file:///abs/path`, a plain path, or `s3://bucket/prefix` with `options` (see S3Store).

    Nothing is contacted or created yet. Raises StoreRefused for an address that cannot be one.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalStore(Path(uri))
    if scheme == "file":
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise StoreRefused(f"{uri!r} is no address of a folder; expected file:///absolute/path")
        return LocalStore(Path(unquote(parts.path)))
    if scheme == "s3":
        from collector.store_s3 import S3Store

        bucket, _, prefix = rest.partition("/")
        return S3Store(bucket, prefix.strip("/"), options or {})
    raise StoreRefused(f"{uri!r}: expected a path, file:///absolute/path or s3://bucket/prefix")


def check_key(key: str) -> str:
    """`key` itself if it is a safe one. Raises StoreRefused for anything that could leave the store."""
    segments = key.split("/")
    whole = all(len(part) <= _MAX_SEGMENT and _SEGMENT.fullmatch(part) for part in segments)
    if not whole or len(key) > _MAX_KEY:
        raise StoreRefused(f"{key[:200]!r} is no key: segments of A-Z a-z 0-9 _=~+@,%:.- joined by /, none hidden")
    return key


class LocalStore:
    """A folder. An object is written beside the tree, forced to disk and renamed into it."""

    def __init__(self, root: Path) -> None:
        """`root` is created by the first `put`."""
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow a link of an unmounted disk
        self.uri = self.root.as_uri()
        self._swept = False

    def put(self, key: str, data: bytes | Path) -> None:
        """See Store."""
        target = self._path(key)
        with _mapped(key):
            temporary = self._temporary()
            try:
                _write(temporary, data)
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary.replace(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            _sync_folder(target.parent)

    def get(self, key: str) -> bytes:
        """See Store."""
        with _mapped(key):
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                return file.read()

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """See Store."""
        folder, _, start = prefix.rpartition("/")
        if folder:
            check_key(folder)
        with _mapped(prefix, missing_is_empty=True):
            yield from _below(self.root / folder if folder else self.root, f"{folder}/" if folder else "", start)

    def exists(self, key: str) -> bool:
        """See Store."""
        with _mapped(key, missing_is_empty=True):
            return self._path(key).is_file()
        return False

    def delete(self, key: str) -> None:
        """See Store."""
        with _mapped(key, missing_is_empty=True):
            self._path(key).unlink()

    def filesystem(self) -> tuple[Any, str]:
        """See Store."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), str(self.root)

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _temporary(self) -> Path:
        """A fresh name in a folder of the same file system; what killed writers left there is removed after a day."""
        folder = self.root / _TEMPORARY
        folder.mkdir(parents=True, exist_ok=True)
        if not self._swept:
            self._swept = True
            for left in folder.iterdir():
                with contextlib.suppress(OSError):
                    if left.stat().st_mtime < time.time() - _STALE:
                        left.unlink()
        return folder / f"{os.getpid()}-{next(_counter)}-{secrets.token_hex(4)}"


def _write(path: Path, data: bytes | Path) -> None:
    # plain open, not mkstemp: the lake's readers are other people, so the mode is what the umask says
    with path.open("xb") as file:
        if isinstance(data, Path):
            with data.open("rb") as source:
                _copy(source, file)
        else:
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while block := source.read(_COPY):
        target.write(block)


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut; some network file systems cannot, and then it is their promise."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _below(folder: Path, before: str, start: str) -> Iterator[StoredObject]:
    """Objects below `folder` whose name below it begins with `start`; what vanishes meanwhile is not listed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.name.startswith(start) or not _SEGMENT.fullmatch(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path), f"{before}{entry.name}/", "")
        elif entry.is_file(follow_symlinks=False):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            etag = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
            yield StoredObject(f"{before}{entry.name}", status.st_size, status.st_mtime, etag)


@contextlib.contextmanager
def _mapped(key: str, *, missing_is_empty: bool = False) -> Iterator[None]:
    """Turn OSError into the store's errors."""
    try:
        yield
    except FileNotFoundError as error:
        if not missing_is_empty:
            raise StoreMissing(f"there is no {key}") from error
    except OSError as error:
        said = f"{key}: {error.strerror or error}"
        raise (StoreUnavailable if error.errno in _LATER else StoreRefused)(said) from error
