"""The output files of a Slurm job, from the masked copies that `collector.user_files` made.

Who wrote a file follows from the pattern that found it (`%t`, `%N`), then from its name, and is dropped where its
content says otherwise. A task is a rank only where srun started the ranks themselves: torchrun has one task per node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from collector import naming
from collector.classify import HEAD_BYTES, TEXT_BYTES, classify
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, LogLine, Origin, Outcome, RunRef
from collector.opening import opener
from collector.user_files import Copied, Copies


@dataclass(slots=True)
class RankLogs:
    """Source over a folder of copies. Labels of patterns: `regex`, `stream`, `origin`, `node`."""

    folder: Path
    copies: Copies
    base: str | None = None
    """Work directory of the job: paths below it are shown relative to it."""
    nodes: tuple[str, ...] = ()
    """The job's nodes in Slurm's order, for `%n`."""
    tasks_are_ranks: bool = True
    numbered: bool = True
    """False where `%t` tells tasks apart and is not their rank: in a heterogeneous step it counts differently."""
    name: str = "rank_logs"
    _moved: dict[str, Copied] | None = None

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        """An artifact per copy that is evidence, a ledger row for what could not be copied or is none."""
        yield from (replace(row, path=self.shown(row.path)) for row in self.copies.ledger())
        found: list[tuple[Copied, ArtifactKind, bytes]] = []
        for file in self.copies.files:
            judged = self._judge(file)
            if isinstance(judged, LedgerEntry):
                yield judged
            else:
                found.append(judged)
        named = naming.origins([self.shown(file.path) for file, _, _ in found])
        for file, kind, head in found:
            path = self.shown(file.path)
            origin = self._origin(file, kind, head, named[path].origin)
            yield Artifact(kind, path, origin, file.size, opener(self.folder, (file.name,)), file.modified)

    def adjust(self, line: LogLine) -> LogLine:
        """The line with its place in the original file, where masking or a cut moved it."""
        if self._moved is None:
            self._moved = {self.shown(file.path): file for file in self.copies.files if file.shifts}
        file = self._moved.get(line.path)
        if file is None:
            return line
        offset, number = file.original(line.offset, line.line)
        return line._replace(offset=offset, line=number)

    def shown(self, path: str) -> str:
        """The path relative to the job's work directory if it lies below it."""
        if self.base and path.startswith(self.base.rstrip("/") + "/"):
            return path[len(self.base.rstrip("/")) + 1 :]
        return path.lstrip("/")

    def _label(self, file: Copied, name: str) -> str | None:
        labels = self.copies.labels
        value = labels[file.pattern].get(name) if file.pattern < len(labels) else None
        return value if isinstance(value, str) and value else None

    def _judge(self, file: Copied) -> tuple[Copied, ArtifactKind, bytes] | LedgerEntry:
        path = self.shown(file.path)
        try:
            with opener(self.folder, (file.name,))() as stream:
                head = stream.read(HEAD_BYTES)
        except (OSError, ImportError) as error:
            return LedgerEntry(self.name, path, Outcome.UNREACHABLE, detail=str(error), bytes_seen=file.size)
        if not head:
            origin = self._origin(file, ArtifactKind.RANK_LOG, head, naming.read_name(path).origin)
            return LedgerEntry(self.name, path, Outcome.EMPTY, origin, ArtifactKind.RANK_LOG, detail="0 bytes")
        kind = classify(path, head).kind
        if kind is None and self._label(file, "origin") in ("record", "script"):
            # Slurm wrote it: whatever it looks like, it is output
            kind = ArtifactKind.RANK_LOG
        if kind is None or kind is ArtifactKind.CHECKPOINT:
            detail = "nothing that a reader knows"
            return LedgerEntry(self.name, path, Outcome.NOT_CONFIGURED, detail=detail, bytes_seen=file.size)
        return file, kind, head

    def _origin(self, file: Copied, kind: ArtifactKind, head: bytes, named: Origin) -> Origin:
        said = self._said(file)
        node = said.get("node") or self._by_number(said.get("nodeid")) or self._label(file, "node")
        own = self.tasks_are_ranks and said.get("rank", "").isdigit()
        rank = int(said["rank"]) if own and self.numbered else None
        if rank is None and "rank" not in said:
            rank = named.rank
        stream = self._label(file, "stream") or named.stream
        if kind is ArtifactKind.RANK_LOG:
            if rank is not None and naming.contradicts(naming.spoken(head[:TEXT_BYTES]), rank):
                rank = None
            if rank is None and named.local_rank is None:
                # a task's own file whose rank only its lines tell is a stream of one process all the same
                stream = (stream or "stdout") if own and not self.numbered else "console"
        return Origin(node or named.node, rank, named.local_rank, named.attempt, stream)

    def _said(self, file: Copied) -> dict[str, str]:
        """What the pattern's groups say about the name."""
        regex = self._label(file, "regex")
        match = re.fullmatch(regex, file.path) if regex else None
        return {key: value for key, value in match.groupdict().items() if value} if match else {}

    def _by_number(self, number: str | None) -> str | None:
        index = int(number) if number and number.isdigit() and len(number) < 9 else -1
        return self.nodes[index] if 0 <= index < len(self.nodes) else None
