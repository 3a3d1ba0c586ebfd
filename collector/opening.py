"""Opens files that somebody else's job left, so that nothing in them can hurt: the one door to file content.

Every component of the path below the root is opened without following links and relative to its parent, so that a
folder that is swapped for a link after the walk leads nowhere. Only regular files are read, and no further than their
size when they were opened: a file that is still being written has an end, and one that shrinks ends early. Read errors
end the stream and leave a sentence in `note`: a reader of evidence never sees an exception.
"""

from __future__ import annotations

import bz2
import errno
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
_FILLED = 1 << 18
"""Decompressed bytes given at a time."""
_PIECE = 1 << 14
"""Bytes decompressed at a time: what zlib and zstd decompressed in the call that meets damage is lost."""
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
        wanted = min(len(view), _FILLED)
        got = 0
        # filled, because inflaters give little at a time; what they gave before the damage stays
        while got < wanted and not self.note:
            if not self._left:
                # a file of exactly this size is whole
                if self._next(1):
                    self.note = f"expansion stopped at {self._cap} bytes: a file that compresses so well is no log"
                break
            data = self._next(min(wanted - got, self._left))
            if not data:
                break
            view[got : got + len(data)] = data
            got += len(data)
            self._left -= len(data)
        return got

    def _next(self, wanted: int) -> bytes:
        """The next bytes; none at the end and at damage, which leaves a note."""
        try:
            return bytes(self._inflate.read(wanted))
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, MemoryError) as error:
            return self._damaged(error)
        except Exception as error:  # zstandard.ZstdError derives from Exception alone and the library is optional here
            if type(error).__module__.partition(".")[0] not in ("zstd", "zstandard"):
                raise
            return self._damaged(error)

    def _damaged(self, error: Exception) -> bytes:
        self.note = f"the compressed data is damaged or cut off ({error or type(error).__name__})"
        return b""

    def close(self) -> None:
        """Close the stored file too."""
        if not self.closed:
            self._stored.close()
        super().close()


class _Gunzip:
    """zlib behind the interface of the standard library's other decompressors."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._full and not self._inner.unconsumed_tail

    def decompress(self, data: bytes, wanted: int) -> bytes:
        got = self._inner.decompress(self._inner.unconsumed_tail + data, wanted)
        self._full = len(got) == wanted  # more may come of the same input
        return got


class _Streams:
    """Decompresses one compressed stream after the other, to the last byte before a break.

    The standard library's file classes lose what they decompressed in the call that meets the break, and `LZMAFile` has
    no memory limit although a dictionary may ask for 4 GiB: so the decompressors are driven here.
    """

    def __init__(self, stored: BinaryIO, new: Callable[[], Any]) -> None:
        self._stored, self._new = stored, new
        self._decompressor = new()

    def read(self, wanted: int) -> bytes:
        """At most `wanted` bytes, none at the end. Raises EOFError for a break and what the decompressor raises."""
        while True:
            if self._decompressor.eof:
                # both gzip and xz may be padded with zeros
                rest = self._decompressor.unused_data.lstrip(b"\0")
                while not rest:
                    padding = self._stored.read(_PIECE)
                    if not padding:
                        return b""
                    rest = padding.lstrip(b"\0")
                self._decompressor = self._new()
            elif self._decompressor.needs_input:
                rest = self._stored.read(_PIECE)
                if not rest:
                    raise EOFError("it ends before its end mark")
            else:
                rest = b""
            data: bytes = self._decompressor.decompress(rest, wanted)
            if data:
                return data


class _ZstdFrames:
    """Follows the frames and blocks of a zstd file as it is read, to know whether it ends where a frame does.

    The library takes the end of its input for the end of the content, and a cut file for a whole one. Sizes: RFC 8878,
    sections 3.1.1 (frames), 3.1.1.2 (blocks) and 3.1.2 (skippable frames).
    """

    def __init__(self, stored: BinaryIO) -> None:
        self._stored = stored
        self._held = b""
        self._skip = 0
        self._inside = self._checksum = self._last = False

    def read(self, size: int = -1) -> bytes:
        """As the file's."""
        data = self._stored.read(size)
        self._follow(data)
        return data

    @property
    def whole(self) -> bool:
        """True if what was read so far ends with a frame."""
        return not self._inside and not self._skip and not self._held

    def _follow(self, data: bytes) -> None:
        self._held += data
        while self._held:
            passed = min(self._skip, len(self._held))
            self._held, self._skip = self._held[passed:], self._skip - passed
            if self._skip or not self._held:
                break
            header = self._block() if self._inside else self._frame()
            if not header:
                return
            self._held = self._held[header:]
        if self._inside and self._last and not self._skip:
            self._inside = False

    def _frame(self) -> int:
        """Bytes of the header of the frame that begins here; 0 if it is not complete."""
        held = self._held
        if len(held) < 8:
            return 0
        if held[1:4] == b"\x2a\x4d\x18" and held[0] >> 4 == 5:
            self._skip = int.from_bytes(held[4:8], "little")
            return 8
        descriptor = held[4]
        single = descriptor >> 5 & 1
        self._inside, self._last, self._checksum = True, False, bool(descriptor >> 2 & 1)
        content_size = (single, 2, 4, 8)[descriptor >> 6]
        self._skip = (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + content_size
        return 5

    def _block(self) -> int:
        """Bytes of the header of the block that begins here; 0 if it is not complete."""
        if self._last:
            self._inside = False
            return self._frame()
        if len(self._held) < 3:
            return 0
        header = int.from_bytes(self._held[:3], "little")
        self._last = bool(header & 1)
        self._skip = (1 if header >> 1 & 3 == 1 else header >> 3) + (4 if self._last and self._checksum else 0)
        return 3


class _Zstd:
    """The library's reader, and an error where it would take a cut file for a whole one."""

    def __init__(self, stored: BinaryIO) -> None:
        import zstandard

        self._frames = _ZstdFrames(stored)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        source: Any = self._frames  # of a file the library wants `read` only
        self._reader = decompressor.stream_reader(source, read_across_frames=True)

    def read(self, wanted: int) -> bytes:
        """At most `wanted` bytes, none at the end. Raises EOFError for a break and what the library raises."""
        data = bytes(self._reader.read(min(wanted, _PIECE)))  # little, because an error costs all of a call
        if not data and not self._frames.whole:
            raise EOFError("it ends before its end mark")
        return data


def _inflater(form: str, stored: BinaryIO) -> Any:
    if form == "zstd":
        return _Zstd(stored)
    if form == "gzip":
        return _Streams(stored, _Gunzip)
    if form == "bz2":
        return _Streams(stored, bz2.BZ2Decompressor)
    return _Streams(stored, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY))


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
