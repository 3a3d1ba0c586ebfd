import re

import pytest

from analyzers.case import ROLES, Case, Observation
from analyzers.detectors import environment
from analyzers.detectors.environment import holds
from collector.data import lookup
from collector.model import LogLine

TABLE = lookup("known_bad")


def fact(place: str | int | None, name: str, value: str) -> dict:
    node, rank = (place, None) if isinstance(place, str) else (None, place)
    return {"node": node, "rank": rank, "name": name, "value": value, "path": f"{place}/env.txt", "line": 7}


def line(text: str, number: int = 1, rank: int | None = 0) -> LogLine:
    return LogLine(0, "rank0.log", number, 0, 0, None, rank, rank, None, "stderr", "rank", 5, 5, text)


def detect(rows: list[dict], lines: list[LogLine] | None = None, **tables: list) -> list[Observation]:
    return list(environment.detect(Case("i", lines=lines or [], tables={"environment": rows} | tables)))


def fleet(name: str, *values: str) -> list[dict]:
    return [fact(f"n{number}", name, value) for number, value in enumerate(values, 1)]


def test_the_odd_node_out_is_named_with_all_its_differences() -> None:
    rows = fleet("nccl", "2.21.5", "2.21.5", "2.18.1") + fleet("package:certifi", "1", "1", "2")
    rows += fleet("python", "3.11.7", "3.11.7", "3.11.7")
    (seen,) = detect(rows)
    assert (seen.signature, seen.role, seen.strength, seen.cause) == (
        "environment/odd-one-out", "initiating", 2, "environment",
    )  # fmt: skip
    assert (seen.node, seen.rank, seen.scope, seen.path, seen.line) == ("n3", None, "node", "n3/env.txt", 7)
    assert seen.text == "nccl: 2.18.1 (others: 2.21.5)"
    assert set(seen.detail["differences"]) == {"nccl", "package:certifi"}


@pytest.mark.parametrize(
    ("name", "role", "strength"),
    [
        ("torch", "initiating", 2),
        ("package:deepspeed", "initiating", 2),
        ("env:MASTER_ADDR", "initiating", 2),
        ("driver", "initiating", 1),
        ("env:NCCL_IB_HCA", "initiating", 1),
        ("package:certifi", "context", 1),
    ],
)
def test_how_much_a_difference_says(name: str, role: str, strength: int) -> None:
    assert [(s.role, s.strength) for s in detect(fleet(name, "1", "1", "2"))] == [(role, strength)]


@pytest.mark.parametrize("name", ["env:RANK", "env:LOCAL_RANK", "env:SLURM_PROCID", "env:CUDA_VISIBLE_DEVICES"])
def test_what_has_to_differ_is_not_compared(name: str) -> None:
    assert detect(fleet(name, "0", "0", "1")) == []


def test_two_that_differ_accuse_neither() -> None:
    (seen,) = detect(fleet("driver", "535.1", "550.2"))
    assert (seen.signature, seen.role, seen.node, seen.rank, seen.scope) == (
        "environment/not-uniform", "context", None, None, "job",
    )  # fmt: skip
    (seen,) = detect(fleet("torch", "2.1.0", "2.2.0"))
    assert (seen.role, seen.strength, seen.text) == ("initiating", 1, "node n1: 2.1.0; node n2: 2.2.0")


def test_ranks_are_compared_where_nodes_are_unknown() -> None:
    (seen,) = detect([fact(rank, "env:NCCL_ALGO", "Ring" if rank != 2 else "Tree") for rank in range(4)])
    assert (seen.rank, seen.node, seen.scope) == (2, None, "rank")


def test_files_of_one_name_in_several_folders_are_of_several_nodes() -> None:
    rows = [fact(None, "driver", "1" if part != "c" else "2") | {"path": f"{part}/collect_env.txt"} for part in "abc"]
    (seen,) = detect(rows)
    assert (seen.node, seen.scope, seen.path) == (None, "node", "c/collect_env.txt")
    assert seen.title == "folder c has another driver than the others"


