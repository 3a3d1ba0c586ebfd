"""Which ranks ended on an error in their own words?

Programs catch what goes wrong and say it in a sentence that no signature knows. Such a line is weaker than a known one:
it vetoes "no failure" and names a suspect where nothing better does.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyzers.case import Case, Observation
from analyzers.fates import Fate, fates
from analyzers.own_words import Words, last_words
from analyzers.templates import Templates


def detect(case: Case) -> Iterator[Observation]:
    """At most one observation log/error-line per file and writer; role cascade where it speaks of somebody else."""
    found = last_words(case)
    if not found:
        return
    ranks = fates(case)
    templates = Templates()
    for words in found:
        rank = words.line.rank
        yield _observe(words, ranks.get(rank) if rank is not None else None, templates)


def _observe(words: Words, fate: Fate | None, templates: Templates) -> Observation:
    line = words.line
    ended = fate is not None and (bool(fate.code) or fate.signal is not None)
    text = line.text.strip()
    return Observation(
        detector="error_lines",
        signature="log/error-line",
        role="cascade" if words.elsewhere else "initiating",
        cause="unknown",
        title=f"An error in the program's own words: {text[:160]}",
        text=text,
        strength=2 if ended and not words.elsewhere else 1,
        attempt=line.attempt,
        rank=line.rank,
        node=line.node,
        at_lo=line.at_lo,
        at_hi=line.at_hi,
        seq=words.place,
        issuer=line.issuer,
        path=line.path,
        line=line.line,
        offset=line.offset,
        detail={"same": f"log/error-line|{text[:300]}", "kind": str(templates.add(text)), "pid": line.pid},
    )
