"""Every labelled real run, in every view, judged by the benchmark's own rules: right, or an abstention that is allowed.

What firstfault does not get right yet is data (`tests/cases/shortfalls.yaml`), strict in both directions: a run that
becomes right must leave the list.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases"
ACCURACY = ROOT / "benchmarks" / "accuracy"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ACCURACY / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


scoring = _load("scoring")
RUNS = list(scoring.find_runs(CASES, scoring.read_labels(ACCURACY / "labels.yaml")))
SHORTFALLS: dict[str, str] = yaml.safe_load((CASES / "shortfalls.yaml").read_text(encoding="utf-8")) or {}


def _shown() -> list[Any]:
    """One parameter per run and view; views that a run has nothing for are dropped when the test copies them."""
    params = []
    for run in RUNS:
        for view in scoring.VIEWS:
            name = f"{run.id}[{view}]"
            marks = [pytest.mark.xfail(strict=True, reason=SHORTFALLS[name])] if name in SHORTFALLS else []
            if view != "ranks" or scoring.has_per_rank(run.path):
                params.append(pytest.param(run, view, id=name, marks=marks))
    return params


PARAMS = _shown()


@pytest.mark.parametrize(("run", "view"), PARAMS)
def test_verdict(run: Any, view: str, tmp_path: Path) -> None:
    from analyzers.diagnose import diagnose

    assert scoring.build_view(run.path, view, tmp_path)
    report = diagnose(tmp_path)
    verdict = report["verdict"]
    said = {key: verdict.get(key) for key in ("status", "ranks", "signature", "title")}
    assert scoring.judge(run, view, verdict) is scoring.Grade.RIGHT, f"truth {run.ranks} {run.category}, said {said}"


def test_shortfalls_name_existing_runs() -> None:
    assert set(SHORTFALLS) <= {str(param.id) for param in PARAMS}


def test_corpus_has_healthy_and_undecidable_runs() -> None:
    """Without them the corpus could not tell a tool that always accuses from one that knows."""
    assert sum(run.healthy for run in RUNS) >= 3
    assert any(run.label.decides(run.name, view) is scoring.Decides.FALSE for run in RUNS for view in scoring.VIEWS)


@pytest.mark.parametrize(
    ("status", "ranks", "title", "grade"),
    [
        ("supported", [2], "KeyError in the data set", "right"),
        ("supported", [1], "KeyError in the data set", "wrong"),
        ("supported", [1, 2], "KeyError in the data set", "wrong"),
        ("supported", [2], "Connection closed by peer", "wrong"),
        ("undetermined", [], "", "abstained"),
        ("no_failure", [], "", "wrong"),
    ],
)
def test_judge_needs_ranks_and_cause(status: str, ranks: list[int], title: str, grade: str) -> None:
    run = next(run for run in RUNS if run.case == "a01_keyerror_one_rank_4r")
    verdict = {"status": status, "ranks": ranks, "title": title, "why": "", "evidence": []}
    assert scoring.judge(run, "merged", verdict).value == grade


@pytest.mark.parametrize(
    ("status", "grade"), [("undetermined", "right"), ("supported", "wrong"), ("no_failure", "wrong")]
)
def test_judge_wants_abstention_where_nothing_decides(status: str, grade: str) -> None:
    run = next(run for run in RUNS if run.case == "a03_sigkill_external_4r" and run.name == "tee")
    verdict = {"status": status, "ranks": [1], "title": "SIGKILL", "evidence": []}
    assert scoring.judge(run, "ranks", verdict).value == grade


@pytest.mark.parametrize("view", ["merged", "ranks", "all"])
def test_views_do_not_leak_the_truth(view: str, tmp_path: Path) -> None:
    run = next(run for run in RUNS if run.case == "a04_memcg_oom_kill_3r")
    assert scoring.build_view(run.path, view, tmp_path)
    names = {path.name for path in tmp_path.rglob("*")}
    assert names.isdisjoint(scoring.HIDDEN)
    assert (view == "all") == ("dmesg.txt" in names)
