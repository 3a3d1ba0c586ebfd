"""From a judged incident to the rows of the lake's tables. Content never stops it: a value that does not fit its
column becomes null, because one odd number in a dump must not cost the incident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from analyzers import raw_evidence
from analyzers.case import Case, Observation
from analyzers.gather import Evidence
from collector import __version__
from collector.collect import ledger_row
from collector.lake import LAKE_TABLES

_MAX_TEXT = 64 << 10
_INT64 = 1 << 63


def date_of(raw: raw_evidence.Raw, evidence: Evidence, answer: Mapping[str, Any]) -> str:
    """YYYY-MM-DD (UTC) of the failure: of the verdict, else of the run's end, else of the first report."""
    at = answer["verdict"]["at"]
    if at:
        return str(at)[:10]
    ended = evidence.tables["incidents"][0].get("ended")
    seconds = ended / 1e6 if ended else raw.oldest
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(raw.oldest, UTC).strftime("%Y-%m-%d")


def tables_of(
    case: Case, evidence: Evidence, observations: Sequence[Observation], answer: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Table -> rows that fit its schema, of all tables of the lake zone."""
    from analyzers import rank

    found: dict[str, list[dict[str, Any]]] = {t: list(evidence.tables.get(t, ())) for t in LAKE_TABLES}
    found["ledger"] = [ledger_row(entry) for entry in case.ledger]
    found["observations"] = rank.rows(case.incident, observations)
    found["candidates"] = [_candidate(place, one) for place, one in enumerate(answer["candidates"], 1)]
    found["verdicts"] = [_verdict(evidence, observations, answer)]
    return {table: [_fitting(table, case.incident, row) for row in rows] for table, rows in found.items()}


def _candidate(place: int, one: Mapping[str, Any]) -> dict[str, Any]:
    cited = one["evidence"]
    return {
        "place": place, "rank": one["rank"], "node": one["node"], "signature": one["signature"], "cause": one["cause"],
        "score": one["score"], "reasons": list(one["reasons"]), "path": cited["path"], "line": cited["line"],
        "text": cited["text"],
    }  # fmt: skip


def _verdict(evidence: Evidence, observations: Sequence[Observation], answer: Mapping[str, Any]) -> dict[str, Any]:
    verdict = answer["verdict"]
    cited: Mapping[str, Any] = next(iter(verdict["evidence"]), {})
    seen = _observed(observations, verdict["signature"], cited)
    resume: Mapping[str, Any] = verdict["resume_from"] or {}
    row = {name: verdict[name] for name in ("status", "signature", "cause", "title", "scope", "ranks", "nodes", "why")}
    return {
        **row,
        "date": (verdict["at"] or "")[:10] or None,
        "at_lo": seen.at_lo if seen else None,
        "at_hi": (seen.at_hi if seen.at_hi is not None else seen.at_lo) if seen else None,
        "path": cited.get("path"),
        "line": cited.get("line"),
        "text": cited.get("text"),
        "resume_from": resume.get("path"),
        "resume_step": resume.get("step"),
        "ledger_expected": answer["ledger"]["expected"],
        "ledger_collected": answer["ledger"]["collected"],
        "signature_set": answer["details"]["signature_set"],
        "version": __version__,
    }


def _observed(observations: Sequence[Observation], signature: str | None, cited: Mapping[str, Any]) -> Any:
    """The observation that the verdict cites first: it has the time as an interval."""
    for seen in observations:
        if seen.signature == signature and seen.path == cited.get("path") and seen.line == cited.get("line"):
            return seen
    return None


def _fitting(table: str, incident: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """`row` with the fields and types of its table."""
    from collector import tables

    schema = tables.SCHEMAS[table]
    fitted = {f.name: _value(f.type, row.get(f.name)) for f in schema if row.get(f.name) is not None}
    if "incident" in schema.names:
        fitted["incident"] = incident
    return fitted


def _value(kind: Any, value: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_list(kind):
        items = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        return [fitted for item in items if (fitted := _value(kind.value_type, item)) is not None]
    if pa.types.is_string(kind):
        return str(value)[:_MAX_TEXT].encode("utf-8", "replace").decode("utf-8", "replace")
    if pa.types.is_boolean(kind):
        return bool(value)
    if pa.types.is_binary(kind):
        return value if isinstance(value, bytes) else None
    try:
        number = float(value) if pa.types.is_floating(kind) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isinstance(number, float) or -_INT64 <= number < _INT64 else None
