"""Words: the sentences that the text and the HTML report share, so that both say the same thing of the same verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analyzers.report.plain import cut
from analyzers.report.view import Candidate, Cite, Echo, RankEnd, Verdict, View

SURENESS = {
    "established": "the evidence proves it",
    "supported": "the evidence fits it, but one step of the reasoning is inferred",
    "suspected": "a suspicion: check it before acting on it",
    "undetermined": "the evidence does not decide it",
    "no_failure": "the run ended well or is still making progress",
}
"""What each status promises, in words."""

_HEADLINE = 300  # characters of a title in the headline; titles are sentences, this only stops a runaway
_FINE = ("", "collected", "not_configured")  # outcomes of the ledger that leave nothing to explain
_CAUSES = {"gpu": "GPU", "fabric": "network fabric", "user_code": "user code"}
_STATES = {
    "initiated": "failed first",
    "echo": "failed as an echo",
    "terminated": "terminated from outside",
    "silent": "silent",
    "finished": "finished",
    "unknown": "end unknown",
}
_STATE_ORDER = {state: place for place, state in enumerate(("initiated", "silent", "unknown", "echo", "terminated"))}


def cause(name: str) -> str:
    """A cause class in words."""
    return _CAUSES.get(name, name.replace("_", " "))


def spans(numbers: Iterable[int]) -> list[str]:
    """Numbers as runs: 0, 1, 3, 4, 5 -> ["0", "1", "3-5"]. A run needs three numbers; two are shorter as they are."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [
        part
        for first, last in runs
        for part in ([f"{first}-{last}"] if last - first > 1 else [str(n) for n in range(first, last + 1)])
    ]


def ranks(numbers: Sequence[int], world_size: int | None = None, limit: int = 12) -> str:
    """Ranks in words: "rank 2", "ranks 0, 1, 3-7", "all 8 ranks"; "" for none.

    After `limit` runs the rest is only counted, with the total, because nobody reads a line of 200 numbers.
    """
    chosen = sorted(set(numbers))
    if not chosen:
        return ""
    if len(chosen) == 1:
        return f"rank {chosen[0]}"
    if world_size == len(chosen):
        return f"all {world_size:,} ranks" if world_size > 2 else "both ranks"
    parts = spans(chosen)
    if len(parts) > limit:
        return f"{len(chosen):,} ranks ({', '.join(parts[:limit])}, …)"
    return f"ranks {', '.join(parts)}"


def nodes(names: Sequence[str], limit: int = 4) -> str:
    """Node names in words: "node n3", "nodes n3, n4, … (17 nodes)"; "" for none."""
    if not names:
        return ""
    if len(names) == 1:
        return f"node {names[0]}"
    listed = ", ".join(names[:limit])
    return f"nodes {listed}, … ({len(names):,} nodes)" if len(names) > limit else f"nodes {listed}"


def subject(verdict: Verdict, world_size: int | None = None) -> str:
    """Who failed first: "rank 2 on n3", "node n3 (ranks 4-7)", "the launcher", "the job as a whole"."""
    who, where = ranks(verdict.ranks, world_size), nodes(verdict.nodes)
    if verdict.scope == "node" and where:
        return f"{where} ({who})" if who else where
    if verdict.scope == "launcher":
        return f"the launcher on {where.partition(' ')[2]}" if where else "the launcher"
    if who:
        return f"{who} on {verdict.nodes[0]}" if len(verdict.nodes) == 1 else who
    unnamed = {"rank": "a rank that nothing names", "node": "a node that nothing names"}
    return where if where and verdict.scope != "job" else unnamed.get(verdict.scope, "the job as a whole")


def culprit(verdict: Verdict) -> str:
    """The same as `subject` in few words, for places that name it again: "rank 2", "node n3"."""
    by_node = verdict.scope == "node" and verdict.nodes
    if verdict.scope == "launcher":
        return "the launcher"
    return nodes(verdict.nodes) if by_node else ranks(verdict.ranks) or subject(verdict)


