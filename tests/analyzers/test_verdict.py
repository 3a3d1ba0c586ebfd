"""From the ranking to words: how sure a verdict is, whom it names, and what an abstention asks for."""

from __future__ import annotations

from typing import Any

import pytest

from analyzers import rank, verdict
from analyzers.case import Case, Observation
from analyzers.signatures import load
from collector.data import lookup
from collector.model import LogLine

SIGNATURES = load().by_id


def line(text: str, number: int, who: int | None = None) -> LogLine:
    return LogLine(0, "job.log", number, 0, 0, None, who, None, None, None, "rank", None, None, text)


def case(world: int = 4, **tables: Any) -> Case:
    blank = {"attempt": 0, "lines": 3, "finished": False, "step": None}
    ranks = [blank | {"rank": r, "node": f"n{r // 2}"} for r in range(world)]
    return Case("x", [line("hello", 1)], signatures=SIGNATURES, world_size=world, tables={"ranks": ranks} | tables)


def seen(signature: str, who: int | None = None, **told: Any) -> Observation:
    fields: dict[str, Any] = {
        "detector": "signatures", "role": "initiating", "cause": "unknown", "title": f"What {signature} means",
        "rank": who, "text": f"text of {signature} {who}", "path": "job.log", "line": 5, "seq": 5,
    }  # fmt: skip
    return Observation(signature=signature, **(fields | told))


def echo(who: int) -> Observation:
    return seen("gloo/connection-closed", who, role="cascade", line=9 + who, seq=9 + who)


def decide(of: Case, *observations: Observation) -> dict[str, Any]:
    ranking = rank.rank({of.incident: list(observations)}, {of.incident: of.world_size}, [])[of.incident]
    return verdict.decide(of, observations, ranking)


def status(*observations: Observation, world: int = 4) -> str:
    return str(decide(case(world), *observations)["verdict"]["status"])


# --- how sure ---------------------------------------------------------------------------------------------------------


def test_a_line_that_names_its_cause_is_established() -> None:
    assert status(seen("storage/no-space-left", 1, strength=3), echo(0)) == "established"


def test_a_failure_that_explains_its_peers_is_established_and_a_lonely_one_supported() -> None:
    assert status(seen("python/segmentation-fault", 1), echo(0)) == "established"
    assert status(seen("python/segmentation-fault", 1)) == "supported"


@pytest.mark.parametrize("detector", ["silence", "divergence", "collectives"])
def test_what_is_inferred_is_never_established(detector: str) -> None:
    assert status(seen("x/inferred", 1, detector=detector, strength=3), echo(0), echo(2)) != "established"


def test_a_hint_alone_is_suspected() -> None:
    assert status(seen("divergence/fell-behind", 1, detector="divergence", strength=1), echo(0)) == "suspected"


def test_two_hints_against_each_other_are_undetermined() -> None:
    hints = (seen("divergence/fell-behind", 1, strength=1), seen("divergence/unique-line", 2, strength=1, path="b.log"))
    assert status(*hints, echo(0)) == "undetermined"


def test_two_failures_that_nothing_orders_establish_neither() -> None:
    rivals = (seen("python/segmentation-fault", 1, path="a.log"), seen("python/bus-error", 2, path="b.log"))
    found = decide(case(), *rivals, echo(0))
    assert found["verdict"]["status"] in ("suspected", "supported", "undetermined")
    assert len(found["candidates"]) == 2, "both are shown"


def test_a_failure_without_a_rank_in_a_job_of_several_is_undetermined_but_said() -> None:
    said = decide(case(), seen("python/segmentation-fault", None))["verdict"]
    assert (said["status"], said["ranks"], said["signature"]) == ("undetermined", [], "python/segmentation-fault")
    assert "not whose it is" in said["why"] and said["missing"] and said["evidence"]


def test_a_hang_without_stacks_is_undetermined() -> None:
    said = decide(case(), seen("silence/hang", None, detector="silence", scope="job", strength=1))["verdict"]
    assert said["status"] == "undetermined" and said["ranks"] == []


# --- nothing failed ---------------------------------------------------------------------------------------------------


def progress(count: int = 3) -> list[LogLine]:
    return [line(f"step {n}/9 loss=2", n + 1, 0) for n in range(count)]


