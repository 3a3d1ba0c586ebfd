"""The fleet report as data: every panel asked, finished and described. HTML, text and CSV only show it.

Each number has its denominator beside it and the command that gives it. What is not known is said before the numbers:
a report over thin evidence, without exposure, or over runs that nobody examined starts with that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from analyzers import periods, sql
from analyzers.report import panels, weekly_stats
from analyzers.report.weekly_stats import Context, Row
from collector import __version__
from collector.data import lookup

SCHEMA = 1
_FIX_FIRST = 3


def build(
    connection: Any,
    since: datetime,
    until: datetime,
    *,
    cluster: str | None = None,
    kind: str = "weekly",
    store: str | None = None,
    now: datetime | None = None,
    only: str | None = None,
) -> dict[str, Any]:
    """The report over [since, until) from the lake behind `connection` (DuckDB, one relation per table).

    `store` is only printed, in the commands; `only` asks that one panel. Raises KeyError for an unknown panel.
    The result is plain data: times are aware datetimes, everything else as JSON has it.
    """
    spans = periods.periods(since, until)
    lake = panels.Lake(connection, spans, cluster)
    context = Context(_summary(lake, spans), _titles())
    wanted = [only] if only else list(panels.specs())
    if only and only not in panels.specs():
        raise KeyError(only)
    asked = {name: weekly_stats.finish(name, lake.ask(name), context) for name in wanted}
    context.summary.update(weekly_stats.shares(context.summary))
    command = _command(kind, since, until, cluster, store)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": kind,
        "label": spans[-1].label,
        "since": since,
        "until": until,
        "cluster": cluster,
        "generated_at": now or datetime.now(UTC),
        "version": __version__,
        "command": command,
        "summary": context.summary,
        "panels": {name: _panel(name, rows, context, command) for name, rows in asked.items()},
        "assumptions": panels.settings(),
        "bases": dict(panels.bases()),
    }
    report["nothing"] = not (context.summary["examined"] or context.summary["runs"])
    report["warnings"] = warnings(report)
    report["fix_first"] = fix_first(asked.get("signatures", []), context) if not only else []
    return report


def _command(kind: str, since: datetime, until: datetime, cluster: str | None, store: str | None) -> str:
    import shlex

    words = ["firstfault", "report", kind, "--since", _shown(since), "--until", _shown(until)]
    words += ["--cluster", cluster] if cluster else []
    words += ["--store", store] if store else []
    return shlex.join(words)


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%d}" if at.time() == datetime.min.time() else at.isoformat().replace("+00:00", "Z")


def _titles() -> dict[str, str]:
    """Signature id -> title, of the signature set and of the detectors' own ids."""
    from analyzers.signatures import SignatureError, load

    known = {f"gpu/xid-{code}": f"Xid {code}: {entry['meaning']}" for code, entry in lookup("xid").items()}
    known.update({e["signature"]: e["title"] for e in lookup("kernel_events")["events"].values() if e.get("title")})
    known.update({name: entry["title"] for name, entry in lookup("detectors").items() if entry.get("title")})
    try:
        known.update({name: found.title for name, found in load().by_id.items()})
    except SignatureError:
        pass  # ids stand for themselves: a broken site signature must not cost the week's report
    return known


def _human(signature: str) -> Mapping[str, Any]:
    from analyzers.signatures import SignatureError, load

    try:
        found = load().by_id.get(signature)
    except SignatureError:
        found = None
    if found is not None:
        return {"fix": list(found.fix), "title": found.title}
    entry: Mapping[str, Any] = lookup("detectors").get(signature) or {}
    return entry


def _summary(lake: panels.Lake, spans: Sequence[periods.Period]) -> dict[str, Any]:
    """The figures that denominators and headline are taken from."""
    (summary,) = lake.ask("trust")
    known = panels.settings()
    summary.update(
        earlier=len(spans) - 1,
        determined=summary["failures"] - summary["undetermined"],
        window_from=f"{spans[0].starts:%Y-%m-%d}",
        window_until=f"{spans[-1].ends:%Y-%m-%d}",
        lemon_from=f"{lake.lemon_from:%Y-%m-%d}",
        level=f"{known['confidence']:.0%}",
        infrastructure=", ".join(known["infrastructure"]),
    )
    summary.update({k: v for k, v in known.items() if isinstance(v, int | float)})
    return summary


