"""Whose evidence a file is, as far as its name tells: rank, local rank, node, attempt, stream, pid.

A table of name shapes, read from the most to the least explicit. An explicit `rank3` is believed; a bare number
(`log.3`, `logs/3/out.txt`, `1234-3.out`) is a rank only if its siblings count from 0 without a gap or nearly so, and
never if it can be a rotation (`train.log`, `train.log.1`) or a Slurm array (`slurm-1234_3.out`). torchrun numbers its
folders by LOCAL rank; that is the global rank only where one agent's folder is all there is. What the content of a file
says wins over all this: see `contradicts`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from collector.model import Origin


@dataclass(frozen=True, slots=True)
class Name:
    """What one path says."""

    origin: Origin
    pid: int | None = None
    """Process id in the name (Ray workers, `host.pid.txt`)."""
    dump: int | None = None
    """Number of a stack or flight-recorder dump as written in the name (`hang2.rank0.json` is 2)."""


_END = r"(?![0-9])"
_SUFFIX = r"(?:log|out|err|txt|json|stdout|stderr|gz|zst|xz|bz2|previous)\b"
_NODE_NAME = (
    r"(?:[a-z][a-z0-9]*[-_.])*"
    r"(?:(?:node|host|dgx|nid|compute|cn|ip|instance|gpu-?node|worker-?node|server|vm)[a-z]*[-_]?\d[\d-]*"
    r"|[a-z]+-?(?:a100|h100|h200|b200|v100|mi\d+x?)[a-z]*-?\d+)"
    rf"(?:\.(?!{_SUFFIX}|rank)[a-z][\w-]*)*"
)
_WORD = r"(?<![A-Za-z0-9])"

_PATHS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # torchrun --log-dir: <run id>/attempt_K/<local rank>/stdout.log, stderr.log, error.json
        r"(?:^|/)attempt_(?P<attempt>\d+)/(?P<local_rank>\d+)/(?P<stream>stdout|stderr)\.log(?:\.\w+)?$",
        r"(?:^|/)attempt_(?P<attempt>\d+)/(?P<local_rank>\d+)/[^/]+$",
        # kubelet: /var/log/pods/<namespace>_<pod>_<uid>/<container>/<restart>.log[.date[.gz]]
        r"(?:^|/)[a-z0-9.-]+_(?P<node>[a-z0-9.-]+)_[0-9a-f][0-9a-f-]{7,}/[^/]+/(?P<attempt>\d+)\.log(?:\.[\w-]+)*$",
        # kubelet's links: /var/log/containers/<pod>_<namespace>_<container>-<64 hex>.log
        r"(?:^|/)(?P<node>[a-z0-9.-]+)_[a-z0-9.-]+_[a-z0-9.-]+-[0-9a-f]{64}\.log$",
        # Ray: worker-<worker id>-<job id>-<pid>.out
        r"(?:^|/)worker-[0-9a-f]{20,}-[0-9a-f]{8}-(?P<pid>\d+)\.(?P<stream>out|err)$",
        r"(?:^|/)python-core-(?:worker|driver)-[0-9a-f]{20,}_(?P<pid>\d+)\.log$",
        # Open MPI, PRRTE --output-filename: <job>/rank.3/stdout
        r"(?:^|/)rank[._-](?P<rank>\d+)/(?P<stream>stdout|stderr)$",
    )
)
_PARTS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_WORD}(?:local[-_.]?rank|localrank)[-_.=]?(?P<local_rank>\d+){_END}",
        rf"{_WORD}(?:node[-_.]?rank|noderank|node[-_.]?id)[-_.=]?(?P<ignored>\d+){_END}",
        rf"(?:{_WORD}|(?<=[a-z0-9]_)|(?<=global)|(?<=_))rank[-_.=]?(?P<rank>\d+){_END}",
        rf"{_WORD}(?:attempt|restart)[-_.=]?(?P<attempt>\d+){_END}",
    )
)
_NODE = re.compile(
    rf"(?:^|[-_./])(?P<node>{_NODE_NAME})"
    rf"(?=$|[-_.](?:{_SUFFIX}|rank|dmesg|nvidia|attempt|stack|py-?spy|hang|console|kern|gpu|\d+\.))",
    re.IGNORECASE,
)
_WHOLE_NODE = re.compile(_NODE_NAME, re.IGNORECASE)
_POD = re.compile(
    r"^(?P<node>[a-z][a-z0-9.-]*?-(?:worker|master|launcher|chief|ps|node|trainer|head|replica)-\d+(?:-[a-z0-9]{5})?"
    r"|[a-z][a-z0-9-]*-\d+-[a-z0-9]{5}"
    r"|[a-z][a-z0-9-]*(?<!slurm)(?<!log)(?<!rank)(?<!worker)(?<!node)(?<!out)-\d+-\d+-[a-z0-9]{5})"
    r"(?:\.(?:previous|prev))?(?:\.(?:log|txt|out))?$"
)
_DUMP = (
    re.compile(r"(?:^|/)[A-Za-z_-]*?(?P<dump>\d+)[._-](?:local_?)?rank[-_.]?\d+[^/]*$", re.IGNORECASE),
    re.compile(r"rank[-_.]?\d+[-_.](?P<dump>\d+)\.[A-Za-z.]+$", re.IGNORECASE),
)
_HOST_PID = re.compile(
    r"(?:^|/)(?P<node>[a-z][\w-]*\d[\w-]*)[.](?P<pid>\d{2,8})\.(?:txt|log|json|out|stack)$", re.IGNORECASE
)
_STREAM = re.compile(r"(?:^|[/._-])(?P<stream>stdout|stderr|err)(?:$|[._-])", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_ARRAY = re.compile(r"(?:^|/)(?:slurm[-_.])?\d{2,}_\d+\.(?:out|err|log|txt)$", re.IGNORECASE)
_NUMBERED = re.compile(
    r"(?:^|/)(?:(?:[a-z]+[-_.])*?(?:log|logs|std_?out|std_?err|output|out|err|worker|proc|process|task|gpu|rk|r|p|trainer|train)"
    r"[-_.]?(?P<a>\d{1,5})(?:\.(?:log|out|err|txt|stdout|stderr|json))*"
    r"|(?P<b>\d{1,5})(?:\.(?:log|out|err|txt|stdout|stderr))?"
    r"|(?:[a-z]\w*[-_.])?\d{2,}[-.](?P<c>\d{1,5})\.(?:out|err|log|txt)"
    r"|(?P<d>\d{1,5})/(?:std_?out|std_?err|out|err|output|log|console|train|train_?log)[\w-]*(?:\.(?:log|txt|out|err))?)$",
    re.IGNORECASE,
)
_MARK = re.compile(rb"\[rank(\d{1,6})\]|\brank[=: ](\d{1,6})\b|\bRANK[=: ](\d{1,6})\b|\[Rank (\d{1,6})\]")
_BOTH = re.compile(r"(?:(?<=\.)|(?<=std))_?(?:out|err)$|std_?(?:out|err)", re.IGNORECASE)
_STREAMS = {"out": "stdout", "stdout": "stdout", "err": "stderr", "stderr": "stderr"}


def read_name(path: str) -> Name:
    """What `path` (with `/`) says by itself, without looking at its siblings."""
    said: dict[str, str] = {}
    explicit = next((match for pattern in _PATHS if (match := pattern.search(path))), None)
    if explicit:
        said.update({key: value for key, value in explicit.groupdict().items() if value is not None})
    rest = path
    for pattern in _PARTS:
        for match in pattern.finditer(rest):
            said.update(match.groupdict())
        # "local_rank_2" must not be read again as "rank_2"
        rest = pattern.sub(" ", rest)
    last = path.rpartition("/")[2]
    if "pid" in said:
        pass  # a Ray worker's file name has the form of a pod's name, and is none
    elif match := _HOST_PID.search(last):
        said = {**match.groupdict(), **said}
    elif node := _node_of(path):
        said.setdefault("node", node)
    elif match := _POD.match(last):
        said.setdefault("node", match["node"])
    if "stream" not in said and (match := _STREAM.search(last)):
        said["stream"] = match["stream"]
    dump = next((match["dump"] for pattern in _DUMP if (match := pattern.search(path))), None)
    origin = Origin(
        node=said.get("node"),
        rank=_number(said.get("rank")),
        local_rank=_number(said.get("local_rank")),
        attempt=_number(said.get("attempt")),
        stream=_STREAMS.get(said.get("stream", "").lower()),
    )
    return Name(origin, _number(said.get("pid")), _number(dump))


def _node_of(path: str) -> str | None:
    """The deepest component that is a node's name, or the node's name in the file's name."""
    *folders, last = path.split("/")
    found = _NODE.search(re.sub(r"^slurm-\d+-", "", last))
    if found:
        return found["node"]
    return next((folder for folder in reversed(folders) if _WHOLE_NODE.fullmatch(folder)), None)


