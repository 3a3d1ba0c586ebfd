"""The controller against a real API server: each kind of failure once, and what stands in the store afterwards."""

from __future__ import annotations

import time
from typing import Any

from collector.kube_api import path_of
from collector.kube_finish import ANNOTATION


def _ledger(site: Any, incident: str) -> dict[str, str]:
    return {row["path"]: row["outcome"] for row in site.rows("ledger", incident) if row["source"] != "expected"}


def _name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def test_a_failed_pod_takes_the_logs_of_all_and_the_verdict_reaches_the_job(space: Any, site: Any) -> None:
    space.job("train", 2)
    controller = site.controller()
    first, second = space.pods("train")
    space.log(first, "step 1\nstep 2\nKeyError: 'labels'")
    survivor = space.log(second, "step 1\ntoken=ghp_0123456789abcdefghijklmnopqrstuvwxyzAB\nstep 2")
    for pod in (first, second):
        space.runs(pod)
    space.hold(second)
    space.fails(first)
    space.until(lambda: controller.readers.busy, "the peer is followed")
    with survivor.open("a") as file:  # the peer goes on printing after the first failure
        file.write("2026-12-01T00:01:00.000000001Z stderr F watchdog: collective timed out\n")
    path = path_of("v1", "pods", space.name, _name(second))
    space.until(lambda: space.api.get(path)["metadata"].get("deletionTimestamp"), "the job controller deletes the peer")
    space.hold(second, False)
    (incident,) = site.finished(controller)
    job = space.api.get(path_of("batch/v1", "jobs", space.name, "train"))
    assert incident == f"k8s-c1-{space.name}-{job['metadata']['uid']}-0"
    lines = [row for row in site.rows("log_lines", incident) if row["path"].startswith("pods/")]
    by_pod = {row["path"].split("/")[1]: [r["text"] for r in lines if r["path"] == row["path"]] for row in lines}
    assert by_pod[_name(first)] == ["step 1", "step 2", "KeyError: 'labels'"]
    assert by_pod[_name(second)][0] == "step 1" and by_pod[_name(second)][2:] == [
        "step 2",
        "watchdog: collective timed out",
    ]
    assert "ghp_" not in by_pod[_name(second)][1] and "redacted" in by_pod[_name(second)][1]
    assert all(row["at_lo"] is not None for row in lines)
    assert [row["line"] for row in lines if row["path"].split("/")[1] == _name(second)] == [1, 2, 3, 4]
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


def test_a_killed_child_that_left_exit_code_zero_and_a_succeeded_pod_is_a_failure(space: Any, site: Any) -> None:
    space.job("oom", 1, backoffLimit=2)
    controller = site.controller()
    (pod,) = space.pods("oom")
    space.log(pod, "loading 70B parameters")
    space.fails(pod, 0, "OOMKilled", phase="Succeeded")
    (incident,) = site.finished(controller)
    assert any("Reason: OOMKilled, Exit Code: 0" in text for text in site.texts(incident, "kubernetes/"))
    (row,) = site.rows("scheduler_events", incident)
    assert (row["event"], row["code"]) == ("oom", 0)


