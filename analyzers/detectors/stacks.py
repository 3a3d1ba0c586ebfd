"""Who waits for whom in a hang, from the stacks of all ranks.

A hang has no error line. What accuses is a minority outside while ALL its peers wait inside collectives; what
exculpates is a rank without a dump, a peer that is merely computing, or a waiting rank that moved between two dumps:
the run was slow then, not hung. Ranks inside ZeRO-3 gathers of different models of one program wait for each other,
which no rank alone is to blame for; with a thread or a rank of theirs dead the same picture is the echo of that death.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers import stack_classes, stack_threads
from analyzers.case import Case, Observation
from analyzers.stack_classes import Process
from analyzers.stack_threads import Model

NAME = "stacks"
DEADLOCK = "deepspeed/zero3-gather-deadlock"
WAITING = "stacks/waiting-in-collective"
OUTSIDE = "stacks/outside-collective"
MIXED = "stacks/different-collectives"
ALL_INSIDE = "stacks/all-in-collective"


@dataclass(frozen=True, slots=True)
class Scene:
    """The dump that is judged."""

    now: Sequence[Process]
    moved: Mapping[tuple[Any, ...], bool]
    """For processes that were dumped twice: did they move?"""
    missing: Sequence[int]
    """Ranks of the world that have no dump here."""
    dead: bool
    """True if a rank without a dump is known to have failed, or a thread of a rank died by an exception."""

    def of(self, *kinds: str) -> list[Process]:
        """Processes of these kinds."""
        return [process for process in self.now if process.kind in kinds]

    def still(self, listed: Sequence[Process]) -> bool:
        """True if all of these were dumped twice and none of them moved."""
        return all(self.moved.get(process.identity) is False for process in listed)


def detect(case: Case) -> Iterator[Observation]:
    """Yield what the stacks say; nothing without dumps or if a waiting rank moved between two dumps."""
    rows = case.rows("stack_frames")
    scene = _scene(case) if rows else None
    if scene is None:
        return
    waiting = scene.of("waits")
    if any(scene.moved.get(process.identity) for process in waiting):
        return
    found = list(_deadlock(scene)) or list(_outside(scene)) or list(_in_backward(scene)) or list(_mixed(scene))
    yield from found
    blamed = {rank for seen in found if seen.role == "initiating" for rank in seen.detail["ranks"]}
    echoes = [process for process in waiting if process.rank is None or process.rank not in blamed]
    if any(seen.role == "initiating" for seen in found) or scene.missing or scene.dead or len(scene.now) == 1:
        yield from _waiting(scene, echoes)
    elif not found and len(waiting) == len(scene.now):
        yield _all_inside(waiting)


def _scene(case: Case) -> Scene | None:
    """The dump with most ranks (the last of them), compared with its neighbour in time."""
    ranks = case.rows("ranks")
    shots = stack_classes.snapshots(stack_classes.processes(case.rows("stack_frames"), ranks))
    if not shots:
        return None
    index = max(range(len(shots)), key=lambda i: (len(shots[i]), i))
    neighbour = shots[index - 1] if index else shots[index + 1] if len(shots) > 1 else []
    now = shots[index]
    missing = _missing(case, now)
    dead = _ended_alone(ranks, set(missing)) or _thread_died(case)
    return Scene(now, stack_classes.moved(neighbour, now), missing, dead)


def _thread_died(case: Case) -> bool:
    """True if a working thread died by an exception that is not itself the echo of a hang."""
    for index, line in enumerate(case.lines):
        if "Exception in thread" not in line.text or not stack_threads.dead_thread(line.text):
            continue
        after = (later.text for later in case.lines[index + 1 : index + 200] if later.path == line.path)
        raised = next((text for text in after if text[:1].strip() and not text.startswith("Traceback")), "")
        if not stack_threads.is_echo(raised):
            return True
    return False


def _ended_alone(ranks: Sequence[Mapping[str, Any]], missing: set[int]) -> bool:
    """True if a rank without a dump ended in a way that no dumped rank did: by itself, not by the launcher's kill."""
    ends = {row.get("rank"): (row.get("exit_code"), row.get("signal"), bool(row.get("finished"))) for row in ranks}
    others = {end for rank, end in ends.items() if rank not in missing}
    return any(any(end) and end not in others for rank, end in ends.items() if rank in missing)


