"""Measure firstfault on labelled runs: `python benchmarks/accuracy/run.py [CASES_DIR ...] [--view V] [--json]`.

Decision: every view of a run is copied into a folder whose name says nothing, and the same folder is shown to
firstfault and to three naive readers. Reads no network, writes nothing but a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import baselines
from scoring import VIEWS, Grade, Run, build_view, find_runs, judge, ranks_match, read_labels

HERE = Path(__file__).parent
DEFAULT_CASES = HERE.parents[1] / "tests" / "cases"
Reader = Callable[[Path], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Result:
    """One reader's answer to one view of one run."""

    reader: str
    run: str
    view: str
    grade: Grade
    ranks_right: bool
    said: str
    truth: str


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", type=Path, default=[DEFAULT_CASES], help="folders of labelled cases")
    parser.add_argument("--view", choices=[*VIEWS], action="append", help="only this view (repeatable)")
    parser.add_argument("--only", help="only cases whose id contains this")
    parser.add_argument("--shortfalls", action="store_true", help="print what tests/cases/shortfalls.yaml should say")
    parser.add_argument("--json", action="store_true", help="print every answer as JSON instead of tables")
    args = parser.parse_args()
    labels = read_labels(HERE / "labels.yaml")
    runs = [run for folder in args.cases for run in find_runs(folder, labels)]
    runs = [run for run in runs if not args.only or args.only in run.case]
    results = measure(runs, args.view or VIEWS, readers(runs))
    if args.shortfalls:
        for result in results:
            if result.reader == "firstfault" and result.grade is not Grade.RIGHT:
                print(f"{json.dumps(f'{result.run}[{result.view}]')}: {json.dumps(f'{result.grade}: {result.said}')}")
    elif args.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print_tables(results, args.view or VIEWS)


def readers(runs: Sequence[Run]) -> dict[str, Reader]:
    """Readers by name, firstfault first."""
    from analyzers.diagnose import diagnose

    return {
        "firstfault": lambda folder: diagnose(folder)["verdict"],
        "torchrun Root Cause": baselines.torchrun_root_cause,
        "first error line": baselines.first_error_line,
        "best constant": baselines.best_constant(runs),
    }


def measure(runs: Sequence[Run], views: Sequence[str], by_name: Mapping[str, Reader]) -> list[Result]:
    """Every reader's answer to every view of every run. A reader that raises is wrong and says so."""
    results = []
    for run in runs:
        for view in views:
            with tempfile.TemporaryDirectory(prefix="job-") as folder:
                if not build_view(run.path, view, Path(folder)):
                    continue
                results += [answer(name, reader, run, view, Path(folder)) for name, reader in by_name.items()]
    return results


def answer(name: str, reader: Reader, run: Run, view: str, folder: Path) -> Result:
    """One reader's answer, judged."""
    try:
        verdict = reader(folder)
    except Exception as error:
        verdict = {"status": "crashed", "title": f"{type(error).__name__}: {error}"}
    said = " ".join(str(verdict.get(key) or "-") for key in ("status", "ranks", "signature", "title"))
    truth = f"{list(run.ranks)} {run.category} ({run.label.decides(run.name, view)})"
    return Result(name, run.id, view, judge(run, view, verdict), ranks_match(run, verdict), said[:200], truth)


def print_tables(results: Sequence[Result], views: Sequence[str]) -> None:
    """Markdown: one table over all views, then what firstfault did not get right."""
    print("| reader | view | runs | right | abstained | wrong | right % | wrong % | ranks alone right % |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(result.reader for result in results):
        for view in [*views, "every view"]:
            chosen = [r for r in results if r.reader == name and view in (r.view, "every view")]
            if not chosen:
                continue
            grades = Counter(r.grade for r in chosen)
            right, abstained, wrong = (grades[g] for g in (Grade.RIGHT, Grade.ABSTAINED, Grade.WRONG))
            alone = sum(r.ranks_right for r in chosen)
            shares = " | ".join(f"{100 * n / len(chosen):.1f}" for n in (right, wrong, alone))
            print(f"| {name} | {view} | {len(chosen)} | {right} | {abstained} | {wrong} | {shares} |")
    for result in results:
        if result.reader == "firstfault" and result.grade is not Grade.RIGHT:
            print(f"\n{result.grade.upper()} {result.run} [{result.view}]")
            print(f"  truth {result.truth}\n  said  {result.said}")


if __name__ == "__main__":
    main()
