"""The report for a terminal: a page for somebody who was paged at night.

The first line is the verdict, the next the line of evidence that proves it. Everything after is in the order of the
questions that follow: why that one, who is only an echo, what else it could be, what to do, where to go on from, what
is not known. An undetermined verdict puts what would settle it before everything else, because that is the next thing
to do. Labels stand in a column of their own, so that the page can be skimmed; colour emphasises and tells nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analyzers.report import view as views
from analyzers.report import wording
from analyzers.report.plain import cells, cut, inline, shorten, wrap
from analyzers.report.view import Candidate, Cite, View

_LABEL = 11  # columns of the label column: the longest label and a space or two
_NARROWEST = 40
_QUOTE_LINES = 3  # screen lines that a quoted line may fill unless verbose
_ONE_LINE = 200
_TITLE = 110  # characters of an echo's title unless verbose
_BOLD, _DIM = "1", "2"
_COLORS = {"no_failure": "1;32", "undetermined": "1;33", "suspected": "1;33"}
_FAILED = "1;31"


def render(diagnosis: Mapping[str, Any], *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
    """The diagnosis (the contract of `diagnose --json`) as text that ends with a newline.

    No line is wider than `width` columns (at least 40) except where a path alone is. `color` adds ANSI emphasis;
    `verbose` lists everything that is otherwise cut after a few entries, and adds the ranks and the timeline.
    Never raises on content; nothing in the text acts on a terminal but our own colours.
    """
    view = views.read(diagnosis)
    page = _Page(max(width, _NARROWEST), color, verbose)
    _verdict(page, view)
    {"undetermined": _undetermined, "no_failure": _no_failure}.get(view.verdict.status, _failed)(page, view)
    page.row("Evidence", [wording.ledger(view)])
    page.row("", [f"gap: {gap}" for gap in page.some(view.gaps, 3)])
    if verbose:
        page.row("", [said for said in wording.incomplete(view) if said not in view.gaps])
    page.put(wording.origin(view), "", _DIM)
    return "\n".join(page.lines) + "\n"


def one_line(diagnosis: Mapping[str, Any]) -> str:
    """The verdict in one line of at most 200 characters, such as for the comment of a job in the scheduler."""
    view = views.read(diagnosis)
    verdict = view.verdict
    cite = next((c for c in verdict.evidence if c.path), Cite())
    tail = f" [{wording.cause(verdict.cause)[:20]}]" if verdict.failed and verdict.cause else ""
    if verdict.failed and len(cite.where) <= 60:
        tail = f"{tail} {cite.where}".rstrip()
    if verdict.status == "undetermined" and verdict.missing:
        tail = f" (to settle: {shorten(verdict.missing[0], 80)})"
    head = f"{verdict.status.replace('_', ' ')}: {wording.headline(view)}"
    return shorten(inline(head), _ONE_LINE - len(tail)) + tail


class _Page:
    """Lines of text so far, and how they are set: labels in one column, their text in the next."""

    def __init__(self, width: int, color: bool, verbose: bool) -> None:
        self.width, self.color, self.verbose = width, color, verbose
        self.lines: list[str] = []

    def paint(self, text: str, style: str) -> str:
        """`text` in an ANSI style, if colour was asked for."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.color and style and text else text

    def put(self, text: str, indent: str, style: str = "", hang: str = "") -> None:
        """Wrapped lines of `text` behind `indent`, the following ones behind `hang` too."""
        room = self.width - len(indent) - len(hang)
        first, *rest = wrap(text, room)
        self.lines.append(indent + self.paint(first, style))
        self.lines += [indent + hang + self.paint(line, style) for line in rest]

    def row(self, label: str, items: Iterable[str], indent: int = 0, hang: int = 0) -> None:
        """A label and its items, wrapped with the hanging indent of a bullet or `hang`; nothing without items."""
        for item in filter(None, items):
            mark, _, after = item.partition(" ")
            bullet = after and (mark in ("+", "-") or (mark[:-1].isdigit() and mark.endswith(".")))
            start = len(self.lines)
            self.put(item, " " * (_LABEL + indent), hang=" " * (len(mark) + 1 if bullet else hang))
            self.lines[start] = self.paint(label, _BOLD) + " " * (_LABEL - len(label)) + self.lines[start][_LABEL:]
            label = ""

    def quote(self, cite: Cite, indent: str, hints: str, style: str = _BOLD) -> None:
        """A line of evidence: `path:line` and, below, its text, shortened around what `hints` talk about."""
        if cite.where:
            who = f" (rank {cite.rank})" if cite.rank is not None else ""
            fits = cells(indent + cite.where + who) <= self.width
            self.lines.append(indent + cite.where + (who if fits else ""))
        room = self.width - len(indent) - 2
        text = shorten(cite.text.strip(), room * (4 * _QUOTE_LINES if self.verbose else _QUOTE_LINES), hints)
        for line in wrap(text, room)[: 40 if self.verbose else 2 * _QUOTE_LINES]:
            self.lines.append(f"{indent}  " + self.paint(line, style))

    def some(self, items: Sequence[str], most: int) -> list[str]:
        """The first `most` items and how many follow; all of them if verbose."""
        if self.verbose or len(items) <= most + 1:  # "and 1 more" takes the line that the one would take
            return list(items)
        return [*items[:most], f"… and {len(items) - most:,} more"]


