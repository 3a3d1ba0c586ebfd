"""A node's part: what the Epilog kept, what only this node can see, and, on one node of the job, the shared output.

The order is that of what can be lost first. The node's own copies of output files are made before anybody is asked
what the job was, if its exit status says that it failed; a job that ended with 0:0 waits for the head's word.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from collector import slurm_ask, slurm_paths, user_files
from collector.collect import collect
from collector.lake import safe_name
from collector.model import RunRef
from collector.slurm_context import Answer, Context, Done, Fatal, Later
from collector.slurm_decide import Decision, Known, decide, of_ticket, published
from collector.slurm_record import JobRecord
from collector.slurm_ticket import JobEnd, expand_nodes
from collector.sources.rank_logs import RankLogs
from collector.sources.slurm_job import NodeEvidence
from collector.spool import Spool, Ticket
from collector.store import StoreError

ASK_FAILED, ASK_CLEAN = 2.0, 20.0
"""Seconds after which the job's first node asks Slurm itself, so that a requeue finds the output copied."""
HOOK = 25.0
"""Seconds that the hook's background work may take."""
FORGET = 86400.0
"""Seconds after which a node gives up a ticket about which nobody said a word."""
_SLACK = 120.0
"""Seconds by which the clocks of a file server and a node may differ."""


@dataclass(slots=True)
class _Work:
    ctx: Context
    spool: Spool
    ticket: Ticket
    end: JobEnd
    host: str

    @property
    def origin(self) -> str:
        return self.ctx.origin(self.host)

    @property
    def age(self) -> float:
        return self.ctx.clock() - self.end.seen

    @property
    def copies(self) -> Path:
        return self.ticket.evidence / "files"


def handle(ctx: Context, spool: Spool, ticket: Ticket, end: JobEnd) -> Answer:
    """One step of a node's ticket. Raises StoreError, OSError (full disk)."""
    work = _Work(ctx, spool, ticket, end, end.node or socket.gethostname().partition(".")[0])
    try:
        decisions, down = published(ctx.store, ctx.cluster(end), end.job), None
    except StoreError as error:
        # whatever is wrong with it, what can be lost is saved first
        decisions, down = [], error
    decision = of_ticket(end, decisions)
    if decision is not None and spool.marked(_mark(work, decision)) is not None:
        if decision.final:
            return Done(f"{decision.incident}: reported before")
        decision = None
    if decision is None:
        answer = _alone(work)
        if down is not None:
            raise down
        return answer
    if not decision.collect:
        return Done(f"{decision.state}: nothing to collect")
    return _report(work, decision)


def _mark(work: _Work, decision: Decision) -> str:
    return safe_name(f"{work.origin}.{decision.incident}")[:180]


# --- without a word from the head -------------------------------------------------------------------------------------


def _alone(work: _Work) -> Answer:
    """Save what can be lost; after a while, on the job's first node, decide in the head's place."""
    ticket, end = work.ticket, work.end
    nodes = expand_nodes(end.nodes)
    first = not nodes or nodes[0] == work.host
    if not first:
        if work.age > FORGET:
            return Fatal("nobody said what the job was: is EpilogSlurmctld configured, and its drain running?")
        return Later(2.0 if work.age < 60 else 30.0 if work.age < 3600 else 600.0, "waiting for the head's decision")
    if work.age < (ASK_CLEAN if end.clean else ASK_FAILED):
        return Later(1.0, "waiting for the head's decision")
    record = _look(work)
    known = Known(JobRecord(**ticket.state["first"]) if ticket.state.get("first") else None, record, record is None)
    decision = decide(end, known, work.ctx.config, work.ctx.clock())
    if record is not None and (not end.clean or (decision is not None and decision.collect)):
        # the record names the files although nobody has judged the job yet
        _copy(work, record, _shared(work, record), None)
    if work.age > work.ctx.config.slurm.patience:
        from collector import slurm_head

        answer = slurm_head.decide_and_publish(work.ctx, ticket, end, record)
        # our own report is the next step
        return Later(0.0, answer.what) if isinstance(answer, Done) else answer
    return Later(3.0, "waiting for the head's decision")


def _look(work: _Work) -> JobRecord | None:
    record, text = slurm_ask.record(work.ctx.tools_for(work.end), work.end.job)
    if record is not None and "first" not in work.ticket.state:
        work.ticket.state["first"] = asdict(record)
        work.ticket.state["text"] = text[:20_000]
    return record


def _shared(work: _Work, record: JobRecord) -> tuple[slurm_paths.FilePattern, ...]:
    tools = work.ctx.tools_for(work.end)
    return shared_patterns(work.ctx, record, slurm_ask.batch_script(tools, work.end.leader))


def shared_patterns(ctx: Context, record: JobRecord, script: str) -> tuple[slurm_paths.FilePattern, ...]:
    """The output files of a job that all its nodes may see: of its record, its script and the configuration.

    Of a heterogeneous job the first component has them all, the others only what carries their own id.
    """
    known, base = slurm_paths.values(record), record.work_dir or "/"
    named = slurm_paths.of_script(script, record)
    if record.offset:
        leader = replace(record, job=record.het or record.job)
        of_all = {one.glob for one in slurm_paths.of_script(script, leader)}
        return tuple(one for one in named if one.glob not in of_all)
    more = [slurm_paths.config_pattern(text, known, base) for text in ctx.config.slurm.globs]
    return tuple(slurm_paths.unique([*slurm_paths.of_record(record), *named, *more]))


