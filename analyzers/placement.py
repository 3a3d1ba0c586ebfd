"""Which rank a process or a GPU belongs to, and when the job ran: what joins a node's evidence to a job's ranks.

A join is made only where the evidence leaves one answer; two possible ranks are no rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analyzers.case import Case, Observation
from collector.pci import pci_address

Row = Mapping[str, Any]


def same_node(one: str | None, other: str | None) -> bool:
    """Whether two spellings can mean one node: equal up to the domain, or unknown."""
    return one is None or other is None or one.split(".")[0].lower() == other.split(".")[0].lower()


def locate(case: Case, observations: Sequence[Observation]) -> None:
    """Fill in the node of observations about one rank whose node the roster knows, in place.

    The ranking needs it to keep a node's kernel log from explaining the errors of ranks on other nodes.
    """
    nodes = {row["rank"]: row["node"] for row in case.rows("ranks") if row.get("rank") is not None and row.get("node")}
    for seen in observations:
        if seen.node is None and seen.rank is not None:
            seen.node = nodes.get(seen.rank)


class Placement:
    """Ranks, processes and GPUs of one case. Cheap to build: reads the `ranks`, `gpus` and `incidents` tables once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._ranks = [row for row in case.rows("ranks") if row.get("rank") is not None]
        self._gpus = case.rows("gpus")
        nodes = {row["node"] for row in self._ranks if row.get("node")}
        self._all_placed = all(row.get("node") for row in self._ranks)
        self.only_node: str | None = nodes.pop() if len(nodes) == 1 and self._all_placed else None
        """The node of a job on one node, if it is known by name."""
        self._foreign = _outsiders(case, self._ranks) if self._all_placed else frozenset()
        self.window = _window(self._ranks, case.rows("incidents"))
        """(first, last) moment of the job in UTC microseconds, None if no rank has a time."""

    @property
    def pids_known(self) -> bool:
        """Whether the process of every rank is known, so that another process is none of the ranks."""
        return bool(self._ranks) and all(row.get("pid") is not None for row in self._ranks)

    def foreign(self, node: str | None) -> bool:
        """True if the node surely took no part: every rank has another one, and the names can be compared."""
        return node in self._foreign

    def rank_of_pid(self, pid: int | None, node: str | None) -> int | None:
        """The rank that is or was process `pid` on `node`; None if none or several are possible."""
        if pid is None:
            return None
        return _single(row for row in self._ranks if row.get("pid") == pid and same_node(row.get("node"), node))

    def rank_that_mentions(self, pid: int, node: str | None) -> int | None:
        """The one rank that printed the pid, such as the parent of a DataLoader worker that was killed."""
        number, found = str(pid), set()
        pattern = re.compile(rf"\bpid(?:\(s\))?\W{{1,3}}{number}\b")
        for line in self._case.lines:
            if (
                number in line.text
                and line.rank is not None
                and same_node(line.node, node)
                and pattern.search(line.text)
            ):
                found.add(line.rank)
        return found.pop() if len(found) == 1 else None

    def rank_of_device(self, device: str | None, node: str | None) -> int | None:
        """The rank that used the GPU at a PCI address: by the rank's own device, else by its local rank.

        The local rank counts as GPU index only where the node's state is known and one rank runs on each of its GPUs.
        """
        address = pci_address(device)
        if address is None:
            return None
        here = [row for row in self._ranks if same_node(row.get("node"), node)]
        gpus = [row for row in self._gpus if same_node(row.get("node"), node) and pci_address(row.get("pci"))]
        own = _single(row for row in here if self._address(str(row.get("device") or ""), gpus) == address)
        if own is not None:
            return own
        index = {row.get("index") for row in gpus if pci_address(row["pci"]) == address} - {None}
        places = {row.get("local_rank") for row in here} - {None}
        if len(index) != 1 or len(places) != len({pci_address(row["pci"]) for row in gpus}):
            return None
        return _single(row for row in here if row.get("local_rank") in index)

    def _address(self, device: str, gpus: list[Row]) -> str | None:
        """PCI address of a rank's device, which may be written as an address, a UUID or an index."""
        direct = pci_address(device)
        if direct is not None or not device:
            return direct
        named = {row.get("pci") for row in gpus if device in (row.get("uuid"), str(row.get("index")))}
        return pci_address(named.pop()) if len(named) == 1 else None


def _outsiders(case: Case, ranks: Sequence[Row]) -> frozenset[str]:
    """Nodes in the evidence of which no rank ran.

    Only where every rank of the job is placed, and only for names of the kind that the ranks' nodes have: a pod and the
    machine that it runs on have different names although they are one place.
    """
    sizes = {row.get("world_size") for row in case.rows("incidents")} - {None}
    if not ranks or sizes != {len({row["rank"] for row in ranks})}:
        return frozenset()
    used = {str(row["node"]) for row in ranks}
    kinds = {_kind_of_name(node) for node in used}
    named = {str(row["node"]) for table in ("kernel_events", "gpus") for row in case.rows(table) if row.get("node")}
    return frozenset(
        node for node in named if _kind_of_name(node) in kinds and not any(same_node(node, own) for own in used)
    )


def _kind_of_name(node: str) -> str:
    """A host name without its numbers: `gpu-node-07.cluster` is of the kind `gpu-node-#`."""
    return re.sub(r"\d+", "#", node.split(".")[0].lower())


def _single(rows: Iterable[Row]) -> int | None:
    ranks = {int(row["rank"]) for row in rows}
    return ranks.pop() if len(ranks) == 1 else None


def _window(ranks: Iterable[Row], incidents: Iterable[Row]) -> tuple[int, int] | None:
    names = ("first_line_at", "last_line_at", "exited_at")
    times = [row[name] for row in ranks for name in names if isinstance(row.get(name), int)]
    times += [row[name] for row in incidents for name in ("started", "ended") if isinstance(row.get(name), int)]
    return (min(times), max(times)) if times else None
