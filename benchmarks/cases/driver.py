"""Run one recipe for real and keep what a user would be left with: `python driver.py RECIPE_ID ... --out DIR`.

Decision: the job runs under a neutral folder (`/home/alice/job`, scratch space `/scratch/run`, tools in
`/opt/train/venv`), so that no path in a log tells where it was made; the console is kept byte for byte. Needs root (a
host name of its own, small file systems) and a venv with torch at `TOOLS`; see README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
JOB = Path("/home/alice/job")
SCRATCH = Path("/scratch/run")
TOOLS = Path("/opt/train/venv/bin")
LOGDIR = SCRATCH / "logdir"
BASE_ENV = {
    "PATH": f"{TOOLS}:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/home/alice",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "DS_ACCELERATOR": "cpu",
    "DS_BUILD_OPS": "0",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}


class Console:
    """One launcher: its process, and its console copied to files line by line."""

    def __init__(self, command: list[str], env: dict[str, str], host: str, files: list[Path]) -> None:
        boxed = ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(
            boxed, cwd=JOB, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.mark = env["RUN_MARK"]
        self.files = files
        self.seen = b""
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def _copy(self) -> None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while chunk := os.read(descriptor, 65536):
            self.seen += chunk
            for path in self.files:
                with path.open("ab") as out:
                    out.write(chunk)

    def end(self, timeout: float) -> int | None:
        """Exit code, or None where the launcher did not end and everything of the run had to be killed."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        signal_all(self.mark, signal.SIGKILL)
        self.process.wait()
        self.thread.join(10)
        return code


