"""Lines of rank logs: any bytes in, clean attributed lines out, each openable where it says it stands."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model import Artifact, ArtifactKind, LogLine, Origin, Outcome
from collector.readers import rank_log, times

CONSOLE = Origin(stream="console")
NOON = 1_796_126_400.0  # 2026-12-01T12:00:00Z


def artifact(data: bytes | str, path: str = "job.log", origin: Origin = CONSOLE) -> Artifact:
    raw = data.encode() if isinstance(data, str) else data
    return Artifact(ArtifactKind.RANK_LOG, path, origin, len(raw), lambda: io.BytesIO(raw), modified=NOON)


def read(data: bytes | str, path: str = "job.log", origin: Origin = CONSOLE) -> list[LogLine]:
    return rank_log.read(artifact(data, path, origin)).lines


def said(lines: Sequence[LogLine]) -> list[tuple[int, int | None, str]]:
    return [(line.line, line.rank, line.text) for line in lines]


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_of_a_progress_bar_only_its_last_state_is_a_line() -> None:
    data = " 10%|#  | 1/10 [00:01<00:09]\r 20%|## | 2/10 [00:02<00:08]\r100%|###| 10/10 [00:10<00:00]\nnext\n"
    assert said(read(data)) == [(1, None, "100%|###| 10/10 [00:10<00:00]"), (2, None, "next")]


def test_a_traceback_that_begins_behind_a_progress_bar_is_found() -> None:
    data = " 10%|#  | 1/10 [00:01<00:09]\rTraceback (most recent call last):\nKeyError: 'labels'\n"
    assert [line.text for line in read(data)] == ["Traceback (most recent call last):", "KeyError: 'labels'"]


def test_text_glued_behind_a_bar_is_kept() -> None:
    data = " 10%|#  | 1/10 [00:01<00:09, 1.0it/s]Some weights were not initialised\r 20%|## | 2/10 [00:02<00:08]\n"
    assert any("Some weights were not initialised" in line.text for line in read(data))


def test_what_was_overwritten_keeps_its_order_and_its_line() -> None:
    lines = read("starting\rTraceback (most recent call last):\rdone\n")
    assert [(line.line, line.offset, line.part, line.text) for line in lines] == [
        (1, 0, 0, "starting"),
        (1, 0, 1, "Traceback (most recent call last):"),
        (1, 0, 2, "done"),
    ]


@pytest.mark.parametrize(
    "coloured",
    [
        "\x1b[31mKeyError\x1b[0m: 'labels'",
        "\x1b[38;5;196mKeyError: 'labels'\x1b[K",
        "\x1b]8;;https://example.org\x07KeyError\x1b]8;;\x07: 'labels'",
        "\x1b[?25lKeyError: 'labels'\x1b[1A",
    ],
)
def test_colours_and_links_of_terminals_vanish(coloured: str) -> None:
    assert [line.text for line in read(coloured + "\n")] == ["KeyError: 'labels'"]


def test_colours_in_the_middle_of_a_long_log_vanish_too() -> None:
    plain = "step 1 loss 2.0\n" * 3000
    lines = read(plain + "\x1b[31mKeyError\x1b[0m: 'labels'\n" + plain)
    assert lines[3000].text == "KeyError: 'labels'"


def test_nul_bytes_windows_newlines_and_wrong_utf8_are_legal() -> None:
    lines = read(b"bus error in worker\0\0\r\n\xff\xfe step 3\r\nl\xc3\xb6ss 2.0\n")
    assert [line.text for line in lines] == ["bus error in worker", "\ufffd\ufffd step 3", "löss 2.0"]
    assert [line.line for line in lines] == [1, 2, 3]


def test_an_unfinished_last_line_counts() -> None:
    assert said(read("step 1\nstep 2")) == [(1, None, "step 1"), (2, None, "step 2")]


def test_what_cannot_be_read_is_a_row_of_the_ledger() -> None:
    def vanished() -> io.BytesIO:
        raise FileNotFoundError("gone")

    found = rank_log.read(Artifact(ArtifactKind.RANK_LOG, "a.log", CONSOLE, 1, vanished))
    assert found.lines == []
    assert [(row.outcome, "gone" in (row.detail or "")) for row in found.ledger] == [(Outcome.UNREACHABLE, True)]


def test_a_huge_line_is_cut_and_the_gap_is_said() -> None:
    data = b"first\n" + b"A" * 500_000 + b"KeyError: 'x'\nlast\n"
    found = rank_log.read(artifact(data))
    assert [line.line for line in found.lines] == [1, 2, 3]
    assert found.lines[1].text.endswith("KeyError: 'x'") and len(found.lines[1].text) < 100_000
    (gap,) = found.ledger
    assert gap.outcome is Outcome.TRUNCATED
    assert gap.dropped_from is not None and gap.dropped_to is not None
    assert 6 < gap.dropped_from < gap.dropped_to < 500_019


# --- glued, wrapped, numbered -----------------------------------------------------------------------------------------


def test_two_ranks_glued_on_one_line_are_taken_apart() -> None:
    lines = read("[rank0]: RuntimeError: closed by peer[rank1]: KeyError: 'labels'\n[rank0]: more\n")
    assert said(lines) == [
        (1, 0, "RuntimeError: closed by peer"),
        (1, 1, "KeyError: 'labels'"),
        (2, 0, "more"),
    ]
    assert [line.part for line in lines] == [0, 1, 0]


def test_words_that_a_terminal_wrapped_are_whole_again() -> None:
    width = 80
    long = [f"RuntimeError: number {i} in a message about the collective that timed out " + "x" * 40 for i in range(6)]
    wrapped = [line[at : at + width] for line in long for at in range(0, len(line), width)]
    lines = read("\n".join(wrapped) + "\nshort\n")
    assert [line.text for line in lines] == [*long, "short"]
    assert [line.line for line in lines] == [1, 3, 5, 7, 9, 11, 13]


def test_lines_of_many_lengths_are_not_joined() -> None:
    data = "".join(f"step {i} loss {'9' * (i % 37)}\n" for i in range(100))
    assert len(read(data)) == 100


@pytest.mark.parametrize("form", ["{n:5d} {text}", "{n}: {text}", "{n} | {text}", "{n}\t{text}"])
def test_line_numbers_of_a_viewer_are_no_text(form: str) -> None:
    body = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()",
            "KeyError: 'labels'", "done", "bye"]  # fmt: skip
    lines = read("\n".join(form.format(n=n, text=text) for n, text in enumerate(body, 41)) + "\n")
    assert [line.text for line in lines] == body
    assert [line.line for line in lines] == [1, 2, 3, 4, 5, 6], "the file's own line numbers are what opens it"


def test_counters_of_the_program_are_no_viewer() -> None:
    body = [f"{i * 10} loss 2.{i}" for i in range(10)]
    assert [line.text for line in read("\n".join(body))] == body


# --- prefixes ---------------------------------------------------------------------------------------------------------


def test_docker_json_file() -> None:
    row = {"log": "KeyError: 'labels'\n", "stream": "stderr", "time": "2026-12-01T01:24:09.5Z"}
    (line, broken) = read(json.dumps(row) + '\n{"log":"cut off\n')
    assert (line.text, line.stream) == ("KeyError: 'labels'", "stderr")
    assert times.iso(line.at_lo) == "2026-12-01T01:24:09.500Z"
    assert "cut off" in broken.text


def test_what_docker_escaped_is_cleaned_too() -> None:
    row = {"log": "\x1b[31mKeyError\x1b[0m: 'labels'\0\nsecond\n", "stream": "stderr", "time": "2026-12-01T01:24:09.5Z"}
    assert [(line.line, line.text) for line in read(json.dumps(row) + "\n")] == [
        (1, "KeyError: 'labels'"),
        (1, "second"),
    ]


def test_cri_lines() -> None:
    (line, *_) = read("2026-12-01T01:24:09.695151001Z stderr F [rank3]: KeyError: 'x'\n" * 2)
    assert (line.text, line.stream, line.rank) == ("KeyError: 'x'", "stderr", 3)
    assert times.iso(line.at_lo) == "2026-12-01T01:24:09.695Z"


def test_the_time_that_the_program_printed_wins_over_the_time_of_receipt() -> None:
    (line,) = read("2026-12-01T01:24:09.695151001Z stdout F 2026-12-01 01:24:07,100 INFO step 3\n")
    assert times.iso(line.at_lo) == "2026-12-01T01:24:07.100Z"


def test_kubectl_prefix() -> None:
    lines = read("[pod/train-worker-1/pytorch] [rank1]: KeyError: 'x'\n[pod/train-worker-0/pytorch] step 3\n")
    assert [(line.rank, line.text) for line in lines] == [(1, "KeyError: 'x'"), (None, "step 3")]


def test_srun_labels_are_global_ranks_if_the_whole_file_has_them() -> None:
    labelled = "".join(f"{i % 4}: step {i // 4}\n" for i in range(40))
    assert {line.rank for line in read(labelled)} == {0, 1, 2, 3}
    listed = "".join(f"{i}: item\n" for i in range(40))
    assert {line.rank for line in read(listed)} == {None}


def test_mpirun_tags() -> None:
    (line, _) = read("[1,3]<stderr>:Traceback (most recent call last):\n[1,0]<stdout>:step 1\n")
    assert (line.rank, line.stream, line.text) == (3, "stderr", "Traceback (most recent call last):")


def test_ray_prefixes_name_a_process_not_a_rank() -> None:
    (line, second) = read("(Learner pid=10945, ip=192.0.2.2) ready\n(raylet) A worker died\n")
    assert (line.pid, line.node, line.rank, line.text) == (10945, "192.0.2.2", None, "ready")
    assert second.issuer == "scheduler"


def test_json_lines() -> None:
    lines = read(
        "".join(json.dumps({"ts": 1796088120.25, "rank": r, "level": "INFO", "msg": "go"}) + "\n" for r in (0, 3))
    )
    assert [line.rank for line in lines] == [0, 3]
    assert times.iso(lines[0].at_lo) == "2026-12-01T01:22:00.250Z"


def test_the_rank_of_a_json_line_is_its_key_wherever_it_stands() -> None:
    row = {"message": 'waiting for "rank": 7 ' + "and more words " * 20, "levelname": "INFO", "rank": 2}
    assert [line.rank for line in read(json.dumps(row) + "\n")] == [2]


def test_a_traceback_in_a_field_of_a_json_line_is_read_as_one() -> None:
    trace = "Traceback (most recent call last):\n  File \"train.py\", line 3, in main\n    go()\nKeyError: 'labels'"
    for row in (
        {"rank": 1, "msg": "failed", "exc_info": trace},
        {"rank": 1, "record": {"level": "ERROR", "text": trace}},
    ):
        lines = read(json.dumps({"rank": 0, "msg": "hello"}) + "\n" + json.dumps(row) + "\n")
        assert [line.text for line in lines[2:]] == trace.split("\n")
        assert {(line.line, line.rank) for line in lines[1:]} == {(2, 1)}
        assert [line.part for line in lines[1:]] == [0, 1, 2, 3, 4]


def test_what_a_launcher_prints_belongs_to_no_rank() -> None:
    lines = read(
        "[default0]:step 1\n[default1]:step 1\n"
        "E1201 01:22:04.534000 29033 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
        "local_rank: 1 (pid: 29095) of binary: python\n"
    )
    assert (lines[2].issuer, lines[2].rank, lines[2].local_rank) == ("launcher", None, None)


# --- local rank is not global rank ------------------------------------------------------------------------------------


def test_a_local_rank_alone_names_no_global_rank() -> None:
    lines = read("[default0]:step 1\n[default1]:step 1\n", "gpu-node-01.log", Origin(node="gpu-node-01"))
    assert [(line.local_rank, line.rank) for line in lines] == [(0, None), (1, None)]


def test_the_file_itself_pairs_local_with_global_ranks() -> None:
    data = (
        "[default0]:[rank2]: RuntimeError: closed by peer\n[default1]:[rank3]: KeyError: 'x'\n"
        "[default1]:plain words of the same process\n"
    )
    assert [line.rank for line in read(data, "gpu-node-01.log")] == [2, 3, 3]


def test_the_failure_block_of_the_second_node_pairs_its_ranks() -> None:
    data = "[default1]:KeyError: 'x'\n" + "Root Cause (first observed failure):\n  rank      : 3 (local_rank: 1)\n"
    assert read(data, "gpu-node-01.log")[0].rank == 3


def test_two_nodes_in_one_console_make_a_local_rank_ambiguous() -> None:
    data = "[default1]:[rank1]: step 1\n[default1]:[rank3]: step 1\n[default1]:KeyError: 'x'\n"
    assert [line.rank for line in read(data)] == [1, 3, None]


def test_a_file_of_one_rank_is_that_ranks_whatever_it_quotes() -> None:
    lines = read("step 1\nwaiting for rank=7 to join\n", "rank2.log", Origin(rank=2, stream="stdout"))
    assert {line.rank for line in lines} == {2}


@pytest.mark.parametrize("text", ["no answer from [rank7] for 30 s", "lost the connection to peer rank: 7"])
def test_a_console_line_about_a_rank_was_not_written_by_it(text: str) -> None:
    assert [line.rank for line in read(text + "\n")] == [None]


def test_the_process_knows_its_rank_better_than_the_name_of_its_file() -> None:
    lines = read("[rank5]: Traceback\nplain\n", "attempt_0/1/stderr.log", Origin(rank=1, local_rank=1, stream="stderr"))
    assert {line.rank for line in lines} == {5}


def test_naive_stamps_are_moved_to_the_zone_that_the_file_shows() -> None:
    data = "".join(f"2026-12-01T01:00:0{i}.000Z stdout F a\n2026-12-01 03:00:0{i},000 INFO b\n" for i in range(6))
    starts = [line.at_lo for line in read(data)]
    assert max(starts) - min(starts) < 60_000_000  # type: ignore[type-var, operator]


# --- property ---------------------------------------------------------------------------------------------------------

PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([
        b"\n", b"\n", b"\n", b"\r", b"\r\n", b"\0", b"\x1b[31m", b"\x1b]8;;", b"\x07", b"\xff", b"[rank1]: ",
        b"[default0]:", b"2: ", b"[1,3]<stderr>:", b"(A pid=7) ", b" 10%|", b"1: ", b"KeyError: 'x'",
        b"Traceback (most recent call last):", b'{"log":', b'{"log":"a\\nb"}', b"2026-12-01 01:00:00,5 ",
        b"99/99/2026 99:99:99", b"[repeated 2x across cluster]", b"  rank      : 3 (local_rank: 1)", b"\xc2\x85",
        b"\xe2\x80\xa8", b"I9999 99:99:99.999999", b"rank=99999999999 ",
    ]),
)  # fmt: skip


def is_subsequence(text: str, of: str) -> bool:
    rest = iter(of)
    return all(any(char == other for other in rest) for char in text)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=60).map(b"".join))
def test_every_line_can_be_opened_where_it_says_it_stands(data: bytes) -> None:
    found = rank_log.read(artifact(data))
    raws = data.split(b"\n")
    starts = [0]
    for raw in raws:
        starts.append(starts[-1] + len(raw) + 1)
    assert found.ledger == []
    order = [(line.line, line.part) for line in found.lines]
    assert order == sorted(set(order)), "in reading order, no piece twice"
    for line in found.lines:
        assert line.offset == starts[line.line - 1]
        raw_text = raws[line.line - 1].decode("utf-8", "replace")
        if b'{"log":' in raws[0]:
            continue  # docker's JSON writes the same characters in another way
        assert is_subsequence(line.text, raw_text), (line, raw_text)
        assert "\n" not in line.text and "\r" not in line.text
