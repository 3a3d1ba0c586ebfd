"""What the documents say exists: commands, options, files, links."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from analyzers.cli import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for path in ROOT.rglob("*.md")
    if not {".venv", "tests", "node_modules", "build", "dist"} & set(path.relative_to(ROOT).parts)
)  # fmt: skip
# not the argument of another program (`helm install firstfault ...`)
CALL = re.compile(r"(?:^|[\s`(/|])(?<!install )firstfault (?P<rest>[a-z][^`\n|#)&;<>]*)")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
TARGET = re.compile(r"^(?:\$ )?make (?P<target>[a-z-]+)", re.MULTILINE)


def code(text: str) -> str:
    """Code blocks and code spans of a document: what a reader may copy."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


def calls() -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(ROOT)), match["rest"].strip())
        for path in DOCUMENTS
        for match in CALL.finditer(code(path.read_text("utf-8")))
    ]


def problem(rest: str) -> str | None:
    """Why a documented call cannot work, None if it can: its commands and its options exist."""
    if rest.count('"') % 2:
        rest = rest[: rest.rindex('"')]  # an SQL text that goes on behind a bracket
    words = shlex.split(rest, posix=False)
    command: click.Command = cli
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0].rstrip(",;:."))
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"-h", "--help", "--version"}
    for word in words:
        option = word.partition("=")[0].rstrip(",;:.")
        if re.match(r"--?[a-z]", option) and option not in known:
            return f"no option {option!r} of {command.name!r}"
    return None


def test_the_check_itself_finds_what_is_wrong() -> None:
    assert problem("diagnose RUN_DIR --json") is None
    assert problem("signatures check") is None
    assert problem("diagnoze RUN_DIR") == "no command 'diagnoze'"
    assert problem("diagnose RUN_DIR --jason") == "no option '--jason' of 'diagnose'"


@pytest.mark.parametrize(("document", "rest"), calls(), ids=[f"{d}:{r[:50]}" for d, r in calls()])
def test_documented_calls_exist(document: str, rest: str) -> None:
    assert problem(rest) is None, document


def test_the_readme_shows_the_first_call() -> None:
    assert any(document == "README.md" and rest.startswith("diagnose") for document, rest in calls())


@pytest.mark.parametrize("path", DOCUMENTS, ids=[str(p.relative_to(ROOT)) for p in DOCUMENTS])
def test_links_to_files_lead_somewhere(path: Path) -> None:
    for match in LINK.finditer(path.read_text("utf-8")):
        target = match["target"]
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), target


def test_make_targets_exist() -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path in DOCUMENTS:
        for match in TARGET.finditer("\n".join(line.strip("`") for line in code(path.read_text("utf-8")).splitlines())):
            assert match["target"] in rules, f"{path.name}: make {match['target']}"


def test_the_entry_point_is_the_program_that_the_documents_name() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts["firstfault"] == "analyzers.cli:main"
