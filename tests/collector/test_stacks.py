import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.model import Artifact, ArtifactKind, Origin
from collector.readers import stacks

DATA = Path(__file__).parent / "data" / "stacks"


def artifact(data: bytes, path: str = "dump.txt", origin: Origin | None = None) -> Artifact:
    return Artifact(ArtifactKind.STACK_DUMP, path, origin or Origin(), len(data), lambda: io.BytesIO(data))


def read(name: str, origin: Origin | None = None) -> list[dict]:
    return stacks.read(artifact((DATA / name).read_bytes(), name, origin))


def functions(rows: list[dict], thread: str) -> list[str]:
    return [row["function"] for row in rows if row["thread"] == thread]


def test_py_spy_native_text_keeps_threads_states_and_native_frames():
    rows = read("hang1.rank0.native.txt")
    assert {row["thread"] for row in rows} == {"MainThread", "actor-fwd", "critic-fwd"}
    assert {(row["rank"], row["pid"], row["dump"], row["state"]) for row in rows} == {(0, 29456, 1, "idle")}
    critic = [row for row in rows if row["thread"] == "critic-fwd"]
    assert [row["depth"] for row in critic] == list(range(len(critic)))
    assert critic[3]["function"] == "lock_PyThread_acquire_lock" and critic[3]["native"]
    assert critic[4]["function"] == "main.<locals>.critic_worker" and not critic[4]["native"]
    assert (critic[4]["file"], critic[4]["lineno"]) == ("train_ppo_threads.py", 27)


def test_lines_and_offsets_point_at_the_frame_in_text_and_in_json():
    for name in ("hang1.rank0.native.txt", "hang1.rank0.json"):
        data = (DATA / name).read_bytes()
        for row in read(name):
            line = data.split(b"\n")[row["line"] - 1].decode()
            assert row["function"] in line
            assert row["function"] in data[row["offset"] :].split(b"\n")[0].decode()


def test_json_and_text_of_one_dump_say_the_same_about_python():
    text, from_json = read("hang1.rank0.native.txt"), read("hang1.rank0.json")
    for thread in ("MainThread", "actor-fwd", "critic-fwd"):
        python = [
            (row["function"], row["file"], row["lineno"])
            for row in text
            if row["thread"] == thread and not row["native"]
        ]
        assert python == [(row["function"], row["file"], row["lineno"]) for row in from_json if row["thread"] == thread]


def test_local_variables_are_no_frames():
    assert functions(read("hang1.rank2.locals.txt"), "MainThread") == ["evaluate", "main", "<module>"]


def test_the_origin_outranks_the_name_of_the_file():
    rows = read("hang1.rank0.json", Origin(node="n7", rank=5))
    assert {(row["rank"], row["node"]) for row in rows} == {(5, "n7")}


FAULT = """step 4 done
Fatal Python error: Segmentation fault

Thread 0x00007f10 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "train.py", line 9 in <module>

Current thread 0x00007f11 [loader] (most recent call first):
  File "data.py", line ??? in __getitem__

Extension modules: numpy._core._multiarray_umath (total: 1)
  File "not/a/frame.py", line 3 in nowhere
"""


def test_faulthandler_inside_a_log():
    rows = stacks.parse_text(FAULT, path="rank1.log", rank=1)
    assert [(row["thread"], row["function"], row["lineno"], row["line"]) for row in rows] == [
        ("0x00007f10", "all_reduce", 2501, 5),
        ("0x00007f10", "<module>", 9, 6),
        ("loader", "__getitem__", None, 9),
    ]
    assert {row["rank"] for row in rows} == {1}


def test_a_process_that_appears_again_is_its_next_dump():
    block = 'Process 7: python t.py\nPython v3.11.7 (python)\n\nThread 7 (idle): "MainThread"\n    f (t.py:3)\n\n'
    rows = stacks.parse_text(block + block.replace("7", "8") + block, dump=2)
    assert [(row["pid"], row["dump"]) for row in rows] == [(7, 2), (8, 2), (7, 3)]


def test_children_repeated_by_subprocesses_are_not_dumped_twice():
    parent = 'Process 7: python t.py\nPython v3.11.7 (python)\n\nThread 7 (idle): "MainThread"\n    f (t.py:3)\n'
    child = (
        "Process 9: python w.py\nPython v3.11.7 (python)\nParent Process 7: python t.py\n\n"
        'Thread 9 (idle): "MainThread"\n    g (w.py:1)\n'
    )
    rows = stacks.parse_text(parent + "-----\n" + child + "-----\n" + child)
    assert [(row["pid"], row["dump"], row["function"]) for row in rows] == [(7, 0, "f"), (9, 0, "g")]


def test_interleaved_outputs_of_many_nodes_are_told_apart():
    text = (
        "n1: Process 7: python t.py\nn2: Process 8: python t.py\n"
        'n1: Thread 7 (active+gil): "MainThread"\nn2: Thread 8 (active): "MainThread"\n'
        "n2:     g (t.py:4)\nn1:     f (t.py:3)\n"
    )
    rows = stacks.parse_text(text)
    assert sorted((row["node"], row["pid"], row["function"], row["state"]) for row in rows) == [
        ("n1", 7, "f", "gil"),
        ("n2", 8, "g", "active"),
    ]
    labelled = stacks.parse_text(text.replace("n1: ", " 0: ").replace("n2: ", " 1: "))
    assert sorted((row["node"], row["rank"], row["pid"]) for row in labelled) == [(None, None, 7), (None, None, 8)]
    ranked = stacks.parse_text(text.replace("n1: ", "[rank3]: ").replace("n2: ", "[rank4]: "))
    assert sorted((row["rank"], row["pid"]) for row in ranked) == [(3, 7), (4, 8)]
    teed = stacks.parse_text(text.replace("n1: ", "[default0]:").replace("n2: ", "[default1]:"))
    assert sorted((row["rank"], row["function"]) for row in teed if row["pid"] == 7) == [(None, "f")]


