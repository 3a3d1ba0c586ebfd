"""Matching: hits sit on the right line whatever the text, with the captures that say most."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.signatures import Pattern, Signature, SignatureSet, load
from collector.model import LogLine

BASE = load()


def lines(*texts: str) -> list[LogLine]:
    return [
        LogLine(None, "r.log", i + 1, 0, 0, None, 0, 0, None, "stderr", "rank", None, None, t)
        for i, t in enumerate(texts)
    ]


def made(identity: str, *regexes: str, code: bool = False, hot: bool = True) -> Signature:
    return Signature(
        id=identity,
        title="T",
        reads=("rank_log",),
        cause="unknown",
        role="initiating",
        scope="rank",
        strength=1,
        patterns=tuple(Pattern(r, "") for r in regexes),
        says="",
        no_match=("-",),
        code=code,
        hot=hot,
    )


def found(hits: list) -> list[tuple[str, int, dict[str, str]]]:
    return [(h.signature, h.index, dict(h.captures)) for h in hits]


def test_best_captures_and_one_hit_per_signature_and_line() -> None:
    text = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=600000) ran for 600087 milliseconds before timing out."
    )
    hits = BASE.match(lines("ordinary", text, text))
    watchdog = [h for h in hits if h.signature == "torch/watchdog-collective-timeout"]
    assert [h.index for h in watchdog] == [1, 2]
    assert dict(watchdog[0].captures) == {
        "pg_rank": "3",
        "seq": "15",
        "op": "ALLREDUCE",
        "timeout_ms": "600000",
        "ran_ms": "600087",
    }
    assert watchdog[0].line.line == 2


def test_several_signatures_on_one_line_and_order_by_line() -> None:
    tried = SignatureSet([made("a/one", "fire"), made("a/two", r"fire (?P<count>\d+)")])
    assert found(tried.match(lines("fire 12", "", "fire"))) == [
        ("a/one", 0, {}),
        ("a/two", 0, {"count": "12"}),
        ("a/one", 2, {}),
    ]


def test_line_breaks_and_odd_characters_inside_a_text_do_not_shift_lines() -> None:
    tried = SignatureSet([made("a/x", r"fire (?P<count>\d+)")])
    texts = ["héllo 🏖️", "a\nb\r\nc fire 1", "\r", "", "\ud800 fire 2", "x\x00fire 3\x85", "fire 4\u2028fire 5"]
    assert found(tried.match(lines(*texts))) == [
        ("a/x", 1, {"count": "1"}),
        ("a/x", 4, {"count": "2"}),
        ("a/x", 5, {"count": "3"}),
        ("a/x", 6, {"count": "4"}),
    ]


def test_nothing_to_match() -> None:
    assert BASE.match([]) == []
    assert BASE.match(lines("")) == []
    assert SignatureSet([]).match(lines("x")) == []


def test_code_that_mentions_an_error_is_not_the_error() -> None:
    frame = '  File "/opt/venv/lib/python3.11/site-packages/deepspeed/runtime/x.py", line 208, in reset_step'
    quoted = '    raise RuntimeError(f"still have inflight params "'
    message = "RuntimeError: still have inflight params [{'id': 20}]"
    hits = BASE.match(lines(frame, quoted, message))
    assert [(h.signature, h.index) for h in hits] == [("deepspeed/zero3-inflight-params", 2)]
    check = "    assert len(self.ckpt_list) > 0"
    assert [h.signature for h in BASE.match(lines(frame, check))] == ["deepspeed/checkpoint-list-empty"]
    log = '    log.info("CUDA error: out of memory is handled here")'
    assert BASE.match(lines(frame, log)) == []
    # Without a frame above it, an indented line is a message like any other.
    assert [h.signature for h in BASE.match(lines("    CUDA error: out of memory"))] == ["cuda/out-of-memory"]


def test_cold_patterns_are_not_scanned_for() -> None:
    tried = SignatureSet([made("a/x", "progress", hot=False), made("a/y", "fire")])
    assert tried.patterns == ["fire"]
    assert tried.match(lines("progress")) == []
    assert [h.start for h in tried.prefilter().scan(b"ok\nfire\n")] == [3]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(alphabet="ab\n\r 1é", max_size=8), max_size=12))
def test_match_equals_searching_each_line(texts: list[str]) -> None:
    tried = SignatureSet([made("a/x", r"a(?P<count>\d)?", "ab"), made("a/y", "^b$", "é")])
    expected = []
    for index, text in enumerate(texts):
        flat = re.sub(r"[\r\n]", " ", text).encode()
        for signature in tried.by_id.values():
            if any(re.search(p.regex.encode(), flat) for p in signature.patterns):
                expected.append((signature.id, index))
    assert sorted((h.signature, h.index) for h in tried.match(lines(*texts))) == sorted(expected)
