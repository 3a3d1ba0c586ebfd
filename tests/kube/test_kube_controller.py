"""The controller against a real API server: each kind of failure once, and what stands in the store afterwards."""

from __future__ import annotations

from typing import Any

from collector.kube_api import path_of
from collector.kube_finish import ANNOTATION


def _ledger(site: Any, incident: str) -> dict[str, str]:
    return {row["path"]: row["outcome"] for row in site.rows("ledger", incident) if row["source"] != "expected"}


def test_a_failed_pod_takes_the_logs_of_all_and_the_verdict_reaches_the_job(space: Any, site: Any) -> None:
    space.job("train", 2)
    controller = site.controller()
    first, second = space.pods("train")
    space.log(first, "step 1\nstep 2\nKeyError: 'labels'")
    survivor = space.log(second, "step 1\nstep 2")
    for pod in (first, second):
        space.runs(pod)
    space.hold(second)
    space.fails(first)
    space.until(lambda: controller.readers.busy, "the peer is followed")
    with survivor.open("a") as file:  # the peer goes on printing after the first failure
        file.write("2026-12-01T00:01:00.000000001Z stderr F watchdog: collective timed out\n")
    space.until(
        lambda: space.api.get(path_of("v1", "pods", space.name, second["metadata"]["name"]))["metadata"].get(
            "deletionTimestamp"
        ),
        "the job controller deletes the peer",
    )
    space.hold(second, False)
    (incident,) = site.finished(controller)
    job = space.api.get(path_of("batch/v1", "jobs", space.name, "train"))
    assert incident == f"k8s-c1-{space.name}-{job['metadata']['uid']}-0"
    lines = [row for row in site.rows("log_lines", incident) if row["path"].startswith("pods/")]
    by_pod = {row["path"].split("/")[1]: [r["text"] for r in lines if r["path"] == row["path"]] for row in lines}
    assert by_pod[first["metadata"]["name"]] == ["step 1", "step 2", "KeyError: 'labels'"]
    assert by_pod[second["metadata"]["name"]] == ["step 1", "step 2", "watchdog: collective timed out"]
    assert all(row["at_lo"] is not None for row in lines)
    assert {row["node"] for row in lines} <= {
        "gpu-a",
        "gpu-b",
        "gpu-c",
        first["metadata"]["name"],
        second["metadata"]["name"],
    }
    assert job["metadata"]["annotations"][ANNOTATION].startswith("supported: verdict of")
    events = [e for _, e in space.api.list(path_of("v1", "events", space.name)) if e and e["reason"] == "FirstFault"]
    assert [event["involvedObject"]["name"] for event in events] == ["train"]
    said = site.texts(incident, "kubernetes/")
    assert any("terminated: Reason: Error, Exit Code: 1" in text for text in said)
    assert any("BackoffLimitExceeded" in text for text in said)
    stored = b"".join(row["content"] for row in site.rows("artifacts", incident))
    assert b"hunter2" not in stored and b'"WORLD_SIZE"' in stored
    (summary,) = site.rows("incidents", incident)
    assert (summary["scheduler"], summary["world_size"], summary["state"]) == ("kubernetes", 2, "BackoffLimitExceeded")
