"""What the first screen of the fleet report says: headline and key figures, each with denominator and comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from analyzers.report import panels
from analyzers.report.values import amount, plural


@dataclass(frozen=True, slots=True)
class Figure:
    """A key figure: what, how much, of what, and how it compares."""

    label: str
    value: str
    of: str
    change: str = ""


def headline(report: Mapping[str, Any]) -> str:
    """The period in one sentence."""
    s = report["summary"]
    if not s["failures"]:
        if s["examined"]:
            return f"No failed run among {plural(s['examined'], 'examined run')}"
        if report["nothing"]:
            return "The lake holds nothing of this period"
        return "No run was examined in this period"
    lost = s["lost_gpu_hours"]
    said = f"{plural(s['failures'], 'run')} failed"
    if lost is None:
        return said + "; what they cost is not known"
    share = f", {s['lost_share']:.1%} of the {amount(s['gpu_hours'])} held" if s["gpu_hours"] else ""
    return f"{said} and lost {amount(lost)} GPU-hours{share}"


def when(report: Mapping[str, Any]) -> str:
    """The span in words, UTC."""
    since, until = report["since"], report["until"]
    if since.time() == until.time() and not (since.hour or since.minute or since.second):
        last = until - timedelta(days=1)
        return f"{since:%d %b %Y} – {last:%d %b %Y} (UTC)" if last.date() != since.date() else f"{since:%d %b %Y} (UTC)"
    return f"{since:%d %b %Y %H:%M} – {until:%d %b %Y %H:%M} (UTC)"


def figures(report: Mapping[str, Any]) -> list[Figure]:
    """The key figures, those that are known."""
    s = report["summary"]
    trend = {row["period"]: row for row in report["panels"]["trend"]["rows"]} if "trend" in report["panels"] else {}
    now, before = trend.get(0, {}), trend.get(-1, {})
    found = [
        Figure(
            "Failed runs",
            amount(s["failures"]),
            f"of {amount(s['examined'])} examined"
            + (f"; {amount(s['no_failure'])} without a failure" if s["no_failure"] else ""),
            _against(s["failures"], before.get("failures")),
        ),
        Figure(
            "GPU-hours lost",
            amount(s["lost_gpu_hours"]) if s["lost_gpu_hours"] is not None else "unknown" if s["failures"] else "0",
            _lost_of(s),
            _against(s["lost_gpu_hours"], before.get("lost_gpu_hours")),
        ),
    ]  # fmt: skip
    if now.get("rate_lo") is not None:
        found.append(_rate(s, now))
    if s.get("ettr") is not None:
        found.append(
            Figure(
                "Effective training time",
                f"{s['ettr']:.1%}",
                f"of the wall time of {plural(s['ettr_jobs'], 'failed job')}",
            )
        )
    if "lemons" in s and s["runs"]:
        found.append(_nodes(s))
    if s["failures"]:
        found.append(
            Figure(
                "Undetermined",
                amount(s["undetermined"]),
                f"of {plural(s['failures'], 'failed run')} ({s['undetermined_share']:.0%})",
            )
        )
    if s["expected"]:
        found.append(
            Figure(
                "Evidence collected",
                f"{s['collected_share']:.0%}",
                f"{amount(s['collected'])} of {amount(s['expected'])} expected pieces",
            )
        )
    return found


def _rate(s: Mapping[str, Any], now: Mapping[str, Any]) -> Figure:
    interval = f"{s['level']} interval {now['rate_lo']:.1f} to {now['rate_hi']:.1f}"
    low, high = panels.settings()["band"]
    value = f"{now['rate']:.1f}" if now["rate"] is not None else f"k = {now['k']}"
    return Figure(
        "Infrastructure failures per 1,000 node-days",
        value,
        f"{interval}; k = {amount(now['k'])} in {amount(now['node_days'])} node-days; usual: {low} to {high}",
    )


def _nodes(s: Mapping[str, Any]) -> Figure:
    names = s["lemons"]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    beyond = f"beyond chance at {s['lemon_false_discovery']:.0%}"
    of = f"of {plural(s['lemon_nodes'], 'node')} since {s['lemon_from']}, {beyond}"
    return Figure("Nodes to take out and test", shown or "none", of)


def _lost_of(s: Mapping[str, Any]) -> str:
    said = []
    if s["gpu_hours"]:
        said.append(f"of {amount(s['gpu_hours'])} held")
    if s["run_gpu_hours"] is not None:
        said.append(f"whole runs: {amount(s['run_gpu_hours'])}")
    if s["assumed_loss"]:
        said.append(f"{amount(s['assumed_loss'])} of {amount(s['failures'])} by assumption")
    return "; ".join(said)


def _against(now: float | None, before: float | None) -> str:
    if now is None or before is None:
        return ""
    if not before:
        return "none the period before" if now else "as before"
    moved = (now - before) / before
    if abs(moved) < 0.005:
        return f"as the period before ({amount(before)})"
    return f"{'▲' if moved > 0 else '▼'} {abs(moved):.0%} against {amount(before)} before"