def test_a_restarted_container_gives_its_previous_log_and_the_next_failure_is_a_new_attempt(
    space: Any, site: Any
) -> None:
    space.job("again", 1, restart="OnFailure", backoffLimit=6)
    controller = site.controller()
    (pod,) = space.pods("again")
    space.log(pod, "first run\nValueError: bad shard", 0)
    space.log(pod, "second run", 1)
    last = {"terminated": space.ended(1)}
    running = {"running": {"startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}
    space.status(pod, "Running", running, restarts=1, last=last)
    (one,) = site.finished(controller)
    paths = {row["path"].split("/", 2)[2]: row["text"] for row in site.rows("log_lines", one) if "pods/" in row["path"]}
    assert paths["main/0.log"] == "ValueError: bad shard"
    assert site.rows("incidents", one)[0]["state"] == "restarted"
    space.fails(pod, 2, restarts=1, last={"terminated": space.ended(1)})
    space.until(lambda: controller.counts["opened"] == 2, "the second attempt fails")
    space.delete(path_of("batch/v1", "jobs", space.name, "again"), propagationPolicy="Background")
    first, second = site.finished(controller, 2)
    assert (first, second) == (one, f"{one[:-1]}1")
    ends = [(row["code"], row["text"].split(": ")[1]) for row in site.rows("scheduler_events", second)]
    assert (2, "container main terminated") in ends


def test_an_evicted_pod(space: Any, site: Any) -> None:
    space.job("evicted", 1)
    controller = site.controller()
    (pod,) = space.pods("evicted")
    space.status(
        pod,
        "Failed",
        {"terminated": space.ended(137)},
        reason="Evicted",
        message="The node was low on resource: memory.",
    )
    (incident,) = site.finished(controller)
    assert any("Evicted: The node was low on resource: memory." in text for text in site.texts(incident, "kubernetes/"))
    assert "evicted" in {row["event"] for row in site.rows("scheduler_events", incident)}


def test_a_log_that_is_gone_is_a_row_of_the_ledger_and_no_line(space: Any, site: Any) -> None:
    space.job("excuse", 1)
    controller = site.controller()
    (pod,) = space.pods("excuse")
    log = space.log(pod, "what the kubelet does not find any more")
    log.with_suffix(".excuse").write_text("unable to retrieve container logs for containerd://4711")
    space.fails(pod)
    (incident,) = site.finished(controller)
    assert site.texts(incident) == []
    assert _ledger(site, incident)[f"pods/{_name(pod)}/main/0.log"] == "unreachable"


def test_a_pod_that_never_ran(space: Any, site: Any) -> None:
    space.job("image", 1)
    controller = site.controller()
    (pod,) = space.pods("image")
    why = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example/train:1"'}
    space.status(pod, "Pending", {"waiting": why})
    space.until(lambda: controller.incidents, "the incident opens")
    space.delete(path_of("batch/v1", "jobs", space.name, "image"), propagationPolicy="Background")
    (incident,) = site.finished(controller)
    assert any("ImagePullBackOff: Back-off pulling image" in text for text in site.texts(incident, "kubernetes/"))
    assert _ledger(site, incident)[f"pods/{_name(pod)}"] == "empty"


def test_a_pod_that_finds_no_node(space: Any, site: Any) -> None:
    template = {
        "spec": {
            "restartPolicy": "Never", "nodeSelector": {"pool": "none"},
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        }
    }  # fmt: skip
    body = {"metadata": {"name": "wait"}, "spec": {"template": template}}
    space.api.json("POST", path_of("batch/v1", "jobs", space.name), None, body)
    space.until(
        lambda: space.pods("wait") and space.pods("wait")[0].get("status", {}).get("conditions"), "unschedulable"
    )
    controller = site.controller(pending_seconds=1.0)
    space.until(lambda: controller.incidents, "the incident opens")
    space.delete(path_of("batch/v1", "jobs", space.name, "wait"), propagationPolicy="Background")
    (incident,) = site.finished(controller)
    assert any("was not scheduled: Unschedulable" in text for text in site.texts(incident, "kubernetes/"))


def test_a_deadline(space: Any, site: Any) -> None:
    space.job("late", 1, activeDeadlineSeconds=3)
    controller = site.controller()
    (pod,) = space.pods("late")
    space.log(pod, "step 1")
    space.hold(pod)  # its grace period
    space.runs(pod)
    space.until(lambda: controller.readers.bytes, "its log is read")
    space.hold(pod, False)
    (incident,) = site.finished(controller)
    assert site.texts(incident) == ["step 1"]
    assert any("DeadlineExceeded" in text for text in site.texts(incident, "kubernetes/"))
    assert {row["event"] for row in site.rows("scheduler_events", incident)} <= {"cancelled", "teardown"}


def test_jobs_that_end_well_and_jobs_of_others_leave_nothing(space: Any, site: Any) -> None:
    space.job("good", 1)
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}}
    body = {"metadata": {"name": "cpu"}, "spec": {"backoffLimit": 0, "template": template}}
    space.api.json("POST", path_of("batch/v1", "jobs", space.name), None, body)
    (cpu,) = space.until(lambda: space.pods("cpu"), "pod of the job without GPU")
    controller = site.controller()
    (pod,) = space.pods("good")
    space.runs(pod)
    space.fails(pod, 0, "Completed", phase="Succeeded")
    space.fails(cpu)
    space.job("bad", 1)
    (bad,) = space.pods("bad")
    space.fails(bad)
    site.finished(controller)
    assert len(site.incidents()) == 1


def test_a_kind_that_is_installed_later_is_picked_up(space: Any, site: Any, pytorchjob: Any) -> None:
    controller = site.controller()
    pytorchjob.install()
    job, pods = pytorchjob.create(space, "llm", 2)
    for pod in pods:
        space.log(pod, f"hello from {_name(pod)}")
        space.runs(pod)
    space.fails(pods[1], 1)
    space.until(lambda: controller.counts["opened"], "the incident opens")
    pytorchjob.condition(space, "llm", "Failed", "PyTorchJobFailed")
    for pod in pods:
        space.delete(path_of("v1", "pods", space.name, _name(pod)))
    (incident,) = site.finished(controller)
    assert job["metadata"]["uid"] in incident
    ranks = {
        row["path"].split("/")[1]: row["rank"] for row in site.rows("log_lines", incident) if "pods/" in row["path"]
    }
    assert ranks == {"llm-master-0": 0, "llm-worker-0": 1}
    assert site.rows("incidents", incident)[0]["world_size"] == 2
    job = space.api.get(path_of("kubeflow.org/v1", "pytorchjobs", space.name, "llm"))
    assert job["metadata"]["annotations"][ANNOTATION].startswith("supported")
