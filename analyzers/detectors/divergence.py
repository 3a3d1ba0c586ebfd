"""Which rank did something else than all its peers?

Where every rank only echoes a failed collective, the odd one out is the suspect: failing at another call site, printing
a last message that no peer printed, or having a lower step counter. One against one is no majority and accuses nobody;
rank 0 prints and saves more than others in every program, so a line of its own proves nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from analyzers.case import Case, Observation
from analyzers.classify import covered
from analyzers.fates import Fate, fates
from analyzers.templates import Templates
from collector.model import LogLine
from collector.readers.times import Clock

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
    yield from _call_site(list(ranks.values()))
    yield from _fell_behind(ranks)
    yield from _unique_line(case, ranks)


def _said(line: LogLine) -> str:
    """What a line says, without the stamp in front of it."""
    stamp = Clock().parse(line.text)
    text = line.text[stamp.end :] if stamp else line.text
    return text.strip(" -|:,[]()")[:100]


def _call_site(ranks: list[Fate]) -> Iterator[Observation]:
    places: dict[int, tuple[str, Fate]] = {}
    for fate in ranks:
        echo = next((e for e in fate.errors if e.role == "cascade"), None)
        if echo is None:
            continue
        frames = [f for f in echo.outer.frames if "-packages" not in f.file and not f.file.startswith("<")]
        if frames:
            places[fate.rank] = (" > ".join(f"{f.file}:{f.lineno}" for f in frames), fate)
    counts = Counter(place for place, _ in places.values())
    if len(places) < 3 or len(counts) != 2:
        return
    (_, many), (odd, few) = counts.most_common(2)
    if few != 1 or many < 2:
        return
    fate = next(f for place, f in places.values() if place == odd)
    error = next(e for e in fate.errors if e.role == "cascade")
    frame = error.outer.user_frame
    where = f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.lineno})" if frame else "?"
    source = f"`{frame.source}`" if frame and frame.source else ""
    yield Observation(
        detector="divergence",
        signature="divergence/call-site",
        role="initiating",
        cause="user_code",
        title=f"Mismatched collectives: rank {fate.rank} was in {where} {source} while its {many} peers were elsewhere",
        text=error.outer.line.text.strip(),
        strength=2,
        rank=fate.rank,
        node=fate.node,
        attempt=error.outer.line.attempt,
        issuer="rank",
        path=error.outer.line.path,
        line=error.outer.line.line,
        offset=error.outer.line.offset,
        detail={"site": odd, "missing": ["flight-recorder dumps or TORCH_DISTRIBUTED_DEBUG=DETAIL of a rerun"]},
    )


def _fell_behind(ranks: dict[int, Fate]) -> Iterator[Observation]:
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


def _first_failure_lines(case: Case) -> dict[int, int]:
    """Rank -> index of the line before its first failure line: what an abort prints about itself is no divergence."""
    first: dict[int, int] = {}
    failing = [(hit.index, hit.line.rank) for hit in case.hits if case.signatures[hit.signature].role != "context"]
    failing += [(exception.start, exception.line.rank) for exception in case.exceptions]
    for index, rank in failing:
        if rank is not None:
            first[rank] = min(first.get(rank, index), index - 1)
    return first


def _unique_line(case: Case, ranks: dict[int, Fate]) -> Iterator[Observation]:
    inside = covered(case)
    ends = _first_failure_lines(case)
    own: dict[int, list[LogLine]] = defaultdict(list)
    for index, line in enumerate(case.lines):
        if line.rank in ranks and index not in inside and line.text.strip() and index < ends.get(line.rank, index + 1):
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
        late = [line for template, line in pairs[-_TAIL:] if owners[template] == {rank} and counts[template] == 1]
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