# --- with it ----------------------------------------------------------------------------------------------------------


def _report(work: _Work, decision: Decision) -> Answer:
    ctx, ticket = work.ctx, work.ticket
    complete = ticket.evidence / "complete"
    if not work.end.clean and not complete.exists() and work.age < HOOK and ticket.evidence.exists():
        return Later(1.0, "the hook is still at work")
    late = not complete.exists()
    here = work.end.role == "node" or work.host == socket.gethostname().partition(".")[0]
    if late and here and not (ticket.evidence / "dmesg.txt").exists():
        take_late(ticket.evidence)
    copies = _of_this_attempt(work, decision, _copy(work, None, decision.patterns, decision))
    run = RunRef(
        decision.incident, "slurm", str(decision.job), decision.cluster, decision.attempt, decision.nodes,
        decision.tasks,
    )  # fmt: skip
    logs = RankLogs(work.copies, copies, decision.work_dir, decision.nodes, tasks_are_ranks(decision))
    logs.numbered = not decision.het
    ids = tuple(job for job in (decision.job, decision.het) if job)
    kept = NodeEvidence(ticket.evidence, work.host, decision.started, work.end.seen, ids, late)
    tasks = list(task_ends(Path(ctx.config.spool.tasks), work.end, work.host, decision))
    rows = [
        {"rank": rank if tasks_are_ranks(decision) else None, "local_rank": local, "node": ctx.host(work.host),
         "exited_at": at, "attempt": 0}
        for rank, local, at in tasks
    ]  # fmt: skip
    ctx.remember(decision)
    collect(
        run, [kept, logs], ctx.config.budget.budget(), ctx.store, origin=work.origin,
        masking=ctx.masking(done=True), extra={"ranks": [row for row in rows if row["rank"] is not None]},
        artifact_bytes=ctx.config.budget.artifact_bytes, adjust=logs.adjust,
    )  # fmt: skip
    with contextlib.suppress(OSError):
        work.spool.mark(_mark(work, decision), str(int(ctx.clock())))
    _forget_tasks(Path(ctx.config.spool.tasks), work.end, work.host)
    return Done(f"{decision.incident}: reported as {work.origin}")


def tasks_are_ranks(decision: Decision) -> bool:
    """False if each task starts several ranks: one task per node and more GPUs than tasks."""
    if decision.tasks is None or not decision.gpus:
        return True
    return decision.tasks >= decision.gpus or decision.tasks > len(decision.nodes)


def _copy(
    work: _Work,
    record: JobRecord | None,
    patterns: tuple[slurm_paths.FilePattern, ...],
    decision: Decision | None,
) -> user_files.Copies:
    """The copies of the job's files, made now or found from an earlier attempt of ours."""
    found = user_files.load(work.copies)
    if found is not None:
        return found
    uid = work.end.uid if work.end.uid is not None else decision.uid if decision is not None else None
    if uid is None:
        return user_files.Copies(refused=[("", "refused", "the ticket does not say whose the job was")])
    started = work.end.start or (decision.started if decision is not None else record.started if record else None)
    wanted = list(_wanted(work, patterns, decision, started))
    budget = work.ctx.config.budget
    limits = user_files.Limits(budget.seconds, budget.bytes, budget.file_bytes, budget.files)
    work.ticket.evidence.mkdir(mode=0o700, exist_ok=True)
    if not wanted:
        return user_files.Copies()
    return user_files.copy(work.copies, uid, wanted, limits, mask=work.ctx.config.redaction.on)


def _of_this_attempt(work: _Work, decision: Decision, copies: user_files.Copies) -> user_files.Copies:
    """Without files that changed after the attempt: another one may have truncated them, and would be accused here."""
    if decision.final:
        return copies
    why = "changed after the end of this attempt: the next one may have overwritten it"
    late = [file for file in copies.files if file.modified > work.end.seen + 10]
    refused = [*copies.refused, *((file.path, "refused", why) for file in late)]
    return user_files.Copies([file for file in copies.files if file not in late], refused, copies.labels)


