import re

import pytest

from analyzers.case import CAUSES, ROLES, Case, Observation
from analyzers.detectors import gpu_state
from collector.data import lookup

TABLE = lookup("gpu_state")


def gpu(node: str | None = "n1", index: int | None = 0, **more: object) -> dict:
    pci = None if index is None else f"0000:{0x10 + index:02x}:00.0"
    return {"node": node, "index": index, "pci": pci, "path": f"{node}/smi.xml", "line": 8, "throttle": []} | more


def detect(rows: list[dict], ranks: list[dict] | None = None) -> list[Observation]:
    return list(gpu_state.detect(Case("i", tables={"gpus": rows, "ranks": ranks or []})))


def short(seen: list[Observation]) -> list[tuple]:
    return [(s.signature, s.role, s.strength) for s in seen]


def test_a_lost_gpu_is_decisive_and_belongs_to_its_rank() -> None:
    lost = "Unable to determine the device handle for GPU 0000:12:00.0: GPU is lost."
    rows = [gpu(index=0), gpu(index=1), gpu(index=None, pci="0000:12:00.0", error=lost)]
    ranks = [{"rank": 8 + i, "node": "n1", "local_rank": i, "device": f"0000:{0x10 + i:02x}:00.0"} for i in range(3)]
    (seen,) = detect(rows, ranks)
    assert (seen.signature, seen.role, seen.strength, seen.cause) == ("gpu/device-lost", "initiating", 3, "gpu")
    assert (seen.rank, seen.node, seen.device, seen.issuer, seen.source) == (
        10, "n1", "0000:12:00.0", "driver", "gpu_state",
    )  # fmt: skip
    assert seen.at_lo is None and seen.path == "n1/smi.xml" and "GPU is lost" in seen.text


@pytest.mark.parametrize(
    ("error", "signature", "strength"),
    [
        ("ERR!", "gpu/unreadable", 2),
        ("GPU requires reset", "gpu/reset-required", 2),
        ("Failed to initialize NVML: Driver/library version mismatch", "gpu/nvml-mismatch", 2),
        ("No devices were found", "gpu/nvml-init-failed", 1),
    ],
)
def test_each_message_has_its_meaning(error: str, signature: str, strength: int) -> None:
    (seen,) = detect([gpu(error=error)])
    assert (seen.signature, seen.strength) == (signature, strength)


def test_no_gpu_on_one_node_weighs_more_where_others_have_some() -> None:
    rows = [gpu("n1", None, error="No devices were found"), gpu("n2"), gpu("n3")]
    assert short(detect(rows)) == [("gpu/nvml-init-failed", "initiating", 2)]


def test_memory_errors_once_twice_and_before() -> None:
    assert short(detect([gpu(ecc_volatile_uncorrected=2)])) == [("gpu/ecc-uncorrectable", "initiating", 2)]
    grew = [gpu(ecc_volatile_uncorrected=5, taken_at=20), gpu(ecc_volatile_uncorrected=2, taken_at=10)]
    (seen,) = detect(grew)
    assert short([seen]) == [("gpu/ecc-uncorrectable", "initiating", 3)] and seen.detail["grown"] == 3
    same = [gpu(ecc_volatile_uncorrected=2, taken_at=10), gpu(ecc_volatile_uncorrected=2, taken_at=20)]
    assert short(detect(same)) == [("gpu/ecc-uncorrectable", "context", 1)]
    old = gpu(ecc_volatile_uncorrected=0, ecc_aggregate_uncorrected=9)
    assert short(detect([old])) == [("gpu/ecc-lifetime", "context", 1)]


def test_repair_of_memory_confirms() -> None:
    assert short(detect([gpu(remap_pending=True, remap_failure=True)])) == [
        ("gpu/remap-failed", "confirmation", 2),
        ("gpu/remap-pending", "confirmation", 2),
    ]


def test_heat_is_a_hint_where_it_is_the_exception() -> None:
    cold = [gpu(index=i, throttle=["gpu_idle", "sw_power_cap"]) for i in range(3)]
    assert detect(cold) == []
    hot = gpu(index=3, throttle=["hw_slowdown", "hw_thermal_slowdown"])
    (seen,) = detect([*cold, hot])
    assert short([seen]) == [("gpu/clocks-throttled", "initiating", 1)]
    assert seen.detail["reasons"] == ["hw_slowdown", "hw_thermal_slowdown"]
    assert {s.role for s in detect([hot | {"index": i, "pci": None} for i in range(4)])} == {"context"}


def test_the_node_with_fewer_gpus() -> None:
    rows = [gpu(node, index) for node, count in (("n1", 8), ("n2", 7), ("n3", 8)) for index in range(count)]
    (seen,) = detect(rows)
    assert short([seen]) == [("gpu/fewer-than-peers", "initiating", 2)]
    assert (seen.node, seen.rank, seen.device, seen.scope) == ("n2", None, None, "node")
    assert "7 GPUs" in seen.text and "8" in seen.text
    two = [gpu(node, index) for node, count in (("n1", 8), ("n2", 4)) for index in range(count)]
    assert [(s.node, s.strength) for s in detect(two)] == [("n2", 1)]


def test_a_file_about_some_gpus_makes_no_node_smaller() -> None:
    rows = [gpu("n1", index) for index in range(8)] + [gpu("n2", index) for index in range(8)]
    rows += [gpu("n3", None, pci="0000:10:00.0")]
    assert detect(rows) == []


def test_unnamed_nodes_stay_apart_by_their_files() -> None:
    rows = [gpu(None, index, path=path) for path in ("a.xml", "b.xml") for index in range(8)]
    rows += [gpu(None, index, path="c.xml") for index in range(7)]
    assert [(s.signature, s.path) for s in detect(rows)] == [("gpu/fewer-than-peers", "c.xml")]


def test_a_healthy_fleet_is_silent() -> None:
    rows = [
        gpu(node, index, ecc_volatile_uncorrected=0, ecc_aggregate_uncorrected=0, remap_pending=False, retired_pages=0)
        for node in ("n1", "n2", "n3")
        for index in range(8)
    ]
    assert detect(rows) == [] and detect([]) == []


def test_the_table_keeps_to_the_closed_lists_and_its_examples() -> None:
    for facts in (*TABLE["errors"], *TABLE["states"].values()):
        assert facts["cause"] in CAUSES and facts["role"] in ROLES and facts["strength"] in (1, 2, 3)
        assert facts["role"] == "context" or facts["fix"]
    for place, facts in enumerate(TABLE["errors"]):
        for line in facts["match"]:
            first = next(n for n, other in enumerate(TABLE["errors"]) if re.search(other["regex"], line, re.IGNORECASE))
            assert first == place, line
        assert not any(re.search(facts["regex"], line, re.IGNORECASE) for line in facts["no_match"])
