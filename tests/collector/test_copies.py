"""Copies among logs: the poorer goes, doubtful cases stay."""

from __future__ import annotations

import io

from collector.copies import Text, find_copies

LINES = [
    f"[default{n % 4}]:2026-12-01 01:21:{n % 60:02d},732 [rank{n % 4}] INFO train: step {n} loss {n / 7:.4f}"
    for n in range(200)
]


def text(path: str, lines: list[str], node: str | None = None, head: int = 1 << 16) -> Text:
    data = "".join(f"{line}\n" for line in lines).encode()
    return Text(path, node, data[:head], lambda: io.BytesIO(data))


def stamped(lines: list[str]) -> list[str]:
    return [f"2026-12-01T01:21:{n % 60:02d}.100200Z {line}" for n, line in enumerate(lines)]


def test_the_console_with_receive_times_wins() -> None:
    assert find_copies([text("a.log", LINES), text("b.log", stamped(LINES))]) == {"a.log": "b.log"}


def test_short_lines_do_not_hide_a_copy() -> None:
    lines = [part for line in LINES for part in (line, "    ^^^^", "}", "EOFError")]
    assert find_copies([text("a.log", lines), text("b.log", stamped(lines))]) == {"a.log": "b.log"}


def test_of_two_equal_logs_one_stays() -> None:
    assert len(find_copies([text("a.log", LINES), text("a.log.gz", LINES)])) == 1


def test_a_log_merged_from_nodes_goes_with_and_without_a_prefix() -> None:
    nodes = [text("gpu-node-00.log", LINES[0::2], "gpu-node-00"), text("gpu-node-01.log", LINES[1::2], "gpu-node-01")]
    merged = [text("merged.log", LINES), text("stamped.log", stamped(LINES))]
    assert set(find_copies(nodes + merged)) == {"merged.log", "stamped.log"}


def test_a_merged_log_with_lines_of_its_own_stays() -> None:
    nodes = [text("gpu-node-00.log", LINES[0::2], "gpu-node-00")]
    assert find_copies([*nodes, text("merged.log", LINES)]) == {}


def test_nodes_that_print_the_same_are_no_copies() -> None:
    assert find_copies([text("a.log", LINES, "node0"), text("b.log", LINES, "node1")]) == {}


def test_an_older_shorter_copy_goes() -> None:
    assert find_copies([text("a.log", LINES[:120]), text("b.log", LINES)]) == {"a.log": "b.log"}


def test_logs_that_begin_alike_and_go_on_apart_stay() -> None:
    other = LINES[:40] + [line.replace("loss", "bleu") for line in LINES[40:]]
    assert find_copies([text("a.log", LINES), text("b.log", other)]) == {}


def test_logs_that_differ_are_not_read() -> None:
    def never() -> io.BytesIO:
        raise AssertionError("it was read")

    other = [line.replace("loss", "bleu") for line in LINES]
    texts = [text("a.log", LINES), text("b.log", other)]
    assert find_copies([one._replace(open=never) for one in texts]) == {}


def test_a_log_that_cannot_be_read_stays() -> None:
    def gone() -> io.BytesIO:
        raise FileNotFoundError

    assert find_copies([text("a.log", LINES)._replace(open=gone), text("b.log", stamped(LINES))]) == {}
