"""The wheel: two packages and their data, and a `firstfault` that works from any folder without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOG = (
    "[rank0]: RuntimeError: [/opt/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43210.\n"
    "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/opt/train/train.py\", line 10, in main\n"
    "[rank1]:     step()\n[rank1]: KeyError: 'labels'\n"
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the project's own backend, as pip would call it."""
    folder = tmp_path_factory.mktemp("dist")
    code = f"import hatchling.build as b; print(b.build_wheel({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as opened:
        return opened.namelist()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh environment with the wheel's files; its dependencies are those of the running environment."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    site = next((home / "lib").glob("python*/site-packages"))
    python = home / "bin" / "python"
    # --no-deps --no-index: nothing is fetched
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index",
               "--disable-pip-version-check", str(wheel)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    # as a path configuration file, minus the running environment's own editable installs: those point to the checkout
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n")
    yield home


def test_the_top_level_is_exactly_the_two_packages(names: list[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"collector", "analyzers"}


def test_all_data_travels_inside(names: list[str]) -> None:
    inside = set(names)
    tracked = subprocess.run(
        ["git", "ls-files", "signatures", "queries"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    files = tracked.stdout.split() or [
        path.relative_to(ROOT).as_posix() for top in ("signatures", "queries") for path in (ROOT / top).rglob("*.*")
    ]
    wanted = [name for name in files if name.endswith((".yaml", ".sql")) and (ROOT / name).exists()]
    assert len(wanted) > 100
    where = {"signatures": "collector/_data", "queries": "analyzers/_data"}
    missing = [name for name in wanted if f"{where[name.partition('/')[0]]}/{name}" not in inside]
    assert missing == []


def test_every_module_and_template_travels(names: list[str]) -> None:
    inside = set(names)
    for top in ("collector", "analyzers"):
        for path in (ROOT / top).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and path.suffix in (".py", ".html", ".css", ".js") and "/_data/" not in name:
                assert name in inside, name


def test_nothing_else_travels(names: list[str]) -> None:
    assert not [
        name for name in names if name.endswith((".pyc", ".log", ".pt")) or name.startswith(("tests", "benchmarks"))
    ]


def run(home: Path, *arguments: str, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(home / "bin" / "firstfault"), *arguments],
        input=stdin, cwd=cwd, capture_output=True, text=True, timeout=110, check=False, env=environment,
    )  # fmt: skip


def test_the_installed_program_diagnoses_from_any_folder(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(LOG)
    done = run(installed, "diagnose", "job.log", "--json", "--html", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]["ranks"] == [1]
    assert (tmp_path / "page.html").read_text("utf-8").lower().startswith("<!doctype html")
    piped = run(installed, "diagnose", "-", cwd=tmp_path, stdin=LOG)
    assert piped.returncode == 0 and "KeyError" in piped.stdout


def test_the_installed_program_uses_its_own_files(installed: Path, tmp_path: Path) -> None:
    code = "from analyzers.sql import queries_dir\nfrom collector.data import data_dir\n"
    code += "print(queries_dir())\nprint(data_dir('signatures'))"
    python = installed / "bin" / "python"
    done = subprocess.run([str(python), "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(Path(line).is_relative_to(installed) for line in done.stdout.split())


def test_the_installed_signatures_pass_their_own_check(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "signatures", "check", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
