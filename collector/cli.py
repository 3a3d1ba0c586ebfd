"""Commands that gather evidence. Bodies are thin: parse, call, render; heavy imports stand inside them."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click

_CONFIG = click.option(
    "--config", "config_path", type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration (default: $FIRSTFAULT_CONFIG, /etc/firstfault/firstfault.toml).",
)  # fmt: skip


def _context(config_path: Path | None) -> Any:
    """The context of a drain, with errors of the configuration as usage errors."""
    from collector.config import ConfigError, load
    from collector.slurm_context import Context
    from collector.store import StoreRefused

    try:
        return Context.of(load(config_path))
    except (ConfigError, StoreRefused) as error:
        raise click.UsageError(str(error)) from error


def _say(text: str) -> None:
    click.echo(text, err=True)


@click.command()
@_CONFIG
@click.option("--role", type=click.Choice(["node", "head", "both"]), default="both", show_default=True,
              help="Whose spool: of the node Epilog, of EpilogSlurmctld, or what is there.")  # fmt: skip
@click.option("--linger", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS",
              help="Go on while tickets wait for somebody, at most so long.")  # fmt: skip
@click.option("--revive", is_flag=True, help="First put all given-up tickets back among the waiting ones.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
def drain(config_path: Path | None, role: str, linger: float, revive: bool, quiet: bool) -> None:
    """Collect what the hooks noted: tickets of the spool become evidence in the store."""
    from collector import slurm
    from collector.config import ConfigError
    from collector.spool import SpoolError

    ctx = _context(config_path)
    try:
        if revive:
            for spool in slurm.spools(ctx, role):
                for name in spool.dead():
                    spool.revive(name)
        summary = slurm.drain(ctx, role, linger=linger, say=(lambda _: None) if quiet else _say)
    except (SpoolError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    if summary.waiting and not quiet:
        _say(f"{len(summary.waiting)} tickets wait")
    sys.exit(0 if summary.quiet else 1)


@click.command()
@_CONFIG
@click.option("--job", required=True, type=click.IntRange(min=1), help="Slurm job id (of an array task its own).")
@click.option("--wait", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS")
def collect(config_path: Path | None, job: int, wait: float) -> None:
    """Collect one Slurm job by hand, from this machine: its record and the output files that can be seen from here."""
    from collector import slurm_manual
    from collector.slurm_ask import Unanswered
    from collector.store import StoreError

    ctx = _context(config_path)
    try:
        incident = slurm_manual.collect_job(ctx, job, deadline=time.monotonic() + wait)
    except (Unanswered, StoreError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(incident)


@click.group()
def slurm() -> None:
    """The Slurm entrance: hooks and their installation."""


@slurm.command()
@_CONFIG
@click.option("--to", "target", type=click.Path(file_okay=False, path_type=Path),
              default=Path("/etc/firstfault/hooks"), show_default=True, help="Folder for the hooks.")  # fmt: skip
@click.option("--print", "only_print", is_flag=True, help="Print what would be installed and what slurm.conf needs.")
@click.option(
    "--check", "only_check", is_flag=True, help="Only check an installation; exit status 1 if something lacks."
)
def install(config_path: Path | None, target: Path, only_print: bool, only_check: bool) -> None:
    """Copy the hooks, make the spool folders, and say which lines slurm.conf needs. Restarts and edits nothing."""
    setup = import_module("collector.slurm_install")
    config = _context(config_path).config
    if only_print:
        click.echo(setup.describe(config, target), nl=False)
        return
    if only_check:
        problems = setup.check(config, target)
        for problem in problems:
            click.echo(problem)
        click.echo("nothing lacks" if not problems else f"{len(problems)} things lack", err=True)
        sys.exit(1 if problems else 0)
    try:
        for line in setup.install(config, target):
            _say(line)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    click.echo(setup.slurm_conf(target), nl=False)


@click.command()
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def doctor(config_path: Path | None, as_json: bool) -> None:
    """Check installation, permissions, store, clock, versions, spool and last collection; say how to mend each."""
    checks = import_module("collector.doctor").examine(config_path)
    if as_json:
        import json

        click.echo(json.dumps([check._asdict() for check in checks], indent=1))
    else:
        for check in checks:
            click.echo(f"{check.state:5} {check.name}: {check.found}")
            if check.mend:
                click.echo(f"      {check.mend}")
    sys.exit(1 if any(check.state == "wrong" for check in checks) else 0)
