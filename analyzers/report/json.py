"""The report for programs: the diagnosis as JSON in the order of the contract (DESIGN section 4, schema 1).

Every key of the contract is there, null or empty where the analysis has nothing to say, so that a consumer needs no
existence checks; keys that a later version adds follow. Characters stay readable, except those that could act on a
terminal or hide themselves: JSON has an escape for them that loses nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

SCHEMA = 1

_CITE = {"path": None, "line": None, "rank": None, "text": None}
# Keys in their order with the value of a missing one. A one-element list describes the elements of a list.
_CONTRACT: dict[str, Any] = {
    "schema": SCHEMA,
    "incident": {"id": None, "scheduler": "local", "world_size": None, "attempts": None},
    "verdict": {
        "status": "undetermined",
        "signature": None,
        "cause": "unknown",
        "title": None,
        "scope": None,
        "ranks": [None],
        "nodes": [None],
        "at": None,
        "when_text": None,
        "why": None,
        "evidence": [_CITE],
        "fix": [None],
        "verify": [None],
        "resume_from": None,
        "missing": [None],
        "reference": [None],
    },
    "candidates": [
        {
            "rank": None,
            "ranks": [None],
            "node": None,
            "signature": None,
            "title": None,
            "cause": None,
            "score": None,
            "reasons": [None],
            "evidence": None,
        }
    ],
    "collateral": [
        {
            "signature": None,
            "title": None,
            "role": None,
            "ranks": [None],
            "count": None,
            "explained_by": None,
            "evidence": None,
        }
    ],
    "ledger": {"expected": None, "collected": None, "gaps": [None]},
    "details": None,
}
# DEL, C1 controls, bidirectional overrides, line separators, lone surrogates: legal in JSON, unsafe to print.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def dumps(diagnosis: Mapping[str, Any]) -> str:
    """The diagnosis as UTF-8 encodable JSON text, two spaces of indent, a newline at the end.

    Keys in the order of the contract, then others in the order given. Numbers that JSON does not have (NaN, infinity)
    become null, values of other types their `str`. Raises nothing on content.
    """
    verdict = diagnosis.get("verdict")
    if isinstance(verdict, Mapping) and "references" in verdict:  # the signatures' word for it
        renamed = {key: value for key, value in verdict.items() if key != "references"}
        diagnosis = {**diagnosis, "verdict": {"reference": verdict["references"], **renamed}}
    text = json.dumps(_ordered(diagnosis, _CONTRACT), ensure_ascii=False, indent=2, allow_nan=False, default=str)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text) + "\n"


def _ordered(value: Any, contract: Any) -> Any:
    """`value` with the keys of `contract` first and complete, and everything in it fit for JSON."""
    if isinstance(contract, dict) and not isinstance(value, Mapping):
        return {key: _ordered(None, inner) for key, inner in contract.items()}
    if isinstance(value, Mapping):
        named = contract if isinstance(contract, dict) else {}
        ordered = {key: _ordered(value.get(key), inner) for key, inner in named.items()}
        return ordered | {str(key): _ordered(item, None) for key, item in value.items() if str(key) not in named}
    if isinstance(contract, list):
        items = value if isinstance(value, list | tuple) else []
        return [_ordered(item, contract[0]) for item in items if item is not None]
    if value is None:
        return contract
    if isinstance(value, list | tuple):
        return [_ordered(item, None) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
