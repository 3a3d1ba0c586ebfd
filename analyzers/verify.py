"""Is a rerun free of the old failure, and did it get past the step where the old one died?

Both halves are needed: a rerun that died earlier is free of the signature and proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` and `new`: diagnoses (contract of `diagnose --json`). Returns result, reasons, old_step, new_step.

    result: fixed (free of the signature and past the step), failing (the signature is there again), not_reached (free
    of it, but the rerun did not get past the step), unknown (the old incident names no signature or no step).
    Raises ValueError if `old` is not a diagnosis.
    """
    if not isinstance(old.get("verdict"), Mapping):
        raise ValueError("the old incident has no verdict: expected the output of firstfault diagnose --json")
    signature = old["verdict"].get("signature")
    old_step, new_step = last_step(old), last_step(new)
    seen = _signatures(new)
    same = signature is not None and signature in seen and _same_failure(old, new)
    if same:
        result = "failing"
        reasons = [f"the rerun shows {signature} again: {seen[signature]}"]
    elif signature is None:
        result = "unknown"
        reasons = ["the old incident names no signature, so its absence cannot be checked"]
    elif old_step is None or new_step is None:
        which = "old incident" if old_step is None else "rerun"
        result = "fixed" if new["verdict"].get("status") == "no_failure" and _finished(new) else "unknown"
        reasons = [f"{signature} does not occur in the rerun", f"the {which} prints no step to compare"]
        if result == "fixed":
            reasons = [f"{signature} does not occur in the rerun", "the rerun ran to its end"]
    elif new_step > old_step or (_finished(new) and new_step >= old_step):
        result = "fixed"
        reasons = [f"{signature} does not occur in the rerun", f"step {new_step} is past step {old_step}"]
    else:
        result = "not_reached"
        reasons = [
            f"{signature} does not occur in the rerun, but step {new_step} is not past step {old_step} where the old "
            "run died"
        ]
    status = new["verdict"].get("status")
    if result != "failing" and status not in ("no_failure", None):
        reasons.append(f"the rerun has another verdict of its own: {status}: {new['verdict'].get('title')}")
    return {"result": result, "signature": signature, "old_step": old_step, "new_step": new_step, "reasons": reasons}


def last_step(diagnosis: Mapping[str, Any]) -> int | None:
    """The highest step that every rank with a counter reached, from the ranks of a diagnosis."""
    rows = (diagnosis.get("details") or {}).get("ranks") or []
    steps = [row["last_step"] for row in rows if isinstance(row, Mapping) and isinstance(row.get("last_step"), int)]
    return min(steps) if steps else None


def _finished(diagnosis: Mapping[str, Any]) -> bool:
    rows = (diagnosis.get("details") or {}).get("ranks") or []
    return bool(rows) and all(row.get("state") == "finished" for row in rows)


def _signatures(diagnosis: Mapping[str, Any]) -> dict[str, str]:
    """Signature -> title of everything that the diagnosis holds for a candidate."""
    found = {str(c.get("signature")): str(c.get("title")) for c in diagnosis.get("candidates") or []}
    verdict = diagnosis["verdict"]
    if verdict.get("status") not in ("no_failure",) and verdict.get("signature"):
        found[str(verdict["signature"])] = str(verdict.get("title"))
    return found


def _same_failure(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """A generic signature (any exception, any kill) is the same failure only with the same kind of title."""
    signature = str(old["verdict"]["signature"])
    if not signature.startswith("python/uncaught"):
        return True
    kind = str(old["verdict"].get("title")).partition(":")[0]
    return kind == _signatures(new).get(signature, "").partition(":")[0]
