"""Who did something else than all its peers? Only a majority accuses, and only where everybody else merely echoes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from analyzers.case import Observation
from analyzers.detectors import divergence
from analyzers.diagnose import build_case
from analyzers.gather import gather
from analyzers.signatures import load
from collector.model import Budget

GLOO = "RuntimeError: [/opt/gloo/transport/tcp/"
LATE = GLOO + "unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
GONE = GLOO + "pair.cc:553] Connection closed by peer [127.0.0.1]:43210."


def echo(what: str = LATE, function: str = "train_step", line: int = 10) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/opt/train/train.py", line {line}, in {function}\n'
        f"    dist.all_reduce(loss)\n{what}\n"
    )


def steps(rank: int, count: int = 5) -> str:
    return f"rank={rank} ready\n" + "".join(
        f"2026-12-01 01:00:{n:02d},000 rank={rank} step {n}/40 loss=2.0\n" for n in range(count)
    )


def look(folder: Path, files: Mapping[str, str]) -> list[Observation]:
    for name, text in files.items():
        (folder / name).write_text(text)
    return list(divergence.detect(build_case(gather(folder, Budget()), load())))


def job(ranks: int, body: Callable[[int], str]) -> dict[str, str]:
    return {f"rank{r}.log": body(r) for r in range(ranks)}


def test_the_rank_at_another_call_site(tmp_path: Path) -> None:
    (found,) = look(tmp_path, job(4, lambda r: steps(r) + (echo(function="evaluate", line=77) if r == 3 else echo())))
    assert (found.signature, found.rank, found.strength) == ("divergence/call-site", 3, 2)
    assert "evaluate (train.py:77)" in found.title and (found.path, found.line) == ("rank3.log", 10)


@pytest.mark.parametrize("odd", [(1, 3), (0, 1, 2)])
def test_without_a_majority_of_all_but_one_nobody_is_odd(tmp_path: Path, odd: tuple[int, ...]) -> None:
    sites = {rank: 70 + number for number, rank in enumerate(odd)} if len(odd) > 2 else dict.fromkeys(odd, 77)
    files = job(4, lambda r: steps(r) + echo(line=sites.get(r, 10)))
    assert "divergence/call-site" not in [found.signature for found in look(tmp_path, files)]


def test_one_against_one_accuses_nobody(tmp_path: Path) -> None:
    assert look(tmp_path, job(2, lambda r: steps(r, 5 + r) + echo(line=10 + r))) == []


def test_beside_a_failure_of_its_own_nobody_is_odd(tmp_path: Path) -> None:
    own = steps(1) + echo("KeyError: 'labels'")
    assert look(tmp_path, job(3, lambda r: own if r == 1 else steps(r) + echo(line=10 + r))) == []


def test_the_rank_that_fell_behind_while_its_peers_waited(tmp_path: Path) -> None:
    found = look(tmp_path, job(3, lambda r: steps(r, 3 if r == 1 else 6) + echo()))
    (behind,) = [each for each in found if each.signature == "divergence/fell-behind"]
    assert (behind.rank, behind.strength, behind.detail["step"]) == (1, 1, 2)


def test_counters_that_a_lost_connection_stopped_anywhere_say_nothing(tmp_path: Path) -> None:
    found = look(tmp_path, job(3, lambda r: steps(r, 3 if r == 1 else 6) + echo(GONE)))
    assert "divergence/fell-behind" not in [each.signature for each in found]


def test_a_last_message_that_no_peer_printed(tmp_path: Path) -> None:
    def body(rank: int) -> str:
        extra = "rank=2 no rows left for evaluation, skipping it\n" if rank == 2 else ""
        return steps(rank) + extra + echo()

    (found,) = look(tmp_path, job(4, body))
    assert (found.signature, found.rank, found.strength) == ("divergence/unique-line", 2, 1)
    assert "no rows left" in found.title and (found.path, found.line) == ("rank2.log", 7)


def test_rank_0_prints_more_than_others_in_every_program(tmp_path: Path) -> None:
    extra = "rank=0 saving a checkpoint to disk now\n"
    assert look(tmp_path, job(4, lambda r: steps(r) + (extra if r == 0 else "") + echo())) == []


def test_two_ranks_with_lines_of_their_own_accuse_nobody(tmp_path: Path) -> None:
    extra = {1: "rank=1 reading the spare shard\n", 2: "rank=2 no rows left for evaluation\n"}
    assert look(tmp_path, job(4, lambda r: steps(r) + extra.get(r, "") + echo())) == []


def test_a_line_of_its_own_before_training_began_says_nothing(tmp_path: Path) -> None:
    extra = {2: "rank=2 found an old cache and removed it\n"}
    assert look(tmp_path, job(4, lambda r: extra.get(r, "") + steps(r, 9) + echo())) == []


def fingerprint(rank: int, op: str, peer: int, other: str) -> str:
    def of(number: int, what: str) -> str:
        print_ = f"CollectiveFingerPrint(SequenceNumber=7, OpType={what}, TensorShape=[8], TensorDtypes=Float)"
        return f"Rank {number} is running collective: {print_}"

    return f"RuntimeError: Detected mismatch between collectives on ranks. {of(rank, op)}, but {of(peer, other)}."


def test_fingerprints_put_together_name_the_odd_rank(tmp_path: Path) -> None:
    """torch compares each rank with its neighbour only; one text alone accuses as many as it excuses."""
    ops = ["ALLREDUCE", "ALLREDUCE", "BROADCAST", "ALLREDUCE"]
    files = job(4, lambda r: steps(r) + echo(fingerprint(r, ops[r], (r + 1) % 4, ops[(r + 1) % 4])))
    (found,) = look(tmp_path, files)
    assert (found.signature, found.rank, found.strength) == ("divergence/fingerprint", 2, 3)
    assert "BROADCAST" in found.title


def test_fingerprints_without_a_majority_accuse_nobody(tmp_path: Path) -> None:
    ops = ["ALLREDUCE", "ALLREDUCE", "BROADCAST", "BROADCAST"]
    files = job(4, lambda r: steps(r) + echo(fingerprint(r, ops[r], (r + 1) % 4, ops[(r + 1) % 4])))
    assert "divergence/fingerprint" not in [found.signature for found in look(tmp_path, files)]