def _missing(case: Case, now: Sequence[Process]) -> list[int]:
    dumped = {process.rank for process in now}
    if None in dumped:  # some process could be any rank: nobody can be said to be missing
        return []
    sizes = [row.get("world_size") or 0 for row in case.rows("incidents")]
    known = [row["rank"] + 1 for row in case.rows("ranks") if row.get("rank") is not None]
    return sorted(set(range(max([0, *sizes, *known]))) - dumped)


def _apart(one: Sequence[Model], other: Sequence[Model]) -> int:
    """How surely no model of `one` is a model of `other`: 2, 1, or 0 if they may share one."""
    return min((m.differs(n) for m in one for n in other), default=0)


def _deadlock(scene: Scene) -> Iterator[Observation]:
    """Ranks of one program inside ZeRO-3 gathers of different models."""
    groups: dict[tuple[Model, ...], list[Process]] = defaultdict(list)
    for process in scene.of("waits"):
        if process.gathers:
            groups[process.gathers].append(process)
    pairs = [
        (_apart(a, b), a, b)
        for a in groups
        for b in groups
        if a != b and {p.root for p in groups[a]} & {p.root for p in groups[b]}
    ]
    certainty = max((pair[0] for pair in pairs), default=0)
    if certainty == 0 or scene.dead:
        return
    involved = {key for sure, *both in pairs if sure == certainty for key in both}
    cycle = sorted((p for key in involved for p in groups[key]), key=lambda p: (p.rank is None, p.rank or 0))
    complete = len(cycle) == len(scene.now) and not scene.missing
    parts = _parts({_label(key, involved): groups[key] for key in groups if key in involved})
    first = cycle[0].speaker.frame
    yield Observation(
        NAME, DEADLOCK, "initiating", "framework",
        f"ZeRO-3 parameter gathers of different models wait for each other ({parts})",
        text=str(first), scope="job", strength=3 if certainty == 2 and complete else 2,
        source="stack_dump", path=first.path, line=first.line, offset=first.offset,
        detail=_detail(cycle, scene) | {"threads": {p.name: _threads(p) for p in cycle[:8]}},
    )  # fmt: skip


def _label(models: Sequence[Model], others: set[tuple[Model, ...]]) -> str:
    """Names of the models of one group, by a class that the other groups do not have, if there is one."""
    names = []
    for model in models:
        elsewhere = {cls for key in others if key != tuple(models) for m in key for cls in m.classes}
        own = [cls for cls in reversed(model.classes) if cls not in elsewhere]
        names.append(own[0] if own else model.caller)
    return " and ".join(dict.fromkeys(names))


def _parts(groups: Mapping[str, Sequence[Process]]) -> str:
    return ", ".join(f"{stack_classes.members(who)} in {what}" for what, who in groups.items())


def _threads(process: Process) -> dict[str, str]:
    """What each thread does; one without a frame of its own for a lock shows the user's line it waits at."""
    return {t.name: f"{t.doing} at {t.frame}" for t in process.threads}


def _outside(scene: Scene) -> Iterator[Observation]:
    """The minority that is busy elsewhere while all its peers wait inside collectives."""
    waiting, out, neutral = scene.of("waits"), scene.of("outside"), scene.of("neutral")
    hint = bool(neutral or scene.missing)
    if not out and len(neutral) == 1 and len(waiting) > 1 and not scene.missing and scene.still(scene.now):
        out, hint = neutral, True  # it computes, but at the same place for as long as the others wait: a stuck device?
    if waiting and _few(out, waiting, scene):
        peers = f"{stack_classes.members(waiting)} wait{'s' * (len(waiting) == 1)} in {_doings(waiting)}"
        yield from (_accuse(process, peers, 1 if hint else 2, scene) for process in out)


def _in_backward(scene: Scene) -> Iterator[Observation]:
    """The same where the peers are in the backward pass, whose reductions DDP starts from C++ without a frame."""
    peers, out = [p for p in scene.of("neutral") if p.speaker.role == "backward"], scene.of("outside")
    if len(out) != 1 or len(peers) + 1 != len(scene.now) or not peers or scene.missing:
        return
    still = scene.still(peers)
    if still or (len(peers) > 1 and all(p.speaker.state == "idle" for p in peers)):
        where = f"{stack_classes.members(peers)} wait{'s' * (len(peers) == 1)} in the backward pass"
        yield _accuse(out[0], where, 2 if still and len(peers) > 1 else 1, scene)
        yield from _waiting(scene, peers)


