"""Geometry of the interval plots: rows in, numbers that a template can draw out.

An interval is the figure; the dot on it is only drawn where the data carry a point estimate. What runs off the scale
ends in an arrow, and nothing is drawn where nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 190, 24, 26, 12
_ROWS = 16  # more rows than this are no picture any more


@dataclass(frozen=True, slots=True)
class Mark:
    """One row of an interval plot in pixels."""

    label: str
    y: int
    lo: float
    hi: float
    dot: float | None
    off_left: bool
    off_right: bool
    says: str
    strong: bool


@dataclass(frozen=True, slots=True)
class Plot:
    """An interval plot: marks, ticks (x, text), and the band of usual values (x, width) if there is one."""

    height: int
    marks: list[Mark]
    ticks: list[tuple[float, str]]
    unit: str
    band: tuple[float, float] | None = None
    band_says: str = ""
    width: int = WIDTH
    left: int = LEFT
    bottom: int = 0
    more: int = 0


def intervals(
    rows: Sequence[Mapping[str, Any]], chart: Mapping[str, Any], band: tuple[float, float] | None = None
) -> Plot | None:
    """The plot of `rows` by a chart spec (analyzers.report.panels.Chart); None where no row has an interval."""
    known = [row for row in rows if row.get(chart["lo"]) is not None]
    shown = known[:_ROWS]
    if not shown:
        return None
    ends = [row[chart[end]] for row in shown for end in ("lo", "hi") if row[chart[end]] is not None]
    scale, ticks = _log(ends) if chart["log"] else _linear([*ends, *(band or ())])
    marks = [_mark(row, chart, scale, TOP + ROW * i + ROW // 2) for i, row in enumerate(shown)]
    bottom = TOP + ROW * len(shown)
    return Plot(
        height=bottom + 42,
        marks=marks,
        ticks=[(scale(value), _tick(value)) for value in ticks],
        unit=chart["unit"],
        band=(scale(band[0]), scale(band[1]) - scale(band[0])) if band else None,
        band_says=f"usual on published clusters: {band[0]:g} to {band[1]:g}" if band else "",
        bottom=bottom,
        more=len(known) - len(shown),
    )


def _mark(row: Mapping[str, Any], chart: Mapping[str, Any], scale: Any, y: int) -> Mark:
    lo, hi, value = row[chart["lo"]], row[chart["hi"]], row[chart["value"]]
    off_left = bool(chart["log"]) and lo <= 0
    says = f"{_tick(lo)} to {_tick(hi) if hi is not None else 'no upper limit'}"
    return Mark(
        label=str(row[chart["label"]]),
        y=y,
        lo=LEFT if off_left else scale(lo),
        hi=WIDTH - RIGHT if hi is None else scale(hi),
        dot=scale(value) if value is not None else None,
        off_left=off_left,
        off_right=hi is None,
        says=f"{_tick(value)} ({says})" if value is not None else f"{says}; too few failures for a point",
        strong=row.get("finding") == "lemon" or row.get("period") == 0,
    )


def _linear(values: Sequence[float]) -> tuple[Any, list[float]]:
    top = max([*values, 0.0]) or 1.0
    step = 10 ** math.floor(math.log10(top))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if top / s <= 6)
    count = math.ceil(top / step)
    limit = step * count
    return (lambda v: round(LEFT + (WIDTH - RIGHT - LEFT) * v / limit, 1)), [step * i for i in range(count + 1)]


def _log(values: Sequence[float]) -> tuple[Any, list[float]]:
    positive = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    last = max(last, first + 1)

    def scale(value: float) -> float:
        place = (math.log10(max(value, 10.0**first)) - first) / (last - first)
        return round(LEFT + (WIDTH - RIGHT - LEFT) * min(place, 1.0), 1)

    return scale, [10.0**i for i in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
