"""The verdict where users look: one line in the job's AdminComment, shown by `sacct -o AdminComment` and `scontrol`.

The collector does not judge; it runs `firstfault analyze` as anybody could, once all origins have reported or the
patience is over, and hands the line to Slurm.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

from collector.config import VARIABLE
from collector.lake import EXPECTED, from_parquet, raw_parts
from collector.slurm_ask import Unanswered
from collector.slurm_context import Answer, Context, Done, Later
from collector.slurm_decide import Decision, from_json
from collector.slurm_ticket import JobEnd
from collector.spool import Ticket

PATIENCE = 600.0
"""Seconds after the end at which the verdict is made although nodes are missing."""
GIVE_UP = 3600.0
_LENGTH = 250
_SECONDS = 120.0


def follow(ctx: Context, ticket: Ticket, end: JobEnd) -> Answer:
    """One step behind a published incident. Raises StoreError."""
    decision = from_json(ticket.state["decision"])
    age = ctx.clock() - end.seen
    if age < PATIENCE and missing(ctx, decision):
        return Later(3.0, "waiting for the nodes' reports")
    line = verdict_line(ctx, decision)
    if line is None:
        if age > GIVE_UP:
            return Done(f"{decision.incident}: no verdict could be made for its comment")
        return Later(60.0, "the analysis failed")
    if not comment(ctx, end, decision.job, line):
        return Done(f"{decision.incident}: Slurm takes no comment for an ended job without slurmdbd")
    return Done(f"{decision.incident}: {line}")


def missing(ctx: Context, decision: Decision) -> list[str]:
    """Origins that are expected and have not reported. Raises StoreError."""
    here, wanted = set(), set()
    for part in raw_parts(ctx.store, "ledger", decision.incident):
        here.add(part.origin)
        if part.origin.startswith("head"):
            rows = from_parquet("ledger", ctx.store.get(part.object.key), part.object.key).to_pylist()
            wanted |= {row["path"] for row in rows if row["source"] == EXPECTED}
    return sorted(wanted - here)


def verdict_line(ctx: Context, decision: Decision) -> str | None:
    """The verdict in one line of plain text, or None if the analysis failed."""
    command = [sys.executable, "-I", "-m", "analyzers.cli", "analyze", "--store", ctx.store.uri, "--json"]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    if ctx.config.path is not None:
        environment[VARIABLE] = str(ctx.config.path)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError, IndexError):
        done = subprocess.run(
            [*command, "--incident", decision.incident], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False, cwd="/", env=environment,
        )  # fmt: skip
        return one_line(json.loads(done.stdout)["diagnosis"])
    return None


def one_line(answer: dict[str, object]) -> str:
    """`firstfault: <title> (<status>, rank 2 on n3)`, printable and short. Raises KeyError, TypeError without one."""
    verdict = answer["verdict"]
    assert isinstance(verdict, dict)
    ranks, nodes = verdict["ranks"] or [], verdict["nodes"] or []
    where = [f"rank {', '.join(map(str, ranks[:4]))}{' ...' if len(ranks) > 4 else ''}"] if ranks else []
    where += [f"on {', '.join(nodes[:2])}{' ...' if len(nodes) > 2 else ''}"] if nodes else []
    text = f"firstfault: {verdict['title']} ({', '.join([verdict['status'], ' '.join(where)]).rstrip(', ')})"
    plain = "".join(character for character in text if character.isprintable() and character not in "|'\"\\=")
    return plain if len(plain) <= _LENGTH else plain[: _LENGTH - 3] + "..."


def comment(ctx: Context, end: JobEnd, job: int, line: str) -> bool:
    """Write the line into the job's AdminComment; False if Slurm does not take it.

    The controller refuses changes of a job that has ended; the accounting database takes them.
    """
    tools = ctx.tools_for(end)
    with contextlib.suppress(Unanswered):
        tools.run("sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", f"AdminComment={line}")
        return True
    with contextlib.suppress(Unanswered):
        tools.run("scontrol", "update", f"JobId={job}", f"AdminComment={line}")
        return True
    return False