def _few(out: Sequence[Process], waiting: Sequence[Process], scene: Scene) -> bool:
    return bool(out) and len(out) <= len(waiting) and (len(out) == 1 or len(out) * 4 <= len(scene.now))


def _accuse(process: Process, peers: str, strength: int, scene: Scene) -> Observation:
    thread = process.speaker
    name = process.name[0].upper() + process.name[1:]
    return Observation(
        NAME, OUTSIDE, "initiating", stack_threads.cause_of(thread.role),
        f"{name} is outside, in {thread.doing}, while {peers}",
        text=str(thread.frame), strength=strength, rank=process.rank, node=process.node, source="stack_dump",
        path=thread.frame.path, line=thread.frame.line, offset=thread.frame.offset,
        detail=_detail([process], scene) | {"thread": thread.name, "doing": thread.role},
    )  # fmt: skip


def _mixed(scene: Scene) -> Iterator[Observation]:
    """Everybody waits, but not in the same operation: a lone rank in another one than all its peers is a suspect."""
    waiting = scene.of("waits")
    if len(waiting) != len(scene.now) or scene.missing or scene.dead:
        return
    groups: dict[str, list[Process]] = defaultdict(list)
    for process in waiting:
        groups[process.speaker.doing].append(process)
    if len(groups) < 2:
        return
    few, *rest = sorted(groups.values(), key=len)
    # Pipelines and other meshes rest in several operations at once; a program with one group does not.
    plain = all(p.speaker.role in ("collective", "barrier") for p in waiting) and len({p.root for p in waiting}) == 1
    alone = plain and len(few) == 1 and len(rest) == 1 and len(rest[0]) > 1
    text = few[0].speaker.frame
    yield Observation(
        NAME, MIXED, "initiating" if alone else "context", "user_code" if alone else "unknown",
        f"The ranks wait in different operations: {_parts(groups)}",
        text=str(text), scope="rank" if alone else "job", strength=2 if alone and scene.still(scene.now) else 1,
        rank=few[0].rank if alone else None, node=few[0].node if alone else None, source="stack_dump",
        path=text.path, line=text.line, offset=text.offset, detail=_detail(few if alone else waiting, scene),
    )  # fmt: skip


def _waiting(scene: Scene, listed: Sequence[Process]) -> Iterator[Observation]:
    """The echo: ranks that wait for somebody else."""
    for group in stack_classes.classes(listed):
        frame, who = group.thread.frame, group.processes
        alone = who[0] if len(who) == 1 else None
        name = stack_classes.members(who)
        yield Observation(
            NAME, WAITING, "cascade", "unknown",
            f"{name[0].upper()}{name[1:]} wait{'s' * bool(alone)} in {group.thread.doing}",
            text=str(frame), strength=2, rank=alone.rank if alone else None, node=alone.node if alone else None,
            source="stack_dump", path=frame.path, line=frame.line, offset=frame.offset, detail=_detail(who, scene),
        )  # fmt: skip


def _all_inside(waiting: Sequence[Process]) -> Observation:
    frame = waiting[0].speaker.frame
    return Observation(
        NAME, ALL_INSIDE, "context", "unknown",
        f"All {len(waiting)} dumped ranks wait in {_doings(waiting)}: look at the network, devices and absent ranks",
        text=str(frame), scope="job", strength=1, source="stack_dump",
        path=frame.path, line=frame.line, offset=frame.offset, detail={"ranks": [p.rank for p in waiting]},
    )  # fmt: skip


def _doings(listed: Sequence[Process]) -> str:
    return ", ".join(dict.fromkeys(group.thread.doing for group in stack_classes.classes(listed)))


def _detail(listed: Sequence[Process], scene: Scene) -> dict[str, Any]:
    detail: dict[str, Any] = {"ranks": [p.rank for p in listed if p.rank is not None]}
    if len(listed) == 1 and listed[0].pid is not None:
        detail["pid"] = listed[0].pid
    if nodes := sorted({p.node for p in listed if p.node}):
        detail["nodes"] = nodes
    if scene.missing:
        detail["missing"] = [f"stack dump of rank {rank}" for rank in scene.missing[:8]]
    return detail
