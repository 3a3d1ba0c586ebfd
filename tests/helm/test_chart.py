"""The chart without a cluster: lint, schema of the values, snapshots, schemas of Kubernetes versions, hardening."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from collector.data import lookup

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "firstfault"
SNAPSHOTS = Path(__file__).parent / "snapshots"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
VERSIONS = ("1.28", "1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")


def _render(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm_python.Chart.load(str(CHART)) as chart:
        rendered = chart.render(values, name="firstfault", namespace="monitoring")
    return [
        item
        for path, text in sorted(rendered.items())
        if path.endswith(".yaml")
        for item in yaml.safe_load_all(text)
        if item
    ]


def _values(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.name)
def test_lint_finds_nothing(file: Path) -> None:
    report = helm_python.lint(str(CHART), _values(file), strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] >= 2] == []


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.name)
def test_rendered_objects_are_those_of_the_snapshot(file: Path) -> None:
    text = yaml.safe_dump_all(_render(_values(file)), sort_keys=True, width=120)
    snapshot = SNAPSHOTS / file.name.replace("-values", "")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(text)
    assert text == snapshot.read_text(), "UPDATE_SNAPSHOTS=1 writes them anew, to be looked at in the diff"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schemas_of_the_version(version: str) -> None:
    for file in VALUES:
        for item in _render(_values(file)):
            if item["kind"] != "ServiceMonitor":
                kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "store.uri is required"),
        ({"store": {"uri": "ftp://somewhere"}}, "uri"),
        ({"store": {"uri": "s3://b"}, "contoller": {}}, "contoller"),
        ({"store": {"uri": "s3://b"}, "controller": {"replicas": 0}}, "replicas"),
        ({"store": {"uri": "s3://b"}, "controller": {"spoolSize": "many"}}, "spoolSize"),
        ({"store": {"uri": "s3://b"}, "image": {"digest": "latest"}}, "digest"),
    ],
)
def test_wrong_values_are_refused_in_words(values: dict[str, Any], complaint: str) -> None:
    with helm_python.Chart.load(str(CHART)) as chart, pytest.raises(helm_python.HelmError) as refused:
        chart.validate_schema(chart.merge_values(values))
        chart.render(values, name="firstfault", namespace="monitoring")
    assert complaint in str(refused.value)


def _pods(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for item in _render(_values(file)):
        spec = item.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield item["kind"], spec["template"]["spec"]


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.name)
def test_pods_are_hardened(file: Path) -> None:
    for kind, pod in _pods(file):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"].get("runAsNonRoot") or kind == "DaemonSet"
        assert not pod.get("hostNetwork") and not pod.get("hostPID")
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
            assert security["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]
        for volume in pod.get("volumes", []):
            assert "hostPath" not in volume or kind == "DaemonSet"


def test_no_role_may_read_secrets_and_none_uses_wildcards() -> None:
    for file in VALUES:
        for item in _render(_values(file)):
            for rule in item.get("rules", []) if item["kind"] in ("Role", "ClusterRole") else []:
                assert "secrets" not in rule["resources"]
                assert "*" not in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]]


def test_the_roles_name_each_kind_of_the_table() -> None:
    rules = [rule for item in _render({"store": {"uri": "s3://b"}}) for rule in item.get("rules", [])]
    for row in lookup("job_kinds")["kinds"]:
        for group in row["groups"]:
            assert any(group in rule["apiGroups"] and row["plural"] in rule["resources"] for rule in rules), row["kind"]


def test_every_option_that_the_chart_gives_is_one_of_the_program() -> None:
    import click

    from analyzers.cli import cli

    for file in VALUES:
        for _, pod in _pods(file):
            for container in pod["containers"]:
                words = container["args"]
                command: click.Command = cli
                while isinstance(command, click.Group):
                    found = command.get_command(click.Context(command), words[0])
                    assert found is not None, words
                    command, words = found, words[1:]
                names = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
                assert {word.partition("=")[0] for word in words} <= names, container["args"]


def test_the_configuration_in_the_config_map_is_one_that_the_program_takes(tmp_path: Path) -> None:
    from collector.config import load

    for file in VALUES:
        (config,) = [
            item["data"]["firstfault.toml"]
            for item in _render(_values(file))
            if item["kind"] == "ConfigMap" and "firstfault.toml" in item["data"]
        ]
        path = tmp_path / file.name
        path.write_text(config)
        loaded = load(path)
        assert loaded.store.uri == _values(file)["store"]["uri"]
        assert loaded.store.options == _values(file)["store"].get("options", {})


def test_the_readme_lists_every_value_with_its_default() -> None:
    text = (CHART / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `([^\n]*?)` \|", text, re.MULTILINE))
    assert rows == dict(_leaves(yaml.safe_load((CHART / "values.yaml").read_text())))


def _leaves(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        whole = isinstance(value, dict) and value and key not in ("resources", "labels")
        if whole:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", json.dumps(value)