def _panel(name: str, rows: list[Row], context: Context, command: str) -> dict[str, Any]:
    spec = panels.specs()[name]
    summary = context.summary
    refused = spec.exposure and not summary["runs"]
    words = _Words({**summary, **weekly_stats.shares(summary)})
    return {
        "title": spec.title,
        "question": spec.question,
        "base": spec.base.format_map(words),
        "columns": [
            {
                "name": column.name,
                "label": column.label.format_map(words),
                "format": column.format,
                "of": column.of,
                "of_value": summary.get(column.of) if column.of else None,
                "bar": column.bar,
            }
            for column in spec.columns
        ],
        "rows": [] if refused else rows,
        "empty": "No allocations in the lake: without exposure there is no rate." if refused else spec.empty,
        "refused": refused,
        "limit": spec.limit,
        "chart": None if spec.chart is None else {f: getattr(spec.chart, f) for f in spec.chart.__struct_fields__},
        "sql": dict(sql.load(panels.GROUP))[name],
        "command": f"{command} --panel {name} --format csv",
    }


class _Words(dict[str, Any]):
    """Values of the summary as the sentences of a panel show them."""

    def __getitem__(self, key: str) -> str:
        value = super().__getitem__(key) if key in self else None
        if value is None:
            return "unknown"
        if key.endswith(("_share", "_goal")):
            return f"{value:.1%}"
        if isinstance(value, float):
            return f"{value:,.0f}" if value >= 10 else f"{value:g}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    def __missing__(self, key: str) -> str:
        return "unknown"


def warnings(report: Mapping[str, Any]) -> list[str]:
    """What limits the report, worst first, as sentences. Empty where nothing does."""
    s, known = report["summary"], panels.settings()
    if report["nothing"]:
        return [
            "No run was examined and no allocation is known. If jobs did run: is the cluster named as in the lake, do "
            "the collectors report (`firstfault doctor`), is the analysis running (`firstfault analyze --pending`)?"
        ]
    said = []
    if s["expected"] and s["collected"] / s["expected"] < known["thin_evidence"]:
        said.append(
            f"Thin evidence: {s['collected']:,} of {s['expected']:,} expected pieces "
            f"({s['collected'] / s['expected']:.0%}) were collected; causes and nodes may be wrong or missing."
        )
    if s["failed_runs_unexamined"]:
        said.append(
            f"{s['failed_runs_unexamined']:,} of {s['failed_runs']:,} runs that the scheduler calls failed were never "
            "examined: no evidence of them arrived. The counts below are too low."
        )
    if not s["runs"]:
        said.append(
            "No allocations in the lake: there is no exposure, so the page counts failures and refuses rates, MTTF and "
            "suspicious nodes."
        )
    elif report["until"] - s["exposure_until"] > (report["until"] - report["since"]) / 10:
        said.append(
            f"Allocations are known only up to {s['exposure_until']:%Y-%m-%d %H:%M} UTC: exposure ends there, "
            "rates of the rest of the period are too high."
        )
    if s["runs"] and s["without_exposure"]:
        said.append(
            f"{s['without_exposure']:,} of {s['failures']:,} failed runs are of jobs that the allocations do not hold; "
            "rates leave them out."
        )
    if s.get("lemon_unheld"):
        said.append(
            f"{s['lemon_unheld']:,} failures accuse nodes that no allocation holds (are they spelled differently?); "
            "the panel of nodes leaves them out."
        )
    if s["unpriced"]:
        said.append(
            f"{s['unpriced']:,} of {s['failures']:,} failed runs have no known duration or GPU count: "
            "they cost nothing in the sums below."
        )
    if s["signature_sets"] > 1:
        said.append(
            f"Verdicts of this period were made with {s['signature_sets']} different signature sets; "
            "`firstfault analyze --since` makes them comparable."
        )
    return said


def fix_first(rows: Sequence[Row], context: Context) -> list[dict[str, Any]]:
    """The signatures that cost most, with what to do about them."""
    total = context.summary["lost_gpu_hours"]
    found = []
    for row in rows[:_FIX_FIRST]:
        lost = row["lost_gpu_hours"]
        found.append(
            {
                "signature": row["signature"],
                "title": row["name"],
                "cause": row["cause"],
                "failures": row["failures"],
                "jobs": row["jobs"],
                "lost_gpu_hours": lost,
                "share": lost / total if lost is not None and total else None,
                "is_new": row["is_new"],
                "fix": list(_human(row["signature"]).get("fix") or [])[:1],
                "example": row["example"],
            }
        )
    return found
