"""`make reproduce`: brings the two founding failures about for real and checks what firstfault says of them.

Decision: nothing is faked. torch and DeepSpeed run with 2 and 4 ranks over gloo, the ranks' logs are their own files,
stacks are taken with py-spy from the living processes, and the installed `firstfault` command judges the folder. Every
scenario is data (scenarios.yaml); a failed expectation makes the whole run fail, after all scenarios have run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
START_UP = 240.0
"""Seconds a scenario may take to its end or hang on a busy machine."""
QUIET = 8.0
"""A job hangs if no rank prints anything for so many seconds after its turning step; a step takes well below one."""
BETWEEN_DUMPS = 5.0


class Outcome(NamedTuple):
    """One scenario: what was said, what was wrong with it (empty if nothing), how long it took."""

    name: str
    verdict: dict[str, Any]
    faults: list[str]
    seconds: float


class Tools(NamedTuple):
    """The environment with torch, DeepSpeed and py-spy, and the command under test."""

    venv: Path
    old_deepspeed: Path
    firstfault: Path

    def environment(self, scenario: dict[str, Any]) -> dict[str, str]:
        """Environment of the ranks: nothing of the caller's but what a login shell would have."""
        env = {
            "PATH": f"{self.venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "DS_ACCELERATOR": "cpu",
            "DS_BUILD_OPS": "0",
            "LOCAL_SIZE": str(scenario["ranks"]),
            "PYTHONUNBUFFERED": "1",
        }
        if scenario["deepspeed"] == "old":
            env["PYTHONPATH"] = str(self.old_deepspeed)
        return env | scenario["env"]


class Job:
    """The processes of one scenario and the folder with what they leave."""

    def __init__(self, scenario: dict[str, Any], tools: Tools, run: Path) -> None:
        self.scenario, self.tools, self.run = scenario, tools, run
        self.processes: list[subprocess.Popen[bytes]] = []
        start = self._torchrun if scenario["launcher"] == "torchrun" else self._by_hand
        start(tools.environment(scenario), HERE / "jobs" / f"{scenario['job']}.py")

    def _start(self, command: list[str | Path], env: dict[str, str], log: Path) -> None:
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            )

    def _torchrun(self, env: dict[str, str], script: Path) -> None:
        ranks = f"--nproc-per-node={self.scenario['ranks']}"
        logs = ["--log-dir", self.run / "ranks", "--redirects", "3", "--tee", "3"]
        port = f"--rdzv-endpoint=127.0.0.1:{_free_port()}"
        command = [self.tools.venv / "bin" / "torchrun", "--rdzv-backend=c10d", port, ranks, *logs, script]
        self._start(command, env, self.run / "console.log")

    def _by_hand(self, env: dict[str, str], script: Path) -> None:
        size, port = str(self.scenario["ranks"]), str(_free_port())
        for rank in map(str, range(self.scenario["ranks"])):
            own = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": size,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            self._start([self.tools.venv / "bin" / "python", script], env | own, self.run / f"rank{rank}.log")

    def living(self) -> list[tuple[int, int]]:
        """(rank, pid) of the ranks that were started by hand and still run."""
        return [(rank, p.pid) for rank, p in enumerate(self.processes) if p.poll() is None]

    def ended(self) -> bool:
        """True if every process has ended."""
        return not self.living()

    def quiet_for(self) -> float:
        """Seconds since anything was printed."""
        written = [path.stat().st_mtime for path in self.run.rglob("*.log")]
        return time.time() - max(written)

    def turned(self) -> bool:
        """True if every rank came to the step from which the scenario is no longer healthy."""
        logs = [self.run / f"rank{rank}.log" for rank in range(self.scenario["ranks"])]
        return all(b"step 3 rollouts ready" in log.read_bytes() for log in logs)

    def stop(self) -> None:
        """End what still runs: the processes that this job started, with their children, by process group."""
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.processes:
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(scenario: dict[str, Any], tools: Tools, run: Path) -> Iterator[Job]:
    """A running job that is gone afterwards, whatever happened."""
    job = Job(scenario, tools, run)
    try:
        yield job
    finally:
        job.stop()


def play(scenario: dict[str, Any], tools: Tools, run: Path) -> list[str]:
    """Run a scenario to its end or to its hang and collect; what went otherwise than meant."""
    limit = time.monotonic() + START_UP
    hangs = scenario["ends"] == "hang"
    with started(scenario, tools, run) as job:
        while time.monotonic() < limit:
            if job.ended():
                return ["every rank ended although the scenario hangs"] if hangs else []
            if hangs and job.turned() and job.quiet_for() > QUIET:
                for dump in (1, 2):
                    if dump == 2:
                        time.sleep(BETWEEN_DUMPS)
                    _dump(job, dump)
                return []
            time.sleep(0.5)
    return [f"neither ended nor hung within {START_UP:.0f} s"]