def members(mark: str) -> list[tuple[int, int, bytes]]:
    """Living processes of one run, oldest first: (start time, pid, environment). torchrun gives each rank a session
    of its own, so only the mark in the environment finds them all."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            env = environ.read_bytes()
            fields = (environ.parent / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if f"\0RUN_MARK={mark}\0".encode() in b"\0" + env and fields[0] != "Z":
            found.append((int(fields[19]), int(environ.parent.name), b"\0" + env))
    return sorted(found)


def find_rank(rank: int, mark: str) -> int:
    """Pid of a rank: the oldest process with that RANK in its environment (its workers inherit it)."""
    return next(pid for _, pid, env in members(mark) if f"\0RANK={rank}\0".encode() in env)


def signal_all(mark: str, number: int) -> None:
    """Send a signal to every process of the run."""
    for _, pid, _ in members(mark):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def act(action: dict[str, Any], consoles: list[Console], run: Path) -> None:
    """Wait for a moment of the run, then do what the recipe says from outside."""
    console = consoles[action.get("node", 0)]
    limit = time.monotonic() + action.get("within", 120)
    while "after" in action and not re.search(action["after"].encode(), console.seen):
        if time.monotonic() > limit or console.process.poll() is not None:
            return
        time.sleep(0.05)
    time.sleep(action.get("wait", 0))
    number = getattr(signal, action.get("signal", "SIGKILL"))
    match action["do"]:
        case "kill_rank":
            os.kill(find_rank(action["rank"], console.mark), number)
        case "kill_launcher":
            os.kill(console.process.pid, number)
        case "kill_all":
            signal_all(console.mark, number)
        case "kill_worker":
            parent = find_rank(action["rank"], console.mark)
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            os.kill(int(children[0]), number)
        case "dump":
            (run / "pyspy").mkdir(exist_ok=True)
            for rank in action["ranks"]:
                pid = find_rank(rank, console.mark)
                text = subprocess.run([TOOLS / "py-spy", "dump", "--pid", str(pid)], capture_output=True, check=False)
                (run / "pyspy" / f"rank{rank}.txt").write_bytes(text.stdout)
        case "cgroup":
            group = Path(f"/sys/fs/cgroup/memory/job-{console.mark[:8]}")
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(action["limit"]))
            (group / "cgroup.procs").write_text(str(find_rank(action["rank"], console.mark)))
        case "stop":
            signal_all(console.mark, signal.SIGSTOP)


def run_recipe(name: str, recipe: dict[str, Any], out: Path) -> None:
    """Run one recipe and write its folder: scenario.json, <view>/merged.log, per-rank files, exit.json."""
    case = out / name
    shutil.rmtree(case, ignore_errors=True)
    view = recipe.get("view", "plain")
    run = case / view
    run.mkdir(parents=True)
    for folder in (JOB, SCRATCH):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for script in sorted((HERE / "jobs").iterdir()):
        if script.is_file():
            shutil.copy(script, JOB / recipe.get("rename", {}).get(script.name, script.name))
    env = BASE_ENV | {key: str(value) for key, value in recipe.get("env", {}).items()}
    if before := recipe.get("before"):
        subprocess.run(before, shell=True, check=True, cwd=JOB, env=env)
    helper = None
    if during := recipe.get("during"):
        helper = subprocess.Popen(during, shell=True, cwd=JOB, env=env, start_new_session=True)
        time.sleep(1)
    seen = kernel_lines()
    started = datetime.now(UTC)
    codes = launch(recipe, env, run)
    ended = datetime.now(UTC)
    if helper:
        os.killpg(helper.pid, signal.SIGKILL)
        helper.wait()
    keep(recipe, run)
    if recipe.get("kernel_log"):
        (run / "node").mkdir()
        (run / "node" / "dmesg.txt").write_text("".join(kernel_lines()[len(seen) :]))
    neutral(run)
    if after := recipe.get("afterwards"):
        subprocess.run(after, shell=True, check=False, cwd=JOB, env=env)
    command = recipe["command"]
    (run / "exit.json").write_text(
        json.dumps({"command": command, "started": _iso(started), "ended": _iso(ended), "rcs": codes}, indent=1) + "\n"
    )
    write_scenario(name, recipe, case)
    print(f"{name}: exit {codes}, {(run / 'merged.log').stat().st_size} bytes, {(ended - started).seconds} s")


def kernel_lines() -> list[str]:
    """The kernel log as dmesg prints it."""
    return subprocess.run(["dmesg"], capture_output=True, check=True, text=True).stdout.splitlines(keepends=True)


def launch(recipe: dict[str, Any], env: dict[str, str], run: Path) -> list[int | None]:
    """Start the launcher of every node, act on them, wait for them."""
    hosts = recipe.get("hosts", ["train-07"])
    consoles = []
    mark = uuid.uuid4().hex
    merged = run / "merged.log"
    merged.touch()
    for number, host in enumerate(hosts):
        files = [merged] + ([run / f"{host}.log"] if len(hosts) > 1 else [])
        command = [word.replace("{node}", str(number)).replace("{logdir}", str(LOGDIR)) for word in recipe["command"]]
        if number == 0 or not recipe.get("only_first_node"):
            consoles.append(Console(command, env | {"NODE": str(number), "RUN_MARK": f"{mark}-{number}"}, host, files))
    for action in recipe.get("actions", []):
        act(action, consoles, run)
    return [console.end(recipe.get("timeout", 100)) for console in consoles]


def keep(recipe: dict[str, Any], run: Path) -> None:
    """Per-rank files: torchrun's log folder, or whatever folder the recipe's launcher wrote."""
    for agent in sorted(LOGDIR.glob("*")):
        for attempt in sorted(agent.glob("*/attempt_*")):
            node = agent.name if re.fullmatch(r"node\d+", agent.name) else ""
            shutil.copytree(attempt, run / "ranks" / node / attempt.name, dirs_exist_ok=True)
        for attempt in sorted(agent.glob("attempt_*")):
            shutil.copytree(attempt, run / "ranks" / attempt.name, dirs_exist_ok=True)
    for source, target in recipe.get("keep", {}).items():
        for path in sorted(Path("/").glob(source.lstrip("/"))):
            place = run / target / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(path, place) if path.is_dir() else shutil.copy(path, place)


def neutral(run: Path) -> None:
    """Frames of the standard library name the place of this machine's interpreter: say /usr/local, as images do."""
    prefix = subprocess.run(
        [TOOLS / "python", "-c", "import sys; print(sys.base_prefix)"], capture_output=True, check=True, text=True
    ).stdout.strip()
    for path in sorted(run.rglob("*")):
        if path.is_file() and prefix.encode() in (content := path.read_bytes()):
            path.write_bytes(content.replace(prefix.encode(), b"/usr/local"))


def write_scenario(name: str, recipe: dict[str, Any], case: Path) -> None:
    """The case's truth and label, in the layout that benchmarks/accuracy/scoring.py reads."""
    truth = recipe["truth"]
    facts = {
        "id": name,
        "title": recipe["title"],
        "kind": recipe.get("kind", "real"),
        "framework": recipe.get("framework", "torch DDP"),
        "versions": {"torch": "2.13.0+cpu"} | recipe.get("versions", {}),
        "world_size": recipe["world"],
        "ground_truth": {
            "initiating_ranks": truth.get("ranks", []),
            "initiating_other": truth.get("other"),
            "category": truth["category"],
            "expected_signature": truth.get("expected"),
        },
        "label": {"cause_any": truth.get("cause_any", []), "decidable": truth.get("decidable", "true")}
        | ({"why": truth["why"]} if "why" in truth else {}),
    }
    (case / "scenario.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ids", nargs="*", help="recipes to run; all if none is named")
    parser.add_argument("--recipes", type=Path, default=HERE / "recipes.yaml")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--relabel", action="store_true", help="only rewrite scenario.json of runs that exist")
    args = parser.parse_args()
    recipes = yaml.safe_load(args.recipes.read_text(encoding="utf-8"))
    for name in args.ids or recipes:
        if args.relabel:
            if (args.out / name).is_dir():
                write_scenario(name, recipes[name], args.out / name)
        else:
            run_recipe(name, recipes[name], args.out)


if __name__ == "__main__":
    main()
