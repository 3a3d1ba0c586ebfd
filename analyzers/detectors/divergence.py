"""Which rank did something else than all its peers?

Where every rank only echoes a failed collective, the odd one out is the suspect: failing at another call site, printing
a last message that no peer printed, or having a lower step counter. One against one is no majority and accuses nobody;
rank 0 prints and saves more than others in every program, so a line of its own proves nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from analyzers.case import Case, Observation
from analyzers.classify import covered
from analyzers.fates import Fate, fates
from analyzers.templates import Templates
from collector.data import lookup
from collector.model import LogLine
from collector.readers.roster import progress_step
from collector.readers.times import Clock

_STACK_FRAME = re.compile(r'^\s*File "(?P<file>[^"<]+)", line (?P<line>\d+) in (?P<function>\S+)')
_TAIL = 6
"""A telling last message is among the last lines of its rank."""
_LINES = 400
"""Lines per rank compared with the peers'."""


def detect(case: Case) -> Iterator[Observation]:
    """Observations divergence/call-site, unique-line, fell-behind (hints: strength 1, one 2)."""
    ranks = fates(case)
    speaking = [fate for fate in ranks.values() if fate.failed]
    if len(ranks) < 3 or not speaking or not all(fate.only_echoes for fate in speaking):
        return
    named = list(_fingerprints(case, ranks))
    yield from named
    if named:
        return
    yield from _call_site(case, list(ranks.values()))
    yield from _fell_behind(ranks)
    yield from _unique_line(case, ranks)


def _said(line: LogLine) -> str:
    """What a line says, without the stamp in front of it."""
    stamp = None if line.text.startswith("{") else Clock().parse(line.text)
    text = line.text[stamp.end :] if stamp else line.text
    return text.strip(" -|:,[]()")[:100]


def _fingerprints(case: Case, ranks: dict[int, Fate]) -> Iterator[Observation]:
    """torch's DETAIL mode compares each rank only with one other; put together, the odd one out shows."""
    pattern = re.compile(lookup("fingerprints")["regex"])
    running: dict[int, str] = {}
    cited: dict[int, LogLine] = {}
    for line in case.lines:
        if "CollectiveFingerPrint" not in line.text:
            continue
        for match in pattern.finditer(line.text):
            rank = int(match["rank"])
            parts = [match["op"], match["shape"], match["dtype"], f"sequence {match['seq']}" if match["seq"] else None]
            running.setdefault(rank, " ".join(part for part in parts if part))
            cited.setdefault(rank, line)
    counts = Counter(running.values())
    if len(running) < 3 or len(counts) < 2:
        return
    (common, many), (_, few) = counts.most_common(2)
    odd = sorted(rank for rank, what in running.items() if what != common)
    if many <= len(running) / 2 or few >= many:
        return
    line = cited[odd[0]]
    shown = ", ".join(f"rank {rank} was running {running[rank]}" for rank in odd[:4])
    yield Observation(
        detector="divergence",
        signature="divergence/fingerprint",
        role="initiating",
        cause="user_code",
        title=f"Mismatched collectives: {shown}, while {many} peers were running {common}",
        text=line.text.strip()[:600],
        strength=3,
        rank=odd[0] if len(odd) == 1 else None,
        attempt=line.attempt,
        at_lo=line.at_lo,
        at_hi=line.at_hi,
        path=line.path,
        line=line.line,
        offset=line.offset,
        detail={"ranks": odd},
    )


class _Place(NamedTuple):
    """Where in the user's code a rank was when its collective failed."""

    path: str
    """Call path, to compare."""
    where: str
    source: str
    line: LogLine
    """The line to cite."""


def _place(case: Case, fate: Fate) -> _Place | None:
    """From the traceback of its echo, else from the stack that faulthandler printed when it aborted."""
    for error in fate.errors:
        if error.role != "cascade":
            continue
        frames = [f for f in error.outer.frames if "-packages" not in f.file and not f.file.startswith("<")]
        if frames:
            last = frames[-1]
            where = f"{last.function} ({last.file.rpartition('/')[2]}:{last.lineno})"
            path = " > ".join(f"{f.file}:{f.lineno}" for f in frames)
            return _Place(path, where, last.source, error.outer.line)
    for hit in fate.echoes:
        stack = [
            (match, line)
            for line in case.lines[hit.index : hit.index + 200]
            if line.rank == fate.rank and (match := _STACK_FRAME.match(line.text)) and "-packages" not in match["file"]
        ]
        if stack:
            match, line = stack[0]
            # innermost first, unlike a traceback
            path = " > ".join(f"{m['file']}:{m['line']}" for m, _ in reversed(stack))
            return _Place(path, f"{match['function']} ({match['file'].rpartition('/')[2]}:{match['line']})", "", line)
    return None


