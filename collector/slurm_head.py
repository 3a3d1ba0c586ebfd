"""The head's part: one ticket per job becomes one question, one decision, and the facts that only Slurm has.

A success leaves a decision and a row of exposure; a failure also who took part and who has to report.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from collector import slurm_ask
from collector.collect import collect
from collector.lake import expected_rows, lake_key, to_parquet
from collector.model import RunRef
from collector.slurm_context import Answer, Context, Done, Later
from collector.slurm_decide import Decision, Known, decide, from_json, publish
from collector.slurm_node import shared_patterns
from collector.slurm_record import JobRecord
from collector.slurm_ticket import JobEnd
from collector.sources.slurm_job import SlurmJob
from collector.spool import Spool, Ticket

Asked = Mapping[int, tuple[JobRecord | None, str]]
_EVENTS = {
    "TIMEOUT": "time_limit", "NODE_FAIL": "node_fail", "OUT_OF_MEMORY": "oom", "CANCELLED": "cancelled",
    "PREEMPTED": "preempted", "DEADLINE": "time_limit", "BOOT_FAIL": "node_fail", "LAUNCH_FAILED": "launch_failed",
    "REQUEUED": "requeued",
}  # fmt: skip
"""State -> event of `scheduler_events`; others are an exit or a signal of the batch script."""


def handle(ctx: Context, spool: Spool, ticket: Ticket, end: JobEnd, asked: Asked) -> Answer:
    """One step of a ticket. `asked`: answers fetched for many tickets at once. Raises StoreError, Unanswered."""
    if "decision" in ticket.state:
        from collector import slurm_comment

        return slurm_comment.follow(ctx, ticket, end)
    record, text = asked[end.job] if end.job in asked else slurm_ask.record(ctx.tools_for(end), end.job)
    if record is not None and "first" not in ticket.state:
        ticket.state["first"] = asdict(record)
    if text and (record is None or record.settled or "text" not in ticket.state):
        ticket.state["text"] = text[:20_000]
    return decide_and_publish(ctx, ticket, end, record)


def decide_and_publish(
    ctx: Context, ticket: Ticket, end: JobEnd, latest: JobRecord | None, *, collect_anyway: bool = False
) -> Answer:
    """Judge the job with what is known by now, and if that is enough, publish it. Raises StoreError.

    `collect_anyway`: somebody asked for this job, whatever its state.
    """
    tools, now = ctx.tools_for(end), ctx.clock()
    first = JobRecord(**ticket.state["first"]) if ticket.state.get("first") else None
    known = Known(first, latest, latest is None)
    if latest is None or not latest.settled:
        seen = slurm_ask.base_state(tools, end.job) if latest is not None and now - end.seen > 5 else None
        known = replace(known, latest=seen or latest, accounting=slurm_ask.accounting(tools, end.job))
    decision = decide(end, known, ctx.config, now)
    if decision is None:
        age = now - end.seen
        return Later(1.0 if age < 15 else 5.0 if age < 120 else 30.0, "the job is still completing")
    decision = replace(decision, collect=decision.collect or collect_anyway)
    if decision.collect:
        base = known.first or known.latest
        if base is not None:
            script = slurm_ask.batch_script(tools, end.leader)
            decision = replace(decision, patterns=shared_patterns(ctx, base, script))
    decision = publish(ctx.store, decision)
    ctx.remember(decision)
    if not decision.collect:
        publish_exposure(ctx, decision)
        return Done(f"job {decision.job}: {decision.state}, nothing to collect")
    report(ctx, decision, ticket.state.get("text") or "")
    if ctx.config.slurm.admin_comment and end.role == "head":
        ticket.state["decision"] = asdict(decision)
        return Later(5.0, "waiting for the verdict")
    return Done(f"{decision.incident}: {decision.state}")


def report(ctx: Context, decision: Decision, text: str) -> None:
    """Write the head's parts of an incident: the scheduler's facts, and who must report. Raises StoreError."""
    run = RunRef(decision.incident, "slurm", str(decision.job), decision.cluster, decision.attempt, decision.nodes)
    origin = f"head-{decision.offset}" if decision.offset else "head"
    path = f"slurm/job-{decision.job}.txt"
    expected = expected_rows(
        decision.incident, [(ctx.origin(node), ctx.host(node), None) for node in decision.nodes]
    )  # fmt: skip
    extra: dict[str, Any] = {
        "scheduler_events": list(_events(ctx, decision, path)),
        "allocations": list(exposure(ctx, decision)),
        "ledger": list(expected),
    }
    if not decision.offset:
        extra["incidents"] = [_incident(ctx, decision)]
    collect(
        run, [SlurmJob({path: text})], ctx.config.budget.budget(), ctx.store, origin=origin, masking=ctx.masking(),
        extra=extra,
    )  # fmt: skip


def _incident(ctx: Context, decision: Decision) -> dict[str, Any]:
    return {
        "scheduler": "slurm",
        "cluster": decision.cluster,
        "job": f"{decision.array}_{decision.task}" if decision.array and decision.task is not None
        else str(decision.het or decision.job),
        "name": ctx.text(decision.name),
        "user": ctx.user(decision.user),
        "state": decision.state,
        "exit_code": decision.code,
        "world_size": _world_size(decision),
        "nodes": [ctx.host(node) for node in decision.nodes],
        "gpus": decision.gpus,
        "started": _micro(decision.started),
        "ended": _micro(decision.ended),
    }  # fmt: skip


def _world_size(decision: Decision) -> int | None:
    """Number of ranks, where the number of tasks says it: one per GPU, or more than nodes."""
    tasks = decision.tasks
    if tasks is None or decision.het:
        return None
    if decision.gpus:
        return tasks if tasks == decision.gpus else None
    return tasks if tasks > len(decision.nodes) else None


def _events(ctx: Context, decision: Decision, path: str) -> Iterator[dict[str, Any]]:
    event = _EVENTS.get(decision.state) or ("signal" if decision.signal else "exit")
    text = f"JobState={decision.state} Reason={decision.reason} ExitCode={decision.code}:{decision.signal}"
    yield {
        "event": f"job_{event}" if event in ("exit", "signal") else event,
        "at_lo": _micro(decision.ended),
        "at_hi": _micro(decision.ended),
        "path": path,
        "code": decision.code or None,
        "signal": decision.signal or None,
        "text": text,
    }


# --- exposure ---------------------------------------------------------------------------------------------------------


def exposure(ctx: Context, decision: Decision) -> Iterator[dict[str, Any]]:
    """Rows of `allocations`: who held which node how long."""
    gpus = decision.gpus // len(decision.nodes) if decision.gpus and decision.nodes else 0
    for node in decision.nodes:
        yield {
            "job": str(decision.job),
            "cluster": decision.cluster,
            "user": ctx.user(decision.user),
            "state": decision.state,
            "node": ctx.host(node),
            "gpus": gpus,
            "started": _micro(decision.started),
            "ended": _micro(decision.ended),
        }


def publish_exposure(ctx: Context, decision: Decision) -> None:
    """Write the exposure of a job that is no incident straight into the lake. Raises StoreError."""
    from datetime import UTC, datetime

    rows = list(exposure(ctx, decision))
    if not rows:
        return
    date = datetime.fromtimestamp(decision.ended or decision.seen, UTC).strftime("%Y-%m-%d")
    version = f"v{int(ctx.clock() * 1_000_000):017d}-{0:08x}-{secrets.token_hex(2)}"
    ctx.store.put(lake_key("allocations", date, decision.incident, version), to_parquet("allocations", rows))


def of_state(state: Mapping[str, Any]) -> Decision:
    """The decision that a ticket remembers."""
    return from_json(json.loads(json.dumps(state["decision"])))


def _micro(seconds: int | None) -> int | None:
    return seconds * 1_000_000 if seconds else None
