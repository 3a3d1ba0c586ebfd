"""The watchdog's lines: every example of the lookup table, versions, groups, ranks, times."""

from __future__ import annotations

import json
import re

import pytest

from collector.data import lookup
from collector.model import LogLine
from collector.readers.collective_lines import FINGERPRINT, UNNAMED, counters, patterns
from collector.tables import to_arrow

TABLE = lookup("collective_lines")
EXAMPLES = [(name, text) for name, entry in TABLE["patterns"].items() for text in entry["examples"]]
T0 = 1_764_553_000_000_000


def line(text: str, rank: int | None = None, at: int | None = None, number: int = 1) -> LogLine:
    return LogLine(None, "log", number, 0, 0, None, rank, None, None, "stderr", "rank", at, at, text)


def timeout(seq: int, op: str, numel: int = 8, ran: int = 600_000) -> str:
    sizes = f"NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for {ran} milliseconds before timing out."
    return f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, {sizes}"


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_every_example_matches_its_pattern(name: str, text: str) -> None:
    assert patterns()[name].search(text)


@pytest.mark.parametrize(
    "text", [text for name, text in EXAMPLES if name in ("timeout", "counters", "mismatch", "dump_signal")]
)
def test_every_example_passes_the_needles(text: str) -> None:
    assert any(needle in text for needle in TABLE["needles"])


def test_a_timeout_began_when_it_says() -> None:
    rows = counters([line("[Rank 3] " + timeout(41, "ALLREDUCE", ran=600_061), 3, T0)])
    assert rows[0]["at_lo"] == T0 - 600_061_000
    assert rows[0]["at_hi"] == T0
    assert (rows[0]["rank"], rows[0]["pg"], rows[0]["seq"], rows[0]["op"]) == (3, UNNAMED, 41, "nccl:allreduce")
    assert json.loads(rows[0]["sizes"]) == {"in": [[8]], "out": [[8]]}
    to_arrow("collectives", rows)


def test_later_repetitions_do_not_move_the_start() -> None:
    text = timeout(41, "ALLREDUCE")
    repeated = (
        "[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] "
    )
    rows = counters([line("[Rank 3] " + text, 3, T0), line(repeated + text, 3, T0 + 60_000_000, 2)])
    assert {row["at_lo"] for row in rows if row.get("op")} == {T0 - 600_000_000}


def test_status_line_names_the_group_of_the_timeout_and_its_global_rank() -> None:
    status = "[PG ID 11 PG GUID 119(mesh_tp) Rank 1]  failure detected by watchdog at work sequence id: 216 PG status: "
    lines = [
        line("[Rank 1] " + timeout(216, "BROADCAST"), 13),
        line(status + "last enqueued work: 220, last completed work: 215", 13, number=2),
    ]
    rows = counters(lines)
    assert [(row["rank"], row["pg"], row["pg_desc"]) for row in rows] == [(13, "119", "mesh_tp")] * 2
    assert (rows[1]["last_enqueued"], rows[1]["last_completed"]) == (220, 215)


def test_a_rank_within_a_subgroup_is_not_taken_for_a_global_rank() -> None:
    status = "[PG ID 4 PG GUID 35 Rank 1] Exception (either an error or timeout) detected by watchdog at work: 9, "
    assert counters([line(status + "last enqueued NCCL work: 9, last completed NCCL work: 8.")]) == []
    alone = counters([line("[Rank 1] " + timeout(9, "ALLREDUCE"), rank=13)])
    assert alone[0]["pg"] != UNNAMED


def test_impossible_completed_counter_is_dropped() -> None:
    text = "[PG 0 Rank 2] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: "
    text += "76280750235782912."
    row = counters([line(text, 2)])[0]
    assert (row["last_enqueued"], row["last_completed"]) == (1, None)


def test_a_hard_wrapped_line_gives_what_is_whole() -> None:
    whole = "[Rank 2] " + timeout(532, "BROADCAST", 5164)
    text = whole[: whole.index("NumelOut=") + len("NumelOut=5")]
    row = counters([line(text, 2, T0)])[0]
    assert json.loads(row["sizes"]) == {"in": [[5164]]}
    assert (row["seq"], row["at_lo"]) == (532, None)


def test_fingerprints_state_two_ranks() -> None:
    def states(rank: int, op: str) -> str:
        shape = f"SequenceNumber=7, OpType={op}, TensorShape=[20, 10], TensorDtypes=Float"
        return f"Rank {rank} is running collective: CollectiveFingerPrint({shape})"

    text = f"Detected mismatch between collectives on ranks. {states(1, 'ALLREDUCE')}, but {states(0, 'REDUCE')}."
    rows = counters([line(text, 1)])
    assert [(r["rank"], r["pg"], r["seq"], r["op"]) for r in rows] == [
        (1, FINGERPRINT, 7, "allreduce"),
        (0, FINGERPRINT, 7, "reduce"),
    ]
    assert json.loads(rows[0]["sizes"]) == {"in": [[20, 10]]}
    assert counters([line(text, 5)]) == [], "numbered within a subgroup"


def test_ordinary_lines_give_nothing() -> None:
    assert counters([line("step 10 loss 0.3"), line("WorkNCCL( is a class"), line("last completed step 4", 1)]) == []


def test_patterns_never_hang_on_long_lines() -> None:
    text = "Watchdog caught collective operation timeout: WorkNCCL(" + "SeqNum=1, " * 20_000 + "[PG " * 20_000
    assert all(re.search(pattern, text) is None or True for pattern in patterns().values())
    assert counters([line(text, 1)]) == []
