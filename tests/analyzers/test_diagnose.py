"""From a folder to a verdict, as a user sees it: what is named, what is not, and what the answer always holds."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzers import diagnose as module
from analyzers.case import CAUSES, SCOPES
from analyzers.diagnose import diagnose
from analyzers.gather import gather
from collector.model import Budget

GONE = "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43210."
STATUS = {"established", "supported", "suspected", "undetermined", "no_failure"}


def trace(error: str, rank: int | None = None, function: str = "main") -> str:
    mark = "" if rank is None else f"[rank{rank}]: "
    body = [
        "Traceback (most recent call last):",
        f'  File "/opt/train/train.py", line 10, in {function}',
        "    step()",
        error,
    ]
    return "".join(f"{mark}{text}\n" for text in body)


def steps(rank: int | None = None, count: int = 4, first: int = 0) -> str:
    mark = "" if rank is None else f"[rank{rank}] "
    return "".join(
        f"2026-12-01 01:{n // 60:02d}:{n % 60:02d},000 {mark}INFO step {n}/400 loss=2.0\n"
        for n in range(first, first + count)
    )


def run(folder: Path, files: Mapping[str, str | bytes], **more: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return diagnose(folder, **more)


def verdict(folder: Path, files: Mapping[str, str | bytes], **more: Any) -> Any:
    return SimpleNamespace(**run(folder, files, **more)["verdict"])


# --- who is named -----------------------------------------------------------------------------------------------------


def test_the_failure_and_not_its_louder_earlier_echoes(tmp_path: Path) -> None:
    console = "".join(steps(r) for r in range(3)) + trace(GONE, 0) + trace(GONE, 1) + trace("KeyError: 'labels'", 2)
    found = run(tmp_path, {"job.log": console})
    said = found["verdict"]
    assert (said["status"], said["ranks"], said["scope"]) == ("established", [2], "rank")
    assert said["title"].startswith("KeyError: 'labels'")
    first = said["evidence"][0]
    opened = (tmp_path / first["path"]).read_text().splitlines()[first["line"] - 1]
    assert opened == "[rank2]: KeyError: 'labels'", "the cited line is the line that proves it"
    (echo,) = [row for row in found["collateral"] if row["role"] == "cascade"]
    assert echo["ranks"] == [0, 1] and echo["explained_by"] == said["signature"]


def test_a_simultaneous_failure_singles_nobody_out(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"job.log": "".join(trace("FloatingPointError: loss is nan", r) for r in range(4))})
    assert found.ranks == [0, 1, 2, 3] and "no single one is to blame" in found.why


def test_an_unmarked_failure_among_several_ranks_is_not_pinned_on_one(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"job.log": "".join(steps(r) for r in range(3)) + trace("KeyError: 'labels'")})
    assert (found.status, found.ranks) == ("undetermined", [])
    assert found.title.startswith("KeyError"), "what is known is said"
    assert any("own log files" in text for text in found.missing)


def test_only_echoes_name_no_cause(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"job.log": steps(0) + trace(GONE, 0) + trace(GONE, 1)})
    assert (found.status, found.ranks) == ("undetermined", [])
    assert found.missing


def test_the_launchers_root_cause_is_not_taken_over(tmp_path: Path) -> None:
    block = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-12-01_01:10:16\n  host      : localhost\n"
        "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 77)\n  error_file: <N/A>\n"
    )
    console = steps(0) + steps(1) + trace(GONE, 0) + trace("KeyError: 'labels'", 1) + block
    assert verdict(tmp_path, {"job.log": console}).ranks == [1]


def test_the_barrier_names_the_rank_that_did_not_come(tmp_path: Path) -> None:
    text = "RuntimeError: Rank 2 failed to pass monitoredBarrier in 12000 ms"
    console = "".join(steps(r) for r in range(3)) + trace(text, 0)
    found = verdict(tmp_path, {"job.log": console})
    assert found.ranks == [2] and "Rank 0 waited and names rank 2" in found.why


def test_a_warning_that_training_went_on_after_is_no_failure(tmp_path: Path) -> None:
    found = verdict(
        tmp_path, {"rank0.log": steps(count=3) + trace("TimeoutError: retrying") + steps(count=20, first=3)}
    )
    assert found.status == "no_failure"


def test_a_run_that_ended_well(tmp_path: Path) -> None:
    found = run(tmp_path, {"job.log": steps(0) + steps(1) + "[rank0] training finished\n[rank1] training finished\n"})
    assert found["verdict"]["status"] == "no_failure"
    assert found["candidates"] == [] and found["collateral"] == []


def test_a_silent_log_is_not_called_healthy(tmp_path: Path) -> None:
    assert verdict(tmp_path, {"job.log": "01:02:03 loading the model\n01:02:04 loaded\n"}).status == "undetermined"


def test_the_kernel_before_its_echo(tmp_path: Path) -> None:
    dmesg = (
        "[  100.000000] Linux version 6.1.0\n"
        "[  518.050000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
        "task_memcg=/job,task=python,pid=101,uid=0\n"
        "[  518.050100] Memory cgroup out of memory: Killed process 101 (python) total-vm:9000000kB, "
        "anon-rss:8000000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1000kB oom_score_adj:0\n"
    )
    agent = "E1201 01:22:04.534000 29033 torch/distributed/elastic/multiprocessing/api.py:1002] "
    console = "".join(f"rank={r} ready pid={100 + r} local_rank={r} world_size=2\n" for r in (0, 1))
    console += trace(GONE, 0) + agent + "failed (exitcode: -9) local_rank: 1 (pid: 101) of binary: python\n"
    found = verdict(tmp_path, {"job.log": console, "dmesg.txt": dmesg})
    assert (found.cause, found.ranks) == ("host_memory", [1])


def test_a_restart_that_never_trained_is_not_the_first_failure(tmp_path: Path) -> None:
    console = (
        "".join(steps(r) for r in (0, 1)) + trace("KeyError: 'labels'", 1) + trace(GONE, 0)
        + "E1201 torch/distributed/elastic/agent/server/api.py] [x] 1/1 attempts left; will restart worker group\n"
        + trace("RuntimeError: connectFullMesh failed", 0) + trace("RuntimeError: connectFullMesh failed", 1)
    )  # fmt: skip
    found = run(tmp_path, {"job.log": console})
    assert found["incident"]["attempts"] == 2
    assert found["verdict"]["ranks"] == [1] and "KeyError" in found["verdict"]["title"]


# --- forms of logs ----------------------------------------------------------------------------------------------------

FAILING = [(0, "step 1/9"), (1, "step 1/9"), (2, "step 1/9"), (0, "step 2/9"), (1, "step 2/9"), (2, "step 2/9")]
FAILING += [(2, text.strip("\n")) for text in trace("KeyError: 'labels'").splitlines()]
FAILING += [(rank, text) for rank in (0, 1) for text in trace(GONE).splitlines()]


def cri(rank: int, text: str) -> str:
    return f"2026-12-01T01:24:09.695151001Z stderr F [rank{rank}]: {text}"


def docker(rank: int, text: str) -> str:
    return json.dumps({"log": f"[rank{rank}]: {text}\n", "stream": "stderr", "time": "2026-12-01T01:24:09.695151001Z"})


FORMS = {
    "torch": lambda rank, text: f"[rank{rank}]: {text}",
    "srun --label": lambda rank, text: f"{rank}: {text}",
    "mpirun --tag-output": lambda rank, text: f"[1,{rank}]<stderr>:{text}",
    "torchrun --tee and torch": lambda rank, text: f"[default{rank}]:[rank{rank}]: {text}",
    "kubectl logs --prefix": lambda rank, text: f"[pod/train-worker-{rank}/pytorch] [rank{rank}]: {text}",
    "coloured": lambda rank, text: f"\x1b[36m[rank{rank}]:\x1b[0m \x1b[31m{text}\x1b[0m",
    "windows": lambda rank, text: f"[rank{rank}]: {text}\r",
    "behind a progress bar": lambda rank, text: f" 10%|#   | 1/10 [00:01<00:09,  1.0s/it]\r[rank{rank}]: {text}",
    "cri": cri,
    "docker": docker,
    "docker, coloured": lambda rank, text: docker(rank, f"\x1b[31m{text}\x1b[0m"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_verdict_does_not_depend_on_the_form_of_the_log(form: str, tmp_path: Path) -> None:
    console = "".join(FORMS[form](rank, text) + "\n" for rank, text in FAILING)
    found = verdict(tmp_path, {"console.log": console})
    assert (found.ranks, found.title.split(" in ")[0]) == ([2], "KeyError: 'labels'")


def test_structured_logs(tmp_path: Path) -> None:
    def row(rank: int, **more: str) -> str:
        return json.dumps({"ts": f"2026-12-01T01:00:0{rank}.000Z", "level": "INFO", "rank": rank, **more}) + "\n"

    console = "".join(row(rank, message=f"step {n}/90") for n in range(3) for rank in range(3))
    for rank, error in ((1, "KeyError: 'labels'"), (0, GONE), (2, GONE)):
        console += row(rank, level="ERROR", message="worker failed", exc_info=trace(error))
    found = verdict(tmp_path, {"train.jsonl.log": console})
    assert (found.status, found.ranks) == ("established", [1]) and found.title.startswith("KeyError: 'labels'")


def test_ray(tmp_path: Path) -> None:
    lines = [(rank, f"learner {rank} ready") for rank in range(3)] + FAILING
    console = "".join(f"(Learner pid={1000 + rank}, ip=192.0.2.{rank}) {text}\n" for rank, text in lines)
    assert verdict(tmp_path, {"driver.log": console}).ranks == [2]


def test_files_per_rank_nul_bytes_and_wrong_utf8(tmp_path: Path) -> None:
    files = {
        f"rank{rank}.log": "".join(f"{text}\n" for who, text in FAILING if who == rank).encode() + b"\xff\xfe\0\0\n"
        for rank in range(3)
    }
    assert verdict(tmp_path, files).ranks == [2]


def test_the_console_of_the_second_node_does_not_accuse_the_first_nodes_ranks(tmp_path: Path) -> None:
    files = {}
    for node, first in (("gpu-node-00", 0), ("gpu-node-01", 2)):
        text = "".join(f"[default{r}]:[rank{first + r}]: step 1/9\n" for r in (0, 1))
        text += "".join(
            f"[default{r}]:{line}\n"
            for r in (0, 1)
            for line in trace(GONE, first + r).splitlines()
            if not (first and r)
        )
        files[f"{node}.log"] = text
    # unmarked by torch: only the launcher's local rank says whose it is
    files["gpu-node-01.log"] += "".join(f"[default1]:{line}\n" for line in trace("KeyError: 'labels'").splitlines())
    assert verdict(tmp_path, files).ranks == [3]


def test_a_pipe_gives_the_same_verdict_as_the_file(tmp_path: Path) -> None:
    console = "".join(FORMS["torch"](rank, text) + "\n" for rank, text in FAILING)
    from_file = verdict(tmp_path, {"console.log": console})
    from_pipe = diagnose(io.BytesIO(console.encode()))["verdict"]
    assert (from_pipe["ranks"], from_pipe["title"]) == (from_file.ranks, from_file.title)
    assert from_pipe["evidence"][0]["path"] == "-"


def test_a_failure_in_the_middle_of_a_log_beyond_the_line_budget_is_found(tmp_path: Path) -> None:
    body = (
        steps(0, 30_000)
        + trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 0)
        + "the monitor is alive and has nothing to say\n" * 30_000
    )
    found = run(tmp_path, {"rank0.log": body}, budget=Budget(lines=2000))
    first = found["verdict"]["evidence"][0]
    assert "CUDA out of memory" in first["text"] and first["line"] == 30_004
    assert found["details"]["inputs"]["lines"] < 20_000
    assert any("truncated" in gap for gap in found["ledger"]["gaps"]), "what was left out is said"


# --- what every answer holds ------------------------------------------------------------------------------------------

EXAMPLES: dict[str, Mapping[str, str]] = {
    "failure": {"job.log": steps(0) + trace(GONE, 0) + trace("KeyError: 'x'", 1)},
    "healthy": {"job.log": steps(0) + "training finished\n"},
    "echoes": {"job.log": trace(GONE, 0) + trace(GONE, 1)},
    "nothing": {"notes.md": "nothing"},
    "hang": {"job.log": steps(0, 40) + "slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-12-01T04:00:00 ***\n"},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_contract(name: str, tmp_path: Path) -> None:
    found = run(tmp_path, EXAMPLES[name])
    assert list(found) == ["schema", "incident", "verdict", "candidates", "collateral", "ledger", "details"]
    assert found["schema"] == 1 and set(found["incident"]) == {"id", "scheduler", "world_size", "attempts"}
    said = found["verdict"]
    assert said["status"] in STATUS and said["scope"] in {*SCOPES, None} and said["cause"] in {*CAUSES, None}
    assert said["title"] and said["why"], "every verdict says what and why"
    assert said["status"] != "undetermined" or said["missing"], "an abstention says what would settle it"
    for cited in said["evidence"]:
        assert set(cited) == {"path", "line", "rank", "text"}
    assert set(found["ledger"]) == {"expected", "collected", "gaps"}
    for candidate in found["candidates"]:
        assert type(candidate["score"]) is float and 0 <= candidate["score"] <= 1
    json.dumps(found)


def test_the_id_is_that_of_the_files_wherever_they_lie(tmp_path: Path) -> None:
    one, other = (run(tmp_path / name, EXAMPLES["failure"]) for name in ("a", "b"))
    assert one["incident"]["id"] == other["incident"]["id"]
    changed = run(tmp_path / "b", {"more.log": "01:02:03 more\n"})
    assert changed["incident"]["id"] != one["incident"]["id"]


def test_an_expected_rank_without_a_line_is_a_gap_not_a_culprit(tmp_path: Path) -> None:
    found = run(tmp_path, {f"rank{r}.log": "world_size=3\n" + trace(GONE) for r in (0, 1)})
    assert found["verdict"]["ranks"] == []
    assert (found["ledger"]["expected"], found["ledger"]["collected"]) == (3, 2)
    assert "rank(s) 2" in found["ledger"]["gaps"][0]


def test_a_detector_that_breaks_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from analyzers.detectors import silence

    def broken(case: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(silence, "detect", broken)
    found = run(tmp_path, EXAMPLES["failure"])
    assert found["verdict"]["ranks"] == [1]
    assert any("boom" in gap for gap in found["ledger"]["gaps"])


def test_every_detector_named_exists_and_is_silent_on_nothing() -> None:
    from importlib import import_module

    from analyzers.case import Case

    for name in module.DETECTORS:
        assert list(import_module(f"analyzers.detectors.{name}").detect(Case("empty"))) == [], name


def test_only_a_root_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    found = diagnose(tmp_path / "missing")
    assert found["verdict"]["status"] == "undetermined" and "nothing was found" not in found["verdict"]["title"].lower()


# --- a known-good run -------------------------------------------------------------------------------------------------


def test_the_first_line_that_a_good_run_never_printed(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    run(good, {"job.log": steps(0, 20) + "[rank0] training finished\n"})
    odd = "2026-12-01 01:00:05,000 [rank0] INFO the cache of shard 3 is being rebuilt from scratch\n"
    found = run(bad, {"job.log": steps(0, 5) + odd + trace("KeyError: 'labels'", 0)}, control=good)
    difference = found["details"]["first_difference"]
    assert (difference["path"], difference["line"]) == ("job.log", 6)
    assert "rebuilt from scratch" in difference["text"]
    assert "KeyError" in found["verdict"]["title"], "a difference is context, never the verdict"


def test_without_a_good_run_there_is_no_difference(tmp_path: Path) -> None:
    assert run(tmp_path, EXAMPLES["failure"])["details"]["first_difference"] is None


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRETS = {
    "huggingface": ("HF_TOKEN=", "hf_" + "aZ3kP9qLmN7rT2vXwYb4cD6eF8gH1jK5sU"),
    "aws id": ("key id ", "AKIA" + "QX7ZP3LM4KTR2WVB"),
    "aws secret": ("aws_secret_access_key=", "wJa1rXUtnF3MIK7MDENGbPxRfiCY9EXAvPLkEKzY"),
    "github": ("remote token ", "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"),
    "wandb": ("WANDB_API_KEY=", "4f9d1c8be27a6350fd94c1b8e7a2635d0f4c9b18"),
    "openai": ("OPENAI_API_KEY=", "sk-proj-" + "Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0FeDcBaQwErTy"),
    "url password": ("mongodb://trainer:", "Tr0ub4dorAnd3xyz", "@db.example.org/runs"),
    "bearer": ("Authorization: Bearer ", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0cmFpbmVyIn0.c2lnbmF0dXJlMTIzNDU2Nzg5MA"),
    "slack": ("webhook token ", "xoxb-" + "123456789012-123456789012-aBcDeFgHiJkLmNoPqRsTuVwX"),
    "password": ("password=", "Zq8vT3mR7xK2pL9w"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SECRETS)
def test_no_secret_of_a_log_is_printed_or_written(kind: str, tmp_path: Path) -> None:
    from analyzers.report import html
    from analyzers.report import json as as_json
    from analyzers.report import text as as_text

    before, secret, *after = SECRETS[kind]
    said = f"{before}{secret}{''.join(after)}"
    error = json.dumps({"message": {"message": f"ValueError: {said}", "extraInfo": {
        "py_callstack": trace(f"ValueError: {said}"), "timestamp": "1796088120"}}})  # fmt: skip
    console = (
        steps(0) + f"[rank1] INFO starting with {said}\n" + trace(GONE, 0) + trace(f"ValueError: refused: {said}", 1)
    )
    found = run(tmp_path, {
        "job.log": console, "attempt_0/1/error.json": error, "attempt_0/1/stderr.log": f"{said}\n",
        "exit.json": json.dumps({"command": ["train", said], "returncode": 1}),
    })  # fmt: skip
    assert "ValueError" in found["verdict"]["title"]
    outputs = [as_json.dumps(found), html.render(found), as_text.render(found, width=200, color=False, verbose=True)]
    for output in outputs:
        assert secret not in output
    assert "[redacted:" in outputs[0], "a mask shows that something was there"


def test_masking_changes_no_line_without_a_secret(tmp_path: Path) -> None:
    text = "tokens per second 12345\npassword prompt skipped\n  key: value\nloss 2.0\n"
    (tmp_path / "rank0.log").write_text(text)
    assert "\n".join(line.text for line in gather(tmp_path, Budget()).lines) + "\n" == text


def test_lines_keep_their_place_when_one_of_them_is_masked(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("first\nHF_TOKEN=" + SECRETS["huggingface"][1] + "\nlast\n")
    lines = gather(tmp_path, Budget()).lines
    assert [(line.line, line.text[:5]) for line in lines] == [(1, "first"), (2, "HF_TO"), (3, "last")]