def _dump(job: Job, number: int) -> None:
    for rank, pid in job.living():
        command = [job.tools.venv / "bin" / "py-spy", "dump", "--pid", str(pid)]
        taken = subprocess.run(command, capture_output=True, check=False)
        (job.run / f"hang{number}.rank{rank}.txt").write_bytes(taken.stdout or taken.stderr)


def judge(tools: Tools, run: Path) -> dict[str, Any]:
    """What the command says of the folder. Raises CalledProcessError on anything but a verdict or an abstention."""
    done = subprocess.run([tools.firstfault, "diagnose", "--json", run], capture_output=True, check=False)
    if done.returncode not in (0, 3):
        raise subprocess.CalledProcessError(done.returncode, "firstfault diagnose", done.stdout, done.stderr)
    verdict: dict[str, Any] = json.loads(done.stdout)["verdict"]
    return verdict


def faults_of(verdict: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    """Where the verdict differs from what must be said."""
    faults = []
    if verdict["status"] not in expect["status"]:
        faults.append(f"status is {verdict['status']}, not {' or '.join(expect['status'])}")
    signature = verdict["signature"] or ""
    if "signature" in expect and not re.fullmatch(expect["signature"], signature):
        faults.append(f"signature is {signature}, not {expect['signature']}")
    if "not_signature" in expect and re.search(expect["not_signature"], signature):
        faults.append(f"signature is {signature}")
    faults += [
        f"{key} is {verdict[key]}, not {expect[key]}"
        for key in ("ranks", "scope", "cause")
        if key in expect and verdict[key] != expect[key]
    ]
    return faults


def versions(tools: Tools) -> dict[str, str]:
    """Versions of what took part."""
    names = ("torch", "deepspeed", "py-spy")
    code = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    said = subprocess.run([tools.venv / "bin" / "python", "-c", code], capture_output=True, check=True, text=True)
    found: dict[str, str] = json.loads(said.stdout)
    old = next((path.stem.partition("-")[2] for path in tools.old_deepspeed.glob("deepspeed-*.dist-info")), "?")
    found["deepspeed"] = f"{old} (old), {found['deepspeed']} (new)"
    return {"Python": platform.python_version(), "cores": str(os.cpu_count()), **found}


def report(outcomes: list[Outcome], facts: dict[str, str], install: str | None) -> str:
    """The record of a run as Markdown."""
    total = sum(outcome.seconds for outcome in outcomes)
    head = ", ".join(f"{name} {value}" for name, value in facts.items())
    lines = [f"{datetime.now(UTC):%Y-%m-%d}: {head}. All scenarios took {total:.0f} s.", ""]
    if install:
        lines[0] += f" Installing took {install} s."
    lines += ["| scenario | s | status | signature | ranks | scope | as expected |", "|---|---|---|---|---|---|---|"]
    for name, verdict, faults, seconds in outcomes:
        said = [verdict.get(key) for key in ("status", "signature", "ranks", "scope")]
        cells = " | ".join("-" if value in (None, []) else str(value) for value in said)
        lines.append(f"| {name} | {seconds:.0f} | {cells} | {'yes' if not faults else '; '.join(faults)} |")
    return "\n".join(lines) + "\n"


def record(path: Path, text: str) -> None:
    """Replace what stands behind the marker in the document."""
    marker = "<!-- last run: written by make reproduce -->\n"
    before = path.read_text(encoding="utf-8").partition(marker)[0]
    path.write_text(f"{before}{marker}\n{text}", encoding="utf-8")


def main() -> int:
    """Command line; 0 if every scenario went as expected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="scenarios; all if none is named")
    parser.add_argument("--venv", type=Path, required=True, help="venv with torch, deepspeed, py-spy")
    parser.add_argument("--old-deepspeed", type=Path, required=True, help="folder with the older DeepSpeed")
    parser.add_argument("--firstfault", type=Path, required=True, help="the command under test")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, kept")
    parser.add_argument("--record", type=Path, help="document whose last-run part is rewritten if all were run")
    parser.add_argument("--install-seconds", help="how long the installation took, for the record")
    args = parser.parse_args()
    tools = Tools(args.venv.absolute(), args.old_deepspeed.absolute(), args.firstfault.absolute())
    scenarios = yaml.safe_load((HERE / "scenarios.yaml").read_text(encoding="utf-8"))
    outcomes = []
    for name in args.names or scenarios:
        run = args.out / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        run.mkdir(parents=True)
        begun = time.monotonic()
        faults = play(scenarios[name], tools, run)
        verdict = judge(tools, run)
        faults += faults_of(verdict, scenarios[name]["expect"])
        outcomes.append(Outcome(name, verdict, faults, time.monotonic() - begun))
        print(f"{'ok  ' if not faults else 'FAIL'} {name}: {verdict['title']}", *faults, sep="\n     ", flush=True)
    text = report(outcomes, versions(tools), args.install_seconds)
    print(f"\n{text}")
    if args.record and not args.names:
        record(args.record, text)
    return int(any(outcome.faults for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