def test_progress_without_any_failure_is_no_failure() -> None:
    of = case(1)
    of.lines = progress()
    found = decide(of)
    assert found["verdict"]["status"] == "no_failure" and found["candidates"] == []


def test_an_unexplained_echo_is_no_health() -> None:
    of = case(2)
    of.lines = progress()
    assert decide(of, echo(0))["verdict"]["status"] == "undetermined"


def test_a_bad_exit_after_the_last_word_is_no_good_end() -> None:
    of = case(1, scheduler_events=[{"event": "exit", "code": 3, "rank": 0, "path": "job.log", "line": 9}])
    of.lines = [*progress(), line("training finished", 4, 0)]
    of.tables["ranks"][0].update(finished=True)  # type: ignore[attr-defined]
    failed = seen("exit/failed-silently", 0, detector="exits", strength=1)
    assert decide(of, failed)["verdict"]["status"] != "no_failure"


def test_no_evidence_at_all() -> None:
    said = decide(Case("x", signatures=SIGNATURES))["verdict"]
    assert said["status"] == "undetermined" and "Nothing to read" in said["title"] and said["missing"]


# --- whom and what ----------------------------------------------------------------------------------------------------


def test_all_ranks_of_a_symmetric_failure_are_named() -> None:
    said = decide(case(), *(seen("python/import-error", r, strength=3) for r in range(4)))["verdict"]
    assert said["ranks"] == [0, 1, 2, 3] and "no single one is to blame" in said["why"]
    assert said["nodes"] == ["n0", "n1"]


def test_a_launchers_failure_names_no_rank() -> None:
    said = decide(case(), seen("launcher/config-error", None, scope="launcher", issuer="launcher", strength=3))[
        "verdict"
    ]
    assert (said["scope"], said["ranks"]) == ("launcher", []) and said["status"] != "undetermined"


def test_an_accusation_names_the_accused_and_who_says_so() -> None:
    said = decide(case(), seen("torch/monitored-barrier-missing", 0, accuses_rank=2))["verdict"]
    assert said["ranks"] == [2] and said["why"] == "Rank 0 waited and names rank 2 as the one that did not come."


def test_the_fix_is_that_of_the_signature() -> None:
    said = decide(case(), seen("storage/no-space-left", 1, strength=3))["verdict"]
    assert said["fix"] == list(SIGNATURES["storage/no-space-left"].fix)
    assert said["verify"] == list(SIGNATURES["storage/no-space-left"].verify)


def test_what_detectors_say_has_a_human_side_too() -> None:
    for identity in lookup("detectors"):
        known = verdict.human(case(), identity)
        assert known["title"], identity
    assert verdict.human(case(), "no/such-thing") == {}


def test_a_kill_asks_for_the_kernel_log() -> None:
    said = decide(case(), seen("exit/killed", 1, detector="exits"), echo(0))["verdict"]
    assert any("dmesg" in text for text in said["missing"])


def test_echoes_are_collateral_of_what_explains_them() -> None:
    found = decide(case(), seen("storage/no-space-left", 1, strength=3), echo(0), echo(2), echo(3))
    (row,) = found["collateral"]
    assert row["ranks"] == [0, 2, 3] and row["explained_by"] == "storage/no-space-left" and row["role"] == "cascade"


def test_an_undetermined_verdict_explains_nothing_away() -> None:
    found = decide(case(), seen("python/segmentation-fault", None), echo(0))
    assert {row["explained_by"] for row in found["collateral"]} == {None}


def test_only_echoes_ask_for_the_logs_of_who_said_nothing() -> None:
    of = case(4)
    of.tables["ranks"][3]["lines"] = 0  # type: ignore[index]
    said = decide(of, echo(0), echo(1), echo(2))["verdict"]
    assert (said["status"], said["ranks"], said["cause"]) == ("undetermined", [], "unknown")
    assert "rank(s) 3" in said["missing"][0]
    assert len(said["evidence"]) == 3


def test_the_time_is_that_of_the_event() -> None:
    at = 1_796_088_120_250_000
    said = decide(case(), seen("storage/no-space-left", 1, strength=3, at_lo=at, at_hi=at + 999))["verdict"]
    assert said["at"] == "2026-12-01T01:22:00.250Z"
    assert decide(case(), seen("storage/no-space-left", 1, strength=3))["verdict"]["at"] is None
