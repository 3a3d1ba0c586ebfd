"""Runs the ranking: `queries/rank/*.sql` over the observations of one or many incidents at once.

Set-based on purpose: one incident on a laptop and ten thousand in the lake are the same queries. Python only shapes the
input (what the ranking reads from `detail` becomes columns) and hands back rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analyzers import sql
from analyzers.case import Observation
from collector import tables

_SCHEMA = tables.SCHEMAS["observations"]


class Ranking(NamedTuple):
    """Rows as dicts: candidates best first, collateral, explanations (effect_id, cause_id, how)."""

    candidates: list[dict[str, Any]]
    collateral: list[dict[str, Any]]
    explanations: list[dict[str, Any]]


def rows(incident: str, observations: Iterable[Observation]) -> list[dict[str, Any]]:
    """Observations as rows of the `observations` table, numbered."""
    import json

    listed = []
    for number, seen in enumerate(observations):
        row = {name: getattr(seen, name) for name in seen.__dataclass_fields__ if name != "detail"}
        row.update(incident=incident, id=number, detail=json.dumps(seen.detail, default=str))
        listed.append(row)
    return listed


def rank(
    observed: Mapping[str, Sequence[Observation]],
    world_sizes: Mapping[str, int | None],
    relations: Iterable[tuple[str, str]],
) -> dict[str, Ranking]:
    """Rank the candidates of each incident. `relations`: pairs (effect signature, cause signature)."""
    connection = sql.connect()
    try:
        connection.register("observations", _input(observed))
        import pyarrow as pa

        pairs = sorted(set(relations))
        connection.register(
            "relations",
            pa.table(
                {
                    "effect": pa.array([e for e, _ in pairs], pa.string()),
                    "cause": pa.array([c for _, c in pairs], pa.string()),
                }
            ),
        )
        connection.register(
            "incidents",
            pa.table(
                {
                    "incident": pa.array(list(observed), pa.string()),
                    "world_size": pa.array([world_sizes.get(i) for i in observed], pa.int64()),
                }
            ),
        )
        for _, text in sql.load("rank"):
            connection.execute(text)
        found = {name: _fetch(connection, name) for name in ("candidates", "collateral", "explanations")}
    finally:
        connection.close()
    return {incident: _of(incident, found) for incident in observed}


def _of(incident: str, found: Mapping[str, list[dict[str, Any]]]) -> Ranking:
    mine = {name: [row for row in listed if row["incident"] == incident] for name, listed in found.items()}
    mine["candidates"].sort(key=lambda row: (-row["score"], row["at_lo"] or 1 << 62, row["seq"] or 0, row["failure"]))
    mine["explanations"].sort(key=lambda row: (row["effect_id"], row["cause_id"], row["how"]))
    mine["collateral"].sort(key=lambda row: (row["first_id"], row["signature"]))
    return Ranking(mine["candidates"], mine["collateral"], mine["explanations"])


def _fetch(connection: Any, table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f'SELECT * FROM "{table}"')
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _input(observed: Mapping[str, Sequence[Observation]]) -> Any:
    """The observations table plus the columns that the ranking reads from `detail`."""
    import pyarrow as pa

    listed: list[dict[str, Any]] = []
    extra: dict[str, list[Any]] = {"same": [], "joint_ranks": [], "progressed": [], "kind": []}
    for incident, observations in observed.items():
        listed.extend(rows(incident, observations))
        for seen in observations:
            extra["same"].append(seen.detail.get("same"))
            extra["joint_ranks"].append(list(seen.detail.get("ranks") or []))
            extra["progressed"].append(bool(seen.detail.get("progressed")))
            extra["kind"].append(_kind(seen))
    # times as plain integers: intervals are compared, never shown, and a null must stay a null. Built so from the
    # start, because a cast would import pyarrow.compute, a third of the time that a ten-line log may take
    plain = [pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in _SCHEMA]
    table = pa.Table.from_arrays(
        [pa.array([r.get(f.name) for r in listed], type=f.type) for f in plain], schema=pa.schema(plain)
    )
    for name, kind in (
        ("same", pa.string()),
        ("joint_ranks", pa.list_(pa.int64())),
        ("progressed", pa.bool_()),
        ("kind", pa.string()),
    ):
        table = table.append_column(name, pa.array(extra[name], type=kind))
    return table


def _kind(seen: Observation) -> str | None:
    """What makes two observations of one signature the same failure: for plain exceptions, type and place."""
    if seen.signature.startswith("python/uncaught") or seen.detector == "exceptions":
        return f"{seen.detail.get('type')}|{seen.detail.get('frame')}" if seen.signature.startswith("python/") else None
    if seen.detector == "error_lines":
        return str(seen.detail.get("kind"))
    return f"{seen.node}|{seen.device}" if seen.detector == "kernel" else None
