from typing import Any

import pytest

from analyzers import clocks
from collector.model import LogLine

SECOND = 1_000_000
NODES = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def line(rank: int, at: float, text: str) -> LogLine:
    lo = int(at * SECOND)
    return LogLine(0, f"r{rank}.log", 1, 0, 0, None, rank, None, None, None, "rank", lo, lo + 999, text)


def run(
    off: dict[str, float], pause: float = 3.0, steps: int = 10, start: bool = False, nodes: Any = None
) -> list[LogLine]:
    """Lines of a synchronous job whose nodes' clocks are `off` seconds ahead."""
    nodes, lines = nodes or NODES, []
    for rank, node in nodes.items():
        ahead = off.get(node, 0.0)
        if start:
            lines.append(line(rank, 1000 + ahead + 0.1 * rank, f"rank {rank} world_size={len(nodes)}"))
        lines += [line(rank, 1010 + ahead + pause * s + 0.02 * rank, f"step {s} loss 2") for s in range(1, steps + 1)]
    return lines


def rows(nodes: dict[int, str] | None = None) -> list[dict[str, Any]]:
    return [{"rank": rank, "node": node, "last_line_at": 2000 * SECOND} for rank, node in (nodes or NODES).items()]


@pytest.mark.parametrize("ahead", [20.0, -20.0])
def test_a_clock_that_is_off_by_more_than_any_lag_is_corrected(ahead: float) -> None:
    found = clocks.offsets(run({"n2": ahead}), NODES)
    assert found["n2"].sure and abs(found["n2"].ahead - ahead * SECOND) < 0.1 * SECOND
    aligned, tables, notes = clocks.align(run({"n2": ahead}), {"ranks": rows()})
    moments = {rank: [x.at_lo for x in aligned if x.rank == rank] for rank in NODES}
    assert all(abs(a - b) < 0.2 * SECOND for a, b in zip(moments[0], moments[3], strict=True))
    assert tables["ranks"][0]["last_line_at"] == 2000 * SECOND
    assert abs(tables["ranks"][2]["last_line_at"] - (2000 - ahead) * SECOND) < 0.1 * SECOND
    assert len(notes) == 1 and "20.0 s" in str(notes[0].detail) and "corrected" in str(notes[0].detail)


def test_an_offset_that_may_be_a_lag_only_widens() -> None:
    lines = run({"n2": 20.0}, pause=40.0)
    found = clocks.offsets(lines, NODES)
    assert not found["n2"].sure
    aligned, tables, notes = clocks.align(lines, {"ranks": rows()})
    before, after = lines[-1], aligned[-1]
    assert after.at_hi == before.at_hi and before.at_lo - after.at_lo == found["n2"].ahead
    assert tables["ranks"] == rows()
    assert "left open" in str(notes[0].detail)


def test_the_start_of_the_group_proves_a_clock() -> None:
    assert clocks.offsets(run({"n2": 20.0}, pause=40.0, start=True), NODES)["n2"].sure


@pytest.mark.parametrize(
    "lines",
    [
        run({}),
        run({"n2": 1.2}),
        run({"n2": 20.0}, steps=3),
        [x for x in run({"n2": 20.0}) if x.rank in (0, 1)],
        run({}) + [line(2, 5000, "step 11 loss 2")],
    ],
    ids=["equal", "small", "few steps", "one node prints", "one late line"],
)
def test_nothing_is_moved_without_need(lines: list[LogLine]) -> None:
    tables: clocks.Tables = {"ranks": rows()}
    aligned, moved, notes = clocks.align(lines, tables)
    assert aligned is lines and moved is tables and not notes


def test_a_growing_lag_is_no_clock() -> None:
    lines = [
        line(rank, 1000 + step * (3.0 if rank < 2 else 6.0), f"step {step}") for rank in NODES for step in range(1, 12)
    ]
    assert clocks.offsets(lines, NODES) == {}


def test_of_three_nodes_the_odd_one_is_moved() -> None:
    nodes = {0: "n1", 1: "n2", 2: "n3"}
    assert set(clocks.offsets(run({"n1": -15.0}, nodes=nodes), nodes)) == {"n1"}
    assert set(clocks.offsets(run({"n3": 15.0}, nodes=nodes), nodes)) == {"n3"}


def test_evidence_of_the_node_moves_with_its_ranks_whatever_its_spelling() -> None:
    event = {"node": "N2.cluster.example", "at_lo": 1030 * SECOND, "at_hi": 1030 * SECOND, "event": "xid"}
    other = {**event, "node": "n7"}
    _, tables, _ = clocks.align(run({"n2": 20.0}), {"ranks": rows(), "kernel_events": [event, other]})
    moved, kept = tables["kernel_events"]
    assert abs(moved["at_lo"] - 1010 * SECOND) < 0.2 * SECOND
    assert kept == other
