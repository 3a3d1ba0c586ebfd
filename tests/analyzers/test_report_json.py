"""The JSON report: a hand-written check pins schema 1. A change that fails here is a change of the contract."""

import json
import math
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.case import CAUSES, ROLES, SCOPES
from analyzers.report import json as report

EXAMPLES = runpy.run_path(str(Path(__file__).parent / "data" / "report" / "examples.py"))
NAMES = ("exception", "node_lost", "hang", "healthy", "symmetric", "hostile")

STATUS = {"established", "supported", "suspected", "undetermined", "no_failure"}
CITE = {"path": (str, None), "line": (int, None), "rank": (int, None), "text": (str, None)}
# The whole contract: key -> allowed types (None = null), a set = closed list, [x] = list of x, {..} = object with
# exactly these keys in this order.
SCHEMA = {
    "schema": {1},
    "incident": {"id": (str, None), "scheduler": {"local", "slurm", "kubernetes"}, "world_size": (int, None),
                 "attempts": (int, None)},
    "verdict": {
        "status": STATUS, "signature": (str, None), "cause": set(CAUSES), "title": (str, None),
        "scope": {*SCOPES, None}, "ranks": [(int,)], "nodes": [(str,)], "at": (str, None), "when_text": (str, None),
        "why": (str, None), "evidence": [CITE], "fix": [(str,)], "verify": [(str,)], "resume_from": (dict, None),
        "missing": [(str,)], "reference": [(str,)],
    },
    "candidates": [{"rank": (int, None), "ranks": [(int,)], "node": (str, None), "signature": (str, None),
                    "title": (str, None), "cause": set(CAUSES), "score": (int, float, None),
                    "reasons": [(str,)], "evidence": (dict, None)}],
    "collateral": [{"signature": (str, None), "title": (str, None), "role": {*ROLES, None},
                    "ranks": [(int,)], "count": (int, None), "explained_by": (str, None), "evidence": (dict, None)}],
    "ledger": {"expected": (int, None), "collected": (int, None), "gaps": [(str, dict)]},
    "details": (dict, None),
}  # fmt: skip


def violations(value, schema, at="$"):
    if isinstance(schema, dict):
        if not isinstance(value, dict) or list(value) != list(schema):
            return [f"{at}: keys {list(value) if isinstance(value, dict) else value!r}"]
        return [v for key, inner in schema.items() for v in violations(value[key], inner, f"{at}.{key}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{at}: no list"]
        return [v for n, item in enumerate(value) for v in violations(item, schema[0], f"{at}[{n}]")]
    if isinstance(schema, set):
        return [] if value in schema else [f"{at}: {value!r} not in {schema}"]
    fits = (value is None and None in schema) or type(value) in schema
    return [] if fits else [f"{at}: {value!r} is no {schema}"]


@pytest.mark.parametrize("name", NAMES)
def test_the_contract(name):
    assert violations(json.loads(report.dumps(EXAMPLES[name]())), SCHEMA) == []


def test_an_empty_diagnosis_has_every_key():
    assert violations(json.loads(report.dumps({})), SCHEMA) == []
    assert violations(json.loads(report.dumps({"verdict": None, "candidates": None, "ledger": 3})), SCHEMA) == []


def test_the_check_itself_finds_what_is_wrong():
    good = json.loads(report.dumps(EXAMPLES["exception"]()))
    for key, bad in (("status", "sure"), ("cause", "cosmic_ray"), ("ranks", ["2"]), ("title", 3)):
        broken = good | {"verdict": good["verdict"] | {key: bad}}
        assert len(violations(broken, SCHEMA)) == 1, key
    assert violations(good | {"more": 1}, SCHEMA)
    assert violations(dict(reversed(good.items())), SCHEMA)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost(name):
    diagnosis = EXAMPLES[name]()
    loaded = json.loads(report.dumps(diagnosis))

    def contained(part, whole):
        if isinstance(part, dict):
            return all(contained(item, whole[key]) for key, item in part.items())
        if isinstance(part, list):
            return len(part) == len(whole) and all(map(contained, part, whole))
        return part == whole

    assert contained(diagnosis, loaded)


def test_layout():
    written = report.dumps(EXAMPLES["hostile"]())
    assert written.startswith('{\n  "schema": 1,\n  "incident": {\n    "id": ') and written.endswith("}\n")
    assert report.dumps({"verdict": {"title": "über 漢字"}}).count("über 漢字") == 1
    written.encode("utf-8")
    assert not {c for c in written if c != "\n" and not c.isprintable()}


def test_keys_of_later_versions_follow_those_of_the_contract():
    loaded = json.loads(report.dumps({"zeta": 1, "schema": 1, "verdict": {"new": 2, "status": "suspected"}}))
    assert list(loaded)[-1] == "zeta" and list(loaded["verdict"])[-1] == "new"
    assert loaded["verdict"]["status"] == "suspected"


def test_references_of_the_signature_are_the_reference_of_the_verdict():
    verdict = json.loads(report.dumps({"verdict": {"references": ["https://example.org"]}}))["verdict"]
    assert verdict["reference"] == ["https://example.org"] and "references" not in verdict


def test_numbers_and_types_that_json_does_not_have():
    loaded = json.loads(
        report.dumps({"details": {"seconds": math.nan, "root": Path("a/b"), "pair": (1, math.inf)}}),
        parse_constant=lambda name: pytest.fail(name),
    )
    assert loaded["details"] == {"seconds": None, "root": "a/b", "pair": [1, None]}


@given(st.text())
def test_any_text_survives(text):
    # Two lone surrogates that make a pair are read back as the character they stand for, as in any JSON.
    wanted = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    written = report.dumps({"verdict": {"why": text}})
    assert json.loads(written.encode("utf-8"))["verdict"]["why"] == wanted
