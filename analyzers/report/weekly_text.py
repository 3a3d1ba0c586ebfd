"""The fleet report for a terminal, a mail without HTML, and CSV or JSON of a single panel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from analyzers.report import values, weekly_words
from analyzers.report.plain import cells, cut, wrap

_WIDEST = 44  # columns of one cell before it is cut
_LEFT = ("text", "line", "cause", "spark", "list", "code", "incident", "time", "flag", "change")


def render(report: Mapping[str, Any], *, width: int = 100) -> str:
    """The report as text that ends with a newline; tables are cut to `width` columns, never wrapped."""
    where = report["cluster"] or "all clusters"
    lines = [f"firstfault fleet report  {report['label']}  {weekly_words.when(report)}  {where}"]
    lines += ["", *wrap(weekly_words.headline(report), width)]
    for said in report["warnings"]:
        lines += [("! " if not i else "  ") + line for i, line in enumerate(wrap(said, width - 2))]
    if report["fix_first"]:
        lines += ["", "Fix first"]
    for number, item in enumerate(report["fix_first"], 1):
        lines += _first(number, item, width)
    if report["nothing"]:
        return "\n".join(line.rstrip() for line in lines) + "\n"
    lines.append("")
    for figure in weekly_words.figures(report):
        said = f"{figure.value}  {figure.of}" + (f"  ({figure.change})" if figure.change else "")
        lines += [f"{figure.label}: {said}"]
    for panel in report["panels"].values():
        lines += _panel(panel, width)
    lines += ["", f"JSON, CSV and a page of it: {report['command']} --format json|csv|html"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _first(number: int, item: Mapping[str, Any], width: int) -> list[str]:
    cost = values.show(item["lost_gpu_hours"], "gpu_hours")
    share = f" ({item['share']:.0%})" if item["share"] is not None else ""
    often = values.plural(item["failures"], "failure")
    said = f"{item['title']}: {cost} GPU-hours{share}, {often}, e.g. {item['example']}"
    lines = wrap(said, width - 5)
    lines += [line for step in item["fix"] for line in wrap(f"-> {step}", width - 5)]
    return [(f" {number}. " if not i else "    ") + line for i, line in enumerate(lines)]


def _panel(panel: Mapping[str, Any], width: int) -> list[str]:
    lines = ["", panel["title"], *wrap(panel["base"], width)]
    listed = [row for row in panel["rows"] if row.get("shown", True)]
    if not listed:
        return [*lines, f"  {panel['empty']}"]
    shown = listed[: panel["limit"]]
    table = [[_cell(row, column) for column in panel["columns"]] for row in shown]
    heads = [column["label"] for column in panel["columns"]]
    lines += [f"  {line}" for line in _table(heads, table, [c["format"] in _LEFT for c in panel["columns"]], width - 2)]
    more = len(listed) - len(shown)
    return [*lines, f"  ... and {values.plural(more, 'more row')}"] if more else lines


def _cell(row: Mapping[str, Any], column: Mapping[str, Any]) -> str:
    value = row.get(column["name"])
    share = values.part(value, column["of_value"]) if column["of"] else ""
    return cut(values.show(value, column["format"]) + share, _WIDEST)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool], width: int) -> list[str]:
    """Aligned columns; the rightmost ones are left out where they do not fit."""
    wide = [max(cells(row[i]) for row in [[cut(h, _WIDEST) for h in heads], *rows]) for i in range(len(heads))]
    fit, used = 0, 0
    while fit < len(wide) and used + wide[fit] <= width:
        used += wide[fit] + 2
        fit += 1
    fit = max(fit, 1)

    def line(row: Sequence[str]) -> str:
        padded = []
        for i in range(fit):
            space = " " * (wide[i] - cells(row[i]))
            padded.append(row[i] + space if left[i] else space + row[i])
        return "  ".join(padded)

    return [line(heads), "  ".join("-" * wide[i] for i in range(fit)), *(line(row) for row in rows)]


def dumps(report: Mapping[str, Any]) -> str:
    """The report as JSON; times as ISO text in UTC. Rows keep every column of the query, not only the shown ones."""
    return json.dumps(report, default=_plain, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return values.iso(value)
    return str(value)


def csv(panel: Mapping[str, Any]) -> str:
    """All rows of a panel as CSV with the columns of the query and what was computed from them."""
    import csv as writer
    import io

    out = io.StringIO()
    names = list(panel["rows"][0]) if panel["rows"] else [column["name"] for column in panel["columns"]]
    table = writer.writer(out, lineterminator="\n")
    table.writerow(names)
    table.writerows([[_field(row.get(name)) for name in names] for row in panel["rows"]])
    return out.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, datetime):
        return values.iso(value)
    return "; ".join(str(item) for item in value) if isinstance(value, list) else value
