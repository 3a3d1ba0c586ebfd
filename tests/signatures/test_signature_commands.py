"""`firstfault signatures`: what a person reads, in eighty columns, and the exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from analyzers.signatures import load
from analyzers.signatures_cli import signatures


def run(*arguments: str) -> Result:
    return CliRunner().invoke(signatures, arguments)


def test_list_is_complete_aligned_and_narrow() -> None:
    result = run("list")
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert [row.split()[0] for row in rows] == list(load().by_id)
    assert len({row.index(row.split()[1], len(row.split()[0])) for row in rows}) == 1
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_list_filters_and_speaks_json() -> None:
    result = run("list", "--family", "gloo", "--role", "cascade", "--cause", "user_code", "--json")
    assert [s["id"] for s in json.loads(result.stdout)] == ["gloo/collective-mismatch"]
    assert run("list", "--family", "gloo", "--cause", "gpu").stdout == ""


@pytest.mark.parametrize("identity", ["deepspeed/zero3-inflight-params", "zero3-inflight-params", "inflight"])
def test_show_accepts_an_unambiguous_part(identity: str) -> None:
    result = run("show", identity)
    assert result.exit_code == 0
    assert "deepspeed/zero3-inflight-params" in result.stdout
    assert "Upgrade to DeepSpeed >= 0.15.3." in result.stdout


def test_show_takes_a_whole_name_before_a_part_of_another() -> None:
    assert "gpu/xid-13  (stable)" in run("show", "xid-13").stdout


def test_every_page_is_narrow_except_what_must_not_be_broken() -> None:
    for identity, signature in load().by_id.items():
        result = run("show", identity)
        whole = [p.regex for p in signature.patterns] + list(signature.references)
        for line in result.stdout.splitlines():
            assert len(line) <= 80 or line.removeprefix("  - ") in whole or " " not in line.strip(" -")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "gremlin"), "No signature has 'gremlin' in its id"),
        (("show", "xid"), "signatures have 'xid' in their id: gpu/"),
        (("list", "--family", "gremlin"), "There is no family 'gremlin'. Families: "),
        (("compare", "gremlin"), "There is no family 'gremlin'. Families: "),
        (("list", "--role", "guilty"), "'guilty' is not one of"),
    ],
)
def test_a_wrong_name_is_a_sentence_and_status_2(arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr and result.stdout == ""


def test_check_passes_ours_and_fails_a_broken_folder(tmp_path: Path) -> None:
    assert run("check").exit_code == 0
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "x.yaml").write_text(yaml.safe_dump({"title": "nothing else"}))
    result = run("check", str(tmp_path))
    assert result.exit_code == 1
    assert "site/x.yaml" in result.stderr and "1 problem in" in result.stderr and result.stdout == ""
    result = run("--extra", str(tmp_path), "list")
    assert result.exit_code == 1 and "site/x.yaml" in result.stderr


def test_compare_sets_confusable_signatures_side_by_side() -> None:
    result = run("compare", "gloo")
    assert result.exit_code == 0
    heads = [line for line in result.stdout.splitlines() if line.startswith("gloo/collective-mismatch")]
    assert len(heads) == 1 and heads[0].endswith("| torch/collective-mismatch")
    assert max(map(len, result.stdout.splitlines())) <= 80