def headline(view: View) -> str:
    """The verdict in one sentence, without its status."""
    verdict = view.verdict
    title = verdict.title or verdict.signature or (f"cause: {cause(verdict.cause)}" if verdict.cause else "")
    said_status = f"{verdict.status.replace('_', ' ')}: "
    if title.lower().startswith(said_status):  # the status stands before the headline: not twice
        title = title[len(said_status) :]
    title = cut(title, _HEADLINE)
    if verdict.status == "no_failure":
        return title or "the run ended well or is still making progress"
    if verdict.status == "undetermined":
        return title or "what failed first is not known"
    how = {"supported": "most likely ", "suspected": "possibly "}.get(verdict.status, "")
    if title.lower().startswith(f"{culprit(verdict).lower()} "):  # the title names the subject itself: not twice
        return f"{how.rstrip()}: {title}" if how else title
    together = " together" if len(verdict.ranks) > 1 and verdict.scope == "rank" else ""
    who = subject(verdict, view.world_size)
    said = f"{who} {how}failed first{together}"
    if verdict.scope == "job":
        said = f"{who} {how}failed" + (" together" if len(verdict.ranks) > 1 else "")
    return f"{said}: {title}" if title else said


def proof(view: View) -> list[Cite]:
    """The lines that prove the verdict: its evidence without the lines of echoes, which the echoes show themselves."""
    echoed = {(echo.evidence.path, echo.evidence.line) for echo in view.echoes if echo.evidence.path}
    first, rest = view.verdict.evidence[:1], view.verdict.evidence[1:]
    return [*first, *(cite for cite in rest if (cite.path, cite.line) not in echoed)]


def because(view: View, echo: Echo) -> str:
    """What explains an echo: "echo of rank 2"; "" if nothing is known to."""
    verdict, by = view.verdict, echo.explained_by
    if (not by and verdict.failed) or (by and by == verdict.signature):
        return "echo of " + ("the job's failure" if verdict.scope == "job" else culprit(verdict))
    titles = {row.signature: row.title for row in view.candidates} | {row.signature: row.title for row in view.echoes}
    if by and titles.get(by):
        return f"echo of “{titles[by]}”"
    return f"echo of {by}" if by else ""


def echoes(view: View) -> list[Echo]:
    """The echoes, those with the same title and explanation as one, the most ranks first."""
    merged: dict[tuple[str, str], Echo] = {}
    for echo in view.echoes:
        key = (echo.title or echo.signature or echo.evidence.text, echo.explained_by)
        seen = merged.get(key)
        if seen is None:
            merged[key] = echo
            continue
        counts = [count for count in (seen.count, echo.count) if count is not None]
        merged[key] = Echo(
            ranks=tuple(sorted({*seen.ranks, *echo.ranks})),
            signature=seen.signature,
            title=seen.title,
            count=sum(counts) if counts else None,
            explained_by=seen.explained_by,
            evidence=seen.evidence if seen.evidence.path else echo.evidence,
        )
    return sorted(merged.values(), key=lambda echo: -len(echo.ranks))


def own(view: View) -> Candidate | None:
    """The candidate that became the verdict; None if the verdict names none of them."""
    verdict = view.verdict
    if not verdict.failed:
        return None
    same = [row for row in view.candidates if row.signature == verdict.signature]
    return next((row for row in same if {*row.ranks} & {*verdict.ranks}), same[0] if same else None)


def competing(view: View) -> list[Candidate]:
    """The hypotheses that the verdict does not name, in the order given (best first).

    Candidates of the verdict's own signature and ranks are parts of the verdict, not rivals of it.
    """
    verdict = view.verdict

    def part(row: Candidate) -> bool:
        return verdict.failed and row.signature == verdict.signature and {*row.ranks} <= {*verdict.ranks}

    chosen = own(view)
    return [row for row in view.candidates if row is not chosen and not part(row)]


def candidate(row: Candidate) -> str:
    """A hypothesis in one line: "rank 0 on n1: watchdog timeout (fabric, score 0.31)"."""
    who = ranks(row.ranks)
    if row.node:
        who = f"{who} on {row.node}" if who else f"node {row.node}"
    facts = [cause(row.cause)] if row.cause else []
    if row.score is not None:
        facts.append(f"score {row.score:.2f}")
    said = row.title or row.signature or "unnamed hypothesis"
    return (f"{who}: {said}" if who else said) + (f" ({', '.join(facts)})" if facts else "")