def _verdict(page: _Page, view: View) -> None:
    verdict = view.verdict
    status = verdict.status.replace("_", " ").upper()
    start = len(page.lines)
    page.put(f"{status}: {wording.headline(view)}", "", hang="  ")
    style = _COLORS.get(verdict.status, _FAILED)
    page.lines[start:] = [page.paint(line, style) for line in page.lines[start:]]
    page.lines.append("")
    proof = wording.proof(view)
    shown = proof if page.verbose else proof[:3]
    for cite in shown:
        page.quote(cite, "  ", f"{verdict.title} {verdict.why}")
    if shown:
        page.lines.append("")


def _failed(page: _Page, view: View) -> None:
    verdict, mine = view.verdict, wording.own(view)
    signature = f"({verdict.signature})" if verdict.signature else ""
    named = f"{wording.cause(verdict.cause)} {signature}".strip()
    restarts = f"{view.attempts:,} attempts seen" if view.attempts is not None and view.attempts > 1 else ""
    page.row("Cause", [", ".join(filter(None, (named, verdict.when, restarts)))])
    if verdict.status != "established":
        page.row("Sure?", [wording.SURENESS[verdict.status]])
    page.row("Why", [verdict.why, *(_reasons(page, mine) if mine else ())])
    _difference(page, view)
    _echoes(page, view)
    _candidates(page, "Competing", wording.competing(view))
    page.row("Fix", _numbered(verdict.fix))
    page.row("Verify", _numbered(verdict.verify))
    page.row("Resume", [wording.resume(view) or "no checkpoint among the evidence"])
    page.row("Missing", _bullets(page.some(verdict.missing, 4)))
    page.row("See", page.some(verdict.reference, 2))
    if page.verbose:
        _fates(page, view, len(view.ranks))
        _timeline(page, view)


def _undetermined(page: _Page, view: View) -> None:
    verdict = view.verdict
    page.row("To settle", _numbered(verdict.missing or wording.to_settle(view)))
    page.row("Known", [verdict.why, f"last known time: {verdict.when}" if verdict.when else ""])
    _fates(page, view, 4)
    _difference(page, view)
    _candidates(page, "Possible", wording.possible(view))
    page.row("Ruled out", page.some([wording.ruled_out(row) for row in wording.excluded(view)], 3))
    _echoes(page, view)
    page.row("Meanwhile", _numbered((*verdict.fix, *verdict.verify)))
    page.row("Resume", [wording.resume(view)])
    page.row("See", page.some(verdict.reference, 2))
    if page.verbose:
        _timeline(page, view)


def _no_failure(page: _Page, view: View) -> None:
    page.row("Why", [view.verdict.why])
    _fates(page, view, 2)
    if page.verbose:
        _timeline(page, view)


def _difference(page: _Page, view: View) -> None:
    cite = view.difference
    if cite is None:
        return
    page.row("Difference", [cite.why or "the first line that the good run never printed"])
    page.quote(cite, " " * _LABEL, view.verdict.title, "")


def _echoes(page: _Page, view: View) -> None:
    said = []
    for echo in wording.echoes(view):
        who = wording.ranks(echo.ranks, view.world_size)
        what = echo.title or echo.signature or inline(echo.evidence.text)
        what = what if page.verbose else cut(what, _TITLE)
        times = f" ({echo.count:,} times)" if echo.count is not None and echo.count > max(len(echo.ranks), 1) else ""
        because = wording.because(view, echo)
        line = (f"{who}: " if who else "") + what + times + (f" ← {because}" if because else "")
        said.append(f"{line}, {echo.evidence.where}" if page.verbose and echo.evidence.where else line)
    page.row("Echoes", _bullets(page.some(said, 4)))


def _candidates(page: _Page, label: str, rows: Sequence[Candidate]) -> None:
    shown = rows if page.verbose else rows[:3]
    for row in shown:
        page.row(label, [wording.candidate(row)])
        label = ""
        page.row("", [row.evidence.where], indent=2)
        page.row("", _reasons(page, row), indent=2)
    if len(rows) > len(shown):
        page.row("", [f"… and {len(rows) - len(shown):,} more"])


def _fates(page: _Page, view: View, most: int) -> None:
    groups = wording.fates(view.ranks)
    said = [f"{wording.ranks(group.ranks, view.world_size)}: {group.text}" for group in groups]
    page.row("Ranks", page.some(said, most))


def _timeline(page: _Page, view: View) -> None:
    said = []
    for event in view.timeline:
        at = f"{event.at:%H:%M:%S}" if event.at else "no time "
        who = f"rank {event.rank}" if event.rank is not None else event.node or "job"
        what = event.title or event.signature or cut(inline(event.cite.text), _TITLE)
        said.append(f"{at} {who}: {what} [{event.role}]" + (f" {event.cite.where}" if event.cite.where else ""))
    page.row("Timeline", said, hang=9)


def _reasons(page: _Page, row: Candidate) -> list[str]:
    return [f"+ {reason}" for reason in page.some(row.pro, 3)] + [f"- {reason}" for reason in page.some(row.con, 3)]


def _numbered(items: Sequence[str]) -> list[str]:
    return list(items) if len(items) < 2 else [f"{number}. {item}" for number, item in enumerate(items, 1)]


def _bullets(items: Sequence[str]) -> list[str]:
    return list(items) if len(items) < 2 else [f"- {item}" for item in items]
