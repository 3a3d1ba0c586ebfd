"""Commands on the lake: `analyze`, `query`, `compact`, `incident`, `lake check`. Bodies parse, call and render.

Where the lake is comes from `--store`, else from the configuration file that the collector uses, whose store options
(endpoint, region, ...) hold for either. Exit status: 0 done, 1 our failure or the store's, 2 usage, 3 nothing found,
4 a check found broken rows.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

_GROUPS = ("fleet", "checks")
"""Folders of queries/ that can be run by name as they are."""


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --store and --store-option and hand the command an open `store`."""

    @click.option("--store", "uri", metavar="URI", envvar="FIRSTFAULT_STORE",
                  help="The lake: a folder or s3://bucket/prefix (default: the configuration's).")  # fmt: skip
    @click.option(
        "--store-option", "pairs", multiple=True, metavar="NAME=VALUE", help="Such as endpoint_url=http://host:9000."
    )
    @functools.wraps(command)
    def opened(*args: Any, uri: str | None, pairs: Sequence[str], **rest: Any) -> Any:
        with _said():
            return command(*args, store=_open(uri, pairs), **rest)

    return opened


def _open(uri: str | None, pairs: Sequence[str]) -> Any:
    from collector import config
    from collector.store import open_store

    settings = config.load().store
    options: dict[str, Any] = dict(settings.options)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--store-option {pair!r}: expected NAME=VALUE")
        options[name] = {"true": True, "false": False}.get(value.lower(), value)
    target = uri or settings.uri
    return open_store(target, options=options if target.startswith("s3://") else None)


@contextmanager
def _said() -> Iterator[None]:
    """Errors as one sentence and an exit status."""
    from analyzers.lake_sql import QueryError
    from analyzers.signatures import SignatureError
    from collector.config import ConfigError
    from collector.store import StoreError, StoreRefused

    try:
        yield
    except (QueryError, ConfigError, SignatureError) as error:
        raise click.UsageError(str(error)) from error
    except StoreRefused as error:
        raise click.ClickException(f"the store refuses: {error}") from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@store_options
@click.option("--incident", "ids", multiple=True, metavar="ID", help="Analyse these now, whoever has reported.")
@click.option("--pending", is_flag=True, help="Analyse all that are complete, or whose deadline has passed.")
@click.option("--since", metavar="DATE", help="Again from DATE (YYYY-MM-DD), where signatures or version are newer.")
@click.option("--deadline", type=click.FloatRange(min=0), default=900.0, show_default=True,
              help="Seconds after the last report to wait for missing origins.")  # fmt: skip
