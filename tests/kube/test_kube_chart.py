"""The chart in the real API server, and the controller with exactly the rights that the chart gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.kube_api import Api, Refused, path_of
from collector.kube_finish import ANNOTATION
from collector.kube_jobs import kinds

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "firstfault"
CASE = ROOT / "tests" / "cases" / "a01_keyerror_one_rank_4r"
VALUES = {"store": {"uri": "s3://evidence/test"}}


@pytest.fixture(scope="module")
def release(cluster: Any) -> Iterator[dict[str, Any]]:
    """A release of the chart with nothing given but the store, and a connection as its service account."""
    import helm_python

    cluster.api().json("POST", path_of("v1", "namespaces"), None, {"metadata": {"name": "ff"}})
    with helm_python.Config(kubeconfig_path=cluster.folder / "admin.kubeconfig", namespace="ff") as helm:
        made = helm.install(str(CHART), "firstfault", VALUES, namespace="ff")
        objects = [each for each in yaml.safe_load_all(made["manifest"]) if each]
        account = next(each for each in objects if each["kind"] == "ServiceAccount")["metadata"]["name"]
        body = {"spec": {"expirationSeconds": 3600, "audiences": []}}
        path = path_of("v1", "serviceaccounts", "ff", account) + "/token"
        token = cluster.api().json("POST", path, None, body)["status"]["token"]
        cluster.kubeconfig("chart", f"token: {token}")
        yield {"objects": objects, "api": cluster.api("chart")}
        helm.uninstall("firstfault")


def _allowed(api: Api, verb: str, group: str, resource: str, namespace: str | None = None, name: str = "") -> bool:
    resource, _, sub = resource.partition("/")
    asked = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": sub,
        "namespace": namespace or "",
        "name": name,
    }
    body = {"spec": {"resourceAttributes": asked}}
    path = path_of("authorization.k8s.io/v1", "selfsubjectaccessreviews")
    return bool(api.json("POST", path, None, body)["status"]["allowed"])


def test_the_account_may_do_what_the_controller_does_and_nothing_else(release: Any, space: Any) -> None:
    api = release["api"]
    for kind in kinds():
        for group in kind.groups:
            assert _allowed(api, "get", group, kind.plural, space.name), kind
            assert _allowed(api, "patch", group, kind.plural, space.name), kind
            assert not _allowed(api, "update", group, kind.plural, space.name), kind
            assert not _allowed(api, "delete", group, kind.plural, space.name), kind
    forbidden = [
        ("get", "", "secrets"), ("list", "", "secrets"), ("get", "", "configmaps"), ("create", "", "pods"),
        ("delete", "", "pods"), ("patch", "", "pods"), ("update", "", "pods"), ("create", "", "pods/exec"),
        ("create", "", "pods/attach"), ("update", "", "pods/ephemeralcontainers"), ("delete", "", "events"),
        ("create", "batch", "jobs"), ("create", "rbac.authorization.k8s.io", "roles"),
    ]  # fmt: skip
    for verb, group, resource in forbidden:
        assert not _allowed(api, verb, group, resource, space.name), (verb, resource)
    for verb, group, resource in (("list", "", "nodes"), ("patch", "", "nodes"), ("list", "", "namespaces")):
        assert not _allowed(api, verb, group, resource), (verb, resource)
    assert _allowed(api, "update", "coordination.k8s.io", "leases", "ff", "firstfault")
    assert not _allowed(api, "update", "coordination.k8s.io", "leases", "ff", "another")
    assert not _allowed(api, "update", "coordination.k8s.io", "leases", space.name, "firstfault")
    with pytest.raises(Refused):
        api.get(path_of("v1", "secrets", space.name))
    with pytest.raises(Refused):
        api.json("DELETE", path_of("v1", "pods", space.name, "any"))


def test_a_real_failure_gets_its_verdict_with_the_rights_of_the_chart(
    release: Any, space: Any, site: Any, pytorchjob: Any
) -> None:
    label = json.loads((CASE / "scenario.json").read_text())
    pytorchjob.install()
    _, pods = pytorchjob.create(space, "train", label["world_size"])
    (container,) = next(each for each in release["objects"] if each["kind"] == "Deployment")["spec"]["template"][
        "spec"
    ]["containers"]
    options = [each for each in container["args"][1:] if not each.startswith(("--config", "--spool", "--listen"))]
    for rank, pod in enumerate(pods):
        folder = CASE / "tee" / "ranks" / "attempt_0" / str(rank)
        space.log(pod, (folder / "stdout.log").read_text() + (folder / "stderr.log").read_text())
        space.runs(pod)
    site.process(*options, user="chart")
    culprit = label["ground_truth"]["initiating_ranks"][0]
    space.fails(pods[culprit], 1)
    for rank, pod in enumerate(pods):
        if rank != culprit:
            space.fails(pod, 134)
    pytorchjob.condition(space, "train", "Failed", "PyTorchJobFailed")

    path = path_of("kubeflow.org/v1", "pytorchjobs", space.name, "train")

    def said() -> str:
        return str((space.api.get(path)["metadata"].get("annotations") or {}).get(ANNOTATION, ""))

    space.until(said, lambda: (site.folder / "watch.log").read_text()[-3000:], 100)
    assert "KeyError" in said() and f"[rank {culprit}]" in said(), said()
    (event,) = [e for _, e in space.api.list(path_of("v1", "events", space.name)) if e and e["reason"] == "FirstFault"]
    assert event["message"] == said()
    (incident,) = site.incidents()
    (summary,) = site.rows("incidents", incident)
    assert summary["world_size"] == label["world_size"]
    outcomes = {row["outcome"] for row in site.rows("ledger", incident) if row["source"] not in ("expected", "collect")}
    assert outcomes == {"collected"}


def test_every_object_of_every_set_of_values_is_taken_by_the_server(cluster: Any, release: Any) -> None:
    import helm_python

    for file in sorted((CHART / "ci").glob("*-values.yaml")):
        values = yaml.safe_load(file.read_text())
        for namespace in values.get("controller", {}).get("namespaces", []):
            try:
                cluster.api().json("POST", path_of("v1", "namespaces"), None, {"metadata": {"name": namespace}})
            except Exception as error:
                assert "exists" in str(error)
        with helm_python.Chart.load(str(CHART)) as chart:
            rendered = chart.render(values, name=f"r{abs(hash(file.name)) % 999}", namespace="ff")
        for path, text in rendered.items():
            for item in yaml.safe_load_all(text) if path.endswith(".yaml") else []:
                if item and item["apiVersion"] != "monitoring.coreos.com/v1":
                    _dry_run(cluster.api(), item)


def _dry_run(api: Api, item: dict[str, Any]) -> None:
    # the server of the tests is of 1.20, where two kinds have not left beta yet; their fields are the same
    older = {"CronJob": "batch/v1beta1", "PodDisruptionBudget": "policy/v1beta1"}
    version = older.get(item["kind"], item["apiVersion"])
    plural = {"NetworkPolicy": "networkpolicies"}.get(item["kind"], item["kind"].lower() + "s")
    namespaced = item["kind"] not in ("ClusterRole", "ClusterRoleBinding")
    namespace = item["metadata"].get("namespace", "ff") if namespaced else None
    api.json("POST", path_of(version, plural, namespace), {"dryRun": "All"}, {**item, "apiVersion": version})
