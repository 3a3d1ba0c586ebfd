"""Did a write fail because a file system was full or a quota was used up, although the program does not say so?

torch.save reports only that fewer bytes arrived than were written. A full file system in df's table is not news by
itself: it is the cause only next to a write that failed, and only where the rank wrote to that file system, or where it
is the only full one and nothing tells where the rank wrote.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analyzers.case import Case, Observation
from analyzers.classify import classify_all, covered
from analyzers.placement import same_node
from collector.data import lookup
from collector.readers.disk_usage import FULL, QUOTA

_PATH = re.compile(r"""(?<![\w.:/'"-])/(?!dev/|proc/|sys/)[\w.+-]+(?:/[\w.+=-]+)+""")
_CODE = re.compile(r"-packages/|\.py$|\.so(?:\.\d+)*$|^/usr/|^/opt/")
_BEFORE = 30
"""Lines of the rank before the failure in which it says where it writes."""

Row = Mapping[str, Any]


class _Failure(NamedTuple):
    """One write that failed."""

    rank: int | None
    node: str | None
    paths: frozenset[str]
    """Places that the rank named around the failure."""


def detect(case: Case) -> Iterator[Observation]:
    """One observation for each full file system or quota that explains failed writes, with the ranks that wrote."""
    full = [row for row in case.rows("environment") if _kind(row) and str(row.get("value")).startswith(FULL)]
    if not full:
        return
    guilty: dict[int, list[_Failure]] = defaultdict(list)
    for failure in _failures(case):
        here = [index for index, row in enumerate(full) if same_node(row.get("node"), failure.node)]
        index = _meant(full, here, failure.paths)
        if index is not None:
            guilty[index].append(failure)
    for index, failures in guilty.items():
        yield _observe(full[index], failures)


def _kind(row: Row) -> str | None:
    return next((kind for kind in lookup("disk_usage")["kinds"] if str(row.get("name")).startswith(kind)), None)


def _failures(case: Case) -> Iterator[_Failure]:
    """Writes that failed, from tracebacks and from lines outside of them."""
    known = lookup("disk_usage")["write_failures"]
    nodes = {row["rank"]: row.get("node") for row in case.rows("ranks")}
    for judged in classify_all(case):
        if judged.hit is not None and judged.hit.signature in known:
            texts = [f"{e.message} {' '.join(frame.source for frame in e.frames)}" for e in judged.outer.chain()]
            yield _failure(case, judged.rank, judged.outer.start, texts, nodes)
    inside = covered(case)
    for hit in case.hits:
        if hit.signature in known and hit.index not in inside:
            yield _failure(case, hit.line.rank, hit.index, [hit.line.text], nodes)


def _failure(case: Case, rank: int | None, at: int, texts: list[str], nodes: Mapping[Any, Any]) -> _Failure:
    path = case.lines[at].path
    before = [line for line in case.lines[max(0, at - _BEFORE) : at] if line.path == path and line.rank in (None, rank)]
    texts += [line.text for line in before]
    paths = {found for text in texts for found in _PATH.findall(text) if not _CODE.search(found)}
    return _Failure(rank, nodes.get(rank), frozenset(paths))


def _meant(full: Sequence[Row], here: Sequence[int], paths: frozenset[str]) -> int | None:
    """Which of the full file systems on the node the rank wrote to."""
    mounts = {index: str(full[index]["name"]).partition(":")[2] for index in here}
    quotas = [index for index in here if str(full[index]["name"]).startswith(QUOTA)]
    written = [
        index
        for index, mount in mounts.items()
        if any(path == mount or path.startswith(mount.rstrip("/") + "/") for path in paths) and mount != "/"
    ]
    if written:
        return max(written, key=lambda index: len(mounts[index]))
    # a quota names a server, not a place; and without any path the only full one is meant
    if len(quotas) == 1 and (not paths or not mounts[quotas[0]].startswith("/")):
        return quotas[0]
    return here[0] if len(here) == 1 and not paths else None


def _observe(row: Row, failures: Sequence[_Failure]) -> Observation:
    kind = _kind(row) or ""
    facts = lookup("disk_usage")["kinds"][kind]
    ranks = sorted({failure.rank for failure in failures if failure.rank is not None})
    name, value = str(row["name"]).removeprefix(kind), str(row["value"]).partition(": ")[2]
    return Observation(
        detector="storage",
        signature=facts["signature"],
        role="initiating",
        cause="storage",
        title=facts["title"].format(name=name, value=value),
        text=f"{row['name']} {row['value']}",
        scope="rank",
        strength=2,
        rank=ranks[0] if len(ranks) == 1 else None,
        node=row.get("node") or failures[0].node,
        entity=name,
        issuer="collector",
        source="environment",
        path=row.get("path"),
        line=row.get("line"),
        detail={"ranks": ranks, "value": row["value"]},
    )
