"""Collecting one job by hand: the same steps as behind the hooks, for a job that no hook saw.

The record is asked for here, the decision is published as a head would do it, and this machine reports as a node: what
other nodes had on their own disks is not seen, and the ledger says so.
"""

from __future__ import annotations

import socket
import tempfile
import time

from collector import slurm_ask, slurm_head, slurm_node
from collector.slurm_ask import Unanswered
from collector.slurm_context import Context, Done, Later
from collector.slurm_decide import published
from collector.slurm_record import JobRecord
from collector.slurm_ticket import JobEnd, expand_nodes
from collector.spool import Spool


def collect_job(ctx: Context, job: int, *, deadline: float) -> str:
    """Collect `job` and return its incident. `deadline`: monotonic time until which an ending job is waited for.

    Raises Unanswered if Slurm does not know the job or it is still running, StoreError, OSError.
    """
    record = _settled(ctx, job, deadline)
    cluster = ctx.config.cluster or ctx.tools_for().setting("ClusterName")
    with tempfile.TemporaryDirectory(prefix="firstfault-") as folder:
        spool = Spool(folder, clock=ctx.clock)
        spool.put(f"m.{job}.{record.restarts or 0}.{record.code}.{record.signal}.0")
        ticket = spool.claim()
        assert ticket is not None
        end = _end(ctx, record, cluster)
        answer = slurm_head.decide_and_publish(ctx, ticket, end, record, collect_anyway=True)
        if not isinstance(answer, Done):
            raise Unanswered(f"job {job} cannot be judged: {answer.why}")
        last = slurm_node.handle(ctx, spool, ticket, end)
        while isinstance(last, Later) and time.monotonic() < deadline:
            time.sleep(min(last.seconds, 1.0))
            last = slurm_node.handle(ctx, spool, ticket, end)
        decision = max(published(ctx.store, ctx.cluster(end), job), key=lambda one: one.attempt)
        spool.done(ticket)
    return decision.incident


def _settled(ctx: Context, job: int, deadline: float) -> JobRecord:
    while True:
        record, _ = slurm_ask.record(ctx.tools_for(), job)
        if record is None:
            known = slurm_ask.accounting(ctx.tools_for(), job)
            if not known:
                raise Unanswered(f"Slurm does not know job {job} any more; `firstfault diagnose` reads its files")
            record = known[-1]
        if record.settled:
            return record
        if not record.completing:
            raise Unanswered(f"job {job} is {record.state}: it has not ended")
        if time.monotonic() > deadline:
            raise Unanswered(f"job {job} is still completing")
        time.sleep(1.0)


def _end(ctx: Context, record: JobRecord, cluster: str | None) -> JobEnd:
    """What a hook on the node that reads the shared files would have seen."""
    host = socket.gethostname().partition(".")[0]
    nodes = expand_nodes(record.nodes)
    reader = record.batch_host or (nodes[0] if nodes else host)
    return JobEnd(
        "manual", record.job, record.restarts or 0, record.code, record.signal,
        float(record.ended or ctx.clock()), start=record.started, uid=record.uid, user=record.user,
        node=host if host in nodes else reader, nodes=record.nodes, het=record.het, offset=record.offset,
        array=record.array, task=record.task, cluster=cluster,
    )  # fmt: skip
