"""Silence accuses only next to speech: who fell silent, who left early, what hung, and above all who is NOT accused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from analyzers.case import Case, Observation
from analyzers.detectors import silence
from analyzers.diagnose import build_case
from analyzers.gather import gather
from analyzers.signatures import load
from collector.model import Budget

GLOO = "RuntimeError: [/opt/gloo/transport/tcp/"
GONE = (
    GLOO
    + "pair.cc:553] Connection closed by peer [127.0.0.1]:43210. This is typically caused by a remote worker crashing."
)
LATE = GLOO + "unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"


def echo(what: str = GONE) -> str:
    return (
        'Traceback (most recent call last):\n  File "/opt/train/train.py", line 10, in step\n'
        f"    dist.all_reduce(loss)\n{what}\n"
    )


def steps(rank: int, count: int = 5, host: str = "", size: int = 0) -> str:
    ready = f"rank={rank} ready" + (f" host={host}" if host else "") + (f" world_size={size}" if size else "") + "\n"
    return ready + "".join(f"2026-12-01 01:00:{n:02d},000 rank={rank} step {n}/40 loss=2.0\n" for n in range(count))


def case(folder: Path, files: Mapping[str, str]) -> Case:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return build_case(gather(folder, Budget()), load())


def look(folder: Path, files: Mapping[str, str]) -> list[Observation]:
    return list(silence.detect(case(folder, files)))


def test_the_one_quiet_rank_among_ranks_that_lost_a_peer(tmp_path: Path) -> None:
    (found,) = look(tmp_path, {
        "rank0.log": steps(0) + echo(), "rank1.log": steps(1) + echo(),
        "rank2.log": steps(2), "rank3.log": steps(3) + echo(),
    })  # fmt: skip
    assert found.signature == "silence/rank-stopped"
    assert found.detail["ranks"] == [2]
    assert (found.path, found.line) == ("rank2.log", 6), "cited: its last line"
    assert found.strength == 1, "an inference, not a statement"
    assert found.detail["missing"]


def test_a_rank_without_any_log_is_never_accused(tmp_path: Path) -> None:
    assert look(tmp_path, {"rank0.log": steps(0, size=3) + echo(), "rank1.log": steps(1, size=3) + echo()}) == []


def test_ranks_that_all_train_on_are_not_silent(tmp_path: Path) -> None:
    assert look(tmp_path, {f"rank{r}.log": steps(r) for r in range(3)}) == []


def test_beside_a_failure_of_its_own_nobody_is_accused_of_silence(tmp_path: Path) -> None:
    own = echo("KeyError: 'labels'")
    assert look(tmp_path, {"rank0.log": steps(0) + echo(), "rank1.log": steps(1) + own, "rank2.log": steps(2)}) == []


def test_a_last_word_that_sounds_like_an_error_is_no_silence(tmp_path: Path) -> None:
    assert look(tmp_path, {
        "rank0.log": steps(0) + echo(), "rank1.log": steps(1) + echo(),
        "rank2.log": steps(2) + "frobnicator failed: 7\n",
    }) == []  # fmt: skip


def test_two_quiet_ranks_that_nothing_tells_apart_accuse_nobody(tmp_path: Path) -> None:
    quiet = {f"rank{r}.log": steps(r) for r in (1, 2)}
    assert look(tmp_path, quiet | {f"rank{r}.log": steps(r) + echo() for r in (0, 3)}) == []


def test_a_whole_node_that_went_quiet_is_the_node(tmp_path: Path) -> None:
    files = {f"rank{r}.log": steps(r, host="gpu-node-00") + echo() for r in (0, 1)}
    (found,) = look(tmp_path, files | {f"rank{r}.log": steps(r, host="gpu-node-01") for r in (2, 3)})
    assert (found.signature, found.scope, found.cause) == ("silence/node-lost", "node", "node")
    assert found.detail["ranks"] == [2, 3] and found.detail["nodes"] == ["gpu-node-01"]


def test_half_a_node_is_no_lost_node(tmp_path: Path) -> None:
    files = {f"rank{r}.log": steps(r, host="gpu-node-00") + echo() for r in (0, 1)}
    files |= {"rank2.log": steps(2, host="gpu-node-01") + echo(), "rank3.log": steps(3, host="gpu-node-01")}
    assert [found.signature for found in look(tmp_path, files)] != ["silence/node-lost"]


LAUNCHER = "W1201 01:01:22.202000 29033 torch/distributed/elastic/multiprocessing/api.py:1028] "


def test_a_rank_that_the_launcher_had_to_end_while_all_peers_ran_out_of_patience(tmp_path: Path) -> None:
    ready = "".join(f"rank={r} ready pid={100 + r}\n" for r in range(3))
    console = ready + "".join(f"[rank{r}]: {line}\n" for r in (0, 1) for line in echo(LATE).splitlines())
    stop = LAUNCHER + "Sending process 102 closing signal SIGTERM\n"
    (found,) = look(tmp_path, {"job.log": console + stop})
    assert (found.signature, found.detail["ranks"]) == ("silence/rank-stopped", [2])


def test_a_rank_that_was_alive_is_not_accused_by_peers_that_lost_a_connection(tmp_path: Path) -> None:
    ready = "".join(f"rank={r} ready pid={100 + r}\n" for r in range(3))
    console = ready + "".join(f"[rank{r}]: {line}\n" for r in (0, 1) for line in echo(GONE).splitlines())
    stop = LAUNCHER + "Sending process 102 closing signal SIGTERM\n"
    assert look(tmp_path, {"job.log": console + stop}) == []


def test_a_rank_that_says_goodbye_ended_early(tmp_path: Path) -> None:
    (found,) = look(tmp_path, {
        "rank0.log": steps(0, 9) + echo(), "rank1.log": steps(1, 9) + echo(),
        "rank2.log": steps(2, 4) + "rank=2 epoch done, no more batches\n",
    })  # fmt: skip
    assert (found.signature, found.cause, found.detail["ranks"]) == ("silence/finished-early", "data", [2])


# --- hangs ------------------------------------------------------------------------------------------------------------


def console(last: int, stop: str) -> str:
    lines = "".join(
        f"2026-12-01 01:{n // 60:02d}:{n % 60:02d},000 [rank0] INFO step {n}/900 loss=2\n" for n in range(last)
    )
    return lines + f"slurmstepd: error: *** JOB 4711 ON n0 CANCELLED AT 2026-12-01T{stop} ***\n"


def test_a_long_silence_before_the_job_was_cancelled_is_a_hang_and_nobodys_fault(tmp_path: Path) -> None:
    (found,) = look(tmp_path, {"slurm-4711.out": console(30, "01:20:00")})
    assert (found.signature, found.scope, found.rank, found.detail.get("ranks")) == ("silence/hang", "job", None, None)
    assert 1100 < found.detail["seconds"] < 1200
    assert any("py-spy" in text for text in found.detail["missing"])
    assert found.line == 30


def test_a_job_cancelled_in_the_middle_of_progress_did_not_hang(tmp_path: Path) -> None:
    assert look(tmp_path, {"slurm-4711.out": console(30, "01:00:31")}) == []


def test_a_job_with_slow_steps_did_not_hang(tmp_path: Path) -> None:
    slow = "".join(f"2026-12-01 {1 + n // 6:02d}:{n % 6}0:00,000 [rank0] INFO step {n}/900 loss=2\n" for n in range(12))
    stop = "slurmstepd: error: *** JOB 4711 ON n0 CANCELLED AT 2026-12-01T03:05:00 ***\n"
    assert look(tmp_path, {"slurm-4711.out": slow + stop}) == []


def test_a_stop_without_any_time_leaves_a_hang_open(tmp_path: Path) -> None:
    body = "".join(f"[rank0] step {n}/900 loss=2\n" for n in range(9))
    stop = "slurmstepd: error: *** JOB 4711 ON n0 CANCELLED AT 2026-12-01T03:05:00 ***\n"
    (found,) = look(tmp_path, {"slurm-4711.out": body + stop})
    assert found.signature == "silence/hang" and "cannot be ruled out" in found.title


def test_ctrl_c_is_the_users_wish(tmp_path: Path) -> None:
    body = "".join(f"[rank0] step {n}/900 loss=2\n" for n in range(9))
    stop = "W1201 01:47:04.443000 21655 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, " \
           "shutting down workers\n"  # fmt: skip
    assert look(tmp_path, {"job.log": body + stop}) == []


@pytest.mark.parametrize(("minutes", "hangs"), [(40, True), (10, False)])
def test_heartbeats_without_progress(tmp_path: Path, minutes: int, hangs: bool) -> None:
    body = "".join(f"2026-12-01 01:00:{n:02d},000 [rank0] INFO step {n}/900 loss=2\n" for n in range(9))
    beats = "".join(f"2026-12-01 02:{n:02d}:00,000 exporter alive\n" for n in range(minutes))
    assert [found.signature for found in look(tmp_path, {"job.log": body + beats})] == ["silence/hang"] * hangs