@dataclass(frozen=True, slots=True)
class Fate:
    """Ranks that ended in the same way."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    state: str
    text: str
    """State, last step and end in words."""
    first: RankEnd


def fates(rows: Sequence[RankEnd]) -> list[Fate]:
    """Ranks grouped by state, last step and end; the ranks that failed first come first, then the unexplained."""
    groups: dict[tuple[str, int | None, str], list[RankEnd]] = {}
    for row in rows:
        groups.setdefault((row.state, row.last_step, row.end), []).append(row)
    ordered = sorted(groups.values(), key=lambda group: (place(group[0].state), len(group)))
    return [
        Fate(
            ranks=tuple(sorted({row.rank for row in group})),
            nodes=tuple(dict.fromkeys(row.node for row in group if row.node)),
            state=group[0].state,
            text=fate(group[0]),
            first=group[0],
        )
        for group in ordered
    ]


def place(state: str) -> int:
    """Where a state stands when ranks are listed: who failed first, then who is unexplained, then the rest."""
    return _STATE_ORDER.get(state, len(_STATE_ORDER))


def state(name: str) -> str:
    """The state of a rank in words."""
    return _STATES.get(name, name)


def fate(row: RankEnd) -> str:
    """The end of a rank in words: "failed first, last step 400, exit code 1"."""
    step = f"last step {row.last_step:,}" if row.last_step is not None else ""
    end = row.end or ("no end seen" if row.state == "silent" else "")
    return ", ".join(filter(None, (state(row.state), step, end)))


def resume(view: View) -> str:
    """Where to go on from, in words; "" if no checkpoint was among the evidence."""
    verdict = view.verdict
    if verdict.resume_path:
        return f"{verdict.resume_path} ({resume_state(verdict)})"
    if not view.checkpoints:
        return ""
    found = Counter(row.status for row in view.checkpoints)
    counts = ", ".join(f"{count} {status}" for status, count in found.most_common())
    return f"none chosen (found: {counts})" if found["complete"] else f"no complete checkpoint found ({counts})"


def resume_state(verdict: Verdict) -> str:
    """Step and completeness of the checkpoint to resume from. What is not known to be complete is never called so."""
    step = f"step {verdict.resume_step:,}, " if verdict.resume_step is not None else ""
    whole = {True: "complete", False: "NOT complete: choose an older one", None: "completeness not checked"}
    return step + whole[verdict.resume_complete]


def size(count: int) -> str:
    """Bytes in words: 512 B, 3.4 MB (decimal)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    """A count with its noun: "1 file", "12 files"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ledger(view: View) -> str:
    """The evidence in one sentence: what was expected, collected, read and cut."""
    said = []
    if view.expected and view.collected is not None:
        said.append(f"{view.collected:,} of {plural(view.expected, 'expected source')} collected")
    elif view.collected:
        said.append(f"{plural(view.collected, 'source')} collected")
    read = [plural(view.files, "file")] if view.files is not None else []
    if view.lines is not None:
        read.append(plural(view.lines, "line"))
    if view.bytes is not None:
        read.append(size(view.bytes))
    if read:
        said.append(", ".join(read) + (f" read from {view.root}" if view.root else " read"))
    odd = Counter(row.outcome.replace("_", " ") for row in view.ledger if row.outcome not in _FINE)
    if odd:
        said.append(", ".join(f"{count:,} {outcome}" for outcome, count in odd.most_common()))
    return "; ".join(said)


def incomplete(view: View) -> list[str]:
    """The rows of the ledger that are anything but collected, in words: "rank3.log: refused, permission denied"."""
    return [
        f"{row.path}: " + ", ".join(filter(None, (row.outcome.replace("_", " "), row.detail)))
        for row in view.ledger
        if row.outcome not in _FINE
    ]


def possible(view: View) -> list[Candidate]:
    """Hypotheses of an undetermined verdict that something speaks for, or nothing against."""
    return [row for row in view.candidates if row.pro or not row.con]


def excluded(view: View) -> list[Candidate]:
    """Hypotheses of an undetermined verdict that something speaks against and nothing for."""
    return [row for row in view.candidates if row.con and not row.pro]


def ruled_out(row: Candidate) -> str:
    """An excluded hypothesis in one line, with what speaks against it."""
    who = ranks(row.ranks) or (f"node {row.node}" if row.node else "")
    return f"{f'{who}: ' if who else ''}{row.title or row.signature}: {'; '.join(row.con)}"


def to_settle(view: View) -> tuple[str, ...]:
    """What to fetch when the analysis names nothing itself: the gaps of the ledger, else what decides most cases."""
    if view.gaps:
        return view.gaps[:4]
    return (
        "the log of every rank in a file of its own (torchrun --log-dir DIR --redirects 3 --tee 3)",
        "stacks of every rank while it hangs (py-spy dump --pid PID)",
        "the kernel log of every node (journalctl -k, or dmesg -T)",
    )


def origin(view: View) -> str:
    """Who says so: the program, its version, the signature set and the time it took."""
    said = [f"firstfault {view.version}".rstrip()]
    if view.signature_set:
        said.append(f"signatures {view.signature_set[:12]}")
    if view.seconds is not None:
        said.append(f"{view.seconds:.1f} s")
    return ", ".join(said)