def _wanted(
    work: _Work, patterns: tuple[slurm_paths.FilePattern, ...], decision: Decision | None, started: int | None
) -> Iterator[user_files.Wanted]:
    """What this node reads: the shared files on one node, its own ranks' files where the disk is its own."""
    reader = (decision.reader if decision is not None else None) or (expand_nodes(work.end.nodes) or [work.host])[0]
    since = started - _SLACK if started is not None else None
    ranks = [str(rank) for rank, _, _ in task_ends(Path(work.ctx.config.spool.tasks), work.end, work.host, decision)]
    nodes = list(decision.nodes) if decision is not None else expand_nodes(work.end.nodes)
    for one in patterns:
        label: dict[str, Any] = {"regex": one.regex, "stream": one.stream, "origin": one.origin}
        only = _own(one, work.host, ranks, nodes, bool(work.end.het)) if local_disk(one.glob) else {}
        if only:
            yield user_files.Wanted(one.glob, since, regex=one.regex, only=only, label={**label, "node": work.host})
        elif reader == work.host:
            yield user_files.Wanted(one.glob, since, label=label)
    known = {"j": str(work.end.leader), "A": str(work.end.job), "N": work.host}
    for text in work.ctx.config.slurm.local_globs:
        found = slurm_paths.config_pattern(text, known, "/")
        label = {"regex": found.regex, "origin": "local", "node": work.host}
        yield user_files.Wanted(found.glob, since, owned=True, label=label)


def _own(
    pattern: slurm_paths.FilePattern, host: str, ranks: list[str], nodes: list[str], het: bool
) -> dict[str, list[str]]:
    """What names of files of this node say; empty if the pattern does not tell nodes or ranks apart."""
    if "(?P<node>" in pattern.regex:
        return {"node": [host]}
    if "(?P<nodeid>" in pattern.regex and host in nodes:
        return {"nodeid": [str(nodes.index(host))]}
    if "(?P<rank>" in pattern.regex and ranks and not het:
        # in a heterogeneous step %t is no rank
        return {"rank": ranks}
    return {}


_SHARED = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "cifs", "smb3", "9p", "afs", "fuse", "wekafs",
     "pvfs2", "orangefs", "panfs", "glusterfs", "virtiofs", "autofs", "dvs", "vast"}
)  # fmt: skip


def local_disk(path: str) -> bool:
    """True if the mount that holds `path` is a disk of this node; by the mount table, without touching the path."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines():
            _, point, name, *_ = line.split(" ")
            point = point.replace("\\040", " ")
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, name
    return kind.partition(".")[0] not in _SHARED


# --- tasks and late evidence ------------------------------------------------------------------------------------------


def task_ends(
    folder: Path, end: JobEnd, host: str, decision: Decision | None
) -> list[tuple[int, int, int]]:  # fmt: skip
    """(rank, local rank, UTC microseconds) of the tasks that ended on this node, of the step with most of them.

    Believes only marks of the job's user, and only of this attempt's time.
    """
    uid = end.uid if end.uid is not None else decision.uid if decision is not None else None
    started = end.start or (decision.started if decision is not None else None) or 0
    steps: dict[int, list[tuple[int, int, int]]] = {}
    for name, status in _marks(folder, end, host):
        step, rank, local = name
        if status.st_uid == uid and started - 2 <= status.st_mtime <= end.seen + 60:
            steps.setdefault(step, []).append((rank, local, int(status.st_mtime * 1_000_000)))
    if not steps:
        return []
    return sorted(max(steps.items(), key=lambda item: (len(item[1]), item[0]))[1])


def _marks(folder: Path, end: JobEnd, host: str) -> Iterator[tuple[tuple[int, int, int], os.stat_result]]:
    """((step, rank, local rank), status) of the marks of a job on this node; at most a hundred thousand are listed."""
    jobs = {str(end.job), str(end.leader)}
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for count, entry in enumerate(listing):
            if count > 100_000:
                return
            job, step, rank, local, node = (*entry.name.split(".", 4), "", "", "", "")[:5]
            if job in jobs and node == host and all(text.isdigit() and len(text) < 10 for text in (step, rank, local)):
                with contextlib.suppress(OSError):
                    yield (int(step), int(rank), int(local)), entry.stat(follow_symlinks=False)


def _forget_tasks(folder: Path, end: JobEnd, host: str) -> None:
    for (step, rank, local), status in list(_marks(folder, end, host)):
        if status.st_mtime <= end.seen + 60:
            for job in {end.job, end.leader}:
                with contextlib.suppress(OSError):
                    (folder / f"{job}.{step}.{rank}.{local}.{host}").unlink()


def take_late(folder: Path) -> None:
    """What the hook would have kept, taken now: the kernel log and the state of the GPUs. Never waits for a driver."""
    folder.mkdir(mode=0o700, exist_ok=True)
    commands = (
        ("dmesg.txt", ("dmesg", "--time-format=iso")),
        ("nvidia-smi.xml", ("nvidia-smi", "-q", "-x")),
        ("rocm-smi.json", ("rocm-smi", "--showallinfo", "--json")),
    )
    for name, command in commands:
        program = shutil.which(command[0], path="/usr/sbin:/usr/bin:/sbin:/bin")
        if program is not None:
            _take(folder / name, (program, *command[1:]))


def _take(target: Path, command: tuple[str, ...], seconds: float = 20.0) -> None:
    draft = target.with_name(target.name + ".part")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    with draft.open("wb") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, env=environment, cwd="/",
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + seconds
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if child.poll() is None:
        child.kill()
        target.with_name(target.name + ".why").write_text("no answer in time\n")
        user_files.abandon(child)
    elif child.returncode == 0:
        draft.rename(target)
    else:
        draft.unlink(missing_ok=True)
