"""Lines of rank logs and consoles: any bytes in, clean attributed lines out.

A log is read the way a person reads it: colours, NUL bytes and overwritten progress are ignored, words that a terminal
wrapped are joined, a viewer's line numbers are dropped, two ranks' texts glued on one line are taken apart. Each line
keeps the file, line number and byte offset where it can be opened. Whose line it is follows from its own prefixes first
and from the file second; local rank never becomes global rank unless the file itself maps one to the other.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collector import naming
from collector.model import Artifact, LedgerEntry, LogLine, Outcome
from collector.readers.prefixes import Grammar, Peeled
from collector.readers.times import Clock, Stamp, year_of, zone_shift
from collector.readers.windows import Gap, Locate, RawLine, select

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HAS_TIME = re.compile(r"\d:\d\d:\d\d|\b1\d{9}\b")
_GLUED = re.compile(r"(?<=.)(?=\[rank\d{1,6}\]:|\[default\d{1,4}\]:)")
_VIEWER = re.compile(r"^ *(\d+)(?: ?[:|→] ?|\t| )")
_BAR = re.compile(r"\d+%\|")
_GLUED_BAR = re.compile(r"\d+%\|.*\](?P<rest>[A-Za-z].{12,})")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_BLOCK_RANK = re.compile(r"^\s*rank\s*:\s*(\d+) \(local_rank: (\d+)\)")
"""torchrun's failure block: the only place where a node's console pairs its local ranks with global ones."""
_BEGINS = re.compile(r"^\s*(?:[\[({<]|\d{4}-\d\d|\d\d[:/]\d\d|[DIWEF]\d{4} |Traceback |File \")")
"""What a new line of a log begins with, and the rest of a wrapped one hardly ever."""
_DIGITS = re.compile(r"\d")
_SAMPLE = 600
_TRACEBACK = "Traceback (most recent call last)"
_MAX_QUOTED = 2000


class ReadLog(NamedTuple):
    """What one log gave."""

    lines: list[LogLine]
    ledger: list[LedgerEntry]


class _Piece(NamedTuple):
    """A cleaned line or a part of one, not yet attributed."""

    raw: RawLine
    part: int
    peeled: Peeled
    stamp: Stamp | None


def read(artifact: Artifact, max_lines: int = 600_000, locate: Locate | None = None) -> ReadLog:
    """The attributed lines of a log. Never raises: what cannot be read becomes a ledger row.

    `max_lines` bounds memory; `locate` is the prefilter that finds lines worth keeping in a log beyond that bound.
    """
    try:
        raws, gaps = select(artifact.open, max_lines, locate)
    except Exception as error:
        # a broken gzip stream, a vanished file, a device that answers nonsense: all are one fact for the ledger
        entry = LedgerEntry("rank_log", artifact.path, Outcome.UNREACHABLE, artifact.origin, artifact.kind)
        return ReadLog([], [_because(entry, f"{type(error).__name__}: {error}")])
    lines = _attribute(artifact, list(_pieces(artifact, raws)))
    return ReadLog(lines, [_gap_row(artifact, gap) for gap in gaps[:20]])


def _because(entry: LedgerEntry, detail: str) -> LedgerEntry:
    from dataclasses import replace

    return replace(entry, detail=detail)


def _gap_row(artifact: Artifact, gap: Gap) -> LedgerEntry:
    return LedgerEntry(
        source="rank_log",
        path=artifact.path,
        outcome=Outcome.TRUNCATED,
        origin=artifact.origin,
        kind=artifact.kind,
        bytes_seen=gap.end - gap.start,
        dropped_from=gap.start,
        dropped_to=gap.end,
        detail=gap.why,
    )


def _pieces(artifact: Artifact, raws: Sequence[RawLine]) -> Iterator[_Piece]:
    texts = [raw.data.decode("utf-8", "replace") for raw in raws]
    texts = [_ANSI.sub("", text) if "\x1b" in text else text for text in texts]
    texts = [_CONTROL.sub("", text).rstrip("\r") for text in texts]
    docker = _is_docker_json(texts)
    if not docker:
        texts = _without_viewer_numbers(texts)
        texts = _unwrapped(texts)
    grammar = Grammar(_sample(texts))
    clock = Clock(year_of(artifact.modified), artifact.modified)
    for raw, text in zip(raws, texts, strict=True):
        if not text:
            continue
        stream = time_text = None
        if docker:
            text, stream, time_text = _docker_line(text)
        part = 0
        for piece in (piece for whole in text.split("\n") for piece in _overwritten(whole)):
            for peeled in _peel_all(grammar, piece):
                if stream or time_text:
                    peeled = peeled._replace(stream=peeled.stream or stream, time_text=peeled.time_text or time_text)
                stamp = _stamp(clock, peeled)
                field = _traceback_field(peeled.text)
                if field:  # each of its lines once
                    peeled = peeled._replace(text=peeled.text[: peeled.text.index(_TRACEBACK)])
                yield _Piece(raw, part, peeled, stamp)
                part += 1
                for quoted in field:
                    yield _Piece(raw, part, peeled._replace(text=quoted), None)
                    part += 1


def _traceback_field(text: str) -> list[str]:
    """The lines of a traceback that a structured log keeps in a field of its JSON line (exc_info, exception, ...)."""
    if not text.startswith("{") or _TRACEBACK not in text:
        return []
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return []
    values = [inner for value in row.values() for inner in (value.values() if isinstance(value, dict) else [value])]
    found = next((value for value in values if isinstance(value, str) and _TRACEBACK in value), "")
    return [line for line in _CONTROL.sub("", found).split("\n")[:_MAX_QUOTED] if line.strip()]


def _sample(texts: list[str]) -> list[str]:
    """Lines from the start, the middle and the end: prefixes may begin only after a banner."""
    if len(texts) <= _SAMPLE:
        return texts
    third = _SAMPLE // 3
    middle = len(texts) // 2
    return texts[:third] + texts[middle : middle + third] + texts[-third:]


def _stamp(clock: Clock, peeled: Peeled) -> Stamp | None:
    # the program's own stamp is nearer to the event than the collector's receive time
    if _HAS_TIME.search(peeled.text[:80]):
        own = clock.parse(peeled.text)
        if own is not None:
            return own
    return clock.parse(peeled.time_text) if peeled.time_text else None


def _overwritten(text: str) -> list[str]:
    """The pieces of a line between carriage returns; of a progress bar only the last state says something."""
    if "\r" not in text:
        return [text]
    visible = [piece for piece in text.split("\r") if piece.strip()]
    return [p for i, p in enumerate(visible) if i == len(visible) - 1 or not _BAR.search(p) or _GLUED_BAR.search(p)]


def _peel_all(grammar: Grammar, text: str) -> Iterator[Peeled]:
    """The line without its prefixes; several, where another rank's prefix begins in the middle of it."""
    peeled = grammar.peel(text)
    if "[repeated " in peeled.text:
        peeled = peeled._replace(text=_REPEATED.sub("", peeled.text))
    cut = _GLUED.search(peeled.text) if "]:" in peeled.text else None
    if cut is None:
        yield peeled
        return
    yield peeled._replace(text=peeled.text[: cut.start()])
    yield from _peel_all(grammar, peeled.text[cut.start() :])