@click.option("--again", is_flag=True, help="With --since: also those that nothing newer would change.")
@click.option("--signatures", "extra", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="More signatures.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object per incident and line.")
def analyze(
    store: Any, ids: tuple[str, ...], pending: bool, since: str | None, deadline: float, again: bool,
    extra: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """From raw parts to verdicts, in the lake."""
    from analyzers import lakehouse

    if sum((bool(ids), pending, since is not None)) != 1:
        raise click.UsageError("expected one of --incident, --pending, --since")
    chosen: Sequence[str] = ids
    if pending:
        open_ones = lakehouse.pending(store)
        chosen = [one.incident for one in lakehouse.closed(store, open_ones, deadline=deadline)]
        if len(chosen) < len(open_ones):
            click.echo(f"{len(open_ones) - len(chosen)} incident(s) wait for origins that have not reported", err=True)
    elif since is not None:
        chosen = lakehouse.outdated(store, _date(since), extra_signatures=extra, again=again)
    failed = 0
    for result in lakehouse.analyze_many(store, chosen, extra_signatures=extra):
        failed += result.answer is None
        click.echo(lakehouse.dumps(_record(result)) if as_json else _line(result))
    sys.exit(1 if failed else 0)


def _record(result: Any) -> dict[str, Any]:
    return {"incident": result.incident, "error": result.error, "diagnosis": result.answer}


def _line(result: Any) -> str:
    if result.answer is None:
        return f"{result.incident}  not analysed: {result.error}"
    verdict = result.answer["verdict"]
    return f"{result.incident}  {verdict['status']}  {verdict['signature'] or '-'}  {verdict['title']}"


@click.command()
@store_options
@click.argument("name", required=False)
@click.option("-e", "--sql", "text", metavar="SQL", help="Your own SELECT; - reads it from standard input.")
@click.option("--list", "listing", is_flag=True, help="Named queries, tables and views.")
@click.option("--since", metavar="DATE", help="$since of a query: first day, YYYY-MM-DD.")
@click.option("--until", metavar="DATE", help="$until of a query: the day after the last.")
@click.option("--cluster", help="$cluster of a query.")
@click.option("--json", "form", flag_value="json", help="One JSON object per row and line.")
@click.option("--csv", "form", flag_value="csv", help="Comma-separated with a header.")
def query(
    store: Any, name: str | None, text: str | None, listing: bool, since: str | None, until: str | None,
    cluster: str | None, form: str | None,
) -> None:  # fmt: skip
    """Read-only SQL over the lake: a named query, or your own."""
    from analyzers import lake_sql, tabular

    if listing:
        click.echo(_catalogue())
        return
    if (name is None) == (text is None):
        raise click.UsageError("expected the NAME of a query or -e SQL; --list shows what there is")
    asked = named(name) if name is not None else (sys.stdin.read() if text == "-" else str(text))
    given = {"since": since and _date(since), "until": until and _date(until), "cluster": cluster}
    result = lake_sql.query(store, asked, given)
    click.echo(tabular.render(result.columns, result.rows, form or "text"), nl=False)


def named(name: str) -> str:
    """The text of a named query, `group/name` or `name`. Raises click.UsageError if there is none."""
    from analyzers import sql

    group, _, short = name.rpartition("/")
    for folder in (group,) if group in _GROUPS else _GROUPS if not group else ():
        for known, text in sql.load(folder):
            if known == short:
                return text
    raise click.UsageError(f"there is no query {name!r}; firstfault query --list shows what there is")


def _catalogue() -> str:
    from analyzers import sql
    from collector.lake import LAKE_TABLES

    lines = []
    for title, group in (("Queries", "fleet"), ("Checks", "checks"), ("Views", "views")):
        lines.append(f"{title}:")
        lines += [f"  {known:<26} {_headline(text)}" for known, text in sql.load(group)]
    lines += ["Tables:", "  " + ", ".join(LAKE_TABLES), "  (firstfault query -e 'DESCRIBE verdicts')"]
    return "\n".join(lines)


def _headline(text: str) -> str:
    return text.splitlines()[0].removeprefix("-- ")


@click.command()
@store_options
@click.option("--until", metavar="DATE", help="Only days before DATE (YYYY-MM-DD).")
def compact(store: Any, until: str | None) -> None:
    """Make one file per day and table out of many small ones."""
    from analyzers import compaction

    report = compaction.compact(store, until=until and _date(until))
    click.echo(f"{len(report.days)} day(s): {report.merged} files merged, {report.removed} removed")
    for problem in report.problems:
        click.echo(problem, err=True)
    sys.exit(1 if report.problems else 0)


@click.group()
def incident() -> None:
    """Incidents of the lake."""


@incident.command("list")
@store_options
@click.option("--since", metavar="DATE", help="From that day.")
@click.option("--json", "form", flag_value="json", help="One JSON object per row and line.")
def list_(store: Any, since: str | None, form: str | None) -> None:
    """All verdicts, newest first, then what waits for one."""
    from analyzers import lake_sql, lakehouse, tabular

    text = (
        "SELECT date, incident, status, signature, ranks, title FROM verdicts"
        " WHERE date >= coalesce(CAST($since AS VARCHAR), '') ORDER BY date DESC, incident"
    )
    result = lake_sql.query(store, text, {"since": since and _date(since)})
    click.echo(tabular.render(result.columns, result.rows, form or "text"), nl=False)
    for one in lakehouse.pending(store):
        state = "reported again" if one.analysed else "not analysed yet"
        click.echo(f"{one.incident}: {state} ({len(one.parts)} origin(s))", err=True)


@incident.command("show")
@store_options
@click.argument("ident", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="The rows as one JSON object.")
def show(store: Any, ident: str, as_json: bool) -> None:
    """All that the lake says of one incident."""
    from analyzers import lakehouse

    found = lakehouse.incident_rows(store, ident)
    if not found.get("verdicts"):
        click.echo(f"the lake has no verdict of {ident}", err=True)
        sys.exit(3)
    click.echo(lakehouse.dumps(found) if as_json else _shown(found))


def _shown(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    verdict = found["verdicts"][0]
    lines = [f"{verdict['incident']}  {verdict['date']}", f"{verdict['status']}: {verdict['title']}"]
    for name in ("signature", "cause", "scope", "ranks", "nodes", "at_lo", "why", "resume_from"):
        if verdict.get(name) not in (None, []):
            lines.append(f"  {name:<12} {verdict[name]}")
    if verdict.get("path"):
        lines.append(f"  {verdict['path']}:{verdict['line']}: {verdict['text']}")
    for one in found.get("candidates", ()):
        lines.append(f"  candidate {one['place']}: {one['signature']} rank {one['rank']} score {one['score']}")
    for row in found.get("ledger", ()):
        if row["outcome"] not in ("collected", "empty", "not_configured"):
            lines.append(f"  gap: {row['path']}: {row['outcome']} ({row['detail']})")
    return "\n".join(lines)


@click.group()
def lake() -> None:
    """Care of the lake."""


@lake.command("check")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Broken rows as JSON.")
def check(store: Any, as_json: bool) -> None:
    """Run queries/checks: each row returned is a broken invariant (exit status 4)."""
    from analyzers import lakehouse

    broken = lakehouse.check(store)
    if as_json:
        click.echo(json.dumps(broken, default=str, ensure_ascii=False))
    else:
        for name, rows in broken.items():
            click.echo(f"{name}: {len(rows)} broken row(s), such as {json.dumps(rows[0], default=str)}")
        click.echo("all checks hold" if not broken else f"{len(broken)} check(s) broken", err=True)
    sys.exit(4 if broken else 0)


def _date(text: str) -> str:
    from datetime import date

    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise click.UsageError(f"{text!r} is no date; expected YYYY-MM-DD") from error
