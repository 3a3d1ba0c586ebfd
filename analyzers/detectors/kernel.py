"""What the kernels of the nodes say about why the job died: Xids, OOM kills, hardware, links, storage, crashes.

Facts are in the lookup tables `xid`, `sxid` and `kernel_events`; this module joins them to ranks and decides what an
event is worth here. An event outside the job's time is context, whatever it says. An Xid of a class that programs cause
accuses the program, unless it keeps to one device over several processes. An event that another one of the same node
explains is an echo of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from analyzers.case import Case, Observation
from analyzers.node_events import Event, merge
from analyzers.placement import Placement, same_node
from collector.data import lookup

_PREVIOUS = re.compile(r"caused by previous Xid (\d+)")
_NONFATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
_LIBRARY = re.compile(r" in ([^\s\[]+)\[")
_SAME_AS_XID = {"gpu_lost": 79, "nvlink": 74}
_PROGRAM_XIDS = frozenset({13, 31})
_PROCESSES_OF_A_BAD_DEVICE = 3
"""From so many processes on one device on, the device is the common factor (NVIDIA's Xid 13 and 31 workflows)."""
_START_UP = 60 * 1_000_000


def detect(case: Case) -> Iterator[Observation]:
    """Yield one observation per event that matters, with the rank where pid or device belong to one."""
    rows = case.rows("kernel_events")
    if not rows:
        return
    placement = Placement(case)
    events = merge(rows, placement)
    events += _named_by_echoes(events)
    for event in events:
        if event.event == "xid":
            yield _xid(event, events, placement)
        elif event.event == "sxid":
            yield _sxid(event, events, placement)
        elif event.event != "oom_kill":
            yield from _other(event, events, placement)
    yield from _kills([event for event in events if event.event == "oom_kill"], placement)


def _observation(event: Event, facts: Mapping[str, Any], rank: int | None, **more: Any) -> Observation:
    detail: dict[str, Any] = {"count": event.count} if event.count > 1 else {}
    if event.pids:
        detail["pid"] = event.pids[0]
        detail["pids"] = event.pids
    if event.inside is None:
        detail["undated"] = True
    detail.update(more.pop("detail", {}))
    if facts.get("fix"):
        detail["fix"] = list(facts["fix"])
    seen = Observation(
        detector="kernel",
        signature=facts["signature"],
        role=facts["role"],
        cause=facts["cause"],
        title=facts["title"],
        text=event.text,
        scope="rank" if rank is not None else "node",
        strength=facts["strength"],
        rank=rank,
        node=event.node,
        device=event.device,
        at_lo=event.at_lo,
        at_hi=event.at_hi,
        seq=event.line,
        issuer="kernel",
        source="kernel_log",
        path=event.path,
        line=event.line,
        offset=event.offset,
        detail=detail,
    )
    for name, value in more.items():
        setattr(seen, name, value)
    return seen


def _stale(event: Event, seen: Observation) -> Observation:
    """An event outside the job's time may describe the node, it does not explain the job."""
    if event.inside is False:
        seen.role, seen.strength = "context", 1
        seen.detail["outside_job"] = True
    return seen


# --- Xid and SXid -----------------------------------------------------------------------------------------------------


def _xid(event: Event, events: list[Event], placement: Placement) -> Observation:
    facts = lookup("xid").get(event.code) or {
        "meaning": "The NVIDIA driver reported a fault",
        "cause": "unknown",
        "role": "initiating",
        "strength": 1,
        "action": "look the number up in NVIDIA's Xid catalogue",
    }
    rank = next((r for pid in event.pids if (r := placement.rank_of_pid(pid, event.node)) is not None), None)
    if rank is None:
        rank = placement.rank_of_device(event.device, event.node)
    judged = {**facts, "signature": _xid_id(event), "title": f"{facts['meaning']} ({_named(event)})"}
    detail = {"xid": event.code, "action": facts["action"], "fix": [_sentence(facts["action"])]}
    if event.code in _PROGRAM_XIDS:
        judged |= _program_or_device(event, events, rank)
    if _NONFATAL.search(event.text):
        judged |= {"role": "context", "strength": 1}
    cause = _explaining_xid(event, facts.get("caused_by", ()), events)
    if cause is not None and judged["role"] in ("initiating", "cascade"):
        judged |= {"role": "cascade"}
        detail["caused_by"] = _xid_id(cause)
    return _stale(event, _observation(event, judged, rank, detail=detail))


def _xid_id(event: Event) -> str:
    """Id in the signature base, which describes the NVLink 5 Xids together."""
    if event.code is not None and 144 <= event.code <= 150:
        return "gpu/xid-144-150-nonfatal" if _NONFATAL.search(event.text) else "gpu/xid-144-150"
    return f"gpu/xid-{event.code}"


def _named(event: Event) -> str:
    return f"Xid {event.code}, {event.device}" if event.device else f"Xid {event.code}"


def _sentence(action: str) -> str:
    return action[0].upper() + action[1:] + "."


def _program_or_device(event: Event, events: list[Event], rank: int | None) -> dict[str, Any]:
    """Xid 13 and 31 come from programs; on one device only, over several processes, they come from the device."""
    alike = [e for e in events if e.event == "xid" and e.code in _PROGRAM_XIDS and same_node(e.node, event.node)]
    processes = {pid for e in alike if e.device == event.device for pid in e.pids}
    if len({e.device for e in alike}) == 1 and len(processes) >= _PROCESSES_OF_A_BAD_DEVICE:
        title = f"One GPU faulted in {len(processes)} processes and no other GPU did ({_named(event)})"
        return {"cause": "gpu", "strength": 2, "title": title}
    return {"strength": 2 if rank is not None else 1}


def _explaining_xid(event: Event, causes: Any, events: list[Event]) -> Event | None:
    """An Xid of the same node that came first and can cause this one: of this GPU, or one that takes peers along."""
    for other in events:
        if other is event or other.event != "xid" or other.inside != event.inside:
            continue
        if other.code == event.code or not same_node(other.node, event.node) or not other.before(event):
            continue
        if _NONFATAL.search(other.text):
            continue
        facts = lookup("xid").get(other.code, {})
        near = other.device == event.device
        if (other.code in causes and (near or facts.get("peers"))) or (
            "any" in causes and near and facts.get("role") == "initiating"
        ):
            return other
    return None


def _named_by_echoes(events: list[Event]) -> list[Event]:
    """Newer drivers say in Xid 45 which Xid caused it. Where that one's own line is missing, the echo stands for it."""
    present = {(e.node, e.device, e.code) for e in events if e.event == "xid"}
    found = []
    for event in events:
        named = _PREVIOUS.search(event.text) if event.event == "xid" else None
        if named is None or (event.node, event.device, int(named[1])) in present:
            continue
        present.add((event.node, event.device, int(named[1])))
        values = {name: getattr(event, name) for name in Event.__dataclass_fields__}
        found.append(Event(**values | {"code": int(named[1])}))
    return found


def _sxid(event: Event, events: list[Event], placement: Placement) -> Observation:
    known = lookup("sxid").get(event.code, {})
    fatal = not _NONFATAL.search(event.text)
    level = known.get("level", "fatal" if fatal else "noise")
    meaning = known.get("meaning", "the switch reported an event")
    judged = {
        "signature": "gpu/sxid-fatal" if fatal else "gpu/sxid-nonfatal",
        "cause": "gpu",
        "role": "initiating" if fatal or level == "stall" else "context",
        "strength": (3 if level == "always_fatal" else 2) if fatal else 1,
        "title": f"NVSwitch: {meaning} (SXid {event.code})",
        "fix": ["Drain the node, reset all GPUs and NVSwitches or reboot; replace the board if it repeats."],
    }
    detail: dict[str, Any] = {"sxid": event.code}
    lost = _explaining_xid(event, (79, 74, 119, 120), events)
    if lost is not None and judged["role"] == "initiating":
        judged["role"] = "cascade"
        detail["caused_by"] = _xid_id(lost)
    return _stale(event, _observation(event, judged, None, detail=detail))


# --- everything else --------------------------------------------------------------------------------------------------


def _other(event: Event, events: list[Event], placement: Placement) -> Iterator[Observation]:
    facts = lookup("kernel_events")["events"].get(event.event)
    if facts is None or facts.get("silent") or (event.inside is False and facts["cause"] != "gpu"):
        return
    if _said_by_an_xid(event, events):
        return
    if event.event == "boot" and not _during_the_job(event, placement):
        return
    rank = placement.rank_of_pid(event.pid, event.node) if event.pid is not None else None
    if rank is None and facts["cause"] == "gpu":
        rank = placement.rank_of_device(event.device, event.node)
    judged, detail = dict(facts), {}
    if event.event in ("segfault", "trap"):
        if rank is None and not _job_process(event.process):
            return
        library = _LIBRARY.search(event.text)
        if library:
            detail["library"] = library[1]
            judged["title"] = f"{facts['title']} in {library[1]}"
        judged["strength"] = 2 if rank is not None else 1
    cause = _explaining_event(event, facts.get("caused_by", ()), events)
    if cause is not None and judged["role"] == "initiating":
        judged["role"] = "cascade"
        detail["caused_by"] = cause
    yield _stale(event, _observation(event, judged, rank, detail=detail))


def _said_by_an_xid(event: Event, events: list[Event]) -> bool:
    """The driver says in plain words, too, what it has given a number."""
    number = _SAME_AS_XID.get(event.event)
    return number is not None and any(
        e.event == "xid" and e.code == number and same_node(e.node, event.node) and event.device in (None, e.device)
        for e in events
    )


def _during_the_job(event: Event, placement: Placement) -> bool:
    """A node boots before a job starts; booting while it runs ended its ranks."""
    window = placement.window
    return bool(event.inside and window and event.at_lo is not None and event.at_lo > window[0] + _START_UP)


def _explaining_event(event: Event, causes: Any, events: list[Event]) -> str | None:
    """Signature of an event of the same node that came first and can cause this one."""
    for other in events:
        if other is event or other.event not in causes or other.inside != event.inside:
            continue
        if not same_node(other.node, event.node) or not other.before(event):
            continue
        if other.event != "xid":
            return str(lookup("kernel_events")["events"][other.event]["signature"])
        if lookup("xid").get(other.code, {}).get("severity") == "fatal":
            return _xid_id(other)
    return None


# --- out of memory ----------------------------------------------------------------------------------------------------


def _job_process(process: str | None) -> bool:
    return process is not None and re.match(lookup("kernel_events")["job_process"], process) is not None


def _kills(kills: list[Event], placement: Placement) -> Iterator[Observation]:
    """A kill of a rank is decisive; of a nameless process of the job, strong; of any other process, context."""
    facts = lookup("kernel_events")["events"]["oom_kill"]
    found: list[Observation] = []
    unplaced: dict[str | None, Observation] = {}
    for event in kills:
        if event.pid is None and event.device is None:
            continue
        rank = placement.rank_of_pid(event.pid, event.node)
        own = rank is not None
        if rank is None and event.pid is not None and event.inside is not False:
            rank = placement.rank_that_mentions(event.pid, event.node)
        memcg = "Memory cgroup" in event.text or "CONSTRAINT_MEMCG" in event.text
        why = "the limit of its memory cgroup was reached" if memcg else "host memory was exhausted"
        victim = f"{event.process or 'a process'} (pid {event.pid})" if event.pid is not None else "processes"
        judged = {
            **facts,
            "signature": facts["memcg" if memcg else "signature"],
            "title": f"The kernel's OOM killer killed {victim}: {why}",
        }
        detail = {"process": event.process, "constraint": "memcg" if memcg else "global"}
        seen = _observation(event, judged, rank, detail=detail)
        if not own:  # a rank's own pid settles the matter even where the clocks disagree
            seen = _stale(event, seen)
        if rank is None and not _job_process(event.process):
            seen.role, seen.strength = "context", 1
        elif rank is None and seen.role == "initiating":
            seen.strength = 2
            first = unplaced.setdefault(event.node, seen)
            if first is not seen:
                first.detail["pids"] = [*first.detail["pids"], event.pid]
                continue
        found.append(seen)
    yield from found
    yield from _counted_kills(kills, {seen.node for seen in found if seen.role == "initiating"})


def _counted_kills(kills: list[Event], explained: set[str | None]) -> Iterator[Observation]:
    """A cgroup's counter says that something was killed; it adds nothing where the kernel log names the victim."""
    facts = lookup("kernel_events")["events"]["oom_kill"]
    for event in kills:
        counter = event.pid is None and event.device is None
        if counter and not any(same_node(event.node, node) for node in explained):
            title = "A process in the memory cgroup of the job was killed because its limit was reached"
            judged = {**facts, "signature": facts["memcg"], "strength": 2, "title": title}
            yield _observation(event, judged, None, detail={"constraint": "memcg"})
