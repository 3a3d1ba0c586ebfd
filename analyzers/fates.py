"""What became of each rank: its errors, its exit, its last word. Shared by the detectors that reason about silence.

A rank without any evidence has a fate too (`lines == 0`): absence of evidence must not accuse it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analyzers.case import Case, Hit
from analyzers.classify import Classified, classify_all, covered, pid_ranks
from analyzers.own_words import Words, last_words
from collector.data import lookup

_SIGTERM, _SIGKILL = 15, 9


@dataclass(slots=True)
class Fate:
    """One rank of the examined attempt."""

    rank: int
    row: Mapping[str, Any] = field(default_factory=dict)
    """Its row of `ranks`, empty if nothing was seen of it."""
    errors: list[Classified] = field(default_factory=list)
    echoes: list[Hit] = field(default_factory=list)
    """Known lines outside tracebacks that report a failure elsewhere."""
    failures: list[Hit] = field(default_factory=list)
    """Known lines outside tracebacks that state a failure of this rank."""
    words: list[Words] = field(default_factory=list)
    """Its last words, where they are an error in the program's own terms."""
    ends: list[Mapping[str, Any]] = field(default_factory=list)
    """Rows of `scheduler_events` about its process."""
    others_torn_down: bool = False
    """True if the launcher says that it ended at least one other rank."""

    @property
    def node(self) -> str | None:
        """Its node, if known."""
        return self.row.get("node")

    @property
    def lines(self) -> int:
        """Number of log lines known to be its own."""
        return int(self.row.get("lines") or 0)

    @property
    def terminated(self) -> bool:
        """True if the launcher ended it: it was alive when the job was already failing."""
        return any(end["event"] == "teardown" or end.get("signal") == _SIGTERM for end in self.ends)

    @property
    def stopped_from_outside(self) -> bool:
        """True if a SIGTERM ended it that the launcher did not send although it sent one to others."""
        return (
            any(end.get("signal") == _SIGTERM and end["event"] != "teardown" for end in self.ends)
            and not any(end["event"] == "teardown" for end in self.ends)
            and self.others_torn_down
        )

    @property
    def signal(self) -> int | None:
        """The signal that ended it, if it was not the launcher's teardown."""
        signals = [end["signal"] for end in self.ends if end.get("signal") and end["event"] != "teardown"]
        for signal in signals:
            if signal != _SIGTERM and not (signal == _SIGKILL and self.terminated):
                return int(signal)
        return None

    @property
    def code(self) -> int | None:
        """Its exit code, if stated."""
        return next((int(end["code"]) for end in self.ends if end.get("code") is not None), None)

    @property
    def failed(self) -> bool:
        """True if it printed an error of its own, of whatever role."""
        return bool(self.errors or self.echoes or self.failures or self.words)

    def _said(self, kind: str) -> bool:
        ids = [e.hit.signature for e in self.errors if e.hit is not None] + [hit.signature for hit in self.echoes]
        return any(signature in lookup("echoes")[kind] for signature in ids)

    @property
    def timed_out(self) -> bool:
        """True if its echoes say that it waited too long for a peer, and none that a connection was lost."""
        waited = self._said("timed_out") or any(words.elsewhere and words.patient for words in self.words)
        return waited and not self._said("peer_gone")

    @property
    def mismatched(self) -> bool:
        """True if it printed that the collectives of the ranks do not match."""
        return self._said("mismatch")

    @property
    def only_echoes(self) -> bool:
        """True if all it printed are echoes of a failure elsewhere."""
        return (
            self.failed
            and not self.failures
            and all(words.elsewhere for words in self.words)
            and all(e.role in ("cascade", "teardown", "wrapper") for e in self.errors)
        )


def fates(case: Case) -> dict[int, Fate]:
    """Rank -> fate, for all ranks of the job's world size (or all ranks seen, if that is unknown)."""
    rows = {row["rank"]: row for row in case.rows("ranks")}
    ends = ends_by_rank(case)
    world = max(case.world_size or 0, max(rows, default=-1) + 1, max(ends, default=-1) + 1)
    ranks = {rank: Fate(rank, rows.get(rank, {})) for rank in range(min(world, 1 << 20))}
    for judged in classify_all(case):
        if judged.rank in ranks and judged.role != "wrapper":
            ranks[judged.rank].errors.append(judged)
    inside = covered(case)
    pids = pid_ranks(case)
    for hit in case.hits:
        role = case.signatures[hit.signature].role
        rank = hit.line.rank if hit.line.rank is not None else pids.get(hit.line.pid or -1)
        if rank in ranks and hit.index not in inside:
            if role == "initiating":
                ranks[rank].failures.append(hit)
            elif role == "cascade":
                ranks[rank].echoes.append(hit)
    for rank, told in ends.items():
        if rank in ranks:
            ranks[rank].ends.extend(told)
    for words in last_words(case):
        rank = words.line.rank
        if rank in ranks:
            ranks[rank].words.append(words)
    torn = {rank for rank, told in ends.items() if any(end["event"] == "teardown" for end in told)}
    for rank, fate in ranks.items():
        fate.others_torn_down = bool(torn - {rank})
    return ranks


def ends_by_rank(case: Case) -> dict[int, list[Mapping[str, Any]]]:
    """Global rank -> statements about its process's end, resolved by rank, pid, or local rank and node."""
    pids = pid_ranks(case)
    for end in case.rows("scheduler_events"):
        if end.get("pid") is not None and end.get("rank") is not None:
            pids.setdefault(end["pid"], end["rank"])
    seats: dict[tuple[Any, Any], set[int]] = defaultdict(set)
    for row in case.rows("ranks"):
        seats[(row.get("node"), row.get("local_rank"))].add(row["rank"])
    # two nodes whose names nobody knows share their local ranks: such a seat names no rank
    places = {seat: next(iter(ranks)) for seat, ranks in seats.items() if len(ranks) == 1}
    several = any(len(ranks) > 1 for ranks in seats.values())
    nodes = {row.get("node") for row in case.rows("ranks") if row.get("node")}
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for end in case.rows("scheduler_events"):
        rank = end.get("rank")
        if rank is None and end.get("pid") in pids:
            rank = pids[end["pid"]]
        if rank is None and end.get("local_rank") is not None and end["event"] != "teardown":
            # with one node the local rank is the global rank; with several it needs the node
            rank = places.get((end.get("node"), end["local_rank"]))
            if rank is None and len(nodes) <= 1 and not several:
                rank = end["local_rank"]
        if rank is not None:
            found[int(rank)].append(end)
    return found


def nodes_of(ranks: Mapping[int, Fate]) -> dict[int, str | None]:
    """Rank -> node; where no line names a node, the pattern of local ranks tells which ranks share one.

    Unnamed nodes are called `node of ranks A-B`. None where nothing tells.
    """
    named = {rank: fate.node for rank, fate in ranks.items()}
    if len({node for node in named.values() if node}) > 1:
        return named
    local = {rank: fate.row.get("local_rank") for rank, fate in ranks.items()}
    seen = [number for number in local.values() if number is not None]
    size = max(seen, default=-1) + 1
    fits = all(number is None or number == rank % size for rank, number in local.items()) if size else False
    if not size or size >= len(ranks) or len(ranks) % size or not fits or len(seen) < len(ranks):
        return named
    return {rank: f"node of ranks {rank // size * size}-{rank // size * size + size - 1}" for rank in ranks}