def test_drivers_are_compared_through_the_gpu_state() -> None:
    gpus = [
        {"node": f"n{n}", "driver": "535.1" if n < 3 else "550.2", "path": f"n{n}/smi.xml", "line": 4}
        for n in (1, 2, 3)
    ]
    (seen,) = detect([], gpus=gpus)
    assert (seen.node, seen.path, seen.text) == ("n3", "n3/smi.xml", "driver: 550.2 (others: 535.1)")


def test_what_says_nothing() -> None:
    assert detect([]) == []
    assert detect(fleet("torch", "2.1.0", "2.1.0", "2.1.0")) == []
    unplaced = [fact(None, "torch", value) | {"path": f"env{value}.txt"} for value in ("1", "1", "2")]
    assert detect(unplaced) == []
    unclear = fleet("torch", "1", "1", "2") + [fact("n3", "torch", "1")]
    assert detect(unclear) == []
    assert detect([fact("n1", "package:a", "1"), fact("n2", "package:b", "1"), fact("n3", "package:c", "1")]) == []


INFLIGHT = "RuntimeError: still have inflight params [{'id': 723, 'status': 'AVAILABLE'}]"
PRINTED = "[2026-12-01 01:08:17,637] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed info: version={}, git-hash=x"


def test_a_known_bad_version_confirms_its_symptom() -> None:
    (seen,) = detect([fact("n1", "package:deepspeed", "0.14.4")], [line("ok"), line(INFLIGHT, 9)])
    assert (seen.signature, seen.role, seen.strength, seen.line, seen.rank) == (
        "environment/deepspeed-raises-inflight-params", "confirmation", 2, 9, None,
    )  # fmt: skip
    assert seen.detail["facts"] == {"package:deepspeed": "0.14.4"} and seen.detail["fix"] and seen.at_lo == 5


def test_the_version_may_come_from_the_log() -> None:
    assert [s.line for s in detect([], [line(PRINTED.format("0.14.4")), line(INFLIGHT, 9)])] == [9]
    assert detect([], [line(PRINTED.format("0.15.3")), line(INFLIGHT, 9)]) == []


def test_without_its_symptom_a_version_accuses_nobody() -> None:
    assert detect([fact("n1", "package:deepspeed", "0.14.4")], [line("KeyError: 'labels'")]) == []
    assert detect([], [line(INFLIGHT)]) == []


@pytest.mark.parametrize("combination", TABLE["combinations"], ids=lambda entry: entry["id"])
def test_every_combination_keeps_to_its_examples(combination: dict) -> None:
    def signatures(facts: dict) -> list[str]:
        rows = [fact("n1", name, value) for name, value in facts.items()]
        return [s.signature for s in detect(rows, [line(combination["symptom"][0])])]

    assert combination["fix"] and combination["title"]
    for facts in combination["match"]:
        assert combination["id"] in signatures(facts), facts
    for facts in combination["no_match"]:
        assert combination["id"] not in signatures(facts), facts


def test_every_printed_version_is_found_in_its_example() -> None:
    for entry in TABLE["printed"]:
        match = re.search(entry["regex"], entry["example"])
        assert match is not None and match["value"] and entry["needs"] in entry["example"]
    assert {rule["role"] for rule in TABLE["compare"]} - {"ignore"} <= set(ROLES)


@pytest.mark.parametrize(
    ("condition", "value", "met"),
    [
        (">=0.6.0,<0.15.3", "0.15.2", True),
        (">=0.6.0,<0.15.3", "0.15.3", False),
        (">=2.0", "2", True),
        ("==2.13.0", "2.13.0+cpu", True),
        ("<2.3", "2.10.1", False),
        (">=2.4", "2.4.0a0+07cecf4168.nv24.05", True),
        ("=DETAIL", "DETAIL", True),
        ("=DETAIL", "DETAILS", False),
        (">=1", "unknown", False),
    ],
)
def test_conditions(condition: str, value: str, met: bool) -> None:
    assert holds(condition, value) is met
