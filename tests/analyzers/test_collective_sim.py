"""The rules against simulated jobs: 3D-parallel programs in which one rank stops, stalls or leaves the common order.

The simulator knows nothing of the rules. A rank's program is a list of calls; its host runs ahead of its device by up
to `ahead` calls; the device runs calls in order, and a call completes when it is at the head of all its members.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from analyzers.case import Case, Observation
from analyzers.detectors.collectives import detect

TP, PP = 2, 2


@dataclass
class Step:
    group: tuple[int, ...]
    op: str
    size: int = 16


@dataclass
class Rank:
    program: list[Step]
    host: int = 0  # calls enqueued
    device: int = 0  # calls completed on the device
    stop_host: int | None = None
    stop_device: int | None = None
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)


def groups_of(world: int) -> dict[str, list[tuple[int, ...]]]:
    """Tensor, pipeline and data groups, tensor ranks next to each other, like Megatron."""
    per_stage = world // PP
    return {
        "tensor": [tuple(range(i, i + TP)) for i in range(0, world, TP)],
        "PIPELINE": [tuple(range(i, world, per_stage)) for i in range(per_stage)],
        "data": [tuple(range(s + t, s + per_stage, TP)) for s in range(0, world, per_stage) for t in range(TP)],
        "world": [tuple(range(world))],
    }


def programs(world: int, steps: int, rng: random.Random) -> dict[int, list[Step]]:
    """One training program for each rank: forward and backward through two stages, gradients, one global reduction."""
    groups, per_stage = groups_of(world), world // PP
    middles = [rng.choice(["all_reduce", "_all_gather_base", "_reduce_scatter_base"]) for _ in range(steps * 3)]
    found: dict[int, list[Step]] = {}
    for rank in range(world):
        mine = {name: next(g for g in members if rank in g) for name, members in groups.items()}
        first = rank < per_stage
        down, up = ("send 0->1", "recv 0<-1") if first else ("recv 1<-0", "send 1->0")
        program: list[Step] = []
        for step in range(steps):
            inner = [Step(mine["tensor"], f"nccl:{op}") for op in middles[step * 3 : step * 3 + 3]]
            over = [Step(mine["PIPELINE"], f"nccl:{down}")]
            program += inner + over if first else over + inner
            program += [Step(mine["PIPELINE"], f"nccl:{up}")] + [Step(mine["tensor"], "nccl:all_reduce")] * 2
            program += [Step(mine["data"], "nccl:all_reduce", 1000)] * 2 + [Step(mine["world"], "nccl:all_reduce", 1)]
        found[rank] = program
    return found


def is_p2p(step: Step) -> bool:
    return "->" in step.op or "<-" in step.op


def number(rank: Rank, upto: int) -> dict[int, int]:
    """Sequence number within its group for each of the first `upto` calls (point-to-point counted apart)."""
    seen: dict[object, int] = {}
    numbers = {}
    for index, step in enumerate(rank.program[:upto]):
        key = (step.group, is_p2p(step))
        seen[key] = numbers[index] = seen.get(key, 0) + 1
    return numbers


def run(ranks: dict[int, Rank], ahead: int) -> None:
    """Until nothing moves. A device that stops at call n has given its part of n, but never finishes it."""
    numbers = {r: number(rank, len(rank.program)) for r, rank in ranks.items()}
    moved = True
    while moved:
        moved = False
        for rank in ranks.values():
            limit = min(
                len(rank.program), rank.device + ahead, rank.stop_host if rank.stop_host is not None else 1 << 30
            )
            if rank.host < limit:
                rank.host, moved = limit, True
        for r, rank in ranks.items():
            if rank.device < rank.host and rank.device != rank.stop_device:
                step = rank.program[rank.device]
                key = match_key(step, numbers[r][rank.device])
                if all(reached(ranks[o], numbers[o], key) for o in step.group):
                    rank.device, moved = rank.device + 1, True


def match_key(step: Step, sequence: int) -> tuple[object, ...]:
    """What must be equal for calls of two ranks to meet."""
    return (step.group, "p2p" if is_p2p(step) else step.op, sequence)


def reached(rank: Rank, numbers: dict[int, int], key: tuple[object, ...]) -> bool:
    for index in range(rank.device + 1):
        if index < rank.host and match_key(rank.program[index], numbers[index]) == key:
            return True
    return False


def dump(r: int, rank: Rank, full: bool) -> Iterator[dict[str, object]]:
    """Rows of one rank's dump: all calls or (as the watchdog writes it) only those that are not completed."""
    numbers = number(rank, rank.host)
    status: dict[tuple[int, ...], list[int]] = {}
    for index in range(rank.host):
        step = rank.program[index]
        count = status.setdefault(step.group, [0, 0])
        count[0] = numbers[index]
        count[1] = numbers[index] if index < rank.device else count[1]
        if full or index >= rank.device:
            state = "completed" if index < rank.device else "scheduled"
            yield base(r, step.group) | {
                "seq": numbers[index],
                "op": step.op,
                "is_p2p": is_p2p(step),
                "state": state,
                "sizes": f'{{"in": [[{step.size}]]}}',
                "at_lo": 1_700_000_000_000_000 + index * 1000,
            }
    for group, (enqueued, completed) in status.items():
        yield base(r, group) | {"last_enqueued": enqueued, "last_completed": completed}


