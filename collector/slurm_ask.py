"""Asks Slurm, always in a child with a time limit: a hung controller blocks its own tools for twenty seconds and more.

Two answers must not be taken for each other: Slurm does not know the job any more, and nobody answered.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.slurm_record import (
    SACCT_DELIMITER,
    SACCT_FIELDS,
    JobRecord,
    attempts,
    parse_json,
    parse_sacct,
    parse_scontrol,
)

SECONDS = 10.0
"""Longer than a busy controller needs, shorter than a hung one blocks (2 x MessageTimeout, 20 s)."""
MANY = 8
"""From so many jobs on, all records are fetched with one question instead of one each."""
_GONE = re.compile(r"Invalid job id|invalid job id|slurm_load_jobs error: Invalid")
_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+")
_MAX_OUTPUT = 256 << 20
_DETAILS = ("--details",)
"""Without it the worst exit code of a step is not shown, and the hooks may run before the step has reported it."""


class Unanswered(Exception):
    """Slurm did not answer; the message says what happened."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Where Slurm's commands are and which configuration they are to use."""

    bin: str = "/usr/bin"
    conf: str | None = None
    seconds: float = SECONDS
    pyslurm: bool = False

    def run(self, name: str, *arguments: str) -> str:
        """Standard output of a Slurm command. Raises Unanswered with its error text if it fails or hangs."""
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
        if self.conf:
            environment["SLURM_CONF"] = self.conf
        if "TZ" in os.environ:
            environment["TZ"] = os.environ["TZ"]
        program = str(Path(self.bin) / name)
        try:
            done = subprocess.run(
                [program, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=self.seconds, check=False, cwd="/", start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise Unanswered(f"{program} is not installed") from error
        except subprocess.TimeoutExpired as error:
            raise Unanswered(f"{name} did not answer within {self.seconds:g} s") from error
        except OSError as error:
            raise Unanswered(f"{program} cannot be run: {error.strerror}") from error
        if done.returncode != 0:
            why = done.stderr.decode("utf-8", "replace").strip().replace("\n", " ")[:300]
            raise Unanswered(f"{name}: {why or f'exit code {done.returncode}'}")
        return done.stdout[:_MAX_OUTPUT].decode("utf-8", "replace")

    def version(self) -> tuple[int, int]:
        """(major, minor) of the installed Slurm, such as (22, 5). Raises Unanswered."""
        match = _VERSION.search(self.run("scontrol", "--version"))
        if match is None:
            raise Unanswered("scontrol prints no version")
        return int(match[1]), int(match[2])

    def setting(self, name: str) -> str | None:
        """A value of `scontrol show config`, None if it is not there. Raises Unanswered."""
        match = re.search(rf"^{re.escape(name)}\s*=\s*(.*)$", self.run("scontrol", "show", "config"), re.MULTILINE)
        return match[1].strip() or None if match else None


def record(tools: Tools, job: int) -> tuple[JobRecord | None, str]:
    """What the controller knows of a job now, and its own words; (None, "") if it has forgotten it.

    Raises Unanswered if nobody answered.
    """
    if tools.pyslurm and (found := _by_pyslurm(tools, job)) is not None:
        return found, ""
    try:
        text = tools.run("scontrol", *_DETAILS, "show", "job", str(job))
    except Unanswered as error:
        if _GONE.search(str(error)):
            return None, ""
        raise
    return next((one for one in parse_scontrol(text) if one.job == job), None), text


def records(tools: Tools, jobs: Sequence[int]) -> dict[int, tuple[JobRecord | None, str]]:
    """`record` of several jobs, with one question for many. Raises Unanswered."""
    if len(jobs) < MANY:
        return {job: record(tools, job) for job in jobs}
    text = tools.run("scontrol", *_DETAILS, "show", "jobs")
    known: dict[int, tuple[JobRecord | None, str]] = dict.fromkeys(jobs, (None, ""))
    for block in re.split(r"\n(?=JobId=\d+ )", text.lstrip("\n")):
        for one in parse_scontrol(block):
            if one.job in known:
                known[one.job] = (one, block)
    return known


def base_state(tools: Tools, job: int) -> JobRecord | None:
    """The record with the state that COMPLETING hides, where this Slurm tells it (23.11 and later, JSON).

    None where it does not. Raises Unanswered.
    """
    if tools.version() < (23, 11):
        return None
    return next((one for one in parse_json(tools.run("scontrol", "show", "job", str(job), "--json"))), None)


def accounting(tools: Tools, job: int) -> list[JobRecord]:
    """All attempts of a job that the accounting database knows; empty if there is none or it does not answer."""
    try:
        text = tools.run(
            "sacct", "-XnP", "-D", "-j", str(job), f"--delimiter={SACCT_DELIMITER}", "-o", ",".join(SACCT_FIELDS)
        )
    except Unanswered:
        return []
    return list(attempts(parse_sacct(text), job))


def batch_script(tools: Tools, job: int) -> str:
    """The batch script of a job while the controller has it, "" if it has none or does not answer."""
    try:
        return tools.run("scontrol", "write", "batch_script", str(job), "-")
    except Unanswered:
        return ""


def _by_pyslurm(tools: Tools, job: int) -> JobRecord | None:
    """The record as pyslurm tells it; None where it is not installed, does not fit this cluster, or fails."""
    if importlib.util.find_spec("pyslurm") is None:
        return None
    environment = {"PATH": "/usr/bin:/bin", **({"SLURM_CONF": tools.conf} if tools.conf else {})}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "collector.slurm_pyslurm", str(job)], env=environment, cwd="/", check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=tools.seconds,
            start_new_session=True,
        )  # fmt: skip
        row = json.loads(done.stdout)
        return JobRecord(**row) if done.returncode == 0 and isinstance(row, dict) else None
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError):
        return None
