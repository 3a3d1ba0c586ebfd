"""How did each process end? Exit signals speak where the rank itself could not.

SIGKILL, SIGSEGV and SIGBUS end a process before it can print; SIGABRT after an error line is that error's echo; SIGTERM
(and SIGKILL after it) is the launcher's teardown of the survivors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analyzers.case import Case, Observation
from analyzers.fates import Fate, fates
from collector.model import LogLine
from collector.readers.roster import progress_step, says_finished

_SIGABRT, _SIGKILL, _SIGTERM, _SIGINT = 6, 9, 15, 2
_NAMES = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
          11: "SIGSEGV", 15: "SIGTERM"}  # fmt: skip


def detect(case: Case) -> Iterator[Observation]:
    """At most one observation per rank, or one without a rank where no statement names one."""
    yield from _named(case)
    yield from _nameless(case)
    yield from _asked_to_stop(case)


def _nameless(case: Case) -> Iterator[Observation]:
    """A launcher that says how a process ended, but not which (DeepSpeed's return code)."""
    ends = [e for e in case.rows("scheduler_events") if e["event"] in ("exit", "signal")]
    if any(end.get("rank") is not None or end.get("pid") is not None for end in ends):
        return
    for end in ends:
        signal = end.get("signal")
        if signal in (None, _SIGTERM, _SIGINT) or end.get("local_rank") is not None:
            continue
        signature = {_SIGKILL: "exit/killed", _SIGABRT: "exit/aborted"}.get(signal, "exit/crashed")
        name = _NAMES.get(signal, f"signal {signal}")
        found = _observe(Fate(-1, {}, ends=[end]), signature, "initiating", "unknown", "", 2)
        silent = _only_silent(case)
        found.rank, found.node = (silent.rank, silent.node) if silent else (None, found.node)
        if silent:
            found.title = f"Rank {silent.rank} ended by {name} (signal {signal}) and could print nothing"
            found.detail["attributed"] = "every other rank printed that a peer was lost"
        else:
            found.title = f"A process ended by {name} (signal {signal}); the launcher does not say which rank it was"
        yield found
        return


def _only_silent(case: Case) -> Fate | None:
    """The one rank without an error line, where all others only report a lost or silent peer."""
    ranks = fates(case)
    silent = [fate for fate in ranks.values() if not fate.failed]
    others = [fate for fate in ranks.values() if fate.failed]
    return silent[0] if len(silent) == 1 and others and all(fate.only_echoes for fate in others) else None


def _asked_to_stop(case: Case) -> Iterator[Observation]:
    """Every rank says that it was told to stop, and nobody says anything worse."""
    ranks = fates(case)
    told = [hit for hit in case.hits if hit.signature == "python/sigterm-handled"]
    if not ranks or {hit.line.rank for hit in told} != set(ranks) or any(fate.failed for fate in ranks.values()):
        return
    first = min(told, key=lambda hit: (hit.line.at_lo or 1 << 62, hit.index)).line
    yield Observation(
        detector="exits",
        signature="exit/asked-to-stop",
        role="initiating",
        cause="scheduler",
        title="The job was stopped from outside: every rank received SIGTERM (signal 15) and ended in order",
        text=first.text.strip(),
        scope="job",
        strength=2,
        attempt=first.attempt,
        at_lo=first.at_lo,
        at_hi=first.at_hi,
        path=first.path,
        line=first.line,
        offset=first.offset,
    )


def _named(case: Case) -> Iterator[Observation]:
    for fate in fates(case).values():
        if not fate.ends:
            continue
        signal, code = fate.signal, fate.code
        if signal is not None and signal not in (_SIGINT,):
            yield _by_signal(fate, signal)
        elif fate.stopped_from_outside and not fate.failed:
            yield _observe(
                fate, "exit/stopped", "initiating", "unknown",
                "was ended by a SIGTERM (signal 15) that the launcher did not send", 2,
            )  # fmt: skip
        elif fate.terminated:
            yield _observe(fate, "exit/terminated", "teardown", "unknown", "was ended by the launcher (SIGTERM)", 1)
        elif code:
            if not fate.failed:
                yield _silently(case, fate, code)
            else:
                yield _observe(fate, "exit/failed", "confirmation", "unknown", f"ended with exit code {code}", 1)


def _silently(case: Case, fate: Fate, code: int) -> Observation:
    """No known error line: the rank's last words, on whichever stream, are the best there is to cite."""
    what = f"ended with exit code {code} and left no error message that is known"
    found = _observe(fate, "exit/failed-silently", "initiating", "unknown", what, 1)
    words = _parting_line(case, fate.rank)
    if words is not None:
        found.title += f'; its last words: "{words.text.strip()[:140]}"'
        found.text, found.path, found.line, found.offset = words.text.strip(), words.path, words.line, words.offset
    return found


def _parting_line(case: Case, rank: int) -> LogLine | None:
    """The last line of the rank that is no progress, on stderr rather than stdout: sys.exit("why") writes there."""
    last: dict[str, LogLine] = {}
    for line in case.lines:
        if line.rank == rank and line.issuer == "rank" and line.text.strip():
            last[line.path] = line
    telling = [line for line in last.values() if progress_step(line.text) is None and not says_finished(line.text)]
    telling.sort(key=lambda line: (line.stream == "stderr", line.stream == "stdout"))
    return telling[-1] if telling else None


def _by_signal(fate: Fate, signal: int) -> Observation:
    name = _NAMES.get(signal, f"signal {signal}")
    if signal == _SIGKILL:
        what = "was killed by SIGKILL (signal 9) and could print nothing"
        return _observe(fate, "exit/killed", "initiating", "unknown", what, 2)
    if signal == _SIGABRT:
        if fate.failed:
            return _observe(fate, "exit/aborted", "cascade", "unknown", "aborted (SIGABRT) after its own error line", 1)
        return _observe(fate, "exit/aborted", "initiating", "unknown", "aborted (SIGABRT, signal 6)", 2)
    return _observe(fate, "exit/crashed", "initiating", "unknown", f"crashed with {name} (signal {signal})", 2)


def _observe(fate: Fate, signature: str, role: str, cause: str, what: str, strength: int) -> Observation:
    end = _best(fate)
    return Observation(
        detector="exits",
        signature=signature,
        role=role,
        cause=cause,
        title=f"Rank {fate.rank} {what}",
        text=str(end.get("text") or ""),
        strength=strength,
        rank=fate.rank,
        node=end.get("node") or fate.node,
        attempt=end.get("attempt"),
        at_lo=end.get("at_lo"),
        at_hi=end.get("at_hi"),
        issuer="launcher",
        source="scheduler_events",
        path=end.get("path"),
        line=end.get("line"),
        offset=end.get("offset"),
        detail={"exit_code": fate.code, "signal": fate.signal, "pid": end.get("pid") or fate.row.get("pid")},
    )


def _best(fate: Fate) -> Mapping[str, Any]:
    """The statement to cite: the one that names the signal or code, the earliest of these."""
    telling = [e for e in fate.ends if e["event"] != "teardown" and (e.get("signal") or e.get("code") is not None)]
    return min(telling or fate.ends, key=lambda e: (e.get("at_lo") or 1 << 62, e.get("line") or 0))
