"""The ranking's policy (DESIGN section 5), on observations: who may win, who never does, and what no order changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import rank
from analyzers.case import Observation

SECOND = 1_000_000


def seen(signature: str, who: int | None = None, at: float | None = None, **told: Any) -> Observation:
    """An observation; `at`: seconds, exact to the millisecond."""
    fields: dict[str, Any] = {
        "detector": "signatures", "role": "initiating", "cause": "unknown", "title": signature, "rank": who,
        "text": f"{signature} {who}", "path": "job.log",
    }  # fmt: skip
    if at is not None:
        fields |= {"at_lo": int(at * SECOND), "at_hi": int(at * SECOND) + 999}
    return Observation(signature=signature, **(fields | told))


def echo(who: int, at: float | None = None, **told: Any) -> Observation:
    return seen("gloo/connection-closed", who, at, role="cascade", **told)


def exception(who: int | None, at: float | None = None, kind: str = "KeyError", **told: Any) -> Observation:
    detail = {"type": kind, "frame": "step (train.py:3)", "same": f"{kind}|step"} | told.pop("detail", {})
    return seen("python/uncaught-exception", who, at, detector="exceptions", detail=detail, **told)


def xid(at: float | None, node: str, **told: Any) -> Observation:
    return seen("gpu/xid-79", None, at, detector="kernel", issuer="kernel", cause="gpu", scope="node", strength=3,
                node=node, path="dmesg.txt", **told)  # fmt: skip


def ranking(
    *observations: Observation, world: int | None = 4, relations: Sequence[tuple[str, str]] = ()
) -> rank.Ranking:
    return rank.rank({"x": list(observations)}, {"x": world}, relations)["x"]


def best(*observations: Observation, **more: Any) -> dict[str, Any]:
    return ranking(*observations, **more).candidates[0]


# --- who wins ---------------------------------------------------------------------------------------------------------


def test_what_nothing_explains_wins_over_its_echoes_even_if_these_came_first_in_the_file() -> None:
    found = ranking(echo(0, 9, seq=1), echo(1, 9, seq=2), exception(2, seq=3))
    assert [c["ranks"] for c in found.candidates] == [[2]]
    (collateral,) = found.collateral
    assert collateral["ranks"] == [0, 1]


def test_only_echoes_make_no_candidate() -> None:
    found = ranking(echo(0, 1), echo(1, 2), seen("launcher/child-failed", None, 3, role="wrapper", scope="launcher"))
    assert found.candidates == []


def test_the_earliest_of_several_wins() -> None:
    late, early = exception(1, 20.0, "ValueError"), exception(2, 10.0, "KeyError")
    assert best(late, early)["ranks"] == [2]


def test_events_whose_intervals_overlap_are_not_ordered() -> None:
    rounded = {"at_lo": 10 * SECOND, "at_hi": 11 * SECOND - 1}  # printed to the second
    first, second = exception(1, 10.4, "ValueError"), exception(2, kind="KeyError", **rounded)
    candidates = ranking(first, second).candidates
    assert {c["score"] for c in candidates} == {candidates[0]["score"]}, "neither is earlier"
    assert all(c["not_before"] for c in candidates)
    apart = ranking(exception(1, 12.0, "ValueError"), second).candidates
    assert apart[0]["ranks"] == [2] and apart[0]["score"] > apart[1]["score"]


def test_a_line_without_a_time_is_not_ordered_against_one_with_a_time() -> None:
    candidates = ranking(
        exception(1, 10.0, "ValueError", seq=2), exception(2, None, "KeyError", seq=1, path="b.log")
    ).candidates
    assert all(c["not_before"] for c in candidates)


@pytest.mark.parametrize("at", [None, 1.0, 5.0])
def test_a_launcher_never_wins_over_a_rank(at: float | None) -> None:
    launcher = seen("launcher/worker-unkillable", None, at, scope="launcher", strength=2, issuer="launcher", seq=0)
    assert best(launcher, exception(2, 5.0, seq=9))["ranks"] == [2]


def test_the_kernel_comes_before_its_software_echo() -> None:
    software = seen("cuda/launch-failure", 3, 9.9995, cause="gpu", node="n1")
    found = ranking(xid(10.0, "n1"), software)
    assert [c["signature"] for c in found.candidates] == ["gpu/xid-79"]
    assert found.candidates[0]["ranks"] == [3], "the device's failure is that rank's"


def test_the_kernel_of_another_node_explains_nothing() -> None:
    software = seen("cuda/launch-failure", 3, 11.0, cause="gpu", node="n2")
    assert {c["signature"] for c in ranking(xid(10.0, "n1"), software).candidates} == {
        "gpu/xid-79",
        "cuda/launch-failure",
    }


def test_an_oom_kill_explains_the_silent_kill_but_not_a_key_error() -> None:
    oom = seen("host/oom-killer", None, 10.0, detector="kernel", issuer="kernel", cause="host_memory", scope="rank",
               strength=3, node="n1", path="dmesg.txt")  # fmt: skip
    killed = seen("exit/killed", 1, 11.0, detector="exits", node="n1", issuer="launcher")
    assert [c["signature"] for c in ranking(oom, killed).candidates] == ["host/oom-killer"]
    mine = exception(1, 11.0, node="n1", cause="user_code")
    assert len(ranking(oom, mine).candidates) == 2


def test_a_warning_that_progress_followed_is_no_cause() -> None:
    warned = exception(1, 1.0, "ValueError", detail={"progressed": True})
    failed = exception(2, 50.0, "KeyError")
    assert best(warned, failed)["ranks"] == [2]


def test_a_symmetric_failure_names_all_ranks() -> None:
    (candidate,) = ranking(*(exception(r, 10 + r / 1000) for r in range(4))).candidates
    assert candidate["ranks"] == [0, 1, 2, 3] and candidate["everybody"]


def test_the_same_exception_elsewhere_in_the_code_is_another_failure() -> None:
    other = exception(3, 10.0, detail={"frame": "save (train.py:99)", "same": "KeyError|save"})
    assert sorted(c["ranks"] for c in ranking(exception(1, 10.0), other).candidates) == [[1], [3]]


def test_an_accused_rank_is_the_subject_not_the_printer() -> None:
    accusing = seen("torch/monitored-barrier-missing", 0, 10.0, accuses_rank=2)
    assert best(accusing, echo(0), echo(1), echo(3))["ranks"] == [2]


def test_an_accusation_yields_to_what_the_accused_says_itself() -> None:
    accusing = seen("torch/monitored-barrier-missing", 0, 20.0, accuses_rank=2, strength=2)
    own = exception(2, 10.0)
    assert [c["signature"] for c in ranking(accusing, own).candidates] == ["python/uncaught-exception"]


def test_a_joint_event_keeps_all_its_ranks() -> None:
    node = seen("silence/node-lost", 2, 5.0, detector="silence", scope="node", detail={"ranks": [2, 3]})
    assert best(node, echo(0, 9), echo(1, 9))["ranks"] == [2, 3]


def test_an_unknown_rank_is_not_invented() -> None:
    candidate = best(exception(None, 10.0), echo(0), echo(1))
    assert candidate["ranks"] == [] and candidate["nobody_named"]


def test_alone_a_process_needs_no_name() -> None:
    assert not best(exception(None, 10.0), world=1)["nobody_named"]


def test_a_copy_whose_writer_is_known_replaces_the_unmarked_one() -> None:
    (candidate,) = ranking(exception(None, seq=1), exception(2, seq=7, path="rank2.log")).candidates
    assert candidate["ranks"] == [2] and candidate["path"] == "rank2.log"


def test_an_exit_that_followed_its_own_error_is_no_rival() -> None:
    found = ranking(exception(2, 10.0), seen("exit/crashed", 2, 12.0, detector="exits", issuer="launcher"))
    assert [c["signature"] for c in found.candidates] == ["python/uncaught-exception"]


def test_what_a_rank_prints_after_its_own_failure_is_explained() -> None:
    found = ranking(exception(2, 10.0, "KeyError"), exception(2, 12.0, "ValueError"))
    assert [c["kind"] if "kind" in c else c["failure"] for c in found.candidates] == [
        "python/uncaught-exception|KeyError|step (train.py:3)"
    ]


def test_a_known_consequence_is_explained_and_stays_visible() -> None:
    cause = seen("storage/no-space-left", 0, 10.0, strength=3)
    effect = seen("checkpoint/torch-write-failed", 0, 10.0)
    relations = [("checkpoint/torch-write-failed", "storage/no-space-left")]
    found = ranking(cause, effect, relations=relations)
    assert [c["signature"] for c in found.candidates] == ["storage/no-space-left"]
    assert [row["signature"] for row in found.collateral] == ["checkpoint/torch-write-failed"]
    assert {c["signature"] for c in ranking(cause, effect).candidates} == {c.signature for c in (cause, effect)}


def test_two_signatures_that_may_cause_each_other_do_not_explain_each_other_away() -> None:
    relations = [("a/a", "b/b"), ("b/b", "a/a")]
    overlapping = ranking(seen("a/a", 1, 10.0), seen("b/b", 1, 10.0), relations=relations)
    assert len(overlapping.candidates) == 2
    ordered = ranking(seen("a/a", 1, 12.0), seen("b/b", 1, 10.0), relations=relations)
    assert [c["signature"] for c in ordered.candidates] == ["b/b"]


def test_scores_are_within_zero_and_one_and_reasons_are_words() -> None:
    for candidate in ranking(exception(1, 1.0), exception(2, 2.0, "ValueError"), echo(0), echo(3)).candidates:
        assert 0 <= candidate["score"] <= 1
        assert candidate["reasons"] and all(reason[:2] in ("+ ", "- ") for reason in candidate["reasons"])


def test_nothing_observed_is_no_candidate() -> None:
    assert ranking() == rank.Ranking([], [], [])


# --- what must not matter ---------------------------------------------------------------------------------------------


@st.composite
def incidents(draw: st.DrawFn) -> list[Observation]:
    made = []
    for number in range(draw(st.integers(1, 8))):
        who = draw(st.none() | st.integers(0, 3))
        at = draw(st.none() | st.integers(0, 5).map(float))
        make = draw(st.sampled_from(["echo", "exception", "kernel", "exit", "launcher", "silence", "accuse"]))
        more: dict[str, Any] = {"seq": number, "line": number + 1}
        match make:
            case "echo":
                made.append(echo(who or 0, at, **more))
            case "exception":
                made.append(exception(who, at, draw(st.sampled_from(["KeyError", "ValueError"])), **more))
            case "kernel":
                node = draw(st.sampled_from(["n0", "n1"]))
                made.append(xid(at, node, **more))
            case "exit":
                made.append(seen("exit/killed", who, at, detector="exits", issuer="launcher", **more))
            case "launcher":
                made.append(seen("launcher/x", None, at, scope="launcher", issuer="launcher", **more))
            case "silence":
                made.append(seen("silence/rank-stopped", who or 0, at, detector="silence", strength=1, **more))
            case _:
                made.append(
                    seen("torch/monitored-barrier-missing", who, at, accuses_rank=draw(st.integers(0, 3)), **more)
                )
    return made


def told(found: rank.Ranking) -> list[tuple[Any, ...]]:
    return [(c["failure"], c["ranks"], c["score"], c["reasons"], c["seq"]) for c in found.candidates]


@settings(max_examples=25, deadline=None)
@given(incidents(), st.randoms(use_true_random=False))
def test_the_order_of_observations_does_not_matter(observations: list[Observation], shuffler: random.Random) -> None:
    before = ranking(*observations)
    shuffled = list(observations)
    shuffler.shuffle(shuffled)
    after = ranking(*shuffled)
    assert told(before) == told(after)
    collateral = [
        sorted((row["signature"], row["ranks"], row["copies"]) for row in each.collateral) for each in (before, after)
    ]
    assert collateral[0] == collateral[1]


@settings(max_examples=6, deadline=None)
@given(st.lists(incidents(), min_size=1, max_size=4))
def test_many_incidents_at_once_are_ranked_as_one_by_one(many: list[list[Observation]]) -> None:
    observed = {f"incident-{number}": listed for number, listed in enumerate(many)}
    together = rank.rank(observed, dict.fromkeys(observed, 4), [])
    assert set(together) == set(observed)
    for name, listed in observed.items():
        alone = rank.rank({name: listed}, {name: 4}, [])[name]
        assert told(together[name]) == told(alone)
        assert sorted(map(str, together[name].explanations)) == sorted(map(str, alone.explanations))


def test_rows_fit_the_table() -> None:
    from collector.tables import to_arrow

    rows = rank.rows("x", [exception(1, 2.0, detail={"site": "a"}), echo(2)])
    assert to_arrow("observations", rows).num_rows == 2
    assert [row["id"] for row in rows] == [0, 1]
