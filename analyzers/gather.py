"""From a folder (or file, or pipe) to the evidence of one incident: sources, then readers, nothing judged yet.

The same evidence tables come out for a folder on a laptop and for raw parts of the lake, so that everything behind this
module has one way in.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from analyzers import log_stacks
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, LogLine, Outcome, RunRef
from collector.readers import exits, rank_log, roster
from collector.readers.windows import Locate
from collector.redact import redact

_READERS: dict[ArtifactKind, tuple[str, str]] = {
    ArtifactKind.KERNEL_LOG: ("kernel_events", "collector.readers.kernel_log"),
    ArtifactKind.GPU_STATE: ("gpus", "collector.readers.gpu_state"),
    ArtifactKind.ENVIRONMENT: ("environment", "collector.readers.environment"),
    ArtifactKind.STACK_DUMP: ("stack_frames", "collector.readers.stacks"),
    ArtifactKind.FLIGHT_RECORDER: ("collectives", "collector.readers.flight_recorder"),
    ArtifactKind.CHECKPOINT: ("checkpoints", "collector.readers.checkpoint"),
    ArtifactKind.EXIT_FILE: ("scheduler_events", "collector.readers.exit_file"),
}
"""Kind -> (table, module with `read(artifact) -> rows`), imported only when such an artifact turns up."""
_QUIET_IS_HEALTHY = (ArtifactKind.KERNEL_LOG, ArtifactKind.EXIT_FILE)
"""Kinds that hold nothing worth a row when all is well."""


@dataclass(slots=True)
class Evidence:
    """What was found, before anybody thought about it."""

    incident: str
    root: str
    lines: list[LogLine] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    ledger: list[LedgerEntry] = field(default_factory=list)
    world_size: int | None = None
    files: int = 0
    bytes: int = 0


def gather(root: Path | Sequence[Path] | BinaryIO, budget: Budget, locate: Locate | None = None) -> Evidence:
    """Collect and read everything below `root`. Never raises on content; OSError only if `root` itself is unusable."""
    from collector.sources.log_dir import LogDir

    source = LogDir(root)
    run = RunRef(incident="")
    artifacts: list[Artifact] = []
    ledger: list[LedgerEntry] = []
    for found in source.collect(run, budget):
        if isinstance(found, Artifact):
            artifacts.append(found)
        else:
            ledger.append(found)
    evidence = Evidence(_identity(artifacts), _shown(root), ledger=ledger)
    evidence.files = len(artifacts)
    evidence.bytes = sum(max(artifact.size, 0) for artifact in artifacts)
    read(evidence, artifacts, budget, locate)
    return evidence


def _shown(root: Path | Sequence[Path] | BinaryIO) -> str:
    if isinstance(root, Path):
        return str(root)
    return ", ".join(str(path) for path in root) if isinstance(root, (list, tuple)) else "-"


def _identity(artifacts: Iterable[Artifact]) -> str:
    """An id that a copy of the same files gets too: names and sizes, no absolute path, no time."""
    digest = hashlib.sha256()
    for artifact in sorted(artifacts, key=lambda a: a.path):
        digest.update(f"{artifact.path}\0{artifact.size}\n".encode("utf-8", "replace"))
    return f"local-{digest.hexdigest()[:12]}"


def read(evidence: Evidence, artifacts: Sequence[Artifact], budget: Budget, locate: Locate | None = None) -> None:
    """Add to `evidence` what the artifacts say, then who took part and how it ended, from all lines together.

    `evidence` may hold lines, rows and a world size already (those of a lake's raw parts).
    """
    logs = [a for a in artifacts if a.kind is ArtifactKind.RANK_LOG]
    share = max(budget.lines // max(len(logs), 1), 400)
    for artifact in artifacts:
        if artifact.kind is ArtifactKind.RANK_LOG or _also_a_log(artifact):
            log = rank_log.read(artifact, share, locate)
            evidence.lines.extend(log.lines)
            evidence.ledger.extend(log.ledger)
            if not log.ledger or log.lines:
                evidence.ledger.append(_collected(artifact, len(log.lines)))
        if artifact.kind is ArtifactKind.ERROR_FILE:
            evidence.lines.extend(_error_lines(artifact))
            evidence.ledger.append(_collected(artifact, None))
        elif artifact.kind in _READERS:
            table, module = _READERS[artifact.kind]
            rows = _rows(module, artifact, evidence.ledger)
            evidence.tables[table].extend(rows)
    _mask(evidence)
    known = roster.build(evidence.lines, _dumped(evidence))
    evidence.lines = known.lines
    # a scheduler counts tasks, which may be launchers: ranks that spoke or named the size are not fewer
    evidence.world_size = max(filter(None, (evidence.world_size, known.world_size)), default=None)
    evidence.tables["incidents"].append({"incident": evidence.incident, "world_size": evidence.world_size})
    evidence.tables["ranks"].extend(known.ranks)
    evidence.tables["scheduler_events"].extend(exits.read(known.lines))
    frames = evidence.tables["stack_frames"]
    frames.extend(log_stacks.read(known.lines, known.ranks, frames))


def _mask(evidence: Evidence) -> None:
    """Mask secrets once, before anybody reads, cites or prints a text. Paths stay: they must open the file."""
    texts = [line.text for line in evidence.lines]
    for index, text in _masked(texts):
        evidence.lines[index] = evidence.lines[index]._replace(text=text)
    rows = [row for listed in evidence.tables.values() for row in listed]
    stated = list({value for row in rows for key, value in row.items() if isinstance(value, str) and key != "path"})
    changed = {stated[index]: text for index, text in _masked(stated)}
    if changed:
        for row in rows:
            row.update({k: changed[v] for k, v in row.items() if isinstance(v, str) and k != "path" and v in changed})


def _masked(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(index, masked text) of the texts that hold a secret, found in one scan of all of them."""
    joined = "\n".join(texts)
    masked, count = redact(joined)
    if not count:
        return
    at = 0  # masking never changes the number of newlines, but a text may hold some of its own
    pieces = masked.split("\n")
    for index, text in enumerate(texts):
        size = text.count("\n") + 1
        new = "\n".join(pieces[at : at + size])
        at += size
        if new != text:
            yield index, new


def _dumped(evidence: Evidence) -> dict[int, int | None]:
    """Rank -> process id, of ranks whose dumps are named by rank."""
    found: dict[int, int | None] = {}
    for table in ("stack_frames", "collectives"):
        for row in evidence.tables[table]:
            rank = row.get("rank")
            if rank is not None:
                found[rank] = row.get("pid") or found.get(rank)
    return found


def _also_a_log(artifact: Artifact) -> bool:
    """A rank's own stream that holds a stack is a log too: the line above the stack says why it is there."""
    return artifact.kind is ArtifactKind.STACK_DUMP and artifact.origin.stream is not None


def _rows(module: str, artifact: Artifact, ledger: list[LedgerEntry]) -> list[dict[str, Any]]:
    reader = import_module(module)
    try:
        rows: list[dict[str, Any]] = reader.read(artifact)
    except Exception as error:  # a reader that breaks its contract costs its own artifact, never the diagnosis
        ledger.append(
            LedgerEntry(
                "log_dir", artifact.path, Outcome.UNREACHABLE, artifact.origin, artifact.kind,
                detail=f"{type(error).__name__}: {error}",
            )
        )  # fmt: skip
        return []
    if not rows and artifact.kind in _QUIET_IS_HEALTHY:
        entry = _collected(artifact, None)
        ledger.append(replace(entry, detail="read, and it reports no failure"))
        return []
    outcome = Outcome.COLLECTED if rows else Outcome.EMPTY
    why = getattr(reader, "problem", None)
    detail = None if rows else (why(artifact) if why else None) or "nothing in it could be read as evidence"
    ledger.append(
        LedgerEntry(
            "log_dir", artifact.path, outcome, artifact.origin, artifact.kind, max(artifact.size, 0),
            max(artifact.size, 0) if rows else 0, detail=detail,
        )
    )  # fmt: skip
    return rows


def _collected(artifact: Artifact, lines: int | None) -> LedgerEntry:
    return LedgerEntry(
        "log_dir", artifact.path, Outcome.COLLECTED, artifact.origin, artifact.kind, max(artifact.size, 0),
        max(artifact.size, 0), detail=None if lines is None else f"{lines} lines",
    )  # fmt: skip


def _error_lines(artifact: Artifact) -> list[LogLine]:
    """torchelastic's error.json as lines of its rank: the traceback in it is parsed like any other."""
    from collector.readers import error_file

    lines = []
    for row in error_file.read(artifact):
        texts = list(row.get("traceback") or []) or [str(row.get("message") or "")]
        for number, text in enumerate(texts, 1):
            lines.append(
                LogLine(
                    row.get("attempt"), artifact.path, number, 0, 0, artifact.origin.node, row.get("rank"),
                    row.get("local_rank"), None, "stderr", "rank", row.get("at"), row.get("at"), str(text),
                )
            )  # fmt: skip
    return lines
