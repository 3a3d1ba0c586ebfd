"""`firstfault verify`: after the fix, before the week of training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from analyzers.cli import roots, run_diagnosis
from analyzers.cli_files import read_regular

SCHEMA = 1
"""Of the diagnoses that can be compared: analyzers.diagnose.SCHEMA, without importing all of it for a usage error."""


def load(path: Path) -> dict[str, Any]:
    """The diagnosis in `path`. Usage error, in words, for whatever is none or was written by another schema."""
    content = read_regular(path)
    try:
        old: Any = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{path} is not a diagnosis: it cannot be read as JSON") from error
    if not isinstance(old, dict) or not isinstance(old.get("verdict"), dict):
        raise click.UsageError(f"{path} is not a diagnosis: expected the output of firstfault diagnose --json")
    if type(old.get("schema", SCHEMA)) is not int or old.get("schema", SCHEMA) != SCHEMA:
        raise click.UsageError(
            f"{path} is a diagnosis of another schema than {SCHEMA}, which is the one that this version reads; "
            "diagnose the old run again"
        )
    if not isinstance(old["verdict"].get("signature"), str | None):
        raise click.UsageError(f"{path} is not a diagnosis: its signature is not a name")
    return old


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN_DIR...")
@click.option(
    "--incident", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The old incident: the output of `firstfault diagnose --json`.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def verify(paths: tuple[str, ...], incident: Path, as_json: bool) -> None:
    """Is the rerun in RUN_DIR free of an old failure AND past the step where it died?

    Exit status: 0 fixed, 3 not reached or unknown, 4 failing again, 1 our failure, 2 usage.
    """
    from analyzers.masked import masked
    from analyzers.report.plain import clean, inline
    from analyzers.verify import compare

    old = load(incident)
    new = run_diagnosis(roots(paths))
    try:
        result = masked(compare(old, new))
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise click.UsageError(f"{incident} is not a diagnosis: a field does not hold what it should") from error
    result["signature"] = result["signature"] and clean(result["signature"])
    result["reasons"] = [inline(clean(reason)) for reason in result["reasons"]]
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        click.echo(f"{result['result'].replace('_', ' ')}: {result['signature'] or 'no signature'}")
        for reason in result["reasons"]:
            click.echo(f"  {reason}")
    sys.exit({"fixed": 0, "failing": 4}.get(result["result"], 3))
