"""What counts as right: truth and labels of a case, the views a run is shown in, and the judgement of one verdict.

Decision: a verdict is right only if it names exactly the initiating ranks AND the true cause where a reader looks
first (title, why, first cited line). What a view cannot show is not demanded of it: `labels.yaml` says per view whether
the evidence in it decides the case, and in an undecidable view only `undetermined` is right. A label may also travel
with a case, in the key `label` of its `scenario.json`.
"""

from __future__ import annotations

import enum
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

VIEWS = ("merged", "ranks", "all")
HIDDEN = ("truth.jsonl", "scenario.json", "merged.stamped.log", "script")
"""Ground truth and what gives it away; no view shows these."""
PER_RANK = ("ranks", "ray_logs")


class Grade(enum.StrEnum):
    """Judgement of one verdict."""

    RIGHT = "right"
    ABSTAINED = "abstained"
    WRONG = "wrong"


class Decides(enum.StrEnum):
    """What the evidence of a view settles."""

    TRUE = "true"
    """Ranks and cause: nothing but the right answer is right."""
    CAUSE = "cause"
    """The cause, not the rank: the right cause is right with the right ranks, with none, or as `undetermined`."""
    PARTIAL = "partial"
    """Hints only: like `cause`, and `undetermined` is right too."""
    FALSE = "false"
    """Nothing: only `undetermined` is right."""
    OPEN = "open"
    """The log simply stops: `undetermined` and `no_failure` are right, and so is the right answer."""


@dataclass(frozen=True, slots=True)
class Label:
    """How one case is judged."""

    cause_any: Mapping[str, Sequence[str]]
    """View (or "default") to regular expressions, case-insensitive; one match anywhere names the cause."""
    decidable: Mapping[str, str]
    """View, "<run>.<view>" or "default" to a `Decides` value."""
    why: str = ""

    def decides(self, run: str, view: str) -> Decides:
        """What `view` of `run` settles; "true" where the label does not say."""
        for key in (f"{run}.{view}", view, "default"):
            if key in self.decidable:
                return Decides(str(self.decidable[key]).lower())
        return Decides.TRUE

    def names_cause(self, text: str, view: str) -> bool:
        """Whether `text` names the true cause."""
        patterns = self.cause_any.get(view) or self.cause_any.get("default", ())
        return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Run:
    """One real run of one case, as one folder of logs."""

    case: str
    name: str
    path: Path
    ranks: tuple[int, ...]
    """Ranks that initiated, sorted; empty for healthy runs and causes outside the ranks."""
    healthy: bool
    world_size: int
    category: str
    label: Label

    @property
    def id(self) -> str:
        return f"{self.case}/{self.name}"


def read_labels(path: Path) -> dict[str, Label]:
    """Labels by case id from a YAML file of `labels.yaml`'s shape."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {case: make_label(entry) for case, entry in raw.items()}


def make_label(entry: Mapping[str, Any]) -> Label:
    """A label from its YAML or JSON form; `cause_any` may be a plain list, `decidable` a plain value."""
    cause = entry.get("cause_any") or []
    decidable = entry.get("decidable", "true")
    return Label(
        cause_any=cause if isinstance(cause, Mapping) else {"default": cause},
        decidable=decidable if isinstance(decidable, Mapping) else {"default": decidable},
        why=entry.get("why", ""),
    )


def find_runs(cases: Path, labels: Mapping[str, Label]) -> Iterator[Run]:
    """Every run below a folder of cases; a case without a label is an error, because it could not be judged."""
    for scenario in sorted(cases.glob("*/scenario.json")):
        facts = json.loads(scenario.read_text(encoding="utf-8"))
        truth = facts["ground_truth"]
        case = scenario.parent.name
        if case not in labels and "label" not in facts:
            raise KeyError(f"{case} has no label")
        label = labels[case] if case in labels else make_label(facts["label"])
        for folder in sorted(p for p in scenario.parent.iterdir() if p.is_dir() and (p / "merged.log").exists()):
            yield Run(
                case=case,
                name=folder.name,
                path=folder,
                ranks=tuple(sorted(truth["initiating_ranks"])),
                healthy=truth["category"] == "healthy",
                world_size=int(facts["world_size"]),
                category=truth["category"],
                label=label,
            )


def build_view(run: Path, view: str, into: Path) -> bool:
    """Copy what `view` shows of a run into an empty folder; False where the run has nothing of the kind.

    `exit.json` loses the driver's own events: they say which process the driver hurt.
    """
    if view == "merged":
        shutil.copy(run / "merged.log", into / "merged.log")
        return True
    for item in sorted(run.iterdir()):
        per_rank = item.name in PER_RANK or re.fullmatch(r"gpu-node-\d+\.log", item.name)
        if item.name in HIDDEN or (view == "ranks" and not per_rank):
            continue
        if item.is_dir():
            shutil.copytree(item, into / item.name)
        elif item.name == "exit.json":
            facts = json.loads(item.read_text(encoding="utf-8"))
            kept = {key: facts[key] for key in ("command", "started", "ended", "wall_s", "rcs") if key in facts}
            (into / item.name).write_text(json.dumps(kept), encoding="utf-8")
        else:
            shutil.copy(item, into / item.name)
    return any(p.stat().st_size for p in into.rglob("*") if p.is_file())


def has_per_rank(run: Path) -> bool:
    """Whether a run kept files of single ranks or nodes, with anything in them."""
    files = [p for name in PER_RANK for p in run.glob(f"{name}/**/*")] + list(run.glob("gpu-node-*.log"))
    return any(path.is_file() and path.stat().st_size for path in files)


def told(verdict: Mapping[str, Any]) -> str:
    """What a reader sees first of a verdict: title, why and the first cited line."""
    evidence = verdict.get("evidence") or [{}]
    parts = (verdict.get("title"), verdict.get("why"), evidence[0].get("text"))
    return "\n".join(str(part) for part in parts if part)


def judge(run: Run, view: str, verdict: Mapping[str, Any]) -> Grade:
    """Grade one verdict (the `verdict` object of `diagnose --json`) for one view of one run."""
    status = verdict.get("status")
    decides = run.label.decides(run.name, view)
    if run.healthy:
        return {"no_failure": Grade.RIGHT, "undetermined": Grade.ABSTAINED}.get(str(status), Grade.WRONG)
    if status == "undetermined":
        if decides is Decides.CAUSE:  # who cannot be read, what can: an honest answer names the one and not the other
            return Grade.RIGHT if run.label.names_cause(told(verdict), view) else Grade.ABSTAINED
        return Grade.ABSTAINED if decides is Decides.TRUE else Grade.RIGHT
    if decides is Decides.FALSE or status == "no_failure":
        return Grade.RIGHT if decides is Decides.OPEN else Grade.WRONG
    ranks = tuple(sorted(verdict.get("ranks") or ()))
    ranks_right = ranks == run.ranks or (decides in (Decides.CAUSE, Decides.PARTIAL) and not ranks)
    return Grade.RIGHT if ranks_right and run.label.names_cause(told(verdict), view) else Grade.WRONG


def ranks_match(run: Run, verdict: Mapping[str, Any]) -> bool:
    """Whether the ranks alone are right: the weaker measure, on which the baselines can compete."""
    status = verdict.get("status")
    if run.healthy:
        return status == "no_failure"
    named = status not in ("undetermined", "no_failure")
    return named and tuple(sorted(verdict.get("ranks") or ())) == run.ranks
