"""The verdicts that the product owes: composed evidence of hardware, memory, fabric, storage, clocks and environment.

Each folder of tests/required holds what a user would be left with (`run/`) and what must be said of it (`expect.yaml`):
`status` any of these, `signature` and `title` regexes, `cause`, `ranks`, `nodes` and `scope` equal; under `not` regexes
that no confident verdict may match. Nearly every failure has a twin with the same alarm that must not accuse.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDERS = sorted(path.parent for path in (Path(__file__).resolve().parents[1] / "required").glob("*/expect.yaml"))
COLLECTED_AT = 1_795_168_800
"""When the composed files were collected: stamps without a year take the year of the file."""
ACCUSES = ("established", "supported", "suspected")


def _copy(folder: Path, target: Path) -> Path:
    """A copy in a folder whose name tells nothing, with the time of the collection."""
    shutil.copytree(folder / "run", target / "run")
    for path in (target / "run").rglob("*"):
        os.utime(path, (COLLECTED_AT, COLLECTED_AT))
    return target / "run"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_required_verdict(folder: Path, tmp_path: Path) -> None:
    from analyzers.diagnose import diagnose

    expect: dict[str, Any] = yaml.safe_load((folder / "expect.yaml").read_text(encoding="utf-8"))
    verdict = diagnose(_copy(folder, tmp_path))["verdict"]
    said = {key: verdict[key] for key in ("status", "signature", "cause", "ranks", "nodes", "scope", "title", "why")}
    if "status" in expect:
        assert verdict["status"] in expect["status"], said
    for key in ("signature", "title"):
        if key in expect:
            assert re.search(f"^(?:{expect[key]})$" if key == "signature" else expect[key], verdict[key] or ""), said
    for key in ("cause", "ranks", "nodes", "scope"):
        if key in expect:
            assert verdict[key] == expect[key], said
    assert not _accused(verdict, expect.get("not", {})), said


def _accused(verdict: dict[str, Any], forbidden: dict[str, str]) -> list[str]:
    """Which of the forbidden accusations the verdict makes; an abstention makes none."""
    if verdict["status"] not in ACCUSES:
        return []
    texts = {key: [verdict[key]] if isinstance(verdict[key], str) else list(verdict[key] or []) for key in forbidden}
    return [key for key, pattern in forbidden.items() if any(re.fullmatch(pattern, text) for text in texts[key])]


def test_every_failure_has_a_twin_that_does_not_accuse() -> None:
    """Names of what must be found, and that of each there is evidence that must not be believed."""
    names = {folder.name for folder in FOLDERS}
    for code in (79, 48, 94, 95, 63, 64, 74, 119, 149):
        assert {f"xid-{code}", f"xid-{code}-yesterday", f"xid-{code}-other-node"} <= names
    for failure, twin in (
        ("xid-13-program", "xid-13-yesterday"),
        ("xid-31-program", "xid-31-yesterday"),
        ("xid-79-undated", "xid-79-undated-beside-exception"),
        ("xid-45-after-79", "xid-45-at-teardown"),
        ("xid-43-after-assert", "xid-43-alone"),
        ("oom-killed-rank", "oom-killed-bystander"),
        ("oom-killed-worker", "worker-exited-with-old-oom"),
        ("ib-link-down", "ib-link-down-yesterday"),
        ("node-lost", "node-silent-after-exception"),
        ("clock-20s-behind", "clock-right"),
        ("disk-full-df", "disk-full-elsewhere"),
        ("quota-kernel", "quota-unused"),
        ("stale-handle-kernel", "stale-handle-yesterday"),
        ("port-in-use", "port-in-use-retried"),
        ("version-mismatch", "version-differs-harmlessly"),
        ("thermal-straggler", "throttled-bystander"),
    ):
        assert {failure, twin} <= names


@pytest.mark.parametrize(
    ("status", "cause", "found"),
    [("supported", "gpu", ["cause"]), ("undetermined", "gpu", []), ("supported", "data", [])],
)
def test_accusations_count_only_where_something_is_asserted(status: str, cause: str, found: list[str]) -> None:
    assert _accused({"status": status, "cause": cause}, {"cause": "gpu"}) == found
