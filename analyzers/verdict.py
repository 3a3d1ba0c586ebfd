"""From the ranking to the contract of `diagnose --json` (DESIGN section 4): the verdict in words.

A verdict is as sure as its evidence: `established` needs a line that names the cause and nothing that contradicts it,
`supported` a statement of failure of its own, `suspected` is an inference from who is odd. `undetermined` is an answer:
it says what is known, and which evidence would settle the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analyzers.case import Case, Observation
from analyzers.fates import fates
from analyzers.rank import Ranking
from collector.data import lookup
from collector.model import ArtifactKind, LedgerEntry, Outcome
from collector.readers.times import iso

_CLOSE = 0.06
"""Candidates whose scores differ by less are rivals: neither is established."""
_STACKS = "py-spy dump of every rank while it hangs (then: firstfault stacks DIR)"
_RANK_FILES = "the ranks' own log files (torchrun --log-dir DIR --redirects 3 --tee 3, or srun --output=%j-%t.out)"


def decide(case: Case, observations: Sequence[Observation], ranking: Ranking) -> dict[str, Any]:
    """The keys verdict, candidates and collateral of the contract."""
    top = ranking.candidates[0] if ranking.candidates else None
    status = _status(case, observations, ranking)
    endless = _without_end(case) if status == "no_failure" else []
    status = "undetermined" if endless else status
    verdict: dict[str, Any] = _empty(status)
    if status == "no_failure":
        verdict.update(_no_failure(case, observations))
    elif endless:
        verdict.update(_end_missing(case, endless))
    elif top is not None:
        verdict.update(_named(case, observations, ranking, top, status))
    else:
        verdict.update(_unnamed(case, observations))
    return {
        "verdict": verdict,
        "candidates": [] if status == "no_failure" else [_candidate(c, observations) for c in ranking.candidates[:8]],
        "collateral": [] if status == "no_failure" else _collateral(case, observations, ranking, verdict),
    }


def human(case: Case, signature: str) -> Mapping[str, Any]:
    """Title, says, confirm, fix, verify, references of a signature or of a detector's id; empty if unknown."""
    known = case.signatures.get(signature)
    if known is not None:
        return {
            "title": known.title, "cause": known.cause, "says": known.says, "confirm": list(known.confirm),
            "fix": list(known.fix), "verify": list(known.verify), "references": list(known.references),
        }  # fmt: skip
    found: Mapping[str, Any] = lookup("detectors").get(signature) or {}
    return found


def _empty(status: str) -> dict[str, Any]:
    return {
        "status": status, "signature": None, "cause": None, "title": "", "scope": None, "ranks": [], "nodes": [],
        "at": None, "why": "", "evidence": [], "fix": [], "verify": [], "resume_from": None, "missing": [],
        "reference": [],
    }  # fmt: skip


def _status(case: Case, observations: Sequence[Observation], ranking: Ranking) -> str:
    failing = [c for c in ranking.candidates if not c["progressed"]]
    echoes = [
        o for o in observations if o.role in ("cascade", "teardown", "wrapper") and not o.detail.get("progressed")
    ]
    if not failing and not echoes and _alive_or_done(case):
        return "no_failure"
    if _ended_well(case, observations) and all(c["strength"] < 3 or c["progressed"] for c in ranking.candidates):
        return "no_failure"
    if not ranking.candidates:
        return "undetermined"
    top = ranking.candidates[0]
    if top["signature"] == "silence/hang" or top["nobody_named"]:
        return "undetermined"
    close = [
        c
        for c in ranking.candidates[1:]
        if round(top["score"] - c["score"], 3) < _CLOSE and c["ranks"] != top["ranks"] and not c["progressed"]
    ]
    if top["strength"] <= 1:
        return "undetermined" if close else "suspected"
    if top["progressed"] or (close and top["not_before"]):
        return "suspected"
    sure = top["strength"] >= 3 or top["echoes"] or top["exits"] or top["everybody"]
    inferred = top["detector"] in ("silence", "divergence", "collectives")
    return "established" if sure and not inferred and not close else "supported"


