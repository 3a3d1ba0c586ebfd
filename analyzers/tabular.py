"""Rows of a query as aligned text, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

_WIDEST = 80


def render(columns: Sequence[str], rows: Sequence[Sequence[Any]], form: str) -> str:
    """`form`: text | json | csv. Times are ISO 8601 in UTC; text cuts long cells, json and csv keep everything."""
    if form == "json":
        return "".join(_json(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)
        return out.getvalue()
    return _text(columns, rows)


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.hex() if isinstance(value, bytes) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    return _plain(value) if isinstance(value, (datetime, bytes)) else str(value)


def _text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = [[" ".join(_cell(value).split())[:_WIDEST] for value in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(columns)]
    number = [
        bool(rows) and all(isinstance(row[i], (int, float, type(None))) for row in rows) for i in range(len(columns))
    ]
    lines = [_aligned(columns, widths, number), _aligned(["-" * width for width in widths], widths, number)]
    lines += [_aligned(row, widths, number) for row in cells]
    return "\n".join(lines) + f"\n({len(rows)} row{'' if len(rows) == 1 else 's'})\n"


def _aligned(cells: Sequence[str], widths: Sequence[int], number: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, number, strict=True)
    ]
    return "  ".join(padded).rstrip()
