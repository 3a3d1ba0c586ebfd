"""Directions and costs of imports: what a hook on a compute node pays for, and who may know whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "pyarrow",
    "duckdb",
    "boto3",
    "botocore",
    "kubernetes",
    "hyperscan",
    "drain3",
    "jinja2",
    "zstandard",
    "numpy",
    "yaml",
)
CHEAP = (
    "collector.model", "collector.readers.rank_log", "collector.readers.windows", "collector.readers.roster",
    "collector.readers.tracebacks", "collector.readers.exits", "collector.sources.log_dir", "collector.patterns",
    "collector.redact", "collector.classify",
)  # fmt: skip
MODULES = sorted(path.relative_to(ROOT) for top in ("collector", "analyzers") for path in (ROOT / top).rglob("*.py"))


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_modules_that_a_hook_imports_are_cheap() -> None:
    loaded = loaded_by("\n".join(f"import {module}" for module in CHEAP))
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)
    assert "analyzers" not in loaded


def test_the_command_line_starts_without_the_analysis() -> None:
    assert loaded_by("import analyzers.cli").isdisjoint(HEAVY)


def test_the_model_needs_the_standard_library_only() -> None:
    before = loaded_by("")
    assert loaded_by("import collector.model") - before - set(sys.stdlib_module_names) == {"collector"}


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] == "collector"], ids=str)
def test_the_collector_knows_nothing_of_the_analyzers(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.partition(".")[0] == "analyzers"]


@pytest.mark.parametrize("path", [p for p in MODULES if p.as_posix() != "collector/tables.py"], ids=str)
def test_heavy_libraries_are_imported_where_they_are_used(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    at_top = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    at_top += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    heavy = {
        "pyarrow",
        "duckdb",
        "boto3",
        "botocore",
        "kubernetes",
        "pyslurm",
        "hyperscan",
        "drain3",
        "jinja2",
        "zstandard",
    }
    assert not [name for name in at_top if name.partition(".")[0] in heavy]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_states_its_decision(path: Path) -> None:
    assert ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8"))), "a docstring at the top"


def test_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