def _number(text: str | None) -> int | None:
    return int(text) if text and len(text) < 19 else None


def origins(paths: Iterable[str]) -> dict[str, Name]:
    """The names of a set of files found together, with what only the set can tell.

    Adds the rank of bare numbers where the siblings make that plausible, and the rank of torchrun's local ranks where
    there is a single agent's folder.
    """
    names = {path: read_name(path) for path in paths}
    _single_agent(names)
    _bare_numbers(names)
    _streams(names)
    return names


def _single_agent(names: dict[str, Name]) -> None:
    folders: dict[str, list[str]] = defaultdict(list)
    for path, name in names.items():
        before, attempt, _ = path.rpartition("/attempt_") if "/attempt_" in path else ("", path[:8], "")
        if name.origin.local_rank is not None and name.origin.rank is None and "attempt_" in attempt:
            folders[before].append(path)
    # one agent alone is the whole job, unless its folder is named after a node that is not the first
    if len(folders) != 1:
        return
    ((_, inside),) = folders.items()
    for path in inside:
        origin = names[path].origin
        digits = _NUMBER.findall(origin.node or "")
        if not digits or int(digits[-1]) == 0:
            names[path] = replace(names[path], origin=replace(origin, rank=origin.local_rank))


def _bare_numbers(names: dict[str, Name]) -> None:
    families: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, name in names.items():
        if name.origin.rank is not None or name.origin.local_rank is not None or name.pid is not None:
            continue
        if name.origin.attempt is not None or _ARRAY.search(path):
            continue
        match = _NUMBERED.search(path)
        if match and match.lastgroup:
            start, end = match.span(match.lastgroup)
            # the two streams of a rank are one family: w_0.out, w_1.err make a set
            stem = _BOTH.sub("std", f"{path[:start]}\0{path[end:]}")
            families[stem][int(match[match.lastgroup])].append(path)
    for stem, members in families.items():
        if _is_rank_set(stem, members.keys(), names):
            for number, paths in members.items():
                for path in paths:
                    names[path] = replace(names[path], origin=replace(names[path].origin, rank=number))


