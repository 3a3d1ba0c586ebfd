"""`firstfault report weekly` and `report monthly`: the fleet report from a lake, as page, text, JSON or CSV.

The report goes to standard output or, with --output, to a file whose ending chooses the format; what the lake could not
answer stands in the report itself, so that the exit status stays 0 for a timer that mails it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

_FORMATS = ("text", "html", "json", "csv")
_TABLES = (
    "verdicts", "incidents", "observations", "ledger", "checkpoints", "kernel_events", "gpus", "allocations",
)  # fmt: skip


@click.group()
def report() -> None:
    """Reports about the whole fleet, from the lake."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option(
                "--store", envvar="FIRSTFAULT_STORE", metavar="URI", help="The lake (default: as configured)."
            ),
            click.option("--since", metavar="TIME", help="First moment, UTC: a date, a time, 2026-W48 or 2026-11."),
            click.option("--until", metavar="TIME", help="First moment after it."),
            click.option("--cluster", help="Only this cluster (default: all together)."),
            click.option("--format", "form", type=click.Choice(_FORMATS), help="Default: by --output, else text."),
            click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file."),
            click.option("--panel", metavar="NAME", help="Only this panel (see --list)."),
            click.option("--list", "listing", is_flag=True, help="List the panels and what each asks."),
        )
    ):
        command = option(command)
    return command


@report.command()
@_options
def weekly(**given: Any) -> None:
    """The week (default: the last whole ISO week): what broke, what it cost, which nodes, how far to trust it."""
    _run("weekly", **given)


@report.command()
@_options
def monthly(**given: Any) -> None:
    """The same for a month (default: the last whole one), against the four before."""
    _run("monthly", **given)


def _run(
    kind: str,
    *,
    store: str | None,
    since: str | None,
    until: str | None,
    cluster: str | None,
    form: str | None,
    output: Path | None,
    panel: str | None,
    listing: bool,
) -> None:
    from analyzers import periods
    from analyzers.report import panels

    if listing:
        for name, spec in panels.specs().items():
            click.echo(f"{name:<14} {spec.question}")
        return
    if panel is not None and panel not in panels.specs():
        raise click.UsageError(f"no panel {panel!r}; known: {', '.join(panels.specs())}")
    form = form or _by_name(output)
    if form == "csv" and panel is None:
        raise click.UsageError("CSV is one table: name it with --panel (see --list)")
    try:
        starts, ends = periods.span(kind, since, until, datetime.now(UTC))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    built = _built(store, starts, ends, cluster, kind, panel)
    _put(_rendered(built, form, panel), output)


def _by_name(output: Path | None) -> str:
    ending = output.suffix.lower().lstrip(".") if output is not None else ""
    return {"html": "html", "htm": "html", "json": "json", "csv": "csv"}.get(ending, "text")


def _built(
    uri: str | None, starts: datetime, ends: datetime, cluster: str | None, kind: str, panel: str | None
) -> dict[str, Any]:
    """Open the lake and build the report. Errors of the store become sentences."""
    from analyzers import lake_sql
    from analyzers.report import weekly as core
    from collector.config import ConfigError, load
    from collector.store import StoreError, StoreRefused, open_store

    try:
        config = load(None)
        store = open_store(uri or config.store.uri, options=config.store.options)
        return lake_sql.read(
            store,
            lambda connection: core.build(connection, starts, ends, cluster=cluster, kind=kind, store=uri, only=panel),
            _TABLES,
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except StoreRefused as error:
        raise click.UsageError(f"the lake cannot be opened: {error}") from error
    except StoreError as error:
        raise click.ClickException(f"the lake cannot be read: {error}") from error


def _rendered(built: dict[str, Any], form: str, panel: str | None) -> str:
    from analyzers.report import weekly_text

    if form == "html":
        from analyzers.report import weekly_html

        return weekly_html.render(built)
    if form == "json":
        return weekly_text.dumps(built)
    if form == "csv":
        return weekly_text.csv(built["panels"][panel])
    import shutil

    return weekly_text.render(built, width=max(60, min(shutil.get_terminal_size((100, 24)).columns, 160)))


def _put(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    # whoever reads the file meanwhile (a web server, a mailer) sees the old report or the new one, never a half
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(output)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise click.UsageError(f"cannot write {output}: {error.strerror or error}") from error
    click.echo(f"written to {output}", err=True)
