"""What Slurm and a node's hook know of a job: the scheduler's own words, and the files that the Epilog kept.

The kernel log is cut to the job's time: an out-of-memory kill of the job before would accuse this one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, Origin, Outcome, RunRef

_MAX_FILE = 32 << 20
_ISO = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]\d+[+-]\d\d:?\d\d")
_JOB_CGROUP = re.compile(rb"/job_(\d{1,18})\b")
_OOM = re.compile(rb"oom-kill:constraint=CONSTRAINT_(\w+)")
_VICTIM = re.compile(rb"Killed process (\d+)")
_REAPED = re.compile(rb"oom_reaper: reaped process (\d+)")
_REPORT_LINES = 5000
"""Lines of one report: the kernel lists every process of the machine in it."""
_BEFORE, _AFTER = 2.0, 120.0
"""Seconds around the job: the kernel's clock drifts against the wall's, and a driver may speak late."""
_UNKNOWN = 600.0
_KINDS: tuple[tuple[str, ArtifactKind], ...] = (
    ("dmesg.txt", ArtifactKind.KERNEL_LOG),
    ("cgroup-", ArtifactKind.KERNEL_LOG),
    ("nvidia-smi", ArtifactKind.GPU_STATE),
    ("rocm-smi", ArtifactKind.GPU_STATE),
)


@dataclass(slots=True)
class SlurmJob:
    """Source over what Slurm's commands printed: name -> text."""

    texts: Mapping[str, str]
    name: str = "slurm_job"

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        """An artifact per text; a ledger row for an empty one."""
        for name, text in self.texts.items():
            if not text:
                yield LedgerEntry(self.name, name, Outcome.UNREACHABLE, detail="Slurm told nothing any more")
                continue
            data = text.encode("utf-8", "replace")
            yield Artifact(ArtifactKind.SCHEDULER, name, Origin(), len(data), _opens(data))


@dataclass(slots=True)
class NodeEvidence:
    """Source over the folder that the Epilog's hook (or the drain, late) filled on one node."""

    folder: Path
    node: str
    started: float | None
    ended: float
    """Unix seconds: the kernel log is kept from the one to the other."""
    jobs: tuple[int, ...] = ()
    """Ids under which Slurm named the job's cgroup: kills in another job's are left out."""
    late: bool = False
    name: str = "node_epilog"

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        """The files that are there, cut to the job's time, and a row for what a tool refused."""
        origin = Origin(node=self.node)
        try:
            names = sorted(path.name for path in self.folder.iterdir() if path.is_file() and not path.is_symlink())
        except OSError:
            names = []
        if "DROPPED" in names:
            yield LedgerEntry(self.name, f"{self.node}/", Outcome.TRUNCATED, origin, detail=self._read("DROPPED"))
        told = False
        for name in names:
            kind = next((kind for start, kind in _KINDS if name.startswith(start)), None)
            if name.endswith(".why"):
                yield LedgerEntry(
                    self.name, f"{self.node}/{name[:-4]}", Outcome.REFUSED, origin,
                    detail=self._read(name)[:300] or "the tool failed or did not answer in time",
                )  # fmt: skip
            elif kind is not None and "." in name and not name.endswith(".part"):
                told = True
                yield from self._file(name, kind, origin)
        if not told:
            detail = "the hook kept nothing on this node"
            yield LedgerEntry(self.name, f"{self.node}/", Outcome.EMPTY, origin, detail=detail)

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text("utf-8", "replace").strip()
        except OSError:
            return ""

    def _file(self, name: str, kind: ArtifactKind, origin: Origin) -> Iterator[Artifact | LedgerEntry]:
        path = f"{self.node}/{name}"
        try:
            with (self.folder / name).open("rb") as file:
                data = file.read(_MAX_FILE)
            taken = (self.folder / name).stat().st_mtime
        except OSError as error:
            yield LedgerEntry(self.name, path, Outcome.UNREACHABLE, origin, kind, detail=error.strerror)
            return
        if name == "dmesg.txt":
            cut = cut_to(data, self.started, self.ended, self.jobs)
            if cut is None:
                detail = "its times cannot be read, so it cannot be cut to the job's time"
                yield LedgerEntry(self.name, path, Outcome.REFUSED, origin, kind, len(data), detail=detail)
                return
            data = cut
        if not data:
            detail = "nothing in the job's time" if name == "dmesg.txt" else "0 bytes"
            yield LedgerEntry(self.name, path, Outcome.EMPTY, origin, kind, detail=detail)
            return
        if self.late:
            detail = f"taken {max(taken - self.ended, 0):.0f} s after the end of the job"
            yield LedgerEntry(self.name, path, Outcome.COLLECTED, origin, kind, len(data), len(data), detail=detail)
        yield Artifact(kind, path, origin, len(data), _opens(data), taken)


def cut_to(dmesg: bytes, started: float | None, ended: float, jobs: tuple[int, ...] = ()) -> bytes | None:
    """The lines of a `dmesg --time-format=iso` within the job's time; None if no line has such a time.

    Lines without a time belong to the one before. Without a start the last ten minutes are taken. With `jobs`, reports
    of kills that hit somebody else's memory cgroup are left out: a node may be shared.
    """
    first = started - _BEFORE if started is not None else ended - _UNKNOWN
    kept: list[bytes] = []
    inside = seen = False
    for line in dmesg.splitlines(keepends=True):
        match = _ISO.match(line)
        if match is not None:
            seen = True
            at = _seconds(match[0])
            inside = at is not None and first <= at <= ended + _AFTER
        if inside:
            kept.append(line)
    if not seen and dmesg.strip():
        return None
    return b"".join(_without_foreign_kills(kept, jobs) if jobs else kept)


def _without_foreign_kills(lines: list[bytes], jobs: tuple[int, ...]) -> Iterator[bytes]:
    """The lines without out-of-memory reports (from `invoked oom-killer` to `oom_reaper`) of other cgroups."""
    report: list[bytes] = []
    open_report = foreign = False
    dropped: set[bytes] = set()
    for line in lines:
        if b"invoked oom-killer" in line:
            yield from report
            report, open_report, foreign = [], True, False
        if (said := _OOM.search(line)) is not None:
            foreign = _is_foreign(line, said, jobs)
        victim = _VICTIM.search(line)
        if victim is not None and foreign:
            dropped.add(victim[1])
            report, open_report, foreign = [], False, False
            continue
        if (reaped := _REAPED.search(line)) is not None and reaped[1] in dropped:
            continue
        if open_report or foreign:
            report.append(line)
            if victim is not None or len(report) > _REPORT_LINES:
                yield from report
                report, open_report, foreign = [], False, False
        else:
            yield line
    if not foreign:
        yield from report


def _is_foreign(line: bytes, said: re.Match[bytes], jobs: tuple[int, ...]) -> bool:
    """True if the cgroup that ran out is neither one of the job, nor one of Slurm's daemons, nor the whole machine."""
    owner = _JOB_CGROUP.search(line)
    if owner is not None:
        return int(owner[1]) not in jobs
    return said[1] == b"MEMCG" and b"slurm" not in line


def _seconds(stamp: bytes) -> float | None:
    try:
        return datetime.fromisoformat(stamp.decode("ascii").replace(",", ".")).timestamp()
    except ValueError:
        return None


def _opens(data: bytes) -> Callable[[], BinaryIO]:
    return lambda: io.BytesIO(data)
