"""`firstfault verify`: after the fix, before the week of training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from analyzers.cli import roots, run_diagnosis


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
    from analyzers.verify import compare

    try:
        old: Any = json.loads(incident.read_text("utf-8"))
        result = compare(old, run_diagnosis(roots(paths)))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise click.UsageError(f"{incident} is not a diagnosis: {error}") from error
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        click.echo(f"{result['result'].replace('_', ' ')}: {result['signature'] or 'no signature'}")
        for reason in result["reasons"]:
            click.echo(f"  {reason}")
    sys.exit({"fixed": 0, "failing": 4}.get(result["result"], 3))
