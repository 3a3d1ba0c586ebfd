"""The one place where a diagnosis is read.

A diagnosis is the JSON contract of `diagnose --json`: a dict in which any field may be missing or null, written by
this version or another. Here it becomes values with defaults, cleaned of everything that could act on a terminal or a
page, so that the texts and the templates ask no questions and never fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from analyzers.report.plain import clean, inline, shorten

STATUSES = ("established", "supported", "suspected", "undetermined", "no_failure")
_LONGEST = 4096  # characters of a path or sentence; quoted lines may be longer
_DEEPEST = 12  # levels of nesting; the contract has five


@dataclass(frozen=True, slots=True)
class Cite:
    """A line of evidence. `line` is 1-based, None for a file without lines; `where` is `path:line`."""

    path: str = ""
    line: int | None = None
    rank: int | None = None
    text: str = ""
    why: str = ""

    @property
    def where(self) -> str:
        """`path:line`, as editors and terminals understand it."""
        return f"{self.path}:{self.line}" if self.path and self.line is not None else self.path


@dataclass(frozen=True, slots=True)
class Verdict:
    """What failed first, how sure that is, and what to do."""

    status: str
    signature: str
    cause: str
    title: str
    scope: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    at: datetime | None
    when: str
    """The time in words; empty if nothing tells it."""
    why: str
    evidence: tuple[Cite, ...]
    fix: tuple[str, ...]
    verify: tuple[str, ...]
    missing: tuple[str, ...]
    reference: tuple[str, ...]
    resume_path: str
    resume_step: int | None
    resume_complete: bool | None

    @property
    def failed(self) -> bool:
        """True if it names what failed."""
        return self.status in STATUSES[:3]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hypothesis with what speaks for and against it. `score` is comparable within the incident only."""

    ranks: tuple[int, ...]
    node: str
    signature: str
    title: str
    cause: str
    score: float | None
    pro: tuple[str, ...]
    con: tuple[str, ...]
    evidence: Cite


