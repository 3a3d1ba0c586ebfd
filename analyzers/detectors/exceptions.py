"""Which uncaught exceptions did the ranks print, and what kind of failure is each?

One observation per exception chain. A wrapper (a launcher or driver that reports a child's end) is never a cause; the
child's traceback quoted in it is the child's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analyzers.case import Case, Observation
from analyzers.classify import Classified, accused_ranks, classify_all
from collector.readers.tracebacks import PyException

_GENERIC = "python/uncaught-exception"


def detect(case: Case) -> Iterator[Observation]:
    """Observations with `detail`: type, message, frame, site (call site in user code), chain, same (identity key)."""
    for judged in classify_all(case):
        yield _observe(judged)


def _observe(judged: Classified) -> Observation:
    element, outer = judged.element, judged.outer
    frame = element.user_frame
    where = f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.lineno})" if frame else None
    accused = accused_ranks(judged.hit.captures) if judged.hit else []
    accusing = bool(accused) and judged.role == "cascade"
    return Observation(
        detector="exceptions",
        signature=judged.hit.signature if judged.hit else _GENERIC,
        # the printer is an echo, but what it says about another rank is a statement about the start
        role="initiating" if accusing else judged.role,
        cause=judged.cause,
        title=_title(element, where, judged.title),
        text=element.line.text.strip(),
        scope=judged.scope,
        strength=judged.strength,
        attempt=element.line.attempt,
        rank=judged.rank,
        node=element.line.node,
        accuses_rank=accused[0] if accused else None,
        at_lo=outer.before if element.line.at_lo is None else element.line.at_lo,
        at_hi=element.line.at_hi,
        seq=outer.start,
        issuer=element.line.issuer,
        path=element.line.path,
        line=element.line.line,
        offset=element.line.offset,
        detail={
            "ranks": accused if len(accused) > 1 else [],
            "type": element.short_type,
            "message": element.message.partition("\n")[0][:300],
            "frame": where,
            "user_code": element.has_user_frame,
            "site": _site(outer),
            "chain": [_brief(e) for e in outer.chain()],
            "same": f"{element.type}|{element.message[:300]}|{where}",
            "captures": dict(judged.hit.captures) if judged.hit else {},
            "pid": element.line.pid,
            "text": element.line.text.strip()[:400],
        },
    )


def _brief(exception: PyException) -> str:
    message = exception.message.partition("\n")[0].strip()
    text = f"{exception.short_type}: {message}" if message else exception.short_type
    return text if len(text) <= 180 else text[:177] + "..."


def _title(exception: PyException, where: str | None, known: str | None) -> str:
    what = _brief(exception) + (f" in {where}" if where else "")
    return f"{known}: {what}" if known else what


def _site(outer: PyException) -> str | None:
    """The user's call path of the outermost exception: what this rank was doing when it failed."""
    frames: Sequence[str] = [
        f"{f.file.rpartition('/')[2]}:{f.lineno}"
        for f in outer.frames
        if not f.file.startswith("<") and "-packages" not in f.file
    ]
    return " > ".join(frames) or None
