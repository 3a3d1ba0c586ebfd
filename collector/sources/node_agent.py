"""What only a node has: all segments of a container's log, the kernel log, nvidia-smi.

The API shows the last segment of a log only; the kubelet keeps older ones beside it, some compressed
(`<n>.log.<time>[.gz]` under /var/log/pods/<namespace>_<pod>_<uid>/<container>/). The segments are put together in
time and taken out of the runtime's format (`TIME stdout F text`, partial lines marked P), so that they read like what
the API gives. Folders belong to root, but containers write into them: nothing is opened through a link.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, Origin, Outcome, RunRef
from collector.opening import opener
from collector.redact import redact_blocks

_SEGMENT = re.compile(r"(?P<number>\d+)\.log(?:\.(?P<stamp>\d{8}-\d{6})(?P<packed>\.gz)?)?")
_CRI = re.compile(rb"(?P<time>\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) (?P<tag>[FP])[^ ]* (?P<text>.*)", re.DOTALL)
_MAX_LINE = 1 << 20
_KMSG_RECORD = 8192
"""A read of /dev/kmsg gives one record, at most this long (the kernel's CONSOLE_EXT_LOG_MAX)."""
_SMI_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a container's log."""

    parts: tuple[str, ...]
    """Below the folder of all pods."""
    number: int
    """Run of the container."""
    stamp: str
    """When it was rotated; empty for the one that is written."""
    packed: bool
    size: int


def segments(root: Path, folder: str, container: str, number: int) -> list[Segment]:
    """The files of one run of a container, oldest first. A folder that is not there has none."""
    found = []
    try:
        with os.scandir(root / folder / container) as listing:
            for entry in listing:
                match = _SEGMENT.fullmatch(entry.name)
                if match and int(match["number"]) == number:
                    size = entry.stat(follow_symlinks=False).st_size
                    parts = (folder, container, entry.name)
                    found.append(Segment(parts, number, match["stamp"] or "", bool(match["packed"]), size))
    except OSError:
        return []
    # while the kubelet compresses, both forms of a segment are there for a moment: the plain one is whole
    plain = {segment.stamp for segment in found if not segment.packed}
    whole = [segment for segment in found if not (segment.packed and segment.stamp in plain)]
    return sorted(whole, key=lambda segment: (segment.stamp == "", segment.stamp))


def lines(root: Path, wanted: Sequence[Segment], problems: list[str]) -> Iterator[bytes]:
    """The log's lines as the API gives them (`TIME text`), masked; what could not be read goes to `problems`."""
    yield from redact_blocks(_plain(root, wanted, problems))


def _plain(root: Path, wanted: Sequence[Segment], problems: list[str]) -> Iterator[bytes]:
    held = b""
    stamp = b""
    for segment in wanted:
        try:
            with opener(root, segment.parts)() as file:
                while line := file.readline(_MAX_LINE):
                    match = _CRI.fullmatch(line.rstrip(b"\n"))
                    if match is None:  # the format of another runtime: as it is
                        yield line
                        continue
                    stamp = stamp or match["time"]
                    held += match["text"]
                    if match["tag"] == b"F" or len(held) > _MAX_LINE:
                        yield stamp + b" " + held + b"\n"
                        held = stamp = b""
        except (OSError, EOFError, ValueError) as error:
            problems.append(f"{'/'.join(segment.parts)}: {error}")
    if held:
        yield stamp + b" " + held + b"\n"


class NodeState:
    """Source of the kernel log and the GPU state of this node."""

    name = "node_agent"

    def __init__(self, node: str, kmsg: Path = Path("/dev/kmsg"), nvidia_smi: str | None = None) -> None:
        self._origin, self._kmsg, self._smi = Origin(node), kmsg, nvidia_smi

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        """The kernel's ring buffer and `nvidia-smi -q`; what cannot be read is a ledger row."""
        node = self._origin.node
        try:
            text = kernel_log(self._kmsg, time.time(), _uptime())
            yield self._file(f"nodes/{node}/dmesg.txt", ArtifactKind.KERNEL_LOG, text)
        except OSError as error:
            refused = isinstance(error, PermissionError)
            outcome = Outcome.REFUSED if refused else Outcome.UNREACHABLE
            yield self._row(f"nodes/{node}/dmesg.txt", ArtifactKind.KERNEL_LOG, outcome, str(error))
        path = f"nodes/{node}/nvidia-smi.txt"
        if self._smi is None:
            yield self._row(path, ArtifactKind.GPU_STATE, Outcome.NOT_CONFIGURED, "no nvidia-smi is configured")
            return
        try:
            done = subprocess.run([self._smi, "-q"], capture_output=True, timeout=_SMI_SECONDS, check=False)
            yield self._file(path, ArtifactKind.GPU_STATE, done.stdout + done.stderr)
        except subprocess.TimeoutExpired:
            yield self._row(path, ArtifactKind.GPU_STATE, Outcome.TIMED_OUT, f"no answer within {_SMI_SECONDS:g} s")
        except OSError as error:
            yield self._row(path, ArtifactKind.GPU_STATE, Outcome.UNREACHABLE, str(error))

    def _file(self, path: str, kind: ArtifactKind, content: bytes) -> Artifact:
        return Artifact(kind, path, self._origin, len(content), partial(io.BytesIO, content), time.time())

    def _row(self, path: str, kind: ArtifactKind, outcome: Outcome, detail: str) -> LedgerEntry:
        return LedgerEntry(self.name, path, outcome, self._origin, kind, detail=detail)


def kernel_log(path: Path, now: float, uptime: float) -> bytes:
    """The records of /dev/kmsg as `dmesg --time-format iso` writes them. Raises OSError.

    Format: `priority,sequence,microseconds since boot,flags;text`, continuation lines begin with a space
    (Documentation/ABI/testing/dev-kmsg in the kernel's tree).
    """
    from datetime import UTC, datetime

    out = []
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for record in _records(descriptor):
            head, _, text = record.partition(b";")
            fields = head.split(b",")
            if len(fields) < 3 or not fields[2].isdigit():
                continue
            at = datetime.fromtimestamp(now - uptime + int(fields[2]) / 1e6, UTC)
            first = text.split(b"\n")[0]
            out.append(at.strftime("%Y-%m-%dT%H:%M:%S,%f+00:00 ").encode() + first)
    finally:
        os.close(descriptor)
    return b"\n".join(out) + b"\n" if out else b""


def _records(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            record = os.read(descriptor, _KMSG_RECORD)
        except BrokenPipeError:  # records were overwritten while we read: go on with the oldest that is left
            continue
        except BlockingIOError:
            return
        if not record:
            return
        yield record


def _uptime() -> float:
    """Seconds since boot by the clock of the kernel log."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
