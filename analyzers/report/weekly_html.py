"""The fleet report as one page of HTML: mailed, archived, printed, and read in ten seconds from its first screen.

Like the diagnosis page it asks nothing of the network and runs no script; queries and methods stand folded behind the
tables they belong to. All text is escaped by jinja2's autoescape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from analyzers.report import plots, values, weekly_words
from analyzers.report.html import _pieces, _steps

if TYPE_CHECKING:
    from jinja2 import Environment

_NUMERIC = ("count", "number", "gpu_hours", "hours", "share", "rate")
_BAR = 88  # pixels of the longest bar
_GROUPS = (
    ("What it cost and what to fix", ("causes", "signatures", "watched", "recurrence")),
    ("How often, and is it getting better", ("trend",)),
    ("Which nodes", ("lemons",)),
    ("Large jobs: time to failure and effective time", ("mttf", "expected", "ettr", "resume", "resume_points")),
    ("Who was hit, and what was said", ("owners", "echoes", "unmatched", "xids")),
    ("How far to trust it", ("undetermined", "coverage", "silent_nodes")),
)


def render(report: Mapping[str, Any]) -> str:
    """The report of analyzers.report.weekly.build as one self-contained HTML document."""
    placed = {name for _, names in _GROUPS for name in names}
    rest = tuple(name for name in report["panels"] if name not in placed)
    groups = [(title, [n for n in names if n in report["panels"]]) for title, names in (*_GROUPS, ("More", rest))]
    return _environment().get_template("weekly.html").render(
        report=report,
        headline=weekly_words.headline(report),
        when=weekly_words.when(report),
        figures=weekly_words.figures(report),
        groups=[(title, [_view(name, report) for name in names]) for title, names in groups if names],
        assumptions=_assumptions(report["assumptions"]),
        values=values,
    )  # fmt: skip


def _view(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """A panel as the template shows it: header cells, body cells, plot."""
    panel = report["panels"][name]
    listed = [row for row in panel["rows"] if row.get("shown", True)]
    rows = listed[: panel["limit"]]
    band = report["assumptions"]["band"]
    chart = panel["chart"]
    plot = plots.intervals(rows, chart, tuple(band) if chart["band"] else None) if chart and rows else None
    columns = [_header(column) for column in panel["columns"]]
    return {
        **panel,
        "id": name,
        "heads": columns,
        "body": [[_cell(row, column, rows) for column in panel["columns"]] for row in rows],
        "marked": [_marked(row) for row in rows],
        "more": len(listed) - len(rows),
        "plot": plot,
    }


def _marked(row: Mapping[str, Any]) -> str:
    """The class of a row that deserves the eye, or that says little."""
    if row.get("finding") == "lemon" or row.get("is_new"):
        return "hot"
    return "quiet" if row.get("finding") == "within chance" or row.get("k", 99) == 0 else ""


def _header(column: Mapping[str, Any]) -> dict[str, Any]:
    of = f"of {values.amount(column['of_value'])}" if column["of"] and column["of_value"] is not None else ""
    return {"label": column["label"], "of": of, "numeric": column["format"] in _NUMERIC}


def _cell(row: Mapping[str, Any], column: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    value = row.get(column["name"])
    shown = values.show(value, column["format"])
    bar = None
    if column["bar"]:
        top = 1.0 if column["format"] == "share" else max((r.get(column["name"]) or 0 for r in rows), default=0)
        bar = round(_BAR * value / top, 1) if value and top else 0
    share = values.part(value, column["of_value"]) if column["of"] else ""
    items = [values.show(item, "text") for item in value] if column["format"] == "list" and value else []
    return {
        "text": shown + share,
        "bar": bar,
        "numeric": column["format"] in _NUMERIC,
        "whole": column["format"] in ("line", "change", "time"),
        "code": column["format"] in ("code", "incident") and value is not None,
        "items": items,
        "spark": _spark(value) if column["format"] == "spark" and value else [],
        "label": column["label"],
    }


def _spark(counts: Sequence[int]) -> list[tuple[int, float, float]]:
    """Bars (x, y, height) of a sparkline 22 pixels high; a count of zero keeps a stub."""
    top = max(counts) or 1
    heights = [max(1.5, round(20 * count / top, 1)) for count in counts]
    return [(11 * i, round(22 - height, 1), height) for i, height in enumerate(heights)]


def _assumptions(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " "), ", ".join(str(v) for v in value) if isinstance(value, list) else str(value))
        for name, value in known.items()
        if isinstance(value, int | float | list) and not (isinstance(value, list) and isinstance(value[0], dict))
    ]


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
    made.filters["steps"] = _steps
    made.filters["pieces"] = _pieces
    return made
