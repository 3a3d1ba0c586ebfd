"""What objects say, without a cluster: jobs, failures, whose log it is, what is masked, when an incident is over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from collector.kube_api import Conflict, Gone, NotFound, Unavailable, error_of, path_of, resource_of
from collector.kube_evidence import exit_rows, masked, place_of, world_size
from collector.kube_incident import Incident, incident_id
from collector.kube_jobs import JobRef, JobState, Kind, kind_of, kinds, state_of
from collector.kube_metrics import exposition
from collector.kube_pods import failures, micros, runs_of, view
from collector.kube_settings import Settings
from collector.kube_ship import lines_of
from collector.model import Origin
from collector.sources.kube_pod import Capped

JOB = kind_of("batch/v1", "Job")
assert JOB is not None


def _pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "train-0", "namespace": "ns", "uid": "u1", **status.pop("metadata", {})},
        "spec": {"nodeName": "gpu-a", "containers": [{"name": "main", **status.pop("container", {})}]},
        "status": {"phase": "Running", **status},
    }


def _state(state: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "restartCount": 0, "state": state, **more}]


def _ended(code: int, reason: str = "Error", **more: Any) -> list[dict[str, Any]]:
    return _state({"terminated": {"exitCode": code, "reason": reason, **more}})


RUNS = _state({"running": {}})
AGAIN = _state({"running": {}}, restartCount=2, lastState={"terminated": {"exitCode": 9}})
GOING = {"deletionTimestamp": "2026-12-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
PREEMPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
COMPLETED = {"status": {"conditions": [{"type": "Completed", "status": "True"}]}}


@pytest.mark.parametrize(
    ("pod", "kinds_seen"),
    [
        (_pod(containerStatuses=_state({"running": {}})), []),
        (_pod(phase="Succeeded", containerStatuses=_ended(0, "Completed")), []),
        (_pod(phase="Failed", containerStatuses=_ended(1)), ["exit"]),
        (_pod(phase="Succeeded", containerStatuses=_ended(0, "OOMKilled")), ["oom"]),
        (_pod(containerStatuses=AGAIN), ["restart"]),
        (_pod(phase="Pending", containerStatuses=_state({"waiting": {"reason": "ErrImagePull"}})), ["never_ran"]),
        (_pod(phase="Pending", containerStatuses=_state({"waiting": {"reason": "ContainerCreating"}})), []),
        (_pod(phase="Failed", reason="Evicted", message="low on memory"), ["evicted"]),
        (_pod(phase="Failed", reason="NodeLost"), ["lost"]),
        (_pod(phase="Failed", reason="DeadlineExceeded"), ["failed"]),
        (_pod(conditions=PREEMPTED), ["evicted"]),
        (_pod(metadata=GOING, containerStatuses=RUNS), ["deleted"]),
        (_pod(metadata=GOING, containerStatuses=_ended(0)), []),
    ],
)  # fmt: skip
def test_signs_of_failure(pod: dict[str, Any], kinds_seen: list[str]) -> None:
    assert [failure.kind for failure in failures(pod)] == kinds_seen


@pytest.mark.parametrize(
    ("version", "kind", "job", "phase"),
    [
        ("batch/v1", "Job", {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, "failed"),
        ("batch/v1", "Job", {"status": {"conditions": [{"type": "Failed", "status": "False"}]}}, "running"),
        ("batch/v1", "Job", {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, "succeeded"),
        ("batch/v1", "Job", {"metadata": {"deletionTimestamp": "x"}}, "deleted"),
        ("batch.volcano.sh/v1alpha1", "Job", {"status": {"state": {"phase": "Aborted"}}}, "failed"),
        ("ray.io/v1", "RayJob", {"status": {"jobStatus": "FAILED"}}, "failed"),
        ("ray.io/v1", "RayJob", {"status": {"jobStatus": "SUCCEEDED"}}, "succeeded"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", COMPLETED, "succeeded"),
        ("argoproj.io/v1alpha1", "Workflow", {"status": {"phase": "Error"}}, "failed"),
    ],
)  # fmt: skip
def test_states_of_jobs(version: str, kind: str, job: dict[str, Any], phase: str) -> None:
    row = kind_of(version, kind)
    assert row is not None
    assert state_of(row, job).phase == phase


def test_the_same_kind_in_two_groups_is_two_kinds() -> None:
    volcano = kind_of("batch.volcano.sh/v1alpha1", "Job")
    assert volcano is not None and volcano != JOB
    assert kind_of("example.org/v1", "Job") is None
    assert len({(row.kind, row.groups) for row in kinds()}) == len(kinds())


def _ranked(kind: Kind, pod: dict[str, Any], processes: int | None = None) -> int | None:
    return place_of(kind, pod, 0, processes, True).rank


def test_a_rank_is_only_taken_where_one_process_runs_in_a_pod() -> None:
    index = {"labels": {"batch.kubernetes.io/job-completion-index": "3"}}
    one = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    assert _ranked(JOB, _pod(metadata=index, container=one)) == 3
    assert _ranked(JOB, _pod(metadata=index, container={"resources": {"limits": {"nvidia.com/gpu": "8"}}})) is None
    assert _ranked(JOB, _pod(metadata=index, container={**one, "command": ["torchrun", "train.py"]})) is None
    assert _ranked(JOB, _pod(metadata=index, container=one), 8) is None
    mpi = kind_of("kubeflow.org/v2beta1", "MPIJob")
    assert mpi is not None
    launcher = {"labels": {"training.kubeflow.org/job-role": "launcher", "training.kubeflow.org/replica-index": "0"}}
    assert _ranked(mpi, _pod(metadata=launcher, container={})) is None


def test_pods_that_share_a_node_are_told_apart_by_their_names() -> None:
    assert place_of(JOB, _pod(), 0, None, True).node == "gpu-a"
    assert place_of(JOB, _pod(), 0, None, False).node == "train-0"


def test_world_size() -> None:
    pytorch = kind_of("kubeflow.org/v1", "PyTorchJob")
    assert pytorch is not None
    job = {"spec": {"nprocPerNode": "8", "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}}
    assert world_size(pytorch, job, []) == 32
    assert world_size(JOB, {"spec": {"parallelism": 4}}, [_pod()]) == 4
    assert world_size(JOB, {"spec": {"parallelism": 4}}, [_pod(container={"args": ["torchrun x"]})]) is None
    assert world_size(JOB, None, []) is None


def test_values_of_the_environment_are_masked_but_for_those_of_the_field() -> None:
    env = [{"name": "AWS_SECRET_ACCESS_KEY", "value": "s3cr3t"}, {"name": "NCCL_DEBUG", "value": "INFO"}]
    item = _pod(container={"env": env}, metadata={"managedFields": [1], "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": "s3cr3t", "team": "a"}})  # fmt: skip
    text = str(masked(item))
    assert "s3cr3t" not in text and "INFO" in text and "managedFields" not in text and "'team': 'a'" in text
    assert "s3cr3t" in str(item), "the object itself stays"


def test_a_container_that_ends_after_its_pod_was_told_to_go_was_stopped() -> None:
    ended = _ended(143, finishedAt="2026-12-01T00:00:05Z")
    going = _pod(phase="Failed", containerStatuses=ended, metadata=GOING)
    alone = _pod(phase="Failed", containerStatuses=ended)
    assert [row["event"] for row in exit_rows(going, failures(going), Origin())] == ["teardown"]
    (row,) = exit_rows(alone, failures(alone), Origin())
    assert (row["event"], row["signal"], row["code"]) == ("signal", 15, 143)


def test_times() -> None:
    assert micros("2026-12-01T00:00:00.123456Z") == 1796083200123456
    assert micros("nonsense") is None and micros(None) is None


def _incident(pod: dict[str, Any]) -> Incident:
    made = Incident(JobRef(JOB, "batch/v1", "ns", "train", "j1"), 0, "i", 1000.0, quiet_since=1000.0)
    made.update(pod, 1000.0)
    return made


def test_an_incident_ends_when_its_job_does_and_its_logs_are_read() -> None:
    settings = Settings(drain_seconds=60.0)
    pod = _pod(
        phase="Failed", containerStatuses=_state({"terminated": {"exitCode": 1, "finishedAt": "2026-12-01T00:00:05Z"}})
    )
    incident = _incident(pod)
    (part,) = incident.due(1000.0)
    incident.state = JobState("failed")
    assert incident.ending({}, 1001.0, settings) is None, "its log is still due"
    part.state = "reading"
    incident.done(part, complete=True, again=False, size=10, now=1002.0)
    assert incident.ending({}, 1002.0, settings) == "failed"


def test_a_part_whose_pod_does_not_answer_is_asked_again_a_few_times_and_then_given_up() -> None:
    pod = _pod(phase="Failed", containerStatuses=_state({"terminated": {"exitCode": 1}}))
    incident = _incident(pod)
    (part,) = incident.due(1000.0)
    now = 1000.0
    for _ in range(20):
        if part.state != "due":
            break
        part.state = "reading"
        incident.done(part, complete=False, again=True, size=0, now=now)
        assert part.state != "due" or part.not_before > now
        now = part.not_before
    assert part.state == "gone" and part.settled


def test_a_running_container_that_ends_while_it_was_read_is_read_once_more() -> None:
    incident = _incident(_pod(containerStatuses=_state({"running": {}})))
    (part,) = incident.due(1000.0)
    part.state = "reading"
    incident.update(_pod(phase="Failed", containerStatuses=_state({"terminated": {"exitCode": 1}})), 1001.0)
    incident.done(part, complete=True, again=False, size=5, now=1002.0)
    assert part.state == "due"
    part.state = "reading"
    incident.done(part, complete=True, again=False, size=9, now=1003.0)
    assert part.state == "final"


def test_an_incident_id_is_safe_as_a_name() -> None:
    job = JobRef(JOB, "batch/v1", "ns", "train", "0a1b")
    assert incident_id("c1", job, 2) == "k8s-c1-ns-0a1b-2"
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", incident_id("prod/eu west", job, 2))


def test_a_log_larger_than_its_cap_keeps_head_and_tail(tmp_path: Path) -> None:
    stored = Capped(tmp_path / "log", 4000)
    for number in range(10_000):
        stored.write(b"%08d\n" % number)
    gap = stored.close()
    content = (tmp_path / "log").read_bytes()
    assert gap is not None and gap[0] == 2000
    assert content.startswith(b"00000000\n00000001\n") and content.endswith(b"00009998\n00009999\n")
    assert len(content) <= 4001 and stored.seen == 90_000
    small = Capped(tmp_path / "small", 4000)
    small.write(b"x" * 3999)
    assert small.close() is None and (tmp_path / "small").stat().st_size == 3999


def test_lines_of_a_log_are_numbered_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.kube_ship.BLOCK", 1000)
    path = tmp_path / "log"
    texts = [f"line {number}" for number in range(500)]
    path.write_text("".join(f"2026-12-01T00:00:00.{n:09d}Z {text}\n" for n, text in enumerate(texts)))
    rows = list(lines_of(path, "pods/x/main/0.log", Origin("gpu-a", 3, attempt=1)))
    assert [row.text for row in rows] == texts
    assert [row.line for row in rows] == list(range(1, 501))
    data = path.read_bytes()
    assert all(data[row.offset :].split(b"\n", 1)[0].decode().endswith(row.text) for row in rows)
    assert {(row.node, row.rank, row.attempt) for row in rows} == {("gpu-a", 3, 1)}


def test_errors_of_the_api_by_their_kind() -> None:
    kinds_seen = [type(error_of(status, b'{"message": "why"}')) for status in (404, 409, 410, 429, 500, 0)]
    assert kinds_seen == [NotFound, Conflict, Gone, Unavailable, Unavailable, Unavailable]
    assert error_of(404, b'{"message": "pods x not found"}').message == "pods x not found"
    assert error_of(500, b"\xff plain").status == 500


def test_paths_and_what_they_are_about() -> None:
    assert path_of("v1", "pods", "ns", "a b") == "/api/v1/namespaces/ns/pods/a%20b"
    assert path_of("batch/v1", "jobs") == "/apis/batch/v1/jobs"
    assert resource_of("/api/v1/namespaces/ns/pods/x/log") == "pods/log"
    assert resource_of("/apis/batch/v1/namespaces/ns/jobs/x") == "jobs"
    assert resource_of("/api/v1/namespaces/ns") == "namespaces"
    assert resource_of("/api/v1/nodes/gpu-a") == "nodes"


def test_runs_and_views_of_odd_pods() -> None:
    assert list(runs_of({})) == []
    assert view({"metadata": {}}).runs == ()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}
    assert view(_pod(metadata={"ownerReferences": [owner]})).owner == ("batch/v1", "Job", "j", "u")


def test_a_replica_that_waits_says_so() -> None:
    assert "firstfault_leader 0" in exposition(None)
