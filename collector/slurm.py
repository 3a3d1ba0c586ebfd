"""The drain behind Slurm's hooks: takes tickets from the spool and turns each into a decision and raw parts.

It may be killed at any instruction, run twice at once, by a timer, by hand or from cron: tickets are locked while
somebody works on them, everything written has the name it had before, and the ticket goes last.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from collector import slurm_ask, slurm_head, slurm_node
from collector.slurm_context import Answer, Context, Done, Fatal, Later
from collector.slurm_ticket import JobEnd, parse
from collector.spool import Spool, SpoolError, Ticket
from collector.store import StoreError, StoreRefused

_NAP = 0.5


@dataclass(slots=True)
class Summary:
    """What a drain did."""

    done: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    @property
    def quiet(self) -> bool:
        """True if nothing failed."""
        return not self.failed and not self.dead


def spools(ctx: Context, role: str) -> list[Spool]:
    """The spools of a role: node, head, or both that exist. Raises SpoolError if one cannot be used safely."""
    wanted = {"node": [ctx.config.spool.node], "head": [ctx.config.spool.head]}.get(
        role, [path for path in (ctx.config.spool.head, ctx.config.spool.node) if Path(path).is_dir()]
    )
    for path in wanted:
        check_owner(Path(path))
    return [Spool(path, clock=ctx.clock) for path in wanted]


def check_owner(path: Path) -> None:
    """Raise SpoolError if others than its owner may write to the spool: who can put tickets decides what is read."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SpoolError(f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise SpoolError(f"{path} is no folder")
    if status.st_mode & 0o022:
        raise SpoolError(f"{path} can be written by others: chmod go-w {path}")
    if os.geteuid() not in (0, status.st_uid):
        raise SpoolError(f"{path} belongs to another user: run the drain as that user")


def drain(
    ctx: Context,
    role: str = "both",
    *,
    linger: float = 0.0,
    say: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Work on all due tickets; with `linger`, go on for so many seconds while tickets wait for somebody.

    Raises SpoolError, ConfigError.
    """
    summary = Summary()
    deadline = time.monotonic() + linger
    mine = spools(ctx, role)
    for spool in mine:
        for name, size in spool.tidy(ctx.config.spool.bytes):
            say(f"{name}: {size} bytes of evidence dropped, the spool is full")
    while True:
        worked = sum(_pass(ctx, spool, summary, say) for spool in mine)
        left = [name for spool in mine for name in spool.names()]
        if not left or time.monotonic() >= deadline:
            summary.waiting = left
            return summary
        if not worked:
            time.sleep(min(_NAP, max(deadline - time.monotonic(), 0.01)))


def _pass(ctx: Context, spool: Spool, summary: Summary, say: Callable[[str], None]) -> int:
    """Each due ticket once; how many were worked on."""
    asked = _ask_many(ctx, spool)
    worked = 0
    for ticket in spool.claims():
        worked += 1
        answer = _handled(ctx, spool, ticket, asked)
        if isinstance(answer, Done):
            spool.done(ticket)
            summary.done.append(answer.what)
            say(f"{ticket.name}: {answer.what}")
        elif isinstance(answer, Later):
            spool.defer(ticket, answer.seconds, answer.why)
        else:
            name, fatal = ticket.name, isinstance(answer, Fatal)
            why = answer.why if isinstance(answer, Fatal) else str(answer)
            dead = spool.fail(ticket, why, fatal=fatal)
            (summary.dead if dead else summary.failed).append(f"{name}: {why}")
            say(f"{name}: {'given up' if dead else 'tried again later'}: {why}")
    return worked


def _handled(ctx: Context, spool: Spool, ticket: Ticket, asked: slurm_head.Asked) -> Answer | Exception:
    """The answer of one step, or what went wrong and is worth another attempt."""
    end = parse(ticket.name, ticket.body, ticket.created)
    if end is None:
        return Fatal("this is no ticket of a hook")
    try:
        if end.role == "head":
            return slurm_head.handle(ctx, spool, ticket, end, asked)
        return slurm_node.handle(ctx, spool, ticket, end)
    except (StoreError, slurm_ask.Unanswered, OSError) as error:
        hint = " (a matter of configuration)" if isinstance(error, StoreRefused) else ""
        return type(error)(f"{error}{hint}") if isinstance(error, StoreError) else error


def _ask_many(ctx: Context, spool: Spool) -> slurm_head.Asked:
    """One question for all heads' tickets if there are many: a burst of ends must not become a burst of questions."""
    ends: list[JobEnd] = []
    for name in spool.names():
        end = parse(name, b"", 0.0)
        if end is not None and end.role == "head":
            ends.append(end)
    if len(ends) < slurm_ask.MANY:
        return {}
    try:
        return slurm_ask.records(ctx.tools_for(), [end.job for end in ends])
    except slurm_ask.Unanswered:
        return {}