def _is_rank_set(stem: str, numbers: Iterable[int], names: Mapping[str, Name]) -> bool:
    present = sorted(numbers)
    before, _, after = stem.partition("\0")
    # train.log beside train.log.1 is a rotation; so is .1, .2 without a .0
    if before.rstrip("._-") + after in names or before.endswith((".log.", ".out.")):
        return False
    return len(present) >= 2 and present[0] == 0 and present[-1] < max(2, len(present) + len(present) // 4)


def _streams(names: dict[str, Name]) -> None:
    """`x.out` is standard output if `x.err` lies beside it; alone it usually holds both."""
    for path, name in names.items():
        if name.origin.stream is None and path.endswith(".out") and f"{path[:-4]}.err" in names:
            names[path] = replace(name, origin=replace(name.origin, stream="stdout"))


def spoken(head: bytes) -> frozenset[int]:
    """The global ranks that the first part of a file names (at most 64 of them)."""
    found: set[int] = set()
    for match in _MARK.finditer(head):
        found.add(int(next(group for group in match.groups() if group)))
        if len(found) >= 64:
            break
    return frozenset(found)


def contradicts(ranks: frozenset[int], rank: int) -> bool:
    """True if a file names `ranks` and `rank` is not among them, or several ranks speak in it."""
    return bool(ranks) and (rank not in ranks or len(ranks) > 2)
