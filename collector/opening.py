"""Opens files that somebody else's job left, so that nothing in them can hurt: the one door to file content.

Every component of the path below the root is opened without following links and relative to its parent, so that a
folder that is swapped for a link after the walk leads nowhere. Only regular files are read, and no further than their
size when they were opened: a file that is still being written has an end, and one that shrinks ends early. Read errors
end the stream and leave a sentence in `note`: a reader of evidence never sees an exception.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

BUFFER = 1 << 20
EXPANSION_FLOOR = 256 << 20
EXPANSION_RATIO = 100
"""Logs compress 5 to 60 times; a file that inflates beyond FLOOR + RATIO * stored bytes is cut there (a zip bomb)."""
_XZ_MEMORY = 256 << 20
_ZSTD_WINDOW = 128 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOCTTY", 0)

MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
"""First bytes of the compressed forms that are read (RFC 1952, bzip2, the .xz format, RFC 8878)."""


class NotRegular(OSError):
    """What is there is a FIFO, socket, device or folder: never opened for reading."""


class RegularFile(io.RawIOBase):
    """A regular file as it was when opened, read by position; two of them may share one descriptor."""

    def __init__(self, descriptor: int, size: int, *, owns: bool = True) -> None:
        """`size` bounds what is read; `owns` says whether closing this closes the descriptor."""
        self._descriptor, self.size, self._owns, self._position = descriptor, size, owns, 0
        self.note: str | None = None
        """Why the stream ended before its end, if it did."""

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def fileno(self) -> int:
        """The descriptor, for mmap and the like; its content may be longer than `size`."""
        return self._descriptor

    def tell(self) -> int:
        """Byte position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte position; returns it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; 0 at the end, also if the file shrank or cannot be read further."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self.size - self._position)
        if wanted <= 0:
            return 0
        try:
            got = os.preadv(self._descriptor, [view[:wanted]], self._position)
        except OSError as error:
            self.note = f"reading stopped at byte {self._position}: {error.strerror}"
            return 0
        if got == 0:
            self.note = f"the file shrank to {self._position} bytes while it was read"
        self._position += got
        return got

    def close(self) -> None:
        """Close the descriptor if it is owned; more than once is allowed."""
        if not self.closed and self._owns:
            os.close(self._descriptor)
        super().close()


class Inflated(io.RawIOBase):
    """The decompressed bytes of a file, at most `cap` of them; damaged input ends early with a `note`."""

    def __init__(self, stored: io.RawIOBase, inflate: Any, cap: int) -> None:
        """`inflate` has `read(n)`; `cap` is in decompressed bytes."""
        self._stored, self._inflate, self._left, self._cap = stored, inflate, cap, cap
        self.note: str | None = None
        """Why the stream ended before its end, if it did."""

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with decompressed bytes; 0 at the end, at the cap and at damage."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), 1 << 18)
        if self.note or not wanted:
            return 0
        if not self._left:
            self.note = f"expansion stopped at {self._cap} bytes: a file that compresses so well is no log"
            return 0
        try:
            data: bytes = self._inflate.read(min(wanted, self._left))
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, MemoryError) as error:
            return self._damaged(error)
        except Exception as error:  # zstandard.ZstdError derives from Exception alone and the library is optional here
            if type(error).__module__.partition(".")[0] not in ("zstd", "zstandard"):
                raise
            return self._damaged(error)
        view[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def _damaged(self, error: Exception) -> int:
        self.note = f"the compressed data is damaged or cut off ({error or type(error).__name__})"
        return 0

    def close(self) -> None:
        """Close the stored file too."""
        if not self.closed:
            self._stored.close()
        super().close()


class _Xz:
    """`lzma.LZMAFile` has no memory limit, and a dictionary may ask for 4 GiB: so the decompressor is driven here."""

    def __init__(self, stored: BinaryIO) -> None:
        self._stored = stored
        self._decompressor = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)

    def read(self, wanted: int) -> bytes:
        while True:
            if self._decompressor.eof:
                rest = self._decompressor.unused_data.lstrip(b"\0") or self._stored.read(1 << 16)
                if not rest:
                    return b""
                self._decompressor = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
            elif self._decompressor.needs_input:
                rest = self._stored.read(1 << 16)
                if not rest:
                    raise EOFError("it ends before its end mark")
            else:
                rest = b""
            data = self._decompressor.decompress(rest, wanted)
            if data:
                return data


def _inflater(form: str, stored: BinaryIO) -> Any:
    if form == "gzip":
        return gzip.GzipFile(fileobj=stored, mode="rb")
    if form == "bz2":
        return bz2.BZ2File(stored)
    if form == "xz":
        return _Xz(stored)
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(stored, read_across_frames=True)


def compression(head: bytes) -> str | None:
    """gzip | bz2 | xz | zstd by the first bytes, or None."""
    return next((form for magic, form in MAGIC if head.startswith(magic)), None)


def expansion_cap(stored: int) -> int:
    """How many decompressed bytes are read of a file of `stored` bytes."""
    return EXPANSION_FLOOR + EXPANSION_RATIO * max(stored, 0)


def content(stored: RegularFile) -> BinaryIO:
    """The content of `stored`, decompressed if its first bytes say so. Its `.raw.note` tells how it ended."""
    head = stored.read(8) or b""
    stored.seek(0)
    form = compression(head)
    if form is None:
        return io.BufferedReader(stored, BUFFER)
    inflater = _inflater(form, io.BufferedReader(stored, 1 << 16))
    return io.BufferedReader(Inflated(stored, inflater, expansion_cap(stored.size)), BUFFER)


def open_file(root: Path, parts: Sequence[str]) -> RegularFile:
    """Open `root/parts...` for reading, following no link below `root`. With no parts, `root` itself is the file.

    Raises NotRegular for anything but a regular file, OSError (ELOOP for a link) if it cannot be opened.
    """
    if not parts:
        parent, name = None, str(root)
    else:
        parent, name = os.open(root, _DIRECTORY), parts[-1]
    try:
        for part in parts[:-1]:
            child = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            if parent is not None:
                os.close(parent)
            parent = child
        # opening a device can have effects and opening a socket fails with a misleading error: look first
        _regular_only(os.stat(name, dir_fd=parent, follow_symlinks=False))
        descriptor = os.open(name, _FILE, dir_fd=parent)
    finally:
        if parent is not None:
            os.close(parent)
    try:
        status = os.fstat(descriptor)
        _regular_only(status)
    except BaseException:
        os.close(descriptor)
        raise
    return RegularFile(descriptor, status.st_size)


def _regular_only(status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link; links are not followed")
    if not stat.S_ISREG(status.st_mode):
        raise NotRegular(errno.EINVAL, f"{file_type(status.st_mode)}; only regular files are read")


def file_type(mode: int) -> str:
    """The type in `st_mode` in words, such as "a FIFO"."""
    types: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a link"),
    )
    return next((words for is_type, words in types if is_type(mode)), "a regular file")


def opener(root: Path, parts: Sequence[str]) -> Callable[[], BinaryIO]:
    """A function that opens the decompressed content of `root/parts...`: what `Artifact.open` wants."""
    fixed = tuple(parts)

    def open_content() -> BinaryIO:
        return content(open_file(root, fixed))

    return open_content