def _is_docker_json(texts: list[str]) -> bool:
    head = [t for t in texts[:20] if t]
    return bool(head) and all(t.startswith('{"log":') for t in head)


def _docker_line(text: str) -> tuple[str, str | None, str | None]:
    try:
        row = json.loads(text)
        # JSON escapes the colours, so that they come to light only now
        text = _CONTROL.sub("", _ANSI.sub("", str(row["log"])))
        return text.rstrip("\r\n"), row.get("stream"), row.get("time")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text, None, None


def _without_viewer_numbers(texts: list[str]) -> list[str]:
    """Drop line numbers that an editor or web viewer put in front, if nearly every line has one and they count up."""
    matches = [_VIEWER.match(t) for t in texts[:2000]]
    numbers = [int(m.group(1)[:9]) for m in matches if m]
    if len(numbers) < 5 or len(numbers) < 0.9 * len(matches):
        return texts
    steps = Counter(b - a for a, b in itertools.pairwise(numbers))
    if steps[1] < 0.9 * (len(numbers) - 1):
        return texts
    return [text[m.end() :] if (m := _VIEWER.match(text)) else text for text in texts]


def _unwrapped(texts: list[str]) -> list[str]:
    """Join lines that a terminal or a web form wrapped at a fixed width; the joined text stands at the first line."""
    if not 4 <= len(texts) <= 20_000:
        return texts
    lengths = Counter(len(t) for t in texts)
    width = max(lengths)
    full = lengths[width]
    if not 60 <= width <= 250 or full < 4 or full < 0.3 * len(texts) or not _breaks_words(texts, width):
        return texts
    joined: list[str] = []
    start = -1
    for text in texts:
        if start >= 0:
            joined[start] += text
            joined.append("")
        else:
            joined.append(text)
            start = len(joined) - 1
        if len(text) < width:
            start = -1
    return joined