def _alive_or_done(case: Case) -> bool:
    """True if the logs show training that ends well or is still going on."""
    rows = case.rows("ranks")
    if any(row.get("finished") or row.get("step") is not None for row in rows):
        return True
    from collector.readers.roster import progress_step, says_finished

    return any(progress_step(line.text) is not None or says_finished(line.text) for line in case.lines[-400:])


def _ended_well(case: Case, observations: Sequence[Observation]) -> bool:
    """True if every rank that said anything said at last that it finished, and no process ended badly."""
    from collector.readers.roster import says_finished

    if any(end.get("signal") or end.get("code") for end in case.rows("scheduler_events")):
        return False
    ends: dict[tuple[str, int | None], int] = {}
    for line in case.lines:
        if says_finished(line.text):
            ends[(line.path, line.rank)] = line.line
    for seen in observations:
        if seen.role in ("initiating", "cascade") and seen.path is not None and seen.line is not None:
            last = ends.get((seen.path, seen.rank), ends.get((seen.path, None), 0))
            if seen.line > last:
                return False
    rows = case.rows("ranks")
    return all(row.get("finished") for row in rows) if rows else bool(ends)


def _without_end(case: Case) -> list[str]:
    """Paths of the logs of this attempt whose end nobody has read, by the ledger."""
    attempt = case.lines[0].attempt if case.lines else None
    read = {line.path for line in case.lines}
    found = []
    for entry in case.ledger:
        if entry.kind not in (ArtifactKind.RANK_LOG, None) or entry.origin.attempt not in (attempt, None):
            continue
        whole = entry.outcome in (Outcome.UNREACHABLE, Outcome.TIMED_OUT, Outcome.REFUSED) and entry.kind is not None
        # of what is so damaged that nothing of it could be read no kind is known; folders have no size
        a_log = entry.kind is not None or entry.path in read or entry.bytes_seen > 0
        if whole or (entry.outcome is Outcome.TRUNCATED and a_log and _reaches_end(entry)):
            found.append(entry.path)
    return list(dict.fromkeys(found))


def _reaches_end(entry: LedgerEntry) -> bool:
    """True if what is missing of a truncated file is its end, not a part with something behind it."""
    start, stop = entry.dropped_from, entry.dropped_to
    if start is None or stop is None or stop <= start:
        return True  # a stream that broke off: nobody knows how much is missing
    # the log reader's rows count the dropped part only, and what it drops on purpose is never the end
    return entry.source != "rank_log" and 0 < entry.bytes_seen <= stop


def _end_missing(case: Case, paths: Sequence[str]) -> dict[str, Any]:
    one = len(paths) == 1
    title = f"The end of {paths[0]} is missing" if one else f"The ends of {len(paths)} logs are missing"
    broken = set(paths)
    lasts = {line.path: line for line in case.lines if line.path in broken}
    cites = [{"path": x.path, "line": x.line, "rank": x.rank, "text": x.text} for x in lasts.values()]
    return {
        "title": f"{title}, so a failure there cannot be ruled out",
        "why": "Nothing that could be read states a failure, but failures stand at the end of a log.",
        "scope": "job",
        "evidence": cites[:4],
        "missing": [f"{path} with its end: what could be read of it breaks off" for path in paths[:16]],
    }


def _cite(seen: Observation) -> dict[str, Any]:
    return {"path": seen.path, "line": seen.line, "rank": seen.rank, "text": seen.text}


