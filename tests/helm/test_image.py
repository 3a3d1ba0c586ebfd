"""The Dockerfile, without a container engine: its context is enough to build what it installs, and it fits the chart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()


def _copied() -> list[str]:
    """What is copied from the build context, as written."""
    lines = [line.split()[1:-1] for line in TEXT.splitlines() if line.startswith("COPY ") and "--from" not in line]
    return [name for line in lines for name in line]


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(_copied()) == allowed
    assert all((ROOT / name).exists() for name in _copied())


def test_the_copied_files_build_a_whole_wheel(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name in _copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "collector/_data/signatures/_lookup/job_kinds.yaml" in names
    assert "analyzers/watch_worker.py" in names


def test_extras_exist_and_the_entry_point_is_the_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"pip install [^\n]*'\.\[([\w,]+)\]'", TEXT)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", TEXT, re.MULTILINE)
    assert Path(json.loads(entry)[-1]).name in project["scripts"]


def test_the_user_is_the_one_of_the_chart() -> None:
    helpers = (ROOT / "helm" / "firstfault" / "templates" / "_helpers.tpl").read_text()
    (user,) = re.findall(r"^USER (\d+):\d+$", TEXT, re.MULTILINE)
    assert f"runAsUser: {user}" in helpers and user != "0"


@pytest.mark.parametrize("line", [line for line in TEXT.splitlines() if line.startswith("FROM ")])
def test_base_images_are_pinned(line: str) -> None:
    assert "latest" not in line and ":" in line