def _breaks_words(texts: list[str], width: int) -> bool:
    """True if full lines go on in the next one: a wrapped line's rest does not begin the way lines begin.

    Training logs with padded numbers have many lines of one length too; there each line begins like the one before.
    """
    pairs = [(a, b) for a, b in itertools.pairwise(texts) if len(a) == width and b]
    alike = sum(_shape(a) == _shape(b) or _BEGINS.match(b) is not None for a, b in pairs)
    broken = sum(not a[-1].isspace() and not b[0].isspace() for a, b in pairs)
    return bool(pairs) and alike <= 0.2 * len(pairs) and broken >= 0.5 * len(pairs)


def _shape(text: str) -> str:
    """How a line begins, with its digits masked."""
    return _DIGITS.sub("0", text[:6])


def _attribute(artifact: Artifact, pieces: list[_Piece]) -> list[LogLine]:
    """Decide whose each line is, with what the whole file tells."""
    origin = artifact.origin
    local_to_rank = _local_to_rank(pieces)
    ranks = {p.peeled.rank for p in pieces if p.peeled.rank is not None}
    own_rank = origin.rank
    one_process = own_rank is not None or origin.local_rank is not None or origin.stream in ("stdout", "stderr")
    if one_process and len(ranks) == 1:
        own_rank = next(iter(ranks))  # the process itself knows better than its file's name
    launched = sum(p.peeled.marked for p in pieces) > 0.5 * len(pieces)
    own_pid = naming.read_name(artifact.path).pid
    shift = zone_shift((p.stamp.lo, p.stamp.naive) for p in pieces if p.stamp)
    lines = []
    for raw, part, peeled, stamp in pieces:
        rank = own_rank if one_process and own_rank is not None else peeled.rank
        local = origin.local_rank
        if peeled.local_rank is not None and (peeled.marked or rank is not None):
            local = peeled.local_rank
        if rank is None and local is not None and peeled.marked:
            rank = local_to_rank.get(local)
        issuer = peeled.issuer
        if issuer is None:
            known = rank is not None or peeled.marked or one_process
            issuer = "rank" if known else "launcher" if launched else "unknown"
        at_lo, at_hi = (stamp.lo, stamp.hi) if stamp else (None, None)
        if stamp and stamp.naive and shift:
            at_lo, at_hi = stamp.lo + shift, stamp.hi + shift
        if issuer in ("launcher", "scheduler") and not peeled.marked and not one_process:
            rank = local = None
        lines.append(
            LogLine(
                origin.attempt, artifact.path, raw.line, raw.offset, part, peeled.node or origin.node, rank, local,
                own_pid if peeled.pid is None else peeled.pid, peeled.stream or origin.stream, issuer, at_lo, at_hi,
                peeled.text,
            )
        )  # fmt: skip
    return lines


def _local_to_rank(pieces: list[_Piece]) -> dict[int, int]:
    """Local rank -> global rank, for local ranks that this file pairs with exactly one global rank."""
    pairs: dict[int, set[int]] = defaultdict(set)
    seen: set[int] = set()
    for piece in pieces:
        local, rank = piece.peeled.local_rank, piece.peeled.rank
        if local is not None:
            seen.add(local)
            if rank is not None:
                pairs[local].add(rank)
    for piece in pieces:
        if "(local_rank:" in piece.peeled.text and (match := _BLOCK_RANK.match(piece.peeled.text)):
            pairs[int(match[2])].add(int(match[1]))
    mapping = {local: next(iter(ranks)) for local, ranks in pairs.items() if len(ranks) == 1}
    if not pairs and len(seen) > 1:
        return {}
    return mapping
