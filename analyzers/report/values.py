"""How a value of the fleet report is written: one function, so that page, text and CSV agree on every figure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from analyzers.report import wording
from analyzers.report.plain import clean, inline
from analyzers.report.weekly_stats import hours

NOTHING = "–"


def show(value: Any, kind: str) -> str:
    """`value` as text by the format of its column (analyzers.report.panels.Format); NOTHING for a null."""
    if value is None:
        return NOTHING
    if kind in ("count", "number", "gpu_hours"):
        return amount(value)
    if kind == "hours":
        return hours(value)
    if kind == "share":
        return f"{value:.1%}"
    if kind == "rate":
        return f"{value:.2g}" if value < 1 else f"{value:.1f}"
    if kind == "time":
        return stamp(value)
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "list":
        return "; ".join(show(item, "text") for item in value) or NOTHING
    if kind == "spark":
        return " ".join(str(item) for item in value)
    if kind == "cause":
        return wording.cause(value)
    if kind == "change":
        return change(*value)
    return inline(clean(str(value)))


def amount(value: float) -> str:
    """A count or a quantity: whole from 10 on, one digit below, never an exponent."""
    if isinstance(value, int) or value == 0 or abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 0.95 else f"{value:.2f}"


def change(now: int, before: int) -> str:
    """What a count was before and where it went: "4, ▼ 2"."""
    if now == before:
        return f"{before:,}, same"
    return f"{before:,}, {'▲' if now > before else '▼'} {abs(now - before):,}"


def part(value: Any, whole: Any) -> str:
    """A share in brackets: " (12%)"; empty where it says nothing."""
    if value is None or not whole:
        return ""
    share = value / whole
    return f" ({share:.0%})" if share >= 0.0995 or share == 0 else f" ({share:.1%})"


def stamp(at: datetime) -> str:
    """A moment in UTC to the minute."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def iso(at: datetime) -> str:
    """A moment as ISO 8601 in UTC, with Z."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
