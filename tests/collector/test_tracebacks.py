"""Tracebacks as programs really print them: chained, nested, interleaved, cut, with long messages."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model import LogLine
from collector.readers import tracebacks
from collector.readers.tracebacks import PyException

HEADER = "Traceback (most recent call last):"
MINE = '  File "/opt/train/train.py", line 10, in step'
TORCH = '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl'


def line(text: str, number: int = 1, **told: object) -> LogLine:
    blank = LogLine(0, "job.log", number, 0, 0, None, None, None, None, None, "rank", None, None, text)
    return blank._replace(**told)  # type: ignore[arg-type]


def read(*texts: str, **told: object) -> list[PyException]:
    return tracebacks.read([line(text, number, **told) for number, text in enumerate(texts, 1)])


def test_type_message_frames_and_place() -> None:
    (found,) = read("step 1", HEADER, MINE, "    loss = model(batch)", TORCH, "    return forward_call(*args)",
                    "KeyError: 'labels'", "")  # fmt: skip
    assert (found.type, found.message, found.line.line) == ("KeyError", "'labels'", 7)
    assert [frame.function for frame in found.frames] == ["step", "_call_impl"]
    assert found.frames[0].source == "loss = model(batch)"
    assert found.user_frame is not None and found.user_frame.file == "/opt/train/train.py"
    assert found.members[:6] == [1, 2, 3, 4, 5, 6]


def test_a_bare_type_and_a_dotted_one() -> None:
    (bare,) = read(HEADER, MINE, "    assert rows", "AssertionError")
    (dotted,) = read(HEADER, MINE, "    y = x.cuda()", "torch.cuda.OutOfMemoryError: CUDA out of memory.")
    assert (bare.type, bare.message) == ("AssertionError", "")
    assert (dotted.type, dotted.short_type) == ("torch.cuda.OutOfMemoryError", "OutOfMemoryError")


def test_carets_under_source_lines_are_no_message() -> None:
    (found,) = read(HEADER, MINE, "    a = f(x) + g(y)", "        ~~~~~^^^^^^", "ValueError: 3")
    assert found.message == "3" and len(found.frames) == 1


def test_frames_without_source_lines() -> None:
    """A rank without file descriptors cannot read its sources."""
    (found,) = read(HEADER, MINE, TORCH, "OSError: [Errno 24] Too many open files")
    assert len(found.frames) == 2 and found.type == "OSError"


def test_a_syntax_error_has_its_place_and_its_type() -> None:
    (found,) = read(HEADER, MINE, "    import model", '  File "/opt/train/model.py", line 3', "    def f(:",
                    "          ^", "SyntaxError: invalid syntax")  # fmt: skip
    assert found.type == "SyntaxError"
    assert found.user_frame is not None and found.user_frame.file == "/opt/train/model.py"


def test_chained_exceptions_count_once_each_with_their_cause() -> None:
    for words in (
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ):
        first, second = read(HEADER, MINE, "    x = d[k]", "KeyError: 'labels'", "", words, "", HEADER, MINE,
                             "    raise RuntimeError(k)", "RuntimeError: bad batch")  # fmt: skip
        assert second.cause is first and first.cause is None
        assert [e.type for e in second.chain()] == ["KeyError", "RuntimeError"]


def test_two_exceptions_without_the_words_are_two_failures() -> None:
    first, second = read(HEADER, MINE, "    x()", "KeyError: 1", "retrying", HEADER, MINE, "    x()", "ValueError: 2")
    assert first.cause is None and second.cause is None


def test_the_traceback_of_a_worker_inside_a_message_is_the_cause() -> None:
    outer, inner = read(
        HEADER, MINE, "    for batch in loader:", TORCH, "    data.reraise()",
        "KeyError: Caught KeyError in DataLoader worker process 0.", "Original " + HEADER, MINE, "    return rows[i]",
        "KeyError: 'labels'",
    )  # fmt: skip
    assert outer.cause is inner and inner.message == "'labels'"
    assert outer.chain() == [inner, outer]


def test_ranks_that_are_told_apart_may_interleave() -> None:
    texts = [(0, HEADER), (1, HEADER), (0, MINE), (1, TORCH), (0, "    a()"), (1, "    b()"), (1, "ValueError: one"),
             (0, "KeyError: 'zero'")]  # fmt: skip
    found = tracebacks.read([line(text, n, rank=rank) for n, (rank, text) in enumerate(texts, 1)])
    assert [(e.line.rank, e.type, len(e.frames)) for e in found] == [(1, "ValueError", 1), (0, "KeyError", 1)]


def test_ranks_that_cannot_be_told_apart_lose_no_exception() -> None:
    found = read(HEADER, MINE, HEADER, TORCH, "    b()", "ValueError: one", "    a()", "KeyError: 'zero'")
    assert sorted(e.type for e in found) == ["KeyError", "ValueError"]


def test_a_log_that_begins_inside_a_traceback() -> None:
    (found,) = read(MINE, "    x = d[k]", "KeyError: 'labels'")
    assert (found.type, len(found.frames)) == ("KeyError", 1)


def test_a_log_that_ends_inside_a_traceback_names_nothing() -> None:
    assert read(HEADER, MINE, "    x = d[k]") == []


def test_a_message_of_many_lines_is_one_event() -> None:
    (found,) = read(
        HEADER, MINE, "    model.load_state_dict(state)", "RuntimeError: Error(s) in loading state_dict for ToyLM:",
        "\tsize mismatch for emb.weight: copying a param with shape torch.Size([8]) from checkpoint",
        "\tMissing key(s) in state_dict: \"head.bias\".", "ValueError: this text belongs to the message",
    )  # fmt: skip
    assert found.line.line == 4
    assert "size mismatch for emb.weight" in found.message and "Missing key" in found.message
    assert found.end == 6


def test_the_next_log_line_ends_the_message() -> None:
    texts = [HEADER, MINE, "    x()", "RuntimeError: bad"]
    stamped = line("2026-12-01 01:00:00,000 INFO step 3", 5, at_lo=1, at_hi=1)
    (found,) = tracebacks.read([*(line(text, n) for n, text in enumerate(texts, 1)), stamped])
    assert found.message == "bad" and found.end == 3


def test_exception_groups() -> None:
    found = read(
        "  + Exception Group Traceback (most recent call last):", '  |   File "/opt/train/train.py", line 3, in main',
        "  |     raise ExceptionGroup('two', errors)", "  | ExceptionGroup: two (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------", "    | Traceback (most recent call last):",
        '    |   File "/opt/train/train.py", line 7, in load', "    |     rows[i]", "    | KeyError: 'labels'",
        "    +---------------- 2 ----------------", "    | ValueError: no frames",
        "    +------------------------------------",
    )  # fmt: skip
    assert {e.type for e in found} >= {"ExceptionGroup", "KeyError"}


def test_a_launchers_own_traceback_is_known_as_such() -> None:
    launcher = (
        '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 3, in launch_agent'
    )
    (found,) = read(HEADER, launcher, "    raise ChildFailedError(", "ChildFailedError: ")
    assert found.by_launcher and not found.has_user_frame
    (mine,) = read(HEADER, MINE, "    x()", "KeyError: 1")
    assert mine.has_user_frame and not mine.by_launcher


def test_a_header_may_name_its_rank() -> None:
    (found,) = read("Traceback (most recent call last): (RANK 2)", MINE, "    x()", "KeyError: 1")
    assert found.announced_rank == 2


def test_prose_is_no_exception() -> None:
    assert read("KeyError is what you get here", "Error: no traceback above", "done") == []


def test_a_long_chain_and_a_deep_nest_end() -> None:
    words = "The above exception was the direct cause of the following exception:"
    texts = [text for n in range(200) for text in (HEADER, MINE, "    x()", f"ValueError: {n}", "", words, "")]
    found = read(*texts)
    assert len(found) == 200 and len(found[-1].chain()) <= 30
    assert read(*[HEADER] * 500, "KeyError: 1")


PIECES = st.sampled_from([
    HEADER, "Original " + HEADER, MINE, TORCH, "    x = d[k]", "    ^^^^", "KeyError: 'labels'", "AssertionError", "",
    "  ", "During handling of the above exception, another exception occurred:", "  | KeyError: 1", "  +-+--- 1 ---",
    "| | |", "ValueError: Caught ValueError in worker process:",
    'File "', '  File "x", line 99999999999999999999, in f', "\x00",
    "╭──── Traceback (most recent call last) ────╮", "│ /opt/train/train.py:10 in step │", "╰────╯", "step 3 loss 2",
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(PIECES | st.text(max_size=20), st.sampled_from([None, 0, 1])), max_size=50))
def test_no_sequence_of_lines_breaks_it(body: list[tuple[str, int | None]]) -> None:
    lines = [line(text, n, rank=rank) for n, (text, rank) in enumerate(body, 1)]
    for found in tracebacks.read(lines):
        assert lines[found.index] == found.line
        assert found.start <= found.index <= found.end < len(lines)
        assert found.members == sorted(set(found.members)) and found.index in found.members
        assert {lines[index].rank for index in found.members} == {found.line.rank}
        assert len(found.chain()) <= 30 and found.chain()[-1] is found
