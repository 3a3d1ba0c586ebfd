"""The collectives detector on real dump sets with known culprits, on gloo dumps, and on composed watchdog logs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from analyzers.case import CAUSES, ROLES, SCOPES, Case, Observation
from analyzers.detectors.collectives import detect
from collector.model import Artifact, ArtifactKind, LogLine, Origin
from collector.readers import flight_recorder

FLIGHT = Path(__file__).parent / "data" / "flight"
CASES = Path(__file__).parents[1] / "cases"
KNOWN = {"gpu_error_1st": {12, 14}, "lock_gil_1st": {9, 14}}
T0 = 1_764_553_000_000_000
Row = dict[str, Any]


def read(data: bytes, name: str) -> list[Row]:
    return flight_recorder.read(
        Artifact(ArtifactKind.FLIGHT_RECORDER, name, Origin(), len(data), lambda: io.BytesIO(data))
    )


@pytest.fixture(scope="module")
def dumps() -> dict[str, dict[int, list[Row]]]:
    return {case: {r: read((FLIGHT / case / str(r)).read_bytes(), f"{r}") for r in range(16)} for case in KNOWN}


def observe(rows: Iterable[Row] = (), lines: Sequence[LogLine] = (), world: int | None = None) -> list[Observation]:
    tables: dict[str, list[Row]] = {"collectives": list(rows)}
    if world:
        tables["incidents"] = [{"world_size": world}]
    found = list(detect(Case("incident", lines=lines, tables=tables)))
    for observation in found:
        assert observation.role in ROLES and observation.cause in CAUSES and observation.scope in SCOPES
        assert observation.signature.startswith("collectives/") and observation.strength in (1, 2, 3)
    return found


def accused(found: Iterable[Observation]) -> set[int]:
    return {rank for o in found if o.role == "initiating" for rank in o.detail["ranks"]}


def left(dumps: dict[int, list[Row]], gone: Iterable[int]) -> list[Row]:
    return [row for rank, rows in dumps.items() if rank not in set(gone) for row in rows]


# Real dumps of 16 ranks.


@pytest.mark.parametrize("case", KNOWN)
def test_all_culprits_and_nobody_else(case: str, dumps: dict[str, dict[int, list[Row]]]) -> None:
    found = observe(left(dumps[case], ()))
    assert {o.rank for o in found if o.role == "initiating"} == KNOWN[case] == accused(found)
    waiting = [o for o in found if o.signature == "collectives/waiting"]
    assert len(waiting) == 1 and waiting[0].role == "cascade"
    assert set(waiting[0].detail["ranks"]) == set(range(16)) - KNOWN[case]


def test_how_a_culprit_is_told(dumps: dict[str, dict[int, list[Row]]]) -> None:
    gil = observe(left(dumps["lock_gil_1st"], ()))[0]
    assert (gil.signature, gil.rank, gil.strength) == ("collectives/outside-collective", 9, 3)
    assert gil.title == (
        "Ranks 9, 14 never came to nccl:all_to_all (sequence 45265) of EXPERT_MODEL_PARALLEL_GROUP, "
        "where ranks 8, 10, 11, 12, 13, 15 waited"
    )
    assert gil.at_lo == gil.at_hi and gil.at_lo is not None
    assert gil.path == "9"
    gpu = observe(left(dumps["gpu_error_1st"], ()))[0]
    assert (gpu.signature, gpu.rank, gpu.path) == ("collectives/rank-behind", 12, "12")


@pytest.mark.parametrize("case", KNOWN)
def test_missing_dumps_accuse_nobody_and_hide_nobody(case: str, dumps: dict[str, dict[int, list[Row]]]) -> None:
    for rank in range(16):
        assert accused(observe(left(dumps[case], {rank}))) == KNOWN[case] - {rank}, rank
    without = observe(left(dumps[case], KNOWN[case]))
    assert accused(without) == set()
    assert without[0].signature == "collectives/waiting"
    assert "dump or log of ranks" in without[0].detail["missing"][0]
    for node in (range(8), range(8, 16)):
        assert accused(observe(left(dumps[case], node))) == KNOWN[case] - set(node)


@pytest.mark.parametrize("case", KNOWN)
def test_the_order_of_files_does_not_matter(case: str, dumps: dict[str, dict[int, list[Row]]]) -> None:
    backwards = dict(reversed(dumps[case].items()))
    assert accused(observe(left(backwards, ()))) == KNOWN[case]
    assert [o.title for o in observe(left(backwards, ()))] == [o.title for o in observe(left(dumps[case], ()))]


def test_a_leftover_dump_of_an_earlier_run_is_not_part_of_this_one(dumps: dict[str, dict[int, list[Row]]]) -> None:
    old = [
        {**row, "at_lo": row["at_lo"] - 10**12, "path": "old/3"} for row in dumps["gpu_error_1st"][3] if row.get("seq")
    ]
    rows = left(dumps["gpu_error_1st"], {3}) + old
    assert accused(observe(rows)) == KNOWN["gpu_error_1st"]


# gloo.


def gloo_case(name: str) -> list[Row]:
    folder = CASES / name / "tee"
    return [row for path in sorted(folder.glob("fr_trace*")) for row in read(path.read_bytes(), path.name)]


def test_rank_alone_in_a_barrier() -> None:
    found = observe(gloo_case("a14b_rank0_only_barrier_fr_3r"))
    assert (found[0].signature, found[0].rank, found[0].cause) == ("collectives/op-mismatch", 0, "user_code")
    assert found[0].title == (
        "Rank 0 is alone in gloo:barrier (sequence 16) "
        "while ranks 1, 2 are in gloo:all_reduce (sequence 16) of default_pg"
    )
    assert [(o.role, o.accuses_rank, o.detail["ranks"]) for o in found[1:]] == [("cascade", 0, [1, 2])]


@pytest.mark.parametrize(("fault", "culprits"), [("keyerror", {1}), ("skip", {1}), ("healthy", set())])
def test_real_gloo_ranks_in_five_groups(fault: str, culprits: set[int]) -> None:
    rows = [row for path in sorted((FLIGHT / "gloo" / fault).iterdir()) for row in read(path.read_bytes(), path.name)]
    found = observe(rows, world=4)
    assert accused(found) == culprits
    assert all(o.strength == 2 for o in found if o.role == "initiating")
    assert {o.role for o in found} <= {"initiating", "cascade"}
    for rank in {0, 1, 2, 3} - culprits:
        assert accused(observe([row for row in rows if row["rank"] != rank], world=4)) == set()


def test_dumps_of_one_rank_only_accuse_nobody() -> None:
    found = observe(gloo_case("a12_skip_collective_timeout_3r"))
    assert accused(found) == set()
    assert [o.detail["missing"] for o in found] == [["flight-recorder dump or log of ranks 0, 1"]]


def call(rank: int, seq: int, op: str = "gloo:all_reduce", **more: Any) -> Row:
    base = {
        "rank": rank,
        "path": f"d{rank}",
        "pg": "0",
        "pg_desc": "default_pg",
        "pg_ranks": [0, 1, 2, 3],
        "is_p2p": False,
    }
    return {**base, "seq": seq, "op": op, "state": "scheduled", "at_lo": T0 + seq, **more}


def test_gloo_rank_that_stopped_a_collective_earlier() -> None:
    rows = [call(rank, seq) for rank in range(4) for seq in range(1, 10 if rank != 2 else 9)]
    found = observe(rows)
    assert (found[0].signature, accused(found)) == ("collectives/rank-behind", {2})
    assert accused(observe([row for row in rows if row["rank"] != 1])) == set(), "rank 1 may have died in between"


def test_equal_gloo_ranks_accuse_nobody() -> None:
    assert observe(call(rank, seq) for rank in range(4) for seq in range(1, 10)) == []


# Composed states.


def test_wrong_size_is_told_from_wrong_operation() -> None:
    sizes = {rank: '{"in": [[100]]}' if rank != 3 else '{"in": [[96]]}' for rank in range(4)}
    found = observe(call(rank, 5, "nccl:all_reduce", sizes=sizes[rank]) for rank in range(4))
    assert (found[0].signature, accused(found), found[0].strength) == ("collectives/size-mismatch", {3}, 3)


@pytest.mark.parametrize("op", ["nccl:all_to_all", "nccl:gather", "nccl:reduce_scatter", "gloo:scatter"])
def test_uneven_sizes_are_legal_where_they_are(op: str) -> None:
    rows = [call(rank, 5, op, sizes=f'{{"in": [[{90 + rank}]]}}') for rank in range(4)]
    assert accused(observe(rows)) == set()


def test_shapes_of_equal_volume_are_no_mismatch() -> None:
    shapes = ['{"in": [[2, 3]]}', '{"in": [[3, 2]]}', '{"in": [[6]]}', '{"in": [[6]]}']
    assert accused(observe(call(rank, 5, "nccl:all_reduce", sizes=shapes[rank]) for rank in range(4))) == set()


def test_one_against_one_names_nobody() -> None:
    rows = [call(rank, 5, op, pg_ranks=[0, 1]) for rank, op in enumerate(("nccl:broadcast", "nccl:all_reduce"))]
    found = observe(rows)
    assert [(o.signature, o.scope, o.rank, o.detail["ranks"]) for o in found] == [
        ("collectives/op-mismatch", "job", None, [])
    ]
    assert found[0].detail["between"] == [0, 1] and found[0].strength == 1


def test_a_majority_that_unseen_ranks_could_turn_is_a_hint() -> None:
    rows = [call(rank, 5, "nccl:barrier" if rank == 0 else "nccl:all_reduce") for rank in range(3)]
    assert [(o.rank, o.strength) for o in observe(rows) if o.role == "initiating"] == [(0, 1)]


def test_many_absent_ranks_are_not_accused_by_one_that_waits() -> None:
    status = [{**call(rank, 0), "seq": None, "op": None, "last_enqueued": 9, "last_completed": 9} for rank in (1, 2, 3)]
    found = observe([call(0, 10, "nccl:all_reduce"), *status])
    assert accused(found) == set()
    assert [(o.signature, o.scope) for o in found if o.role == "initiating"] == [
        ("collectives/outside-collective", "job")
    ]


def test_counters_that_cannot_belong_together_accuse_nobody() -> None:
    ahead = [call(rank, 900, "nccl:all_reduce") for rank in range(3)]
    ahead += [
        {**call(rank, 0), "seq": None, "op": None, "last_enqueued": 900, "last_completed": 899} for rank in range(3)
    ]
    behind = {**call(3, 0), "seq": None, "op": None, "last_enqueued": 120, "last_completed": 120}
    assert accused(observe([*ahead, behind])) == set()
    assert accused(observe([*ahead, {**behind, "last_enqueued": 899, "last_completed": 899}])) == {3}


def test_ranks_that_wait_for_each_other_in_two_groups() -> None:
    rows = []
    for rank, group in ((0, "actor"), (1, "critic"), (2, "actor"), (3, "critic")):
        for name in ("actor", "critic"):
            enqueued = 8 if name == group else 7
            base = {"pg": name, "pg_desc": name}
            rows.append(
                {**call(rank, 0), **base, "seq": None, "op": None, "last_enqueued": enqueued, "last_completed": 7}
            )
        rows.append({**call(rank, 8, "nccl:_all_gather_base"), "pg": group, "pg_desc": group})
    found = observe(rows)
    assert [(o.signature, o.scope, o.role) for o in found] == [("collectives/deadlock", "job", "initiating")]
    assert found[0].detail["between"] == [0, 1, 2, 3] and found[0].detail["ranks"] == []


def test_everybody_inside_is_context() -> None:
    found = observe(call(rank, 8, "nccl:all_reduce") for rank in range(4))
    assert [(o.signature, o.role) for o in found] == [("collectives/all-inside", "context")]


def test_the_chain_of_waits_is_followed_to_its_end() -> None:
    def status(rank: int, pg: str, ranks: list[int], last: int) -> Row:
        return {
            "rank": rank,
            "path": f"d{rank}",
            "pg": pg,
            "pg_ranks": ranks,
            "last_enqueued": last,
            "last_completed": last,
        }

    def inside(rank: int, pg: str, ranks: list[int]) -> Row:
        return call(rank, 5, "nccl:all_reduce", pg=pg, pg_desc=pg, pg_ranks=ranks)

    rows = [inside(0, "a", [0, 1]), status(1, "a", [0, 1], 4), inside(1, "b", [1, 2]), status(2, "b", [1, 2], 4)]
    assert accused(observe(rows)) == {2}
    assert accused(observe([row for row in rows if row["rank"] != 2])) == set()


# The log's own counters.


def watchdog(rank: int, seq: int, op: str = "ALLREDUCE", numel: int = 1024, at: int | None = T0) -> list[str]:
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000)"
    return [
        f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600010 milliseconds "
        "before timing out.",
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} "
        f"PG status: last enqueued work: {seq + 1}, last completed work: {seq - 1}",
    ]


def signalled(rank: int, last: int) -> list[str]:
    prefix = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    return [
        f"{prefix} Observed flight recorder dump signal from another rank via TCPStore.",
        f"{prefix} Received a dump signal due to a collective timeout from  rank 1 and we will try our best to "
        f"dump the debug info. Last enqueued NCCL work: {last}, last completed NCCL work: {last}.",
    ]


def log(texts: dict[int, list[str]], attempt: int | None = None) -> list[LogLine]:
    return [
        LogLine(
            attempt, f"rank{rank}.log", number, 0, 0, f"n{rank // 4}", rank, None, None, "stderr", "rank", T0, T0, text
        )
        for rank, own in texts.items()
        for number, text in enumerate(own, 1)
    ]


def test_log_rank_one_collective_behind() -> None:
    lines = log({rank: watchdog(rank, 101) if rank != 5 else signalled(5, 100) for rank in range(8)})
    found = observe(lines=lines)
    assert [(o.signature, o.rank, o.node, o.strength) for o in found if o.role == "initiating"] == [
        ("collectives/outside-collective", 5, "n1", 2)
    ]
    assert found[0].at_lo == T0 - 600_010_000
    assert (found[0].path, found[0].line, found[0].source) == ("rank5.log", 2, "rank_log")
    assert "Last enqueued NCCL work: 100" in found[0].text
    assert set(found[1].detail["ranks"]) == set(range(8)) - {5}


def test_log_rank_in_another_operation() -> None:
    lines = log({rank: watchdog(rank, 77, "BROADCAST" if rank == 0 else "ALLREDUCE") for rank in range(8)})
    found = observe(lines=lines, world=8)
    assert [(o.signature, o.rank, o.cause) for o in found if o.role == "initiating"] == [
        ("collectives/op-mismatch", 0, "user_code")
    ]
    assert "alone in nccl:broadcast" in found[0].title and "OpType=BROADCAST" in found[0].text


def test_log_ranks_that_are_all_equal() -> None:
    found = observe(lines=log({rank: watchdog(rank, 77) for rank in range(8)}), world=8)
    assert accused(found) == set()
    assert [o.signature for o in found] == ["collectives/all-inside"]


def test_log_rank_that_ran_ahead_of_a_broadcast() -> None:
    texts = {
        0: watchdog(0, 541, "_ALLGATHER_BASE")[:1],
        1: watchdog(1, 539, "BROADCAST")[:1],
        2: watchdog(2, 539, "BROADCAST")[:1],
    }
    assert accused(observe(lines=log(texts), world=3)) == {0}


def test_log_rank_stuck_in_what_its_peer_completed() -> None:
    texts = {0: watchdog(0, 7559)[:1], 1: watchdog(1, 7561)[:1]}
    assert [(o.rank, o.strength) for o in observe(lines=log(texts), world=2) if o.role == "initiating"] == [(0, 2)]
    assert [(o.rank, o.strength) for o in observe(lines=log(texts)) if o.role == "initiating"] == [(0, 1)]


def fingerprint(rank: int, own: str, other: int, its: str) -> list[str]:
    def states(who: int, what: str) -> str:
        return (
            f"Rank {who} is running collective: CollectiveFingerPrint({what}, TensorDtypes=Float, TensorDeviceTypes=x)"
        )

    return [
        f"RuntimeError: Detected mismatch between collectives on ranks. {states(rank, own)}, but {states(other, its)}."
    ]


def test_debug_wrapper_names_pairs_and_the_majority_decides() -> None:
    most, odd = (
        "SequenceNumber=18, OpType=ALLREDUCE, TensorShape=[4]",
        "SequenceNumber=22, OpType=BROADCAST, TensorShape=[4]",
    )
    lines = log({rank: fingerprint(rank, most, 2, odd) for rank in (0, 1, 3)} | {2: fingerprint(2, odd, 0, most)})
    found = observe(lines=lines, world=4)
    assert [(o.signature, o.rank, o.cause) for o in found if o.role == "initiating"] == [
        ("collectives/op-mismatch", 2, "user_code")
    ]
    two = observe(lines=log({0: fingerprint(0, most, 1, odd), 1: fingerprint(1, odd, 0, most)}), world=2)
    assert accused(two) == set() and two[0].scope == "job"
    larger = most.replace("[4]", "[5]")
    sizes = log({rank: fingerprint(rank, most, 3, larger) for rank in (0, 1, 2)})
    assert [(o.signature, o.rank) for o in observe(lines=sizes) if o.role == "initiating"] == [
        ("collectives/size-mismatch", 3)
    ]


def test_silent_rank_is_a_hint_only_if_the_world_is_known() -> None:
    lines = log({rank: watchdog(rank, 77) for rank in (1, 2, 3)})
    assert accused(observe(lines=lines)) == set()
    assert [(o.rank, o.strength) for o in observe(lines=lines, world=4) if o.role == "initiating"] == [(0, 1)]
    assert accused(observe(lines=lines, world=8)) == set()


def test_idle_default_group_says_nothing_about_another_group() -> None:
    stuck = [text.replace("PG ID 0 PG GUID 0(default_pg)", "PG ID 1 PG GUID 1") for text in watchdog(2, 45390)]
    found = observe(lines=log({2: stuck + signalled(2, 136), 5: signalled(5, 136), 0: signalled(0, 136)}))
    assert accused(found) == set()


def test_attempts_count_for_themselves() -> None:
    lines = log({rank: watchdog(rank, 500) for rank in range(4)}, attempt=0) + log({1: watchdog(1, 3)}, attempt=1)
    assert accused(observe(lines=lines)) == set()


def test_log_says_nothing_more_about_a_rank_that_a_dump_accuses() -> None:
    status = {**call(3, 0), "seq": None, "op": None, "last_enqueued": 100, "last_completed": 100}
    dumps = [call(rank, 101, "nccl:all_reduce") for rank in range(3)] + [status]
    lines = log({rank: watchdog(rank, 101) if rank != 3 else signalled(3, 100) for rank in range(4)})
    assert [o.source for o in observe(dumps, lines) if o.role == "initiating"] == ["flight_recorder"]


def test_no_evidence_no_observation() -> None:
    assert observe() == []
