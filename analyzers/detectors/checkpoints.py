"""Did the run fail because the checkpoint that it loaded is not whole, and where can it resume?

A broken checkpoint in a folder accuses nobody: an interrupted save leaves one behind, as a consequence. It is the cause
only if this run's own traceback went through a loader and the run says that this checkpoint was being loaded, or the
tracker file names it. Then the file system proves what the exception hides (a bare AssertionError, an EOFError).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from analyzers.case import Case, Observation
from collector.data import lookup
from collector.model import LogLine
from collector.readers.checkpoint import from_listing
from collector.readers.tracebacks import PyException

_BAD = {"partial": "checkpoint/incomplete", "corrupt": "checkpoint/corrupt"}
_WORDS = {"partial": "is incomplete", "corrupt": "is corrupt"}
_WINDOW = 2000
"""Lines before an exception in which the run says what it loads."""

Row = Mapping[str, Any]


def detect(case: Case) -> Iterator[Observation]:
    """One observation (role initiating) for each traceback of a loader that a broken checkpoint explains; else one
    (role confirmation) for a broken checkpoint that a tracker file points to.
    """
    rows = distinct(case.rows("checkpoints"))
    failures = [exception for exception in case.exceptions if _is_failed_load(exception)]
    for row in rows:
        if row.get("status") not in _BAD:
            continue
        explained = _first_of_each(e for e in failures if _is_of(row, e, case.lines, rows))
        ranks = {exception.line.rank for exception in explained}
        for exception in explained:
            # a shard that one rank alone reads is that rank's failure, not the job's
            alone = len(ranks) == 1 and None not in ranks and (case.world_size or 1) > 1
            yield _failed(row, exception, "rank" if alone else "job")
        if not explained and row.get("latest"):
            yield _lying(row)


def _first_of_each(failures: Iterable[PyException]) -> list[PyException]:
    """The first failure of each writer in each file: loaders try again, wrap and repeat."""
    first: dict[tuple[str, int | None, int | None], PyException] = {}
    for exception in failures:
        first.setdefault((exception.line.path, exception.line.rank, exception.line.local_rank), exception)
    return list(first.values())


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Rows without those that a listing repeats: of two rows for one place the one that saw the files stays."""
    kept: list[Row] = []
    for row in sorted(rows, key=from_listing):
        path = _parts(row)
        same = [
            other
            for other in kept
            if _parts(other)[-len(path) :] == path or path[-len(_parts(other)) :] == _parts(other)
        ]
        if not same:
            kept.append(row)
    return sorted(kept, key=lambda row: str(row.get("path")))


def resume_from(rows: Sequence[Row], failed_at: int | None) -> Row | None:
    """The newest complete checkpoint: highest step, then the one a tracker names, then the last saved.

    `failed_at` (UTC microseconds): checkpoints saved later belong to another run, unless all are later, which means
    that the files were copied and their times say nothing. A checkpoint without a step counts only if a tracker names
    it or it is a training state (weights alone, such as a base model, are no place to resume from).
    """
    complete = [row for row in rows if row.get("status") == "complete" and _resumable(row)]
    if failed_at is not None:
        in_time = [row for row in complete if (row.get("saved_at") or 0) <= failed_at]
        complete = in_time or complete
    return max(complete, key=_newness, default=None)


def _resumable(row: Row) -> bool:
    return (
        row.get("step") is not None or bool(row.get("latest")) or row.get("format") not in ("safetensors", "hf-sharded")
    )


def _newness(row: Row) -> tuple[int, bool, int, str]:
    step = row.get("step")
    return (-1 if step is None else step, bool(row.get("latest")), row.get("saved_at") or 0, str(row.get("path")))


@cache
def _patterns(name: str) -> re.Pattern[str]:
    return re.compile("|".join(lookup("checkpoint_load")[name]))


def _is_failed_load(exception: PyException) -> bool:
    chain = exception.chain()
    if exception.by_launcher or any(_patterns("other_reasons").search(f"{e.type}: {e.message}") for e in chain):
        return False
    return any(_patterns("loaders").search(f"{f.file}:{f.function}") for e in chain for f in e.frames)


def _is_of(row: Row, exception: PyException, lines: Sequence[LogLine], rows: Sequence[Row]) -> bool:
    """True if the run says that it was loading this checkpoint (or the folder whose tracker names it)."""
    texts = [f"{e.message} {' '.join(frame.source for frame in e.frames)}" for e in exception.chain()]
    texts += [
        line.text
        for line in lines[max(0, exception.start - _WINDOW) : exception.start]
        if line.rank in (None, exception.line.rank) and _patterns("announcements").search(line.text)
    ]
    if any(_mentions(text, _parts(row)) for text in texts):
        return True
    others = [other for other in rows if other is not row and _parts(other) != _parts(row)]
    if not row.get("latest") or any(_mentions(text, _parts(other)) for other in others for text in texts):
        return False
    # "resuming from ckpt": the tracker in that folder decides which one is loaded
    return len(_parts(row)) == 1 or any(_mentions(text, _parts(row)[:-1]) for text in texts)


def _parts(row: Row) -> tuple[str, ...]:
    return PurePosixPath(str(row.get("path"))).parts


def _mentions(text: str, parts: tuple[str, ...]) -> bool:
    """True if the text has the last name of a path as a word of its own."""
    return bool(parts) and re.search(rf"(?<![\w.-]){re.escape(parts[-1])}(?![\w-])", text) is not None


def _failed(row: Row, exception: PyException, scope: str) -> Observation:
    line = exception.line
    status = str(row["status"])
    return Observation(
        detector="checkpoints",
        signature=_BAD[status],
        role="initiating",
        cause="storage",
        title=f"The checkpoint {row['path']} that was loaded {_WORDS[status]}: {row.get('why')}",
        text=line.text.strip(),
        scope=scope,
        strength=3,
        attempt=line.attempt,
        rank=line.rank,
        node=line.node,
        entity=str(row["path"]),
        at_lo=exception.before if line.at_lo is None else line.at_lo,
        at_hi=line.at_hi,
        # the checkpoint was broken before the traceback began
        seq=exception.start - 1,
        issuer=line.issuer,
        path=line.path,
        line=line.line,
        offset=line.offset,
        detail={
            "why": row.get("why"),
            "step": row.get("step"),
            "same": f"{row['path']}|{row.get('why')}",
            "exception": exception.short_type,
            "pid": line.pid,
        },
    )


def _lying(row: Row) -> Observation:
    status = str(row["status"])
    return Observation(
        detector="checkpoints",
        signature=_BAD[status],
        role="confirmation",
        cause="storage",
        title=f"The checkpoint that the tracker file points to {_WORDS[status]}: {row.get('why')}",
        text=str(row.get("why")),
        scope="job",
        strength=2,
        entity=str(row["path"]),
        issuer="collector",
        source="checkpoint",
        path=str(row["path"]),
        detail={"step": row.get("step"), "why": row.get("why")},
    )
