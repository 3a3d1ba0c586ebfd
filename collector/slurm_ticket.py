"""What a hook wrote down: the name carries what matters, the body the rest.

A ticket whose body is missing or cut (full disk, power cut) still says job, restart count and exit status. All values
come from Slurm's daemons, never from the user: names, comments and paths of jobs are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = re.compile(r"(?P<role>[nhm])\.(?P<job>\d+)\.(?P<restart>\d+)\.(?P<code>\d*)\.(?P<signal>\d*)\.(?P<pid>\d+)")


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of one attempt of a job as one hook saw it."""

    role: str
    """node | head | manual (asked for by hand)."""
    job: int
    """Raw job id: of an array task its own, of a heterogeneous job the component's."""
    restart: int
    """SLURM_JOB_RESTART_COUNT: no number of the attempt, since a requeue counts before the hooks run."""
    code: int
    signal: int
    seen: float
    """Unix seconds when the hook ran."""
    start: int | None = None
    """SLURM_JOB_START_TIME (Unix seconds), Slurm 23.02 and later."""
    derived: int = 0
    """Highest wait status of a step."""
    uid: int | None = None
    user: str | None = None
    node: str | None = None
    nodes: str | None = None
    """Node list as Slurm abbreviates it."""
    gpus: str | None = None
    """Indices of the job's GPUs on this node."""
    het: int | None = None
    """Job id of the leader of a heterogeneous job."""
    offset: int | None = None
    """Component of a heterogeneous job, 0-based (head only)."""
    array: int | None = None
    task: int | None = None
    cluster: str | None = None
    conf: str | None = None

    @property
    def clean(self) -> bool:
        """True for 0:0: success, or a cancel, time limit, node failure, requeue or preemption."""
        return self.code == 0 and self.signal == 0

    @property
    def leader(self) -> int:
        """The job id that all components of the job share."""
        return self.het or self.job


def parse(name: str, body: bytes, seen: float) -> JobEnd | None:
    """The ticket of that name, or None if the name is not that of a hook's ticket."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    role = {"n": "node", "h": "head", "m": "manual"}[match["role"]]
    values = _values(body)
    return JobEnd(
        role,
        int(match["job"]),
        int(match["restart"]),
        int(match["code"] or 0),
        int(match["signal"] or 0),
        seen,
        start=_number(values.get("start")),
        derived=_number(values.get("derived")) or 0,
        uid=_number(values.get("uid")),
        user=values.get("user"),
        node=values.get("node"),
        nodes=values.get("nodes"),
        gpus=values.get("gpus"),
        het=_number(values.get("het")) or None,
        offset=_number(values.get("offset")),
        array=_number(values.get("array")) or None,
        task=_number(values.get("task")),
        cluster=values.get("cluster"),
        conf=values.get("conf"),
    )


def _values(body: bytes) -> Mapping[str, str]:
    lines = body.decode("utf-8", "replace").split("\n")
    if "end=1" not in lines:
        # cut off: the last line may be half a value
        lines = lines[:-1]
    pairs = (line.partition("=") for line in lines)
    return {key: value for key, _, value in pairs if value}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


_LIST_PART = re.compile(r"[^,\[\]]*(?:\[[\d,-]+\][^,\[\]]*)*")
_RANGES = re.compile(r"\[([\d,-]+)\]")


def expand_nodes(text: str | None, limit: int = 100_000) -> list[str]:
    """Slurm's node list (`n[1-3,07],login`) as names in their order; empty for None or nonsense.

    Several brackets in a name are expanded all (`r[1-2]n[1-4]`). Source: slurm.conf(5), "NodeName".
    """
    names: list[str] = []
    if any(bracket in _RANGES.sub("", text or "") for bracket in "[]"):
        return names
    for match in _LIST_PART.finditer(text or ""):
        if match[0] and match[0] != "(null)":
            names.extend(_expand(match[0], limit - len(names)))
    return names


def _expand(part: str, limit: int) -> list[str]:
    match = _RANGES.search(part)
    if match is None or limit <= 0:
        return [part] if limit > 0 else []
    before, after = part[: match.start()], part[match.end() :]
    names: list[str] = []
    for piece in match[1].split(","):
        low, _, high = piece.partition("-")
        if not low.isdigit() or (high and not high.isdigit()):
            continue
        for number in range(int(low), min(int(high or low), int(low) + limit) + 1):
            names.extend(_expand(f"{before}{number:0{len(low)}d}{after}", limit - len(names)))
            if len(names) >= limit:
                return names[:limit]
    return names
