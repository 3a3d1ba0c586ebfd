"""The reader of flight-recorder dumps: facts of real dumps, foreign and hostile files, names that tell no rank."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.model import Artifact, ArtifactKind, Origin
from collector.readers import flight_recorder as fr
from collector.readers.plain_pickle import NotPlain, loads
from collector.tables import to_arrow

FLIGHT = Path(__file__).parents[1] / "analyzers" / "data" / "flight"


def artifact(data: bytes, name: str = "dump", rank: int | None = None) -> Artifact:
    return Artifact(ArtifactKind.FLIGHT_RECORDER, name, Origin(rank=rank), len(data), lambda: io.BytesIO(data))


def entry(seq: int, op: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    return {
        "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": op, "time_created_ns": 1_700_000_000_000_000_000 + seq, "input_sizes": [[4, 2]],
        "output_sizes": [[4, 2]], "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": 1_700_000_001_000_000_000, "is_p2p": False,
    } | more  # fmt: skip


def dump(entries: list[dict[str, Any]], ranks: str | list[int] = "[0, 1, 2, 3]", **status: int) -> dict[str, Any]:
    counters = {f"last_{name}_collective": value for name, value in status.items()}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.9", "pg_config": config, "pg_status": {"0": counters}, "entries": entries}


@pytest.mark.parametrize("case", ["gpu_error_1st", "lock_gil_1st"])
def test_real_dumps_tell_their_rank_by_content_whatever_the_file_is_called(case: str) -> None:
    for rank in range(16):
        data = (FLIGHT / case / str(rank)).read_bytes()
        assert fr.looks_like(data[:4096])
        rows, problem = fr.read_with_problem(artifact(data, f"gpu-node-{(rank + 5) % 16}"))
        assert problem is None
        assert {row["rank"] for row in rows} == {rank}
        to_arrow("collectives", rows)


def test_counters_reach_groups_without_entries_and_keep_their_group() -> None:
    rows = fr.read(artifact((FLIGHT / "lock_gil_1st" / "9").read_bytes()))
    assert all(row.get("seq") is None for row in rows)
    counts = {row["pg_desc"]: (row["last_enqueued"], row["last_completed"]) for row in rows}
    assert counts["EXPERT_MODEL_PARALLEL_GROUP"] == (45264, 45264)
    assert counts["default_pg"] == (14145, 14145)
    group = next(row for row in rows if row["pg_desc"] == "EXPERT_MODEL_PARALLEL_GROUP")
    assert group["pg_ranks"] == [8, 9, 10, 11, 12, 13, 14, 15]


def test_an_entry_keeps_what_it_states() -> None:
    row = fr.read(artifact((FLIGHT / "gpu_error_1st" / "0").read_bytes()))[0]
    assert row["op"] == "nccl:send 0->3" and row["is_p2p"] and row["state"] == "scheduled"
    assert (row["pg"], row["pg_desc"], row["seq"]) == ("43", "PIPELINE_MODEL_PARALLEL_GROUP", 11981)
    assert json.loads(row["sizes"]) == {"in": [[4096, 1, 5120]], "out": [[4096, 1, 5120]]}
    assert row["at_lo"] == row["at_hi"] == 1758610505592849


def test_json_dump_of_gloo_joins_the_unnamed_group_and_text_numbers() -> None:
    gloo = dump([entry(1, "gloo:all_reduce", state="scheduled")])
    gloo["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
    gloo["pg_status"] = {
        "0": {"last_enqueued_collective": "1", "last_completed_collective": "0", "last_started_collective": "-1"}
    }
    data = json.dumps(gloo).encode()
    assert fr.looks_like(data[:500])
    rows = fr.read(artifact(data, "fr_trace_rank2_exc.json"))
    assert [(row["rank"], row["pg"], row["pg_desc"], row["pg_ranks"]) for row in rows] == [
        (2, "0", "default_pg", [0, 1, 2])
    ] * 2
    assert (rows[1]["last_enqueued"], rows[1]["last_completed"]) == (1, 0)


def test_gloo_with_several_groups_knows_no_members() -> None:
    data = (FLIGHT / "gloo" / "keyerror" / "rank0.json").read_bytes()
    rows = fr.read(artifact(data, "rank0.json"))
    assert {row["pg_ranks"] for row in rows} == {None} and {row["rank"] for row in rows} == {0}
    assert {row["pg"]: row["last_enqueued"] for row in rows if row.get("seq") is None} == {"0": 7, "1": 8, "3": 7}


@pytest.mark.parametrize(
    ("name", "origin", "expected"),
    [
        ("nccl_trace_rank_3", None, 3),
        ("run7_rank2.json", None, 2),
        ("1", None, 1),
        ("trace_3", None, 3),
        ("gpu-node-03", None, None),  # the number of a host
        ("trace_77", None, None),  # no rank of this job
        ("node-77", 0, 0),
        ("rank9", None, None),  # vetoed by the groups in the dump
        ("whatever", 9, None),
    ],
)
def test_rank_by_name_or_origin_unless_the_content_forbids_it(
    name: str, origin: int | None, expected: int | None
) -> None:
    rows = fr.read(artifact(pickle.dumps(dump([entry(1)]), 2), name, origin))
    assert {row["rank"] for row in rows} == {expected}


def test_a_send_names_the_rank_itself() -> None:
    sent = entry(5, "nccl:send 2->3", is_p2p=True, p2p_seq_id=9)
    rows = fr.read(artifact(pickle.dumps(dump([sent], [4, 5, 6, 7]), 2)))
    assert {row["rank"] for row in rows} == {6}
    assert rows[0]["seq"] == 9


def test_members_of_a_coalesced_group_take_its_state() -> None:
    members = [
        entry(0, f"nccl:{op}", is_p2p=True, p2p_seq_id=4, state="scheduled") for op in ("send 0->1", "recv 0<-1")
    ]
    rows = fr.read(artifact(pickle.dumps(dump([*members, entry(0, "nccl:coalesced", is_p2p=True, p2p_seq_id=4)]), 2)))
    assert [row["state"] for row in rows[:3]] == ["completed"] * 3


def test_frames_are_the_users_innermost() -> None:
    frames = [
        {
            "name": "all_reduce",
            "filename": "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
            "line": 9,
        },
        {"name": "sync_loss", "filename": "/code/train.py", "line": 41},
        {"name": "main", "filename": "/code/train.py", "line": 90},
    ]
    rows = fr.read(artifact(pickle.dumps(dump([entry(1, frames=frames)]), 2)))
    assert rows[0]["frames"] == ["sync_loss (/code/train.py:41)", "main (/code/train.py:90)"]
    only_torch = fr.read(artifact(pickle.dumps(dump([entry(1, frames=frames[:1])]), 2)))
    assert only_torch[0]["frames"][0].startswith("all_reduce (")


def test_version_1_is_a_bare_list() -> None:
    rows = fr.read(
        artifact(pickle.dumps([{"seq_id": 7, "pg_id": 0, "profiling_name": "nccl:broadcast", "state": "started"}], 2))
    )
    assert (rows[0]["seq"], rows[0]["op"], rows[0]["state"]) == (7, "nccl:broadcast", "started")


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (eval, ("1/0",))


HOSTILE = {
    "a call": pickle.dumps({"entries": [Evil()]}, 2),
    "an import": b"\x80\x02cos\nsystem\n.",
    "a huge memo": b"\x80\x02]r\xff\xff\xff\x7f" + b"j\xff\xff\xff\x7f" + b"h\x01.",
    "a persistent id": b"\x80\x02K\x01Q.",
    "a deep tuple as key": b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"K\x01s.",
    "a length beyond the file": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "nothing": b"",
    "a lone mark": b"\x80\x02(.",
    "text": b"Traceback (most recent call last):",
    "deep JSON": b"[" * 100_000,
    "other JSON": b'{"loss": 1}',
    "other pickle": pickle.dumps({"model": 1}, 2),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_and_foreign_files_cost_only_themselves(data: bytes) -> None:
    rows, problem = fr.read_with_problem(artifact(data))
    assert rows == [] and problem


def test_a_pickle_that_multiplies_when_walked_is_walked_no_further() -> None:
    bomb: list[Any] = [1]
    for _ in range(60):
        bomb = [bomb, bomb]
    wide = [[[7] * 400] * 400] * 400
    rows = fr.read(artifact(pickle.dumps(dump([entry(1, input_sizes=bomb), entry(2, input_sizes=wide)]), 2)))
    assert "in" not in json.loads(rows[0]["sizes"]) and "in" not in json.loads(rows[1]["sizes"])


def test_truncated_dump_says_why() -> None:
    data = (FLIGHT / "gpu_error_1st" / "3").read_bytes()
    for cut in (1, 100, len(data) // 2, len(data) - 1):
        rows, problem = fr.read_with_problem(artifact(data[:cut]))
        assert rows == [] and problem
    assert "exhausted" in (fr.problem(artifact(data[:-1])) or "")
    assert fr.problem(artifact(data)) is None


def test_unreadable_file_is_a_problem_not_an_exception() -> None:
    def refuse() -> io.BytesIO:
        raise PermissionError(13, "Permission denied")

    assert fr.read_with_problem(Artifact(ArtifactKind.FLIGHT_RECORDER, "x", Origin(), 1, refuse)) == (
        [],
        "cannot be opened: Permission denied",
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain, st.sampled_from([2, 3, 4, 5]))
def test_plain_pickles_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=300))
def test_any_bytes_give_rows_or_a_problem(data: bytes) -> None:
    for candidate in (data, b"\x80\x02" + data, b'{"entries":' + data):
        rows, problem = fr.read_with_problem(artifact(candidate))
        assert (problem is None) or rows == []


def test_opcode_limit() -> None:
    with pytest.raises(NotPlain, match="more than 10 opcodes"):
        loads(pickle.dumps(list(range(100)), 2), max_opcodes=10)


def test_other_files_do_not_look_like_dumps() -> None:
    assert not fr.looks_like(b"PK\x03\x04 pg_config")
    assert not fr.looks_like(pickle.dumps({"state_dict": {}}, 2))
    assert not fr.looks_like(b"[rank0]: profiling_name"[:2])
    assert not fr.looks_like(b"")
