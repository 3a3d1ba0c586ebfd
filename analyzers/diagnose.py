"""The one function that every way in goes through: evidence in, diagnosis out.

    evidence -> signatures and tracebacks -> detectors -> attribution -> ranking (SQL) -> verdict

Detectors are named, not imported: one whose evidence is absent costs nothing, and one that breaks costs only itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from analyzers import waiting_stacks
from analyzers.attribute import attribute, demote_stops, mark_progress
from analyzers.case import Case, Observation
from analyzers.clocks import align
from analyzers.fates import fates
from analyzers.gather import Evidence, gather
from analyzers.masked import masked
from analyzers.placement import locate
from analyzers.signatures import SignatureSet, load
from analyzers.undated import doubt
from collector import __version__
from collector.model import Budget, LedgerEntry, Outcome
from collector.readers import tracebacks

if TYPE_CHECKING:
    from analyzers.rank import Ranking

SCHEMA = 1
DETECTORS = (
    "kernel", "gpu_state", "environment", "storage", "exceptions", "signature_hits", "exits", "stacks", "collectives",
    "checkpoints", "error_lines", "silence", "divergence", "control",
)  # fmt: skip
"""Modules of analyzers.detectors, each with `detect(case)`."""


def diagnose(
    root: Path | Sequence[Path] | BinaryIO,
    *,
    control: Path | None = None,
    extra_signatures: Path | None = None,
    budget: Budget | None = None,
) -> dict[str, Any]:
    """The diagnosis of the run below `root` (folder, file, list of both, or a pipe): the contract of DESIGN section 4.

    `control`: a known-good run of the same job to compare with. Raises OSError if `root` itself cannot be read.
    """
    started = time.perf_counter()
    budget = budget or Budget()
    known = load(extra_signatures)
    evidence = gather(root, budget, _prefilter(known))
    case = build_case(evidence, known)
    if control is not None:
        case.control = build_case(gather(control, budget, _prefilter(known)), known)
    answer: dict[str, Any] = masked(judge(case, evidence))
    answer["details"]["signature_set"] = known.hash
    answer["details"]["seconds"] = round(time.perf_counter() - started, 3)
    return answer


def _prefilter(known: SignatureSet) -> Any:
    """The locator for logs that are too large to read whole: all signature patterns in one pass over the bytes."""

    def locate(file: BinaryIO) -> Iterator[tuple[int, int, int, int]]:
        from collector.patterns import locate as locate_patterns

        for found in locate_patterns(file, known.prefilter(), limit=200):
            yield found.pattern, found.line, found.start, found.end

    return locate


def build_case(evidence: Evidence, known: SignatureSet) -> Case:
    """Match signatures and parse tracebacks over the lines of the attempt that matters."""
    attempt = _attempt(evidence)
    lines = [line for line in evidence.lines if (line.attempt or 0) == attempt]
    tables = {
        name: [row for row in rows if row.get("attempt") in (None, attempt)] for name, rows in evidence.tables.items()
    }
    aligned, tables, clock_notes = align(lines, tables)
    case = Case(
        incident=evidence.incident,
        lines=aligned,
        hits=known.match(aligned),
        signatures=known.by_id,
        exceptions=tracebacks.read(aligned),
        world_size=evidence.world_size,
        tables=tables,
        ledger=[*evidence.ledger, *clock_notes],
    )
    # a launcher's statement about a rank that printed nothing makes the job larger than its lines do
    case.world_size = max(case.world_size or 0, len(fates(case))) or None
    stacks = waiting_stacks.rows(case)
    if stacks:
        case.tables = {**case.tables, "stack_frames": stacks}
    return case


def _attempts(evidence: Evidence) -> list[int]:
    return sorted({line.attempt or 0 for line in evidence.lines}) or [0]


def _attempt(evidence: Evidence) -> int:
    """The attempt to diagnose: the last one, unless it never trained and an earlier one did.

    A restart that dies before its first step mostly dies of what the earlier attempt left behind (ports, peers, a
    half-written checkpoint), so the earlier death is the initiating failure.
    """
    attempts = _attempts(evidence)
    trained = {row["attempt"] for row in evidence.tables["ranks"] if row.get("step") is not None}
    finished = {row["attempt"] for row in evidence.tables["ranks"] if row.get("finished")}
    last = attempts[-1]
    if last in trained or last in finished:
        return last
    earlier = [attempt for attempt in attempts if attempt in trained]
    return earlier[-1] if earlier else attempts[0]


def observe(case: Case) -> list[Observation]:
    """Run all detectors; one that raises is reported in the ledger and costs only itself."""
    seen: list[Observation] = []
    for name in DETECTORS:
        try:
            seen.extend(import_module(f"analyzers.detectors.{name}").detect(case))
        except Exception as error:
            note = LedgerEntry(
                f"detector:{name}", "", Outcome.UNREACHABLE, detail=f"internal error: {type(error).__name__}: {error}"
            )
            case.ledger = [*case.ledger, note]
    return seen


def judge(case: Case, evidence: Evidence) -> dict[str, Any]:
    """Detectors, attribution, ranking and verdict of one case."""
    from analyzers import rank

    observations = examine(case)
    ranking = rank.rank({case.incident: observations}, {case.incident: ranks_at_least(case)}, relations(case))
    return conclude(case, evidence, observations, ranking[case.incident])


def examine(case: Case) -> list[Observation]:
    """Everything that is done with observations before they are ranked."""
    observations = observe(case)
    attribute(case, observations)
    locate(case, observations)
    mark_progress(case, observations)
    doubt(case, observations)
    demote_stops(case, observations)
    return observations


def relations(case: Case) -> list[tuple[str, str]]:
    """(effect, cause) pairs that the signatures state."""
    known = [(s.id, cause) for s in case.signatures.values() for cause in s.caused_by]
    return known + [(effect, s.id) for s in case.signatures.values() for effect in s.causes]


def ranks_at_least(case: Case) -> int | None:
    """The world size, or 2 where it is unknown but more than one rank took part, or None."""
    return case.world_size or (2 if _several_writers(case) else None)


def conclude(case: Case, evidence: Evidence, observations: list[Observation], ranking: Ranking) -> dict[str, Any]:
    """The contract of DESIGN section 4 from a ranking, which may have been one of many incidents in one call."""
    from analyzers import verdict

    decided = verdict.decide(case, observations, ranking)
    decided["verdict"]["resume_from"] = _resume(case, ranking.candidates[0]["at_lo"] if ranking.candidates else None)
    return {
        "schema": SCHEMA,
        "incident": {
            "id": case.incident,
            "scheduler": "local",
            "world_size": case.world_size,
            "attempts": len(_attempts(evidence)),
        },
        **decided,
        "ledger": _ledger(case),
        "details": _details(case, evidence, observations, decided),
    }


def _several_writers(case: Case) -> bool:
    """True if more than one rank took part although none is known by its global rank."""
    local = {line.local_rank for line in case.lines if line.local_rank is not None}
    stopped = {end["pid"] for end in case.rows("scheduler_events") if end.get("pid") is not None}
    return len(local) > 1 or len(stopped) > 1


def _resume(case: Case, failed_at: int | None) -> dict[str, Any] | None:
    """The newest complete checkpoint from before the failure."""
    rows = case.rows("checkpoints")
    row = import_module("analyzers.detectors.checkpoints").resume_from(rows, failed_at) if rows else None
    if row is None:
        return None
    return {"path": row.get("path"), "step": row.get("step"), "complete": row.get("status") == "complete"}


def _checkpoints(case: Case) -> list[dict[str, Any]]:
    rows = case.rows("checkpoints")
    if not rows:
        return []
    listed = import_module("analyzers.detectors.checkpoints").distinct(rows)
    return [{key: row.get(key) for key in ("path", "format", "step", "status", "why")} for row in listed]


def _ledger(case: Case) -> dict[str, Any]:
    """How many ranks were expected and how many spoke; what was dropped or could not be read."""
    spoke = {row["rank"] for row in case.rows("ranks") if row.get("lines")}
    expected = case.world_size or len(spoke)
    gaps = [
        f"{entry.path}: {entry.outcome.value}{f' ({entry.detail})' if entry.detail else ''}".lstrip(": ")
        for entry in case.ledger
        if entry.outcome not in (Outcome.COLLECTED, Outcome.NOT_CONFIGURED, Outcome.EMPTY)
        and not (entry.detail or "").startswith("copy of")
    ]
    silent = sorted(set(range(expected)) - spoke) if expected <= 1 << 16 else []
    if silent and spoke:
        shown = ", ".join(str(rank) for rank in silent[:16]) + (" ..." if len(silent) > 16 else "")
        gaps.insert(0, f"no line could be attributed to rank(s) {shown}")
    return {"expected": expected, "collected": len(spoke), "gaps": list(dict.fromkeys(gaps))}


def _details(
    case: Case, evidence: Evidence, observations: Sequence[Observation], decided: dict[str, Any]
) -> dict[str, Any]:
    from analyzers import narrative

    return {
        "ranks": narrative.ranks(case, decided["verdict"]),
        "timeline": narrative.timeline(observations),
        "first_difference": narrative.first_difference(observations),
        "checkpoints": _checkpoints(case),
        "inputs": {
            "files": evidence.files,
            "bytes": evidence.bytes,
            "lines": len(evidence.lines),
            "root": evidence.root,
        },
        "ledger_rows": [_ledger_row(entry) for entry in case.ledger],
        "version": __version__,
    }


def _ledger_row(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "outcome": entry.outcome.value,
        "detail": entry.detail,
        "bytes_seen": entry.bytes_seen,
        "bytes_kept": entry.bytes_kept,
    }
