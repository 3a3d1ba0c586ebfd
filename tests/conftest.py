"""Rules for the whole suite: in CI (FIRSTFAULT_NO_SKIP=1) a test that cannot run is a failure, not a skip."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor write the user's cache."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a cluster stay in one process; elsewhere those of one file do (xdist's --dist loadgroup)."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder == "kube":
            # a whole control plane on two busy cores misses a deadline now and then; what is broken fails three times
            item.add_marker(pytest.mark.flaky(reruns=2))
        item.add_marker(pytest.mark.xdist_group(folder if folder in ("kube", "slurm", "lake") else str(item.path)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn a skip into a failure where nothing may be skipped."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("FIRSTFAULT_NO_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"skipped although nothing may be skipped here: {report.longrepr}"
