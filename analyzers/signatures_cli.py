"""`firstfault signatures`: look at the signature base, and test a folder of one's own.

Data goes to stdout, complaints to stderr. The base is knowledge people want to read without opening YAML, and `check`
gives a site's signatures exactly the tests that ours pass.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec

from analyzers.case import CAUSES, ROLES
from analyzers.cli_files import check_signatures
from analyzers.signatures import Signature, SignatureError, SignatureSet, check, load
from collector.data import data_dir

WIDTH = 80
"""Columns that the output fits."""


@click.group(name="signatures")
@click.option("--extra", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Also read this folder.")
@click.pass_context
def signatures(context: click.Context, extra: Path | None) -> None:
    """Look at the failure signatures, or check a folder of them."""
    context.obj = extra
    check_signatures(extra)


def _loaded(extra: Path | None) -> SignatureSet:
    try:
        return load(extra)
    except SignatureError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise click.exceptions.Exit(1) from None


@signatures.command(name="list")
@click.option("--family", help="Only this family, such as nccl.")
@click.option("--role", type=click.Choice(ROLES), help="Only this role.")
@click.option("--cause", type=click.Choice(CAUSES), help="Only this cause.")
@click.option("--json", "as_json", is_flag=True, help="Everything that is known of each, as JSON.")
@click.pass_obj
def list_signatures(extra: Path | None, family: str | None, role: str | None, cause: str | None, as_json: bool) -> None:
    """List the signatures, one per line."""
    known = _loaded(extra)
    families = sorted({s.family for s in known.by_id.values()})
    if family is not None and family not in families:
        raise click.UsageError(f"There is no family {family!r}. Families: {', '.join(families)}.")
    chosen = [
        s
        for s in known.by_id.values()
        if family in (None, s.family) and role in (None, s.role) and cause in (None, s.cause)
    ]
    if as_json:
        click.echo(_json(chosen))
        return
    for line in _table(chosen):
        click.echo(line)


@signatures.command()
@click.argument("identity", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_obj
def show(extra: Path | None, identity: str, as_json: bool) -> None:
    """Tell everything about one signature; a part of its ID will do if no other has it."""
    known = _loaded(extra)
    signature = _find(known, identity)
    if as_json:
        click.echo(_json([signature]))
        return
    for line in _page(signature, known):
        click.echo(line)


@signatures.command(name="check")
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
def check_folder(folder: Path | None) -> None:
    """Test a folder of signatures (default: ours); ends with status 1 if anything is wrong."""
    root = folder if folder is not None else data_dir("signatures")
    if not check_signatures(root):
        click.echo(f"{root}: nothing to check: expected signatures in FAMILY/NAME.yaml", err=True)
        raise click.exceptions.Exit(1)
    try:
        problems: Sequence[str] = check(root)
    except SignatureError as error:
        problems = error.problems
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        click.echo(f"{len(problems)} problem{'s' * (len(problems) > 1)} in {root}", err=True)
        raise click.exceptions.Exit(1)
    click.echo(f"{root}: no problems")


@signatures.command()
@click.argument("family", metavar="FAMILY")
@click.pass_obj
def compare(extra: Path | None, family: str) -> None:
    """Set signatures side by side that are easily taken for one another: what is each, and what confirms which."""
    known = _loaded(extra)
    families = sorted({s.family for s in known.by_id.values()})
    if family not in families:
        raise click.UsageError(f"There is no family {family!r}. Families: {', '.join(families)}.")
    pairs = {
        tuple(sorted((s.id, other))) for s in known.by_id.values() for other in s.confused_with if other in known.by_id
    }
    groups = [pair for pair in sorted(pairs) if any(i.startswith(f"{family}/") for i in pair)]
    if not groups:
        click.echo(f"No signature of the family {family} is confused with another.")
    for left, right in groups:
        for line in _beside(known.by_id[left], known.by_id[right]):
            click.echo(line)
        click.echo()


def _find(known: SignatureSet, identity: str) -> Signature:
    if identity in known.by_id:
        return known.by_id[identity]
    named = [i for i in known.by_id if i.partition("/")[2] == identity]
    matching = named or [i for i in known.by_id if identity in i]
    if len(matching) == 1:
        return known.by_id[matching[0]]
    if not matching:
        raise click.UsageError(f"No signature has {identity!r} in its id; `signatures list` shows them all.")
    some = ", ".join(matching[:8]) + (", ..." if len(matching) > 8 else "")
    raise click.UsageError(f"{len(matching)} signatures have {identity!r} in their id: {some}.")


def _json(chosen: Iterable[Signature]) -> str:
    return json.dumps([msgspec.to_builtins(s) for s in chosen], indent=1, ensure_ascii=False)


def _table(chosen: Sequence[Signature]) -> Iterable[str]:
    """Rows of id, role and cause, as wide as they need; the title fills what is left of a line or the next one."""
    if not chosen:
        return
    columns = [max(len(getattr(s, field)) for s in chosen) for field in ("id", "role", "cause")]
    indent = " " * 4
    for s in chosen:
        cells = (s.id, s.role, s.cause)
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, columns, strict=True)).rstrip()
        yield from textwrap.wrap(s.title, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _page(s: Signature, known: SignatureSet) -> Iterable[str]:
    yield from textwrap.wrap(s.title, WIDTH)
    yield f"{s.id}  ({s.status})"
    yield f"cause {s.cause}, role {s.role}, scope {s.scope}, strength {s.strength} of 3"
    sections: list[tuple[str, Sequence[str]]] = [
        ("What happens", [s.says]),
        ("When it is the beginning", [s.judge] if s.judge else []),
        ("How to confirm", s.confirm),
        ("How to repair", s.fix),
        ("How to verify", s.verify),
        ("Versions", [s.versions] if s.versions else []),
        ("Often an echo of", _named(s.caused_by, known)),
        ("Often followed by", _named(s.causes, known)),
        ("Easily confused with", _named(s.confused_with, known)),
        ("Recognised by", [p.regex for p in s.patterns]),
        ("Read more", s.references),
    ]
    for heading, items in sections:
        if not items:
            continue
        yield ""
        yield heading
        for item in items:
            # A link or a pattern that is broken in two cannot be copied.
            whole = heading in ("Recognised by", "Read more")
            yield from _bullet(item, WIDTH) if not whole else [f"  - {item}"]


def _named(ids: Iterable[str], known: SignatureSet) -> list[str]:
    return [f"{i}: {known.by_id[i].title}" if i in known.by_id else i for i in ids]


def _bullet(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)


def _beside(left: Signature, right: Signature) -> Iterable[str]:
    """Two columns, field by field."""
    column = (WIDTH - 3) // 2
    rows: list[tuple[str, str]] = [
        (left.id, right.id),
        (left.title, right.title),
        *((f"{f}: {getattr(left, f)}", f"{f}: {getattr(right, f)}") for f in ("role", "cause", "scope")),
    ]
    cells = [(textwrap.wrap(a, column), textwrap.wrap(b, column)) for a, b in rows]
    cells.append((_confirms(left, column), _confirms(right, column)))
    for first, second in cells:
        for number in range(max(len(first), len(second))):
            one = first[number] if number < len(first) else ""
            two = second[number] if number < len(second) else ""
            yield f"{one.ljust(column)} | {two}".rstrip()


def _confirms(s: Signature, width: int) -> list[str]:
    return [line for item in s.confirm for line in _bullet(item, width)]
