"""What versions and settings say: who differs from the other nodes or ranks, and which combination is known to fail.

A difference is a hint: clusters run for months with a node that has another driver. It needs a majority to name the odd
one out; two that differ accuse neither. A known-bad combination needs its symptom in the logs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from analyzers.case import Case, Observation
from collector.data import lookup
from collector.model import LogLine

Row = Mapping[str, Any]
Place = tuple[str, str | int]
"""("node", name), ("rank", number) or ("folder", path): whose fact it is."""
Facts = dict[str, tuple[str, Row]]

_PRINTED_WITHIN = 5000
"""Frameworks print their versions when they start: lines of a file that are looked at."""


def detect(case: Case) -> Iterator[Observation]:
    """Yield the odd ones out, then the known-bad combinations whose symptom the logs have."""
    yield from _differences(case)
    yield from _known_bad(case)


# --- differences ------------------------------------------------------------------------------------------------------


def _differences(case: Case) -> Iterator[Observation]:
    places = _by_place(case)
    odd: dict[Place, dict[str, tuple[str, str]]] = {}
    split: dict[str, Counter[str]] = {}
    for name in sorted({name for facts in places.values() for name in facts}):
        values = {place: facts[name][0] for place, facts in places.items() if name in facts}
        counts = Counter(values.values())
        if len(counts) < 2 or _rule(name) is None:
            continue
        usual, number = counts.most_common(1)[0]
        if len(values) >= 3 and 2 * number > len(values):
            for place, value in values.items():
                if value != usual:
                    odd.setdefault(place, {})[name] = (value, usual)
        else:
            split[name] = counts
    for place, differences in sorted(odd.items(), key=lambda item: str(item[0])):
        yield _odd_one_out(place, differences, places[place])
    if split:
        yield _split(split, places)


def _by_place(case: Case) -> dict[Place, Facts]:
    """Facts of each node (or rank, where the node is unknown); a fact that one place states in two ways is left out."""
    places: dict[Place, Facts] = {}
    unclear: set[tuple[Place, str]] = set()
    rows = [
        *case.rows("environment"),
        *({**row, "name": "driver", "value": row.get("driver")} for row in case.rows("gpus")),
    ]
    folders = _sibling_folders(rows)
    for row in rows:
        folder, _, file = str(row.get("path") or "").rpartition("/")
        if row.get("node"):
            place: Place = ("node", str(row["node"]))
        elif row.get("rank") is not None:
            place = ("rank", int(row["rank"]))
        elif folder in folders.get(file, ()):
            place = ("folder", folder)
        else:
            continue  # files of unknown origin may come from one node: their differences say nothing
        name, value = row.get("name"), row.get("value")
        if not name or not value:
            continue
        known = places.setdefault(place, {}).setdefault(str(name), (str(value), row))
        if known[0] != value:
            unclear.add((place, str(name)))
    for place, name in unclear:
        del places[place][name]
    return places


def _sibling_folders(rows: list[Row]) -> dict[str, set[str]]:
    """Folders that hold a file of the same name each, as one gets by collecting it from every node."""
    folders: dict[str, set[str]] = {}
    for row in rows:
        folder, _, file = str(row.get("path") or "").rpartition("/")
        if not row.get("node") and row.get("rank") is None:
            folders.setdefault(file, set()).add(folder)
    return {file: found for file, found in folders.items() if len(found) > 1}


def _rule(name: str) -> Row | None:
    for rule in lookup("known_bad")["compare"]:
        if re.fullmatch(rule["regex"], name):
            return None if rule["role"] == "ignore" else dict(rule)
    return None


def _weight(name: str) -> tuple[int, int]:
    rule = _rule(name) or {"role": "context", "strength": 0}
    return int(rule["role"] != "context"), int(rule["strength"])


def _odd_one_out(place: Place, differences: Mapping[str, tuple[str, str]], facts: Facts) -> Observation:
    first = max(sorted(differences), key=_weight)
    own, usual = differences[first]
    rule = _rule(first) or {"role": "context", "strength": 1}
    row = facts[first][1]
    kind, who = place
    return Observation(
        detector="environment",
        signature="environment/odd-one-out",
        role=rule["role"],
        cause="environment",
        title=f"{_called(place)} has another {_shown(first)} than the others",
        text=f"{_shown(first)}: {own} (others: {usual})",
        scope="rank" if kind == "rank" else "node",
        strength=rule["strength"],
        rank=who if isinstance(who, int) else None,
        node=str(who) if kind == "node" else row.get("node"),
        seq=row.get("line"),
        issuer="collector",
        source="environment",
        path=row.get("path"),
        line=row.get("line"),
        detail={
            "differences": {name: {"own": value, "others": other} for name, (value, other) in differences.items()},
            "fix": [f"Make {_shown(first)} the same everywhere: {usual}."],
        },
    )


def _split(split: Mapping[str, Counter[str]], places: Mapping[Place, Facts]) -> Observation:
    """Places differ and no majority says which one is odd."""
    first = max(sorted(split), key=_weight)
    rule = _rule(first) or {"role": "context", "strength": 1}
    holders = [place for place in sorted(places, key=str) if first in places[place]]
    row = places[holders[0]][first][1]
    return Observation(
        detector="environment",
        signature="environment/not-uniform",
        role=rule["role"] if rule["strength"] >= 2 else "context",
        cause="environment",
        title=f"{_shown(first)} is not the same everywhere",
        text="; ".join(f"{_called(place)}: {places[place][first][0]}" for place in holders[:8]),
        scope="job",
        strength=1,
        seq=row.get("line"),
        issuer="collector",
        source="environment",
        path=row.get("path"),
        line=row.get("line"),
        detail={"differences": {name: sorted(counts) for name, counts in split.items()}},
    )


def _called(place: Place) -> str:
    return f"{place[0]} {place[1]}"


def _shown(name: str) -> str:
    return name.removeprefix("package:").removeprefix("env:")


# --- known-bad combinations -------------------------------------------------------------------------------------------


def _known_bad(case: Case) -> Iterator[Observation]:
    facts = _all_facts(case)
    for combination in lookup("known_bad")["combinations"]:
        met = _met(combination["when"], facts)
        line = None if met is None else _symptom(case, combination["symptom"])
        if met is not None and line is not None:
            yield Observation(
                detector="environment",
                signature=combination["id"],
                role="confirmation",
                cause="environment",
                title=combination["title"],
                text=", ".join(f"{_shown(name)} {value}" for name, value in met.items()),
                scope="job",
                strength=2,
                at_lo=line.at_lo,
                at_hi=line.at_hi,
                issuer="collector",
                source="environment",
                path=line.path,
                line=line.line,
                offset=line.offset,
                detail={"facts": met, "symptom": line.text[:300], "fix": list(combination["fix"])},
            )


def _symptom(case: Case, literals: list[str]) -> LogLine | None:
    return next((line for line in case.lines for literal in literals if literal in line.text), None)


def _all_facts(case: Case) -> dict[str, set[str]]:
    """Every value that any place states for a name, in a report or in the first lines of a log."""
    facts: dict[str, set[str]] = {}
    for row in case.rows("environment"):
        if row.get("name") and row.get("value"):
            facts.setdefault(str(row["name"]), set()).add(str(row["value"]))
    for row in case.rows("gpus"):
        if row.get("driver"):
            facts.setdefault("driver", set()).add(str(row["driver"]))
    printed = [(entry["name"], entry["needs"], re.compile(entry["regex"])) for entry in lookup("known_bad")["printed"]]
    for line in case.lines:
        if line.line <= _PRINTED_WITHIN:
            for name, literal, regex in printed:
                if literal in line.text and (match := regex.search(line.text)):
                    facts.setdefault(name, set()).add(match["value"])
    for name, alias in (("torch", "package:torch"), ("package:torch", "torch")):
        facts.setdefault(name, set()).update(facts.get(alias, ()))
    return facts


def _met(when: Mapping[str, str], facts: Mapping[str, set[str]]) -> dict[str, str] | None:
    """The facts that fulfil all conditions, or None."""
    met = {}
    for name, condition in when.items():
        value = next((value for value in sorted(facts.get(name, ())) if holds(condition, value)), None)
        if value is None:
            return None
        met[name] = value
    return met


def holds(condition: str, value: str) -> bool:
    """Whether a value meets a condition of known_bad.yaml: `=TEXT`, or version bounds such as `>=1.2,<1.5`.

    Only the release numbers of a version are compared, so that `2.4.0a0+abc` counts as 2.4.0.
    """
    if condition.startswith("=") and not condition.startswith("=="):
        return value == condition[1:]
    own = _release(value)
    if own is None:
        return False
    for bound in condition.split(","):
        operator, text = re.match(r"\s*(>=|<=|==|<|>)(.*)", bound).groups()  # type: ignore[union-attr]
        other = _release(text) or ()
        width = max(len(own), len(other))
        left, right = own + (0,) * (width - len(own)), other + (0,) * (width - len(other))
        if not {">=": left >= right, "<=": left <= right, "==": left == right, "<": left < right, ">": left > right}[
            operator
        ]:
            return False
    return True


def _release(text: str) -> tuple[int, ...] | None:
    match = re.match(r"\s*v?(\d{1,9}(?:\.\d{1,9}){0,5})", text, re.ASCII)
    return tuple(int(part) for part in match[1].split(".")) if match else None
