"""The few types that everything else passes around. Frozen, no I/O, standard library only.

A hook on a compute node imports this module, so it must stay cheap.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Protocol


class ArtifactKind(enum.StrEnum):
    """What an artifact is, decided by its content first and its name second."""

    RANK_LOG = "rank_log"
    """Text that ranks and launchers printed: one rank's file or everybody's console."""
    ERROR_FILE = "error_file"
    """torchelastic `error.json` of one rank (written by `@record`)."""
    KERNEL_LOG = "kernel_log"
    """dmesg, `journalctl -k`, syslog, pstore."""
    GPU_STATE = "gpu_state"
    """`nvidia-smi -q` (text or XML), `--query-gpu` CSV."""
    ENVIRONMENT = "environment"
    """`torch.utils.collect_env`, `ds_report`, `pip freeze`, an environment dump."""
    STACK_DUMP = "stack_dump"
    """py-spy text or JSON, faulthandler output in a file of its own."""
    FLIGHT_RECORDER = "flight_recorder"
    """NCCL/gloo flight-recorder dump (pickle or JSON)."""
    CHECKPOINT = "checkpoint"
    """A checkpoint folder or file; only its metadata is read."""
    EXIT_FILE = "exit_file"
    """A side file that states commands and return codes of a launcher."""
    SCHEDULER = "scheduler"
    """`scontrol show job`, `sacct`, `kubectl get -o json/yaml`, events."""


class Outcome(enum.StrEnum):
    """What became of one attempt to look at one piece of evidence: a row of the ledger, never an exception."""

    COLLECTED = "collected"
    EMPTY = "empty"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    TRUNCATED = "truncated"
    UNREACHABLE = "unreachable"
    NOT_CONFIGURED = "not_configured"


@dataclass(frozen=True, slots=True)
class RunRef:
    """One attempt of one job."""

    incident: str
    scheduler: str = "local"
    """local | slurm | kubernetes."""
    job: str | None = None
    cluster: str | None = None
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose evidence it is, as far as the place it was found tells; None where the place does not tell."""

    node: str | None = None
    rank: int | None = None
    """Global rank."""
    local_rank: int | None = None
    """Rank within its node; never to be read as a global rank."""
    attempt: int | None = None
    """Launcher restart count, 0-based."""
    stream: str | None = None
    """stdout | stderr | console."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One piece of raw evidence and a way to read it. `open` may raise OSError; nothing else of it may fail."""

    kind: ArtifactKind
    path: str
    """Name to show and cite: relative to what the user named, with `/`."""
    origin: Origin
    size: int
    """Bytes as stored, -1 if unknown (a pipe)."""
    open: Callable[[], BinaryIO]
    """Opens the decompressed content for reading."""
    modified: float | None = None
    """Unix seconds of the last change of the file, if known."""
    members: tuple[str, ...] = ()
    """For a CHECKPOINT folder: absolute paths of its files."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One row of the evidence ledger: who looked where, and what came of it."""

    source: str
    """Source name, such as "log_dir", or reader name where the reader cut or refused something."""
    path: str
    outcome: Outcome
    origin: Origin = field(default_factory=Origin)
    kind: str | None = None
    bytes_seen: int = 0
    bytes_kept: int = 0
    dropped_from: int | None = None
    """Byte offset of the first dropped byte, if a part was dropped."""
    dropped_to: int | None = None
    detail: str | None = None


class LogLine(NamedTuple):
    """One line of text of a rank or launcher, cleaned of prefixes, colours and progress-bar overwrites.

    A NamedTuple, not a dataclass: there may be a million of them. Field order equals the `log_lines` table after
    `incident`.
    """

    attempt: int | None
    path: str
    line: int
    """1-based line number in the (decompressed) file."""
    offset: int
    """Byte offset of the line's first byte in the (decompressed) file."""
    part: int
    """0 for the whole line; 1, 2, ... for the pieces of a line that was overwritten with carriage returns."""
    node: str | None
    rank: int | None
    local_rank: int | None
    pid: int | None
    stream: str | None
    issuer: str
    """rank | launcher | scheduler | driver | unknown: who wrote it, as far as the line itself or the file tells."""
    at_lo: int | None
    """Earliest time of the line, UTC microseconds; None if the line has no time."""
    at_hi: int | None
    text: str


class Source(Protocol):
    """Where evidence comes from. Yields artifacts, writes nothing; "not here" is a value, never an exception."""

    name: str

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        """Yield what is there as Artifact, and what could not be looked at as LedgerEntry."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """What a collection may cost."""

    seconds: float = 300.0
    bytes: int = 1 << 40
    files: int = 200_000
    lines: int = 600_000
    """Log lines kept over all files together; beyond it each file keeps head, tail and what surrounds hits."""
