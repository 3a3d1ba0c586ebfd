"""A log that is piped in: spooled to a temporary file, because whoever reads it reads it more than once.

Of a stream without end the head and the tail are kept, and the gap is a row of the ledger.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

from collector.classify import HEAD_BYTES, classify
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, Origin, Outcome
from collector.opening import RegularFile, content

HEAD = 1 << 30
TAIL = 16 << 20
"""Bytes kept of a stream: the first GiB and the last 16 MiB."""


def collect(source: str, stream: BinaryIO, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
    """The one artifact that a stream is, called `-`, and a ledger row for what was dropped. Reads it to its end."""
    seen, kept, spool = _spool(stream, min(HEAD, budget.bytes))
    if not seen:
        yield LedgerEntry(source, "-", Outcome.EMPTY, detail="0 bytes")
        return
    if spool.size < seen:
        yield LedgerEntry(source, "-", Outcome.TRUNCATED, bytes_seen=seen, bytes_kept=spool.size, dropped_from=kept,
                          dropped_to=kept + seen - spool.size,
                          detail="the middle of a very long input was dropped")  # fmt: skip

    def open_spool() -> BinaryIO:
        return content(RegularFile(spool.fileno(), spool.size, owns=False))

    with open_spool() as opened:
        kind = classify("-", opened.read(HEAD_BYTES))
    # whoever pipes text in wants it read as a log unless it is something known
    taken = kind.kind or (None if kind.outcome is Outcome.REFUSED else ArtifactKind.RANK_LOG)
    if taken is None:
        yield LedgerEntry(source, "-", Outcome.REFUSED, bytes_seen=seen, detail=kind.detail)
        return
    origin = Origin(stream="console") if taken is ArtifactKind.RANK_LOG else Origin()
    yield Artifact(taken, "-", origin, seen, open_spool)


def _spool(stream: BinaryIO, head: int) -> tuple[int, int, RegularFile]:
    """Bytes seen, bytes of the head kept, and a file of head and tail that lives as long as it is referred to."""
    tail: deque[bytes] = deque()
    seen = kept = held = 0
    with tempfile.TemporaryFile() as file:
        while block := stream.read(1 << 20):
            seen += len(block)
            if kept < head:
                written = file.write(block[: head - kept])
                kept, block = kept + written, block[written:]
            if block:
                tail.append(block)
                held += len(block)
            while tail and held - len(tail[0]) >= TAIL:
                held -= len(tail.popleft())
        file.writelines(tail)
        file.flush()
        return seen, kept, RegularFile(os.dup(file.fileno()), kept + held)