def _call_site(case: Case, ranks: list[Fate]) -> Iterator[Observation]:
    places = {fate.rank: place for fate in ranks if (place := _place(case, fate)) is not None}
    counts = Counter(place.path for place in places.values())
    if len(places) < 3 or len(counts) != 2:
        return
    (_, many), (odd, few) = counts.most_common(2)
    if few != 1 or many < 2:
        return
    fate = next(f for f in ranks if f.rank in places and places[f.rank].path == odd)
    place = places[fate.rank]
    source = f" `{place.source}`" if place.source else ""
    yield Observation(
        detector="divergence",
        signature="divergence/call-site",
        role="initiating",
        cause="user_code",
        title=f"Mismatched collectives: rank {fate.rank} was in {place.where}{source}, {many} peers were elsewhere",
        text=place.line.text.strip(),
        strength=2,
        rank=fate.rank,
        node=fate.node,
        attempt=place.line.attempt,
        issuer="rank",
        path=place.line.path,
        line=place.line.line,
        offset=place.line.offset,
        detail={"site": odd, "missing": ["flight-recorder dumps or TORCH_DISTRIBUTED_DEBUG=DETAIL of a rerun"]},
    )


def _fell_behind(ranks: dict[int, Fate]) -> Iterator[Observation]:
    """Only where peers ran out of patience: a lost connection ends the counters of all ranks at random places."""
    if not all(fate.timed_out for fate in ranks.values() if fate.failed):
        return
    steps = {rank: fate.row["step"] for rank, fate in ranks.items() if fate.row.get("step") is not None}
    if len(steps) < len(ranks) or len(steps) < 3:
        return
    low = min(steps.values())
    behind = [rank for rank, step in steps.items() if step == low]
    others = {step for rank, step in steps.items() if rank not in behind}
    if len(behind) != 1 or len(others) != 1:
        return
    fate = ranks[behind[0]]
    yield Observation(
        detector="divergence",
        signature="divergence/fell-behind",
        role="initiating",
        cause="unknown",
        title=f"Rank {fate.rank} was at step {low} while every peer had reached step {others.pop()}",
        text=str(fate.row.get("last_text") or ""),
        strength=1,
        rank=fate.rank,
        node=fate.node,
        attempt=fate.row.get("attempt"),
        at_lo=fate.row.get("step_at"),
        issuer="collector",
        source="ranks",
        path=fate.row.get("last_path"),
        line=fate.row.get("last_line"),
        detail={"step": low},
    )


def _first_failure_lines(case: Case) -> dict[tuple[int, str], int]:
    """(Rank, file) -> index where its failure begins: a traceback's header, or the line before an abort's own words."""
    first: dict[tuple[int, str], int] = {}
    failing = [(hit.index, hit.line) for hit in case.hits if case.signatures[hit.signature].role != "context"]
    failing += [(exception.start + 1, exception.line) for exception in case.exceptions]
    for index, line in failing:
        if line.rank is not None:
            key = (line.rank, line.path)
            first[key] = min(first.get(key, index), index - 1)
    return first


def _unique_line(case: Case, ranks: dict[int, Fate]) -> Iterator[Observation]:
    inside = covered(case)
    ends = _first_failure_lines(case)
    own: dict[int, list[LogLine]] = defaultdict(list)
    for index, line in enumerate(case.lines):
        if (
            line.rank in ranks
            and index not in inside
            and line.text.strip()
            and index < ends.get((line.rank, line.path), index + 1)
        ):
            own[line.rank].append(line)
    if len(own) < 3 or len(own) < len(ranks):
        return
    templates = Templates()
    seen = {rank: [(templates.add(line.text), line) for line in lines[-_LINES:]] for rank, lines in own.items()}
    owners: dict[int, set[int]] = defaultdict(set)
    for rank, pairs in seen.items():
        for template, _ in pairs:
            owners[template].add(rank)
    suspects = []
    for rank, pairs in seen.items():
        # the same line can stand in the console and in the rank's own file
        counts = Counter(template for template, _ in {(template, line.text) for template, line in pairs})
        trained = next((i for i, (_, line) in enumerate(pairs) if progress_step(line.text) is not None), len(pairs))
        tail = pairs[max(trained + 1, len(pairs) - _TAIL) :]
        late = [line for template, line in tail if owners[template] == {rank} and counts[template] == 1]
        if late:
            suspects.append((rank, late[0]))
    suspects = [(rank, line) for rank, line in suspects if rank != 0]
    if len(suspects) != 1:
        return
    rank, line = suspects[0]
    yield Observation(
        detector="divergence",
        signature="divergence/unique-line",
        role="initiating",
        cause="user_code",
        title=f'Collectives diverge: rank {rank} alone printed "{_said(line)}" just before those of the others failed',
        text=line.text.strip(),
        strength=1,
        rank=rank,
        node=ranks[rank].node,
        attempt=line.attempt,
        at_lo=line.at_lo,
        at_hi=line.at_hi,
        issuer="rank",
        path=line.path,
        line=line.line,
        offset=line.offset,
        detail={"missing": ["flight-recorder dumps, or TORCH_DISTRIBUTED_DEBUG=DETAIL in a rerun"]},
    )
