"""The report as one page of HTML that can be mailed, archived and printed.

The page asks nothing of the network and runs no script: a Content-Security-Policy in it forbids both, so that a log
that smuggled markup past us would still be dead text. All text is escaped by jinja2's autoescape; this module only
prepares what the template shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from analyzers.report import lanes, wording
from analyzers.report import view as views
from analyzers.report.plain import cut, inline, shorten
from analyzers.report.view import Cite, Echo, Event, View

if TYPE_CHECKING:
    from jinja2 import Environment

_QUOTE = 700  # characters of one quoted line
_EVENTS = 40  # up to so many events are listed one by one
_ROWS = 200  # rows of the ledger; the rest is counted
_BREAKS = re.compile(r"[^/:]*[/:]+|[^/:]+")
_CODE = re.compile(r"`([^`]+)`")
_MARKS = {"established": "✕", "supported": "✕", "suspected": "?", "undetermined": "?", "no_failure": "✓"}


def render(diagnosis: Mapping[str, Any]) -> str:
    """The diagnosis (the contract of `diagnose --json`) as one self-contained HTML document. Never raises."""
    view = views.read(diagnosis)
    verdict = view.verdict
    hints = f"{verdict.title} {verdict.why}"
    mine = wording.own(view)
    undetermined = verdict.status == "undetermined"
    return _environment().get_template("diagnosis.html").render(
        view=view,
        verdict=verdict,
        words=wording,
        status=verdict.status.replace("_", " "),
        mark=_MARKS[verdict.status],
        headline=_capital(wording.headline(view)),
        facts=_facts(view),
        reasons=mine,
        excerpts=_excerpts(wording.proof(view), hints),
        difference=_excerpts([view.difference], hints) if view.difference else [],
        settle=(verdict.missing or wording.to_settle(view)) if undetermined else verdict.missing,
        undetermined=undetermined,
        chart=lanes.chart(view),
        events=_events(view),
        echoes=[_echo(view, echo) for echo in wording.echoes(view)],
        rivals=wording.possible(view) if undetermined else wording.competing(view),
        excluded=wording.excluded(view) if undetermined else [],
        fates=wording.fates(view.ranks),
        resume=wording.resume(view),
        ledger=_ledger(view),
        ledger_more=max(0, len(view.ledger) - _ROWS),
    )  # fmt: skip


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _facts(view: View) -> list[tuple[str, str]]:
    """Name and value of what stands below the verdict; those that have a value."""
    verdict = view.verdict
    places = wording.nodes(verdict.nodes)
    facts = [
        ("Cause", wording.cause(verdict.cause) if verdict.failed else ""),
        ("When", verdict.when),
        ("Ranks", wording.ranks(verdict.ranks, view.world_size).removeprefix("ranks ").removeprefix("rank ")),
        ("Nodes", places.removeprefix("nodes ").removeprefix("node ")),
        ("Signature", verdict.signature),
        ("World size", f"{view.world_size:,}" if view.world_size is not None else ""),
        ("Attempts", f"{view.attempts:,}" if view.attempts is not None and view.attempts > 1 else ""),
    ]
    return [(name, value) for name, value in facts if value]


@dataclass(frozen=True, slots=True)
class _Excerpt:
    """Lines of one file. Each is (line number or "", text, is it the proving line, does a gap precede it)."""

    path: str
    who: str
    lines: list[tuple[str, str, bool, bool]]


def _excerpts(cites: Sequence[Cite], hints: str) -> list[_Excerpt]:
    """Cited lines as excerpts of their files: neighbours in the list that are of one file and rank stand together."""
    excerpts = []
    for (path, rank), group in groupby(cites, key=lambda cite: (cite.path, cite.rank)):
        rows = sorted(group, key=lambda cite: cite.line or 0)
        lines: list[tuple[str, str, bool, bool]] = []
        before: int | None = None
        for cite in rows:
            gap = before is not None and cite.line is not None and cite.line > before + 1
            for number, text in enumerate(cite.text.split("\n")):
                at = str(cite.line) if cite.line is not None and not number else ""
                lines.append((at, shorten(text, _QUOTE, hints), cite is cites[0], gap and not number))
            before = cite.line
        excerpts.append(_Excerpt(path, f"rank {rank}" if rank is not None else "", lines))
    return excerpts


def _events(view: View) -> list[dict[str, str]]:
    """Rows of the event table: each event while they are few, else each kind of event once with all its ranks."""
    if len(view.timeline) <= _EVENTS:
        return [_event([event], view) for event in view.timeline]
    kinds: dict[tuple[str, str], list[Event]] = {}
    for event in view.timeline:
        kinds.setdefault((event.role, event.signature or event.title), []).append(event)
    return [_event(group, view) for group in kinds.values()]


def _event(group: Sequence[Event], view: View) -> dict[str, str]:
    first = group[0]
    times = sorted(event.at for event in group if event.at)
    when = f"{times[0]:%H:%M:%S.%f}"[:-3] if times else "no time"
    if times and times[-1] != times[0]:
        when += f" – {times[-1]:%H:%M:%S.%f}"[:-3]
    named = [event.rank for event in group if event.rank is not None]
    return {
        "when": when,
        "who": wording.ranks(named, view.world_size) or first.node or "job",
        "role": first.role,
        "what": first.title or first.signature or cut(inline(first.cite.text), 160),
        "where": first.cite.where,
        "text": shorten(inline(first.cite.text), 240, first.title),
    }


def _echo(view: View, echo: Echo) -> dict[str, str]:
    """A row of the table of echoes."""
    often = echo.count is not None and echo.count > max(len(echo.ranks), 1)
    return {
        "who": wording.ranks(echo.ranks, view.world_size) or "no rank",
        "what": cut(echo.title or echo.signature or "unnamed", 160),
        "often": f"{echo.count:,} times" if often else "",
        "text": shorten(inline(echo.evidence.text), 240, echo.title),
        "where": echo.evidence.where,
        "because": wording.because(view, echo) or "—",
    }


def _ledger(view: View) -> list[views.Looked]:
    """Rows of the ledger, those that are not simply collected first, so that a cap never hides a gap."""
    return sorted(view.ledger, key=lambda row: row.outcome == "collected")[:_ROWS]


def _pieces(text: str) -> Iterable[tuple[bool, str]]:
    """Text split at `code` in backticks: (is it code, text)."""
    parts = _CODE.split(text)
    return [(bool(number % 2), part) for number, part in enumerate(parts) if part]


def _steps(path: str) -> list[str]:
    """A path cut after its separators, where a narrow column may break it."""
    return _BREAKS.findall(path)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("analyzers.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["pieces"] = _pieces
    made.filters["steps"] = _steps
    return made
