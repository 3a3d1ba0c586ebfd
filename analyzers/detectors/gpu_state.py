"""What the state of the GPUs, read when the job was over, says about why it died.

The state has no time of its own: a counter may have moved long before. Two readings of one GPU settle that, so a count
that grew between them is decisive and one that did not is context. One reading is a strong hint at most, except that a
GPU the driver has lost is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from analyzers.case import Case, Observation
from analyzers.placement import Placement
from collector.data import lookup

Row = Mapping[str, Any]
Key = tuple[str, str]


def detect(case: Case) -> Iterator[Observation]:
    """Yield one observation per GPU and finding, with the rank where the GPU belongs to one."""
    rows = case.rows("gpus")
    if not rows:
        return
    placement = Placement(case)
    readings: dict[Key, list[Row]] = {}
    for row in rows:
        readings.setdefault(_key(row, placement), []).append(row)
    for listed in readings.values():
        listed.sort(key=lambda row: (row.get("taken_at") is not None, row.get("taken_at") or 0))
    for listed in readings.values():
        yield from _errors(listed, readings, placement)
        yield from _memory(listed, placement)
    yield from _throttled(readings, placement)
    yield from _fewer(readings, placement)


def _host(row: Row, placement: Placement) -> str:
    """The node, or where it is not known the file, so that GPUs of two unnamed nodes stay apart."""
    return str(row.get("node") or placement.only_node or row.get("path"))


def _key(row: Row, placement: Placement) -> Key:
    gpu = next((f"{name}={row[name]}" for name in ("pci", "uuid", "index") if row.get(name) is not None), "")
    return _host(row, placement), gpu or str(row.get("error"))


def _observation(facts: Row, row: Row, placement: Placement, text: str, **detail: Any) -> Observation:
    node = row.get("node") or placement.only_node
    rank = placement.rank_of_device(row.get("pci"), node)
    if rank is None and row.get("index") is not None and facts["cause"] == "gpu":
        detail["index"] = row["index"]
    for name in ("serial", "uuid", "model", "taken_at"):
        if row.get(name) is not None:
            detail[name] = row[name]
    if facts.get("fix"):
        detail["fix"] = list(facts["fix"])
    if placement.foreign(node):
        detail["outside_job"] = True
    return Observation(
        detector="gpu_state",
        signature=facts["signature"],
        role="context" if placement.foreign(node) else facts["role"],
        cause=facts["cause"],
        title=facts["title"],
        text=text,
        scope="rank" if rank is not None else facts["scope"],
        strength=facts["strength"],
        rank=rank,
        node=node,
        device=row.get("pci") or row.get("uuid"),
        seq=row.get("line"),
        issuer="driver",
        source="gpu_state",
        path=row.get("path"),
        line=row.get("line"),
        detail=detail,
    )


def _errors(listed: list[Row], readings: Mapping[Key, list[Row]], placement: Placement) -> Iterator[Observation]:
    row = next((row for row in reversed(listed) if row.get("error")), None)
    if row is None:
        return
    facts = next((f for f in lookup("gpu_state")["errors"] if re.search(f["regex"], row["error"], re.IGNORECASE)), None)
    if facts is None:
        return
    host = _host(row, placement)
    peers_have = any(other != host and gpu.startswith(("pci=", "uuid=")) for other, gpu in readings)
    if facts["signature"] == "gpu/nvml-init-failed" and peers_have:
        facts = {**facts, "strength": 2}
    yield _observation(facts, row, placement, row["error"])


def _memory(listed: list[Row], placement: Placement) -> Iterator[Observation]:
    """ECC counters and the repair of memory, from the last reading; the first tells what was there before."""
    states = lookup("gpu_state")["states"]
    last = listed[-1]
    counts = [row["ecc_volatile_uncorrected"] for row in listed if row.get("ecc_volatile_uncorrected") is not None]
    if counts and counts[-1] > 0:
        facts = states["ecc"]
        grown = counts[-1] - counts[0]
        if len(counts) > 1:
            facts = {**facts, "strength": 3} if grown > 0 else {**facts, "role": "context", "strength": 1}
        text = f"Volatile Uncorr. ECC: {counts[-1]}"
        yield _observation(facts, last, placement, text, count=counts[-1], **({"grown": grown} if grown > 0 else {}))
    elif (last.get("ecc_aggregate_uncorrected") or 0) > 0:
        count = last["ecc_aggregate_uncorrected"]
        yield _observation(
            states["ecc_lifetime"], last, placement, f"Aggregate uncorrectable ECC: {count}", count=count
        )
    if last.get("remap_failure"):
        yield _observation(states["remap_failure"], last, placement, "Remapping Failure Occurred: Yes")
    if last.get("remap_pending"):
        yield _observation(states["remap_pending"], last, placement, "Pending: Yes")


def _throttled(readings: Mapping[Key, list[Row]], placement: Placement) -> Iterator[Observation]:
    """Slow clocks matter where they are the exception: what all GPUs show makes none of them the straggler."""
    trouble = set(lookup("gpu_state")["throttle"])
    hot = []
    for listed in readings.values():
        reasons = sorted(trouble & set(listed[-1].get("throttle") or ()))
        if reasons:
            hot.append((listed[-1], reasons))
    facts = lookup("gpu_state")["states"]["throttled"]
    if 2 * len(hot) > len(readings):
        facts = {**facts, "role": "context"}
    for row, reasons in hot:
        yield _observation(facts, row, placement, ", ".join(f"{name}: Active" for name in reasons), reasons=reasons)


def _fewer(readings: Mapping[Key, list[Row]], placement: Placement) -> Iterator[Observation]:
    """A node that shows fewer GPUs than all the others do. With two nodes it may as well be the other's surplus."""
    seen: dict[str, dict[str, Row]] = {}
    for (host, gpu), listed in readings.items():
        whole = seen.setdefault(host, {})
        if listed[-1].get("index") is not None:  # a GPU without a place comes from a file about some GPUs only
            whole[gpu] = listed[-1]
    counts = {host: len(gpus) for host, gpus in seen.items() if gpus}
    if len(counts) < 2:
        return
    usual, nodes = Counter(counts.values()).most_common(1)[0]
    usual = max(counts.values()) if nodes == 1 else usual
    facts = lookup("gpu_state")["states"]["fewer"]
    for host, count in counts.items():
        if count < usual:
            row = next(iter(seen[host].values()))
            settled = len(counts) >= 3 and nodes == len(counts) - 1
            judged = {**facts, "strength": facts["strength"] if settled else 1}
            seen_here = _observation(judged, row, placement, f"{count} GPUs, other nodes have {usual}", count=count)
            seen_here.rank, seen_here.device, seen_here.scope = None, None, "node"
            yield seen_here