def test_equal_thread_names_get_their_ids():
    text = 'Process 7: p\nThread 8 (idle): "w"\n    f (t.py:3)\nThread 9 (idle): "w"\n    g (t.py:3)\n'
    assert [row["thread"] for row in stacks.parse_text(text)] == ["w (8)", "w (9)"]


def test_colours_of_a_terminal_are_ignored():
    text = (
        "Process \x1b[1m\x1b[33m7\x1b[0m: p\n"
        'Thread \x1b[1m8\x1b[0m (idle): "w"\n    \x1b[32mf\x1b[0m (t.py:\x1b[2m3\x1b[0m)\n'
    )
    assert [(row["pid"], row["function"], row["lineno"]) for row in stacks.parse_text(text)] == [(7, "f", 3)]


def test_pystack_prints_the_innermost_frame_last():
    text = (
        "Traceback for thread 112 (python) [Has the GIL] (most recent call last):\n"
        '    (Python) File "/x.py", line 12, in <module>\n        main()\n'
        '    (Python) File "/x.py", line 10, in main\n        time.sleep(9)\n'
        '    (C) File "Modules/timemodule.c", line 10, in time_sleep (python3)\n'
    )
    rows = stacks.parse_text(text)
    assert [(row["depth"], row["function"], row["native"], row["line"]) for row in rows] == [
        (0, "time_sleep", True, 6),
        (1, "main", False, 4),
        (2, "<module>", False, 2),
    ]


def test_gdb_backtraces():
    text = (
        'Thread 2 (Thread 0x7f0 (LWP 77) "python"):\n#0  0x00007f in poll () from /lib/libc.so.6\n'
        "#1  0x00007f in ncclAllReduce (x=1, y=0x2) at src/collectives.cc:33\n"
    )
    rows = stacks.parse_text(text)
    assert [(row["function"], row["file"], row["lineno"], row["native"]) for row in rows] == [
        ("poll", "/lib/libc.so.6", None, True),
        ("ncclAllReduce", "src/collectives.cc", 33, True),
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pyspy/hang2.rank0.json", (0, 2)),
        ("rank3.txt", (3, 0)),
        ("1.rank_12.txt", (12, 1)),
        ("rank7_dump4.txt", (7, 4)),
        ("dump3/rank7.txt", (7, 3)),
        ("gpu-node-05.rank3.txt", (3, 0)),
        ("global_rank3.txt", (3, 0)),
        ("local_rank3.txt", (None, 0)),
        ("stacks.20261201.txt", (None, 0)),
        ("pyspy.48213.txt", (None, 0)),
    ],
)
def test_place(path, expected):
    assert stacks.place(path) == expected


def test_looks_like_dumps_and_not_logs_that_contain_one():
    for name in ("hang1.rank0.native.txt", "hang1.rank0.json", "hang1.rank2.locals.txt"):
        assert stacks.looks_like((DATA / name).read_bytes()[:4096])
    assert stacks.looks_like(FAULT.split("\n\n", 1)[1].encode())
    assert not stacks.looks_like(FAULT.encode())
    assert not stacks.looks_like(FAULT.split("\n", 1)[1].encode())
    assert not stacks.looks_like(b'[{"frames": 3}]')
    assert not stacks.looks_like(b"Process 12: started\nstep 3 loss 2.0\n")


def test_json_that_is_cut_off_or_strange_gives_what_it_can():
    whole = (DATA / "hang1.rank0.json").read_bytes()
    assert stacks.read(artifact(whole[: len(whole) // 2])) == []
    odd = [{"pid": "x", "thread_id": 10, "frames": [{"name": None, "line": "?"}, 3]}, 4, {"frames": None}]
    rows = stacks.read(artifact(json.dumps(odd).encode()))
    assert [(row["pid"], row["function"], row["thread"]) for row in rows] == [(None, "?", "0xA")]
    two = stacks.read(artifact(whole + whole.replace(b"29456", b"29457")))
    assert {row["pid"] for row in two} == {29456, 29457}


@given(st.binary(max_size=400) | st.text(max_size=400).map(lambda s: ("[" + s).encode("utf-8", "replace")))
def test_any_bytes_are_legal(data):
    stacks.looks_like(data)
    for row in stacks.read(artifact(data)):
        assert row["depth"] >= 0


@given(st.lists(st.sampled_from(FAULT.split("\n") + (DATA / "hang1.rank0.native.txt").read_text().split("\n")[:30])))
def test_any_order_of_real_lines_gives_rows_of_the_table(lines):
    from collector import tables

    rows = stacks.parse_text("\n".join(lines), path="x")
    assert tables.to_arrow("stack_frames", rows).num_rows == len(rows)
