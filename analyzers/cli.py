"""The root command `firstfault`. Bodies are thin: parse, one call into the core, render.

Data goes to standard output, talk to standard error. Exit status: 0 a verdict was reached (also no_failure), 3
undetermined, 1 our own failure, 2 usage.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import click

from analyzers.cli_files import check_page, check_signatures, reason, status, write_page
from collector import __version__

CONTEXT = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "FIRSTFAULT"}
_LAZY = {
    "report": ("analyzers.weekly_cli", "report", "Reports about the whole fleet, from the lake."),
    "analyze": ("analyzers.lake_cli", "analyze", "From raw parts to verdicts, in the lake."),
    "compact": ("analyzers.lake_cli", "compact", "Make one file per day and table out of many."),
    "collect": ("collector.cli", "collect", "Collect one Slurm job by hand."),
    "doctor": ("collector.cli", "doctor", "Check an installation and say how to mend it."),
    "drain": ("collector.cli", "drain", "Collect what the hooks noted."),
    "slurm": ("collector.cli", "slurm", "The Slurm entrance: hooks and their installation."),
    "incident": ("analyzers.lake_cli", "incident", "List and show the incidents of the lake."),
    "lake": ("analyzers.lake_cli", "lake", "Check the lake's invariants."),
    "query": ("analyzers.lake_cli", "query", "Read-only SQL over the lake."),
    "signatures": ("analyzers.signatures_cli", "signatures", "List, show, check and compare signatures."),
    "stacks": ("analyzers.stacks_cli", "stacks", "Classes of equal stacks over all ranks."),
    "node-agent": ("analyzers.watch_cli", "node_agent", "Kubernetes: keep the logs of failed pods of one node."),
    "release-pods": ("analyzers.watch_cli", "release_pods", "Kubernetes: take our finalizer off all pods."),
    "watch": ("analyzers.watch_cli", "watch", "Kubernetes: take the evidence of failed jobs before it is deleted."),
    "verify": ("analyzers.verify_cli", "verify", "Is a rerun free of an old failure, and past its step?"),
}
"""Command -> (module, attribute, short help): a group that reads a module only when its command is called."""
_ANSWERS = {"diagnose", "incident", "lake", "query", "report", "signatures", "stacks", "verify"}
"""Commands that are of no use without a standard output; the others do their work without one."""


class LazyGroup(click.Group):
    """Imports a command's module when the command is used: a ten-line log must not pay for every other command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_LAZY})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported if need be."""
        if cmd_name in _LAZY:
            module, attribute, _ = _LAZY[cmd_name]
            command: click.Command = getattr(import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Short help of all commands, without importing the lazy ones."""
        rows = [(name, _LAZY[name][2]) for name in _LAZY]
        rows += [(name, command.get_short_help_str(60)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="firstfault")
def cli() -> None:
    """Find out what failed FIRST when a distributed training job died."""


@cli.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN_DIR...")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON (stable, versioned).")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write one self-contained page.")
@click.option(
    "--control", type=click.Path(exists=True, path_type=Path), help="A known-good run of the same job to compare with."
)
@click.option(
    "--signatures", "extra", type=click.Path(exists=True, file_okay=False, path_type=Path), help="More signatures."
)
@click.option("-v", "--verbose", is_flag=True, help="Everything: all hypotheses, ranks, timeline, ledger.")
@click.option("--width", type=click.IntRange(min=40), help="Columns of the text (default: terminal, at most 100).")
def diagnose(
    paths: Sequence[str],
    as_json: bool,
    html: Path | None,
    control: Path | None,
    extra: Path | None,
    verbose: bool,
    width: int | None,
) -> None:
    """Diagnose a run from what it left: a folder, log files, or - for a log on standard input."""
    root = roots(paths)
    if html is not None:
        named = [Path(path) for path in paths if path != "-"]
        check_page(html, [*named, *(path for path in (control, extra) if path is not None)])
    found = run_diagnosis(root, control, extra)
    if html is not None:
        write_page(html, import_module("analyzers.report.html").render(found))
    if as_json:
        click.echo(import_module("analyzers.report.json").dumps(found), nl=False)
    else:
        text = import_module("analyzers.report.text")
        click.echo(text.render(found, width=width or _columns(), color=_color(), verbose=verbose), nl=False)
        if html is not None:
            click.echo(f"page written to {html}", err=True)
    sys.exit(3 if found["verdict"]["status"] == "undetermined" else 0)


def run_diagnosis(root: Any, control: Path | None = None, extra: Path | None = None) -> dict[str, Any]:
    """`analyzers.diagnose.diagnose` with errors turned into sentences and exit codes."""
    from analyzers.diagnose import diagnose as run
    from analyzers.signatures import SignatureError

    if control is not None:
        roots([str(control)])
    try:
        check_signatures(extra)
        return run(root, control=control, extra_signatures=extra)
    except SignatureError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(f"cannot read {error.filename or 'the input'}: {error.strerror or error}") from error


def roots(paths: Sequence[str]) -> Path | list[Path] | BinaryIO:
    """The argument as something to read. A path that is missing, unreadable or empty is a usage error in words."""
    if list(paths) == ["-"]:
        if sys.stdin is None:
            raise click.UsageError("standard input is closed: pipe a log into it, or name a folder or file")
        if sys.stdin.isatty():
            raise click.UsageError("standard input is a terminal: pipe a log into it, or name a folder or file")
        return sys.stdin.buffer
    if "-" in paths:
        raise click.UsageError("- (standard input) cannot be combined with paths")
    if "" in paths:
        raise click.UsageError("a path is empty; expected a folder of logs and dumps, a log file, or -")
    roots = [Path(path) for path in paths]
    for root in roots:
        if status(root) is None:
            raise click.UsageError(
                f"{root} does not exist; expected a folder of logs and dumps, a log file, or - for standard input"
            )
        if root.is_dir() and os.access(root, os.R_OK | os.X_OK) and _is_empty(root):
            raise click.UsageError(f"{root} is empty; expected the logs, dumps or checkpoints that the run left")
        if not os.access(root, os.R_OK | (os.X_OK if root.is_dir() else 0)):
            raise click.UsageError(f"{root} cannot be read: permission denied")
        if not root.is_dir() and not root.is_file():
            raise click.UsageError(f"{root} is neither a folder nor a regular file")
    return roots[0] if len(roots) == 1 else roots


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError as error:
        raise click.UsageError(f"{folder} cannot be read: {reason(error)}") from error


def _columns() -> int:
    import shutil

    return min(shutil.get_terminal_size((80, 24)).columns, 100)


def _color() -> bool:
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def main() -> None:
    """Entry point: logs hold any characters, terminals may not; a closed or full output is told in one sentence."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.stdout is None and _ANSWERS.intersection(sys.argv[1:2]):
        _fail("standard output is closed, so there is nowhere to print the answer")
    try:
        try:
            cli()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        _fail(f"cannot use {error.filename or 'standard output or standard error'}: {reason(error)}")


def _fail(sentence: str) -> NoReturn:
    """Say why on standard error if it can be said, and end with status 1 and without another word."""
    with suppress(OSError):
        click.echo(f"Error: {sentence}", err=True)
    # What is still in the buffers of a broken stream would be tried again at exit, and complained about.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
                continue
            os.dup2(nowhere, stream.fileno())
    sys.exit(1)


if __name__ == "__main__":
    main()