def _distinct(cites: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each cited line once, in order."""
    return list({(cite["path"], cite["line"], cite["text"]): cite for cite in reversed(cites)}.values())[::-1]


def _nodes(case: Case, ranks: Sequence[int], seen: Observation) -> list[str]:
    if seen.detail.get("nodes"):
        return [str(node) for node in seen.detail["nodes"]]
    places = {row["rank"]: row.get("node") for row in case.rows("ranks")}
    nodes = {places.get(rank) for rank in ranks} | ({seen.node} if seen.node and not ranks else set())
    if seen.accuses_node:
        nodes.add(seen.accuses_node)
    return sorted(str(node) for node in nodes if node)


def _named(
    case: Case, observations: Sequence[Observation], ranking: Ranking, top: Mapping[str, Any], status: str
) -> dict[str, Any]:
    seen = observations[top["first_id"]]
    known = human(case, seen.signature)
    ranks = list(top["ranks"]) if seen.scope != "launcher" else []
    evidence = [_cite(seen)]
    for other in sorted(top["ids"]):
        if other != top["first_id"] and len(evidence) < 6:
            evidence.append(_cite(observations[other]))
    evidence += [
        _cite(observations[x["effect_id"]])
        for x in ranking.explanations
        if x["cause_id"] in top["ids"] and observations[x["effect_id"]].path
    ][:3]
    missing = list(seen.detail.get("missing") or [])
    if not ranks and seen.scope == "rank":
        missing.append(f"which rank printed the cited line: {_RANK_FILES}")
    if seen.signature == "exit/killed":
        missing.append("the kernel log of that node (dmesg -T), which records an OOM kill with the victim's pid")
    return {
        "signature": seen.signature,
        "cause": seen.cause if seen.cause != "unknown" else str(known.get("cause") or "unknown"),
        "title": seen.title,
        "scope": seen.scope,
        "ranks": ranks,
        "nodes": _nodes(case, ranks, seen),
        "at": iso(seen.at_lo),
        "why": _why(case, seen, top, status),
        "evidence": _distinct(evidence),
        "fix": list(known.get("fix") or seen.detail.get("fix") or []),
        "verify": list(known.get("verify") or []),
        "missing": list(dict.fromkeys(missing)),
        "reference": list(known.get("references") or []),
    }


def _who(ranks: Sequence[int], scope: str | None) -> str:
    if scope == "launcher":
        return "The launcher"
    if not ranks:
        return "The job"
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"Ranks {shown}"


def _why(case: Case, seen: Observation, top: Mapping[str, Any], status: str) -> str:
    who = _who(top["ranks"], seen.scope)
    if status == "undetermined" and top["nobody_named"]:
        return "The failure is known but not whose it is: the line carries no rank, and nothing else names one."
    if seen.signature == "silence/hang" and seen.at_lo is None:
        return "It was stopped from outside, and without time stamps nobody can tell whether it hung before."
    if seen.signature == "silence/hang":
        return "The job was silent before it was stopped, and no stack or flight-recorder dump shows where it waited."
    if seen.accuses_rank is not None and seen.rank is not None and seen.accuses_rank != seen.rank:
        return f"Rank {seen.rank} waited and names rank {seen.accuses_rank} as the one that did not come."
    parts = []
    if top["everybody"]:
        parts.append(f"All {len(top['ranks'])} ranks failed in the same way, so no single one is to blame")
    elif top["echoes"] and seen.detector == "silence":
        parts.append(
            f"{who} printed no error and stopped; the errors of {top['echoes']} other rank(s) only report a lost or "
            "silent peer"
        )
    elif top["echoes"]:
        oneself = "itself" if len(top["ranks"]) < 2 else "themselves"
        parts.append(
            f"{who} failed by {oneself}; the errors of {top['echoes']} other rank(s) only report a lost or silent peer"
        )
    elif seen.detector in ("silence", "divergence", "stacks", "collectives"):
        parts.append(f"{who} is the odd one out: {seen.title[0].lower()}{seen.title[1:]}")
    else:
        parts.append(f"{who}: nothing earlier in the evidence explains it")
    if seen.detail.get("attributed"):
        parts.append(f"the rank follows from {seen.detail['attributed']}")
    return "; ".join(parts) + "."


def _unnamed(case: Case, observations: Sequence[Observation]) -> dict[str, Any]:
    """Only echoes, or nothing at all."""
    echoes = [o for o in observations if o.role in ("cascade", "wrapper", "teardown")]
    echoes.sort(
        key=lambda o: (
            {"cascade": 0, "wrapper": 1}.get(o.role, 2),
            o.detector == "exits",
            -o.strength,
            o.seq or 0,
        )
    )
    if not echoes:
        if not case.lines and not any(case.tables.values()):
            return {
                "title": "Nothing to read: no log line, dump or kernel log was found",
                "why": "Without evidence there is no verdict.",
                "missing": [f"logs of the run: {_RANK_FILES}"],
            }
        return {
            "title": "No failure and no progress is visible in the evidence",
            "why": "No line states a failure, an end or a training step.",
            "missing": [f"the end of the log and {_RANK_FILES}"],
        }
    first = echoes[0]
    silent = [str(rank) for rank, fate in fates(case).items() if not fate.lines]
    missing = [_STACKS, "flight-recorder dumps of all ranks (TORCH_NCCL_TRACE_BUFFER_SIZE=2000)"]
    if first.role != "cascade":
        missing = [_RANK_FILES]
    if silent and case.world_size and case.world_size > 1 and len(silent) < case.world_size:
        missing.insert(0, f"the logs of rank(s) {', '.join(silent[:16])}: nothing was found of them")
    known = human(case, first.signature)
    return {
        "signature": first.signature,
        "cause": "unknown",
        "title": f"Only consequences are visible: {first.title}",
        "scope": "job",
        "at": iso(first.at_lo),
        "why": "Every error found reports that another process is gone or silent; none says what happened first.",
        "evidence": [_cite(o) for o in echoes[:4]],
        "fix": list(known.get("fix") or [])[:2],
        "missing": missing,
    }


def _no_failure(case: Case, observations: Sequence[Observation]) -> dict[str, Any]:
    steps = [row["step"] for row in case.rows("ranks") if row.get("step") is not None]
    finished = _ended_well(case, observations)
    end = "ended well" if finished else "was still making progress when the evidence was taken"
    last = f" (last step {max(steps)})" if steps else ""
    handled = [o for o in observations if o.detail.get("progressed")]
    why = "No error is left unexplained and no process ended badly."
    if handled:
        why = f"{len(handled)} alarming line(s) were followed by training progress and caused nothing."
    row = max(case.rows("ranks"), key=lambda r: r.get("last_line_at") or 0, default=None)
    evidence = []
    if row and row.get("last_path"):
        evidence = [{"path": row["last_path"], "line": row["last_line"], "rank": row["rank"], "text": row["last_text"]}]
    return {"title": f"No failure: the run {end}{last}", "why": why, "scope": "job", "evidence": evidence}


def _candidate(row: Mapping[str, Any], observations: Sequence[Observation]) -> dict[str, Any]:
    seen = observations[row["first_id"]]
    return {
        "rank": row["ranks"][0] if len(row["ranks"]) == 1 else None,
        "ranks": list(row["ranks"]),
        "signature": row["signature"],
        "score": row["score"],
        "reasons": list(row["reasons"]),
        "title": seen.title,
        "cause": seen.cause,
        "node": seen.node,
        "evidence": _cite(seen),
    }


def _collateral(
    case: Case, observations: Sequence[Observation], ranking: Ranking, verdict: Mapping[str, Any]
) -> list[dict[str, Any]]:
    explained_by = verdict["signature"] if verdict["status"] != "undetermined" else None
    listed = []
    for row in ranking.collateral:
        seen = observations[row["first_id"]]
        listed.append(
            {
                "signature": row["signature"],
                "ranks": list(row["ranks"]),
                "explained_by": explained_by,
                "title": (human(case, seen.signature).get("title") if len(row["ranks"]) > 1 else None) or seen.title,
                "count": row["copies"],
                "role": row["role"],
                "evidence": _cite(seen),
            }
        )
    order = {"cascade": 0, "initiating": 1, "teardown": 2}
    listed.sort(key=lambda item: (order.get(str(item["role"]), 3), str(item["signature"])))
    return listed