@dataclass(frozen=True, slots=True)
class Echo:
    """A failure that another one explains. `explained_by` is a signature id or words."""

    ranks: tuple[int, ...]
    signature: str
    title: str
    count: int | None
    explained_by: str
    evidence: Cite


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended: initiated | echo | terminated | silent | finished | unknown."""

    rank: int
    node: str
    state: str
    last_step: int | None
    last_at: datetime | None
    end: str
    evidence: Cite


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the timeline."""

    at: datetime | None
    rank: int | None
    node: str
    role: str
    signature: str
    title: str
    cite: Cite


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: complete | partial | corrupt | unknown, and the fact that decides it."""

    path: str
    format: str
    step: int | None
    status: str
    why: str


@dataclass(frozen=True, slots=True)
class Looked:
    """A row of the ledger: where somebody looked and what came of it. Sizes in bytes."""

    path: str
    outcome: str
    detail: str
    seen: int
    kept: int


@dataclass(frozen=True, slots=True)
class View:
    """A whole diagnosis."""

    incident: str
    scheduler: str
    world_size: int | None
    attempts: int | None
    verdict: Verdict
    candidates: tuple[Candidate, ...]
    echoes: tuple[Echo, ...]
    expected: int | None
    collected: int | None
    gaps: tuple[str, ...]
    ranks: tuple[RankEnd, ...]
    timeline: tuple[Event, ...]
    difference: Cite | None
    checkpoints: tuple[Checkpoint, ...]
    ledger: tuple[Looked, ...]
    files: int | None
    bytes: int | None
    lines: int | None
    root: str
    signature_set: str
    version: str
    seconds: float | None


def read(diagnosis: Mapping[str, Any]) -> View:
    """The diagnosis as values. Takes any mapping, raises nothing: what is missing or of another type is left out."""
    safe = _cleaned(diagnosis, 0)
    incident, ledger = _map(safe, "incident"), _map(safe, "ledger")
    details = _map(safe, "details")
    inputs = _map(details, "inputs")
    difference = _cite(details.get("first_difference"))
    return View(
        incident=_text(incident, "id"),
        scheduler=_text(incident, "scheduler"),
        world_size=_whole(incident, "world_size"),
        attempts=_whole(incident, "attempts"),
        verdict=_verdict(_map(safe, "verdict")),
        candidates=tuple(_candidate(row) for row in _maps(safe, "candidates")),
        echoes=tuple(_echo(row) for row in _maps(safe, "collateral")),
        expected=_whole(ledger, "expected"),
        collected=_whole(ledger, "collected"),
        gaps=tuple(filter(None, (_gap(gap) for gap in _list(ledger, "gaps")))),
        ranks=tuple(filter(None, (_rank_end(row) for row in _maps(details, "ranks")))),
        timeline=tuple(_event(row) for row in _maps(details, "timeline")),
        difference=difference if difference.path or difference.text else None,
        checkpoints=tuple(_checkpoint(row) for row in _maps(details, "checkpoints")),
        ledger=tuple(_looked(row) for row in _maps(details, "ledger_rows")),
        files=_whole(inputs, "files"),
        bytes=_whole(inputs, "bytes"),
        lines=_whole(inputs, "lines"),
        root=_text(inputs, "root"),
        signature_set=_text(details, "signature_set"),
        version=_text(details, "version"),
        seconds=_number(details, "seconds"),
    )


def _verdict(row: Mapping[str, Any]) -> Verdict:
    status = _text(row, "status")
    resume = _map(row, "resume_from")
    complete = resume.get("complete")
    at = moment(row.get("at"))
    return Verdict(
        status=status if status in STATUSES else "undetermined",
        signature=_text(row, "signature"),
        cause=_text(row, "cause"),
        title=_text(row, "title"),
        scope=_text(row, "scope"),
        ranks=_ranks(row),
        nodes=_texts(row, "nodes"),
        at=at,
        when=_text(row, "when_text") or (f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else _text(row, "at")),
        why=_text(row, "why"),
        evidence=tuple(c for c in map(_cite, _maps(row, "evidence")) if c.path or c.text),
        fix=_texts(row, "fix"),
        verify=_texts(row, "verify"),
        missing=_texts(row, "missing"),
        reference=tuple(
            url
            for url in _texts(row, "reference") or _texts(row, "references")
            if url.startswith(("https://", "http://"))
        ),
        resume_path=_text(resume, "path"),
        resume_step=_whole(resume, "step"),
        resume_complete=complete if isinstance(complete, bool) else None,
    )


def _candidate(row: Mapping[str, Any]) -> Candidate:
    reasons = _texts(row, "reasons")
    rank = _whole(row, "rank")
    return Candidate(
        ranks=_ranks(row) or (() if rank is None else (rank,)),
        node=_text(row, "node"),
        signature=_text(row, "signature"),
        title=_text(row, "title"),
        cause=_text(row, "cause"),
        score=_number(row, "score"),
        # A reason without a sign speaks for its candidate: it is listed among the candidate's own reasons.
        pro=tuple(reason.lstrip("+ ") for reason in reasons if not reason.startswith(("-", "−"))),
        con=tuple(reason.lstrip("-− ") for reason in reasons if reason.startswith(("-", "−"))),
        evidence=_cite(row.get("evidence")),
    )


def _echo(row: Mapping[str, Any]) -> Echo:
    return Echo(
        ranks=_ranks(row),
        signature=_text(row, "signature"),
        title=_text(row, "title"),
        count=_whole(row, "count"),
        explained_by=_text(row, "explained_by"),
        evidence=_cite(row.get("evidence")),
    )


def _rank_end(row: Mapping[str, Any]) -> RankEnd | None:
    rank = _whole(row, "rank")
    if rank is None:
        return None
    return RankEnd(
        rank=rank,
        node=_text(row, "node"),
        state=_text(row, "state") or "unknown",
        last_step=_whole(row, "last_step"),
        last_at=moment(row.get("last_at")),
        end=_text(row, "end"),
        evidence=_cite(row.get("evidence")),
    )


def _event(row: Mapping[str, Any]) -> Event:
    return Event(
        at=moment(row.get("at")),
        rank=_whole(row, "rank"),
        node=_text(row, "node"),
        role=_text(row, "role") or "context",
        signature=_text(row, "signature"),
        title=_text(row, "title"),
        cite=_cite(row),
    )


def _checkpoint(row: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        path=_text(row, "path"),
        format=_text(row, "format"),
        step=_whole(row, "step"),
        status=_text(row, "status") or "unknown",
        why=_text(row, "why"),
    )


def _looked(row: Mapping[str, Any]) -> Looked:
    return Looked(
        path=_text(row, "path"),
        outcome=_text(row, "outcome"),
        detail=_text(row, "detail"),
        seen=_whole(row, "bytes_seen") or 0,
        kept=_whole(row, "bytes_kept") or 0,
    )


def _cite(row: Any) -> Cite:
    if not isinstance(row, Mapping):
        return Cite()
    text = row.get("text")  # not `_text`: the indentation and the lines of a quotation are kept
    return Cite(
        path=_text(row, "path"),
        line=_whole(row, "line"),
        rank=_whole(row, "rank"),
        text=text.strip("\n").rstrip() if isinstance(text, str) else "",
        why=_text(row, "why"),
    )


def _gap(gap: Any) -> str:
    """A gap of the ledger is a sentence, or a row with path, outcome and detail."""
    if isinstance(gap, str):
        return inline(gap)
    if not isinstance(gap, Mapping):
        return ""
    rank = _whole(gap, "rank")
    name = _text(gap, "path") or _text(gap, "source") or (f"rank {rank}" if rank is not None else _text(gap, "node"))
    said = ", ".join(filter(None, (_text(gap, "outcome").replace("_", " "), _text(gap, "detail"))))
    return ": ".join(filter(None, (name, said)))


def moment(value: Any) -> datetime | None:
    """An ISO 8601 time as an aware UTC datetime; None for anything else. A time without a zone is taken as UTC."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _cleaned(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {str(key): _cleaned(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [_cleaned(item, depth + 1) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else None


def _map(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(row: Mapping[str, Any], key: str) -> list[Any]:
    value = row.get(key)
    return value if isinstance(value, list) else []


def _maps(row: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [item for item in _list(row, key) if isinstance(item, Mapping)]


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return shorten(inline(value), _LONGEST) if isinstance(value, str) else ""


def _texts(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = row.get(key)
    items = [value] if isinstance(value, str) else _list(row, key)
    return tuple(text for text in (shorten(inline(item), _LONGEST) for item in items if isinstance(item, str)) if text)


def _whole(row: Mapping[str, Any], key: str) -> int | None:
    value = row.get(key)
    # No count of ours is wider than 64 bits, and Python refuses to print integers of thousands of digits.
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return value if fits else None


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _ranks(row: Mapping[str, Any]) -> tuple[int, ...]:
    whole = (_whole({"rank": item}, "rank") for item in _list(row, "ranks"))
    return tuple(sorted({rank for rank in whole if rank is not None}))
