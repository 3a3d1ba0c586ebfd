"""What SQL cannot compute: intervals, projections, and which nodes stand out. One function per panel, rows to rows.

A rate never stands alone: it carries k, exposure and interval, and below `min_failures` the point estimate is left
out, because one failure more or less would change it by a quarter or more. A node is named only if chance alone would
rarely produce its record among all nodes looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analyzers import fleet
from analyzers.periods import HISTORY
from analyzers.report import panels

Row = dict[str, Any]
_PER = 1000.0  # node-days that rates are given for


@dataclass(slots=True)
class Context:
    """What the finishing functions share: `summary` grows as panels add their denominators to it."""

    summary: dict[str, Any]
    titles: Mapping[str, str] = field(default_factory=dict)
    """Signature id -> title."""

    def name(self, signature: str | None) -> str:
        """A signature as a person reads it."""
        return (self.titles.get(signature) or signature) if signature else "no signature"


def finish(name: str, rows: list[Row], context: Context) -> list[Row]:
    """Rows of a panel with what is computed from them; panels without such are handed back as they are."""
    return _FINISH[name](rows, context) if name in _FINISH else rows


def _setting(name: str) -> Any:
    return panels.settings()[name]


def rated(row: Row, k: int, node_days: float | None, prefix: str = "rate") -> None:
    """Add rate per 1,000 node-days with its interval to a row; the point estimate only from `min_failures` on."""
    row.update({prefix: None, f"{prefix}_lo": None, f"{prefix}_hi": None, "interval": "no exposure known"})
    if not node_days:
        return
    found = fleet.rate(k, node_days, _setting("confidence"))
    enough = k >= _setting("min_failures")
    row[f"{prefix}_lo"], row[f"{prefix}_hi"] = found.lo * _PER, found.hi * _PER
    row[prefix] = found.value * _PER if enough else None
    interval = f"{_short(found.lo * _PER)} – {_short(found.hi * _PER)}"
    row["interval"] = (
        f"{_short(found.value * _PER)} ({interval})" if enough else f"{interval} (k < {_setting('min_failures')})"
    )


def _short(value: float) -> str:
    """Three significant digits, no exponent."""
    if not math.isfinite(value):
        return "∞"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _trend(rows: list[Row], context: Context) -> list[Row]:
    for row in rows:
        rated(row, row["k"], row["node_days"])
        row["lost_share"] = (
            row["lost_gpu_hours"] / row["gpu_hours"] if row["gpu_hours"] and row["lost_gpu_hours"] else None
        )
    return rows


def _changed(rows: list[Row], context: Context) -> list[Row]:
    for row in rows:
        row["change"] = [row["failures"], row["failures_before"]]
    return rows


def _signatures(rows: list[Row], context: Context) -> list[Row]:
    earlier = context.summary.get("earlier", HISTORY)
    for row in rows:
        row["name"] = context.titles.get(row["signature"]) or row["title"] or row["signature"]
        row["history"] = [*(row[f"before_{i}"] for i in range(earlier, 0, -1)), row["failures"]]
    return rows


def _usual(rows: list[Row], context: Context) -> list[Row]:
    for row in rows:
        signature = row.get("usual_echo", row.get("usual"))
        row["usual_name"] = context.name(signature) if signature else ""
    context.summary.setdefault("echo_failures", 0)
    return rows


def _echoes(rows: list[Row], context: Context) -> list[Row]:
    context.summary["echo_failures"] = sum(row["failures"] for row in rows)
    context.summary["echoed"] = sum(row["echoed"] for row in rows)
    return _usual(rows, context)


def _recurrence(rows: list[Row], context: Context) -> list[Row]:
    for row in rows:
        row["title"] = context.name(row["signature"])
    return rows


def _mttf(rows: list[Row], context: Context) -> list[Row]:
    level, least = _setting("confidence"), _setting("min_failures")
    for row in rows:
        rated(row, row["k"], row["node_days"])
        row["size"] = _size(row["lo"], row["hi"])
        row.update(mttf=None, mttf_lo=None, mttf_hi=None, mttf_interval="")
        if not row["run_hours"]:
            continue
        per_hour = fleet.rate(row["k"], row["run_hours"], level)
        row["mttf_lo"] = 1 / per_hour.hi
        row["mttf_hi"] = 1 / per_hour.lo if per_hour.lo > 0 else None
        row["mttf"] = 1 / per_hour.value if row["k"] >= least else None
        row["mttf_interval"] = _hours_between(row["mttf_lo"], row["mttf_hi"])
    context.summary["window_k"] = sum(row["k"] for row in rows)
    return rows


def _size(lo: int, hi: int) -> str:
    if hi - lo == 1:
        return f"{lo:,}"
    return f"{lo:,} or more" if hi >= 1 << 61 else f"{lo:,} – {hi - 1:,}"


def _hours_between(lo: float, hi: float | None) -> str:
    return f"{hours(lo)} – {hours(hi)}" if hi is not None else f"at least {hours(lo)}"


def hours(value: float) -> str:
    """A duration in the unit that reads best."""
    if value < 1:
        return f"{value * 60:.0f} min" if value * 60 >= 1 else f"{value * 3600:.0f} s"
    return f"{value:.1f} h" if value < 72 else f"{value / 24:,.0f} d" if value >= 240 else f"{value / 24:.1f} d"


def _expected(rows: list[Row], context: Context) -> list[Row]:
    """MTTF and ETTR of job sizes up to four times the largest seen; none below `min_failures` failures."""
    (seen,) = rows
    k, node_days, known = seen["k"], seen["node_days"], _setting
    per_node = seen["gpus_per_node"] or 8.0
    interval = seen["interval_minutes"] or float(known("assumed_interval_minutes"))
    write, restart = known("assumed_write_seconds") / 60, float(known("assumed_restart_minutes"))
    said = f"{_short(interval)} min" + (
        f" (median of {seen['interval_jobs']} failed runs)" if seen["interval_minutes"] else " (assumed)"
    )
    pooled = fleet.rate(k, node_days, known("confidence")) if node_days else None
    words = "unknown"
    if pooled is not None:
        among = f"{_short(pooled.lo * _PER)} – {_short(pooled.hi * _PER)}"
        words = f"{_short(pooled.value * _PER)} ({among}) per 1,000 node-days, k = {k}"
    context.summary.update(
        pooled=words, interval_said=said, restart=f"{restart:g}", write=known("assumed_write_seconds")
    )
    context.summary["undetermined_exposed"] = seen["undetermined"]
    if pooled is None or k < known("min_failures"):
        return []
    sizes = [n for n in known("size_bins") if per_node <= n <= 4 * (seen["largest_gpus"] or 0)]
    return [_projected(size, size / per_node, pooled, interval, restart, write) for size in sizes]


def _projected(gpus: int, nodes: float, pooled: fleet.Rate, interval: float, restart: float, write: float) -> Row:
    now = fleet.ettr(nodes, pooled.value, interval_min=interval, restart_min=restart, write_min=write)
    best = fleet.optimal_interval_min(nodes, pooled.value, write)
    exact = {
        name: fleet.ettr_exact(nodes, pooled.value, interval_min=every, restart_min=restart, write_min=write)
        for name, every in (("ettr_exact", interval), ("ettr_best", best))
    }
    return {
        "gpus": gpus,
        "size": f"{gpus:,}",
        "nodes": nodes,
        "mttf": fleet.mttf_hours(nodes, pooled.value),
        "mttf_interval": _hours_between(
            fleet.mttf_hours(nodes, pooled.hi), fleet.mttf_hours(nodes, pooled.lo) if pooled.lo else None
        ),
        "ettr_closed": now.value if now.valid else None,
        "ettr": f"{now.value:.1%}" if now.valid else "not valid",
        "loss": now.loss,
        "best_interval_minutes": best,
        "best_minutes": f"{_short(best)} min" if best < 120 else hours(best / 60),
        **exact,
    }


def _lemons(rows: list[Row], context: Context) -> list[Row]:
    """Nodes that initiated failures, most surprising first. `finding`: lemon, watch, or within chance.

    lemon and watch: beyond chance although all nodes were looked at (BH), at a strict and a lax rate. The null
    hypothesis: every node's share of the failures is its share of the busy node-hours. A node within chance stays in
    the data but is not shown: a name on a page that is forwarded is an accusation.
    """
    context.summary["lemon_unheld"] = sum(row["k"] for row in rows if row["node_hours"] is None)
    rows = [row for row in rows if row["node_hours"] is not None]
    total = sum(row["k"] for row in rows)
    exposure = sum(row["node_hours"] for row in rows)
    context.summary.update(lemon_nodes=len(rows), lemon_node_hours=exposure, lemon_k=total)
    chance = [fleet.binomial_tail(row["k"], total, row["node_hours"] / exposure) for row in rows]
    for row, p, q in zip(rows, chance, fleet.false_discovery(chance), strict=True):
        row["p"], row["q"] = p, q
    found = [row for row in rows if row["k"]]
    for row in found:
        row["node_days"] = row["node_hours"] / 24
        rated(row, row["k"], row["node_days"])
        row["finding"] = "within chance"
        if row["k"] >= _setting("lemon_min_failures") and row["q"] <= _setting("watch_false_discovery"):
            row["finding"] = "lemon" if row["q"] <= _setting("lemon_false_discovery") else "watch"
        row["shown"] = row["finding"] != "within chance"
        row["pro"], row["con"] = _speaks_for(row, context), _speaks_against(row)
    context.summary["lemons"] = [row["node"] for row in found if row["finding"] == "lemon"]
    context.summary["lemon_rest"] = sum(not row["shown"] for row in found)
    return sorted(found, key=lambda row: (row["q"], row["p"], -row["k"], row["node"]))


def _speaks_for(row: Row, context: Context) -> list[str]:
    names = sorted(context.name(signature) for signature in row["signatures"] or () if signature)
    said = ["; ".join(names[:3]) + (" ..." if len(names) > 3 else "")] if names else []
    if row["xids"]:
        said.append("Xid " + ", ".join(str(code) for code in sorted(c for c in row["codes"] if c is not None)))
    if row["board"] and row["board_times"] > 1:
        said.append(f"GPU board {row['board']} faulty in {row['board_times']} of them")
    if row["single_node_failures"]:
        said.append(f"{row['single_node_failures']} in single-node jobs")
    if row["users"] > 1:
        said.append(f"{row['users']} users hit")
    return said


def _speaks_against(row: Row) -> list[str]:
    said = []
    if row["k"] == 1:
        said.append("one failure only")
    elif row["users"] == 1:
        said.append("one user's jobs only")
    if row["k"] > 1 and row["days"] == 1:
        said.append("all on one day")
    if row["suspected"]:
        said.append(f"{row['suspected']} of {row['failures']} verdicts only suspected")
    if not row["xids"] and not row["board"]:
        said.append("no Xid or faulty GPU on record")
    if row["failures"] > row["k"]:
        said.append(f"{row['failures'] - row['k']} restarts of the same jobs left out")
    return said


def _ettr(rows: list[Row], context: Context) -> list[Row]:
    wall = sum(row["gpus"] * row["wall_hours"] for row in rows)
    lost = sum(row["ettr"] * row["gpus"] * row["wall_hours"] for row in rows)
    context.summary["ettr"] = lost / wall if wall else None
    context.summary["ettr_jobs"] = len(rows)
    return rows


def _xids(rows: list[Row], context: Context) -> list[Row]:
    from collector.data import lookup

    names = lookup("xid")
    for row in rows:
        row["what"] = row["event"]
        if row["event"] == "xid" and row["code"] is not None:
            known = names.get(row["code"]) or {}
            row["what"] = f"Xid {row['code']}" + (f", {known['meaning']}" if known.get("meaning") else "")
        elif row["code"] is not None:
            row["what"] = f"{row['event']} {row['code']}"
    return rows


def _undetermined(rows: list[Row], context: Context) -> list[Row]:
    if not any(row["undetermined"] for row in rows):
        return []
    known = _setting("evidence")
    for row in rows:
        row.update(label=known[row["kind"]]["label"], get=known[row["kind"]]["get"])
        row["settled_with_said"] = _of(row["settled_with"], row["with_it"])
        row["settled_without_said"] = _of(row["settled_without"], row["without_it"])
    return [row for row in rows if row["lacking"]]


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.0%})" if whole else "none had it"


def _coverage(rows: list[Row], context: Context) -> list[Row]:
    for row in rows:
        row["collected_share"] = (row["collected"] + row["truncated"]) / row["expected"] if row["expected"] else None
    return rows


_FINISH: dict[str, Callable[[list[Row], Context], list[Row]]] = {
    "trend": _trend,
    "causes": _changed,
    "watched": _changed,
    "signatures": _signatures,
    "owners": _usual,
    "echoes": _echoes,
    "recurrence": _recurrence,
    "mttf": _mttf,
    "expected": _expected,
    "lemons": _lemons,
    "ettr": _ettr,
    "xids": _xids,
    "undetermined": _undetermined,
    "coverage": _coverage,
}


def shares(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Shares of the summary with both parts known: name -> value; None where the denominator is missing or zero."""

    def of(part: str, whole: str) -> float | None:
        a, b = summary.get(part), summary.get(whole)
        return a / b if a is not None and b else None

    return {
        "undetermined_share": of("undetermined", "failures"),
        "unmatched_share": of("unmatched", "failures"),
        "lost_share": of("lost_gpu_hours", "gpu_hours"),
        "run_share": of("run_gpu_hours", "ended_gpu_hours"),
        "collected_share": of("collected", "expected"),
    }