def base(rank: int, group: tuple[int, ...]) -> dict[str, object]:
    name = "-".join(map(str, group))
    return {
        "rank": rank,
        "path": f"dump{rank}",
        "pg": name,
        "pg_desc": DESCRIPTIONS.get(group, ""),
        "pg_ranks": list(group),
    }


DESCRIPTIONS = {
    g: name for world in (8, 16) for name, members in groups_of(world).items() for g in members if name == "PIPELINE"
}


def accused(
    ranks: dict[int, Rank], full: bool, lost: frozenset[int] = frozenset()
) -> tuple[set[int], list[Observation]]:
    rows = [row for r, rank in ranks.items() if r not in lost for row in dump(r, rank, full)]
    found = list(detect(Case("sim", tables={"collectives": rows})))
    return {r for o in found if o.role == "initiating" for r in o.detail["ranks"]}, found


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("world", [8, 16])
@pytest.mark.parametrize("fault", ["stop_host", "stop_device"])
def test_one_rank_that_stops_is_found_and_nobody_else(fault: str, world: int, full: bool) -> None:
    hits = 0
    trials = 40
    for seed in range(trials):
        rng = random.Random(seed)
        ranks = {r: Rank(program) for r, program in programs(world, 3, rng).items()}
        culprit = rng.randrange(world)
        setattr(ranks[culprit], fault, rng.randrange(2, len(ranks[culprit].program) - 8))
        run(ranks, ahead=rng.choice([1, 4, 12]))
        named, _ = accused(ranks, full)
        assert named <= {culprit}, (seed, culprit, named)
        hits += named == {culprit}
        lost = frozenset(rng.sample(sorted(set(ranks) - {culprit}), world // 4))
        assert accused(ranks, full, lost)[0] <= {culprit}, (seed, culprit, lost)
        assert not accused(ranks, full, lost | {culprit})[0], (seed, culprit, lost)
    assert hits >= trials * 0.75, hits


@pytest.mark.parametrize("full", [False, True])
def test_a_rank_that_skips_a_collective_is_the_odd_one(full: bool) -> None:
    hits = 0
    trials = 40
    for seed in range(trials):
        rng = random.Random(seed)
        ranks = {r: Rank(program) for r, program in programs(8, 3, rng).items()}
        culprit = rng.randrange(8)
        world = [i for i, step in enumerate(ranks[culprit].program) if len(step.group) == 8]
        extra = Step(tuple(range(8)), "nccl:broadcast", 7)
        for r, rank in ranks.items():
            if r != culprit:
                rank.program.insert(world[1], extra)
        run(ranks, ahead=rng.choice([1, 4, 12]))
        named, _ = accused(ranks, full)
        assert named <= {culprit}, (seed, culprit, named)
        hits += named == {culprit}
    assert hits >= trials * 0.7, hits


def test_a_job_that_ended_well_accuses_nobody() -> None:
    ranks = {r: Rank(program) for r, program in programs(8, 2, random.Random(1)).items()}
    run(ranks, ahead=4)
    assert all(rank.device == len(rank.program) for rank in ranks.values())
    assert accused(ranks, True) == (set(), [])
    assert accused(ranks, False) == (set(), [])
