"""Whether one file of a checkpoint is whole, from its structure alone.

Tensors are never loaded and pickles never executed: a zip's central directory, a safetensors header and the opcodes of
a pickle tell where a file must end. A statement is made only where the format makes it certain; anything else is
unknown. Formats: torch.save zip (torch/serialization.py, caffe2/serialize), its legacy pickle stream, safetensors
(8-byte length, JSON header, data), torch.distributed.checkpoint `.metadata` (a pickled Metadata with storage_data).
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from collector.opening import RegularFile, open_file

MAX_DIRECTORY = 64 << 20
MAX_HEADER = 16 << 20
MAX_PICKLE = 32 << 20
MAX_OPCODES = 4_000_000
SAFETENSORS_LIMIT = 100_000_000
"""Longest header that the safetensors library accepts, bytes."""
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LOCAL_HEADERS = 64


class State(NamedTuple):
    """What one file is: complete | corrupt | unknown, and the fact that says so."""

    status: str
    why: str


_UNKNOWN = State("unknown", "its form is not known")


class _Bounded(io.RawIOBase):
    """A file that refuses to read more at once than a central directory may be long."""

    def __init__(self, file: RegularFile) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        left = self._file.size - self._file.tell()
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > MAX_DIRECTORY:
            raise zipfile.BadZipFile("a part of its directory is longer than a directory can be")
        return self._file.read(max(0, wanted)) or b""


def check_file(path: str | Path) -> State:
    """The state of one checkpoint file (torch, safetensors, or anything). Never raises."""
    try:
        with open_file(Path(os.fspath(path)).parent, (Path(path).name,)) as file:
            return check(file, Path(path).name)
    except OSError as error:
        return State("unknown", f"it cannot be read ({error.strerror})")


def check(file: RegularFile, name: str) -> State:
    """The state of an open file; `name` tells the format where the first bytes do not. Never raises."""
    if file.size == 0:
        return State("corrupt", "0 bytes")
    if name.endswith(".safetensors"):
        return _safetensors(file)
    head = file.read(64) or b""
    file.seek(0)
    if head.startswith(b"PK"):
        return _torch_zip(file)
    if head.startswith(_LEGACY):
        return _legacy(file)
    if not head.strip(b"\0"):
        return State("corrupt", "it begins with zeros only: its data never reached the disk")
    if head[:1] == b"\x80":
        return _one_pickle(file)
    return _UNKNOWN


def _torch_zip(file: RegularFile) -> State:
    size = file.size
    try:
        with zipfile.ZipFile(_Bounded(file)) as archive:
            records = archive.infolist()
            start = archive.start_dir
            for record in records:
                # zipfile shifts offsets until they fit the directory: bytes lost in the middle show as negative ones
                if record.header_offset < 0 or record.header_offset + record.compress_size > start:
                    return State("corrupt", f"record {record.filename[-80:]} does not lie within the data")
            for record in records[-_LOCAL_HEADERS:]:
                file.seek(record.header_offset)
                if file.read(4) != b"PK\x03\x04":
                    return State("corrupt", f"record {record.filename[-80:]} is not where the directory says")
    except zipfile.BadZipFile:
        return State("corrupt", f"no central directory at its end ({size} bytes): it was cut off")
    except (OSError, ValueError, NotImplementedError, OverflowError, LookupError, MemoryError) as error:
        return State("corrupt", f"its zip directory is damaged ({type(error).__name__})")
    if not any(record.filename.endswith(("data.pkl", "constants.pkl", ".npy")) for record in records):
        return State("unknown", "a zip file, but not one of torch.save")
    return State("complete", f"{len(records)} records, all within its {size} bytes")


def _safetensors(file: RegularFile) -> State:
    size = file.size
    if size < 8:
        return State("corrupt", f"{size} bytes: shorter than a header")
    length = int.from_bytes(file.read(8) or b"", "little")
    if length > SAFETENSORS_LIMIT:
        return State("corrupt", f"its header claims {length} bytes, more than the format allows")
    if 8 + length > size:
        return State("corrupt", f"its header claims {length} bytes, the file has {size}")
    if length > MAX_HEADER:
        return State("unknown", f"its header of {length} bytes was not read")
    try:
        header = json.loads(file.read(length) or b"")
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        end = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return State("corrupt", "its header is not the JSON of tensors")
    if end > size:
        return State("corrupt", f"its tensors end at byte {end}, the file has {size}: it was cut off")
    if end < size:
        return State("corrupt", f"{size - end} bytes follow its last tensor")
    return State("complete", f"{len(ends)} tensors end exactly at its {size} bytes")


def _legacy(file: RegularFile) -> State:
    """The old torch.save: five pickles (magic, protocol, system, object, storage keys), then raw storages."""
    stream = io.BufferedReader(file, 1 << 16)
    for part in ("magic number", "protocol", "system information", "object", "storage keys"):
        if not _reaches_stop(stream):
            return State("corrupt", f"it ends inside its {part}: it was cut off")
    return State("unknown", "the old torch.save format: how long its data must be is not written in it")


def _one_pickle(file: RegularFile) -> State:
    if file.size > MAX_PICKLE:
        return _UNKNOWN
    if _reaches_stop(io.BufferedReader(file, 1 << 16)):
        return State("complete", "its pickle ends with a stop mark")
    return State("corrupt", "its pickle has no end: it was cut off")


def _reaches_stop(stream: BinaryIO) -> bool:
    count = 0
    try:
        for opcode, _, _ in pickletools.genops(stream):
            count += 1
            if opcode.name == "STOP" or count > MAX_OPCODES:
                return True
    except (ValueError, OverflowError, MemoryError, IndexError, UnicodeError):
        return False
    return False


def pickled_values(data: bytes) -> Iterator[str | int]:
    """The strings and integers that a pickle pushes, in order, memo references resolved. Executes nothing.

    Ends silently where the pickle is damaged.
    """
    memo: dict[Any, Any] = {}
    last: Any = None
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            name = opcode.name
            if count > MAX_OPCODES:
                return
            if name == "MEMOIZE":
                memo[len(memo)] = last
                continue
            if name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[argument] = last
                continue
            if name in ("BINGET", "LONG_BINGET", "GET"):
                last = memo.get(argument)
            elif isinstance(argument, str | int) and not isinstance(argument, bool) and "PROTO" not in name:
                last = argument if name not in ("FRAME", "GLOBAL", "INST", "PERSID") else None
            else:
                last = None
            if last is not None:
                yield last
    except (ValueError, OverflowError, MemoryError, IndexError, UnicodeError):
        return


def dcp_extents(metadata: bytes) -> dict[str, int]:
    """File name -> number of bytes it must at least have, by the pickled `.metadata` of torch.distributed.checkpoint.

    Its storage_data maps every tensor to a _StorageInfo with relative_path, offset and length. Empty if none is found.
    """
    ends: dict[str, int] = {}
    window: deque[str | int] = deque(maxlen=6)
    for value in pickled_values(metadata):
        window.append(value)
        if len(window) == 6 and (window[0], window[2], window[4]) == ("relative_path", "offset", "length"):
            name, offset, length = window[1], window[3], window[5]
            if isinstance(name, str) and isinstance(offset, int) and isinstance(length, int):
                ends[name] = max(ends.get(name, 0), offset + length)
    return ends


def numbers_in_pickle(path: str | Path, keys: frozenset[str]) -> dict[str, int]:
    """The integers stored under `keys` in a torch.save file, such as DeepSpeed's dp_world_size. Never raises."""
    found: dict[str, int] = {}
    try:
        with (
            open_file(Path(path).parent, (Path(path).name,)) as file,
            zipfile.ZipFile(_Bounded(file)) as archive,
        ):
            record = next(info for info in archive.infolist() if info.filename.endswith("data.pkl"))
            if record.compress_type != zipfile.ZIP_STORED or record.file_size > MAX_PICKLE:
                return {}
            data = archive.read(record)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, LookupError, StopIteration, MemoryError):
        return {}
    key: str | int | None = None
    for value in pickled_values(data):
        if key in keys and isinstance(value, int):
            found.setdefault(str(key), value)
        key = value
    return found
