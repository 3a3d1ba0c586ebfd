"""Patterns as expressions for Hyperscan: what matches wherever the pattern does, and never across a newline.

An expression may match more than its pattern; `re` has the last word. So it is made as cheap as it can be. Measured on
200 MB of training log with 523 patterns: the patterns as they are scan at 0.33 GB/s and compile in 0.33 s; the best
stretch between two `.*` 0.80 and 0.21; of that only the eight rarest bytes, where ordinary logs lack them, 0.96 and
0.04. A single pattern whose beginning stands in every line costs as much as all others together: 3.6 without those.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from collector.locators import WINDOW, Literals, best_of, requirements, worth
from collector.regex_tree import ALL, NEWLINE, PARSER, REPEATS, SRE, Unknown, fold, folded_in, members_of

MAX_REPEAT = 32
"""Bounded repeats above this become unbounded in the Hyperscan expression: a counter costs it far more than a loop."""
MIN_WINDOW = 5
"""A shorter literal is too common to stand for its pattern."""


class Ordinary:
    """Text that logs hold while nothing is wrong, to tell rare bytes from common ones."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._trigrams = Counter(text[i : i + 3] for i in range(len(text) - 2))
        self._rarest: dict[bytes, bytes | None] = {}

    def rarest(self, literal: bytes) -> bytes | None:
        """The rarest WINDOW bytes of `literal`; None if the text contains even these, or if they are too few."""
        if literal not in self._rarest:  # asked again for each way to put a pattern
            self._rarest[literal] = self._rarest_of(literal)
        return self._rarest[literal]

    def _rarest_of(self, literal: bytes) -> bytes | None:
        windows = [literal[i : i + WINDOW] for i in range(max(1, len(literal) - WINDOW + 1))]
        rarest = min(windows, key=lambda window: (window in self._text, self._commonness(window)))
        return None if len(rarest) < MIN_WINDOW or rarest in self._text else rarest

    def _commonness(self, window: bytes) -> int:
        return sum(self._trigrams[window[i : i + 3]] for i in range(len(window) - 2))


def expression(pattern: bytes, ordinary: Ordinary) -> bytes | None:
    """A Hyperscan expression for flags MULTILINE without DOTALL, CASELESS, UTF8; None where none is known.

    Raises re.error if the pattern is not a regular expression.
    """
    tree = PARSER.parse(pattern)
    flags = int(tree.state.flags)
    if flags & re.LOCALE:
        return None
    folded = bool(flags & re.IGNORECASE)
    stretch = _best_stretch(list(tree), folded)
    # Hyperscan refuses what matches the empty string; such a pattern sorts nothing out anyway.
    if not PARSER.SubPattern(tree.state, stretch).getwidth()[0]:
        return None

    def rare_first(found: Iterable[Literals]) -> Literals | None:
        return max(found, key=lambda one: (all(map(ordinary.rarest, one.any_of)), worth(one)), default=None)

    found = rare_first(requirements(stretch, folded, rare_first))
    windows = [ordinary.rarest(text) for text in found.any_of] if found is not None else [None]
    if found is not None and all(windows):
        return b"|".join(sorted({_quoted(window, found.folded) for window in windows if window}))
    try:
        return _sequence(stretch, folded).encode("ascii")
    except Unknown:
        return None


def _quoted(text: bytes, folded: bool) -> bytes:
    """`text` as an expression that matches just it, or it in any case."""
    return "".join(_class({byte}, folded) for byte in text).encode("ascii")


def _best_stretch(items: list[Any], folded: bool) -> list[Any]:
    """The part between two `.*` of a pattern that sorts out most, without what is optional at its ends."""
    stretches: list[list[Any]] = [[]]
    for item in items:
        if _gap(item):
            stretches.append([])
        else:
            stretches[-1].append(item)

    def sorts_out(stretch: list[Any]) -> tuple[int, bool]:
        found = best_of(requirements(stretch, folded))
        return (-99, False) if found is None else worth(found)

    return _trimmed(max(stretches, key=sorts_out))


def _gap(item: Any) -> bool:
    """True for `.*`, `[^x]+` and the like, alone in a group or not."""
    op, argument = item
    if op is SRE.SUBPATTERN:
        return len(argument[3]) == 1 and _gap(argument[3][0])
    if op not in (SRE.MAX_REPEAT, SRE.MIN_REPEAT) or argument[1] <= MAX_REPEAT or len(argument[2]) != 1:
        return False
    inner, content = argument[2][0]
    if inner is SRE.IN:
        try:
            return len(members_of(content, False)) > 200
        except Unknown:
            return False
    return bool(inner in (SRE.ANY, SRE.NOT_LITERAL))


def _trimmed(items: list[Any]) -> list[Any]:
    """Leave off what is optional at the ends of a stretch: `(?:Error: )?lost .?` needs no more than `lost `."""
    while items and _optional(items[-1]):
        items.pop()
    while items and _optional(items[0]):
        items.pop(0)
    return items


def _optional(item: Any) -> bool:
    op, argument = item
    if op in REPEATS:
        return bool(argument[0] == 0)
    return bool(op is SRE.SUBPATTERN and len(argument[3]) and all(_optional(inner) for inner in argument[3]))


def _sequence(items: Any, folded: bool) -> str:
    return "".join(_item(op, argument, folded) for op, argument in items)


def _item(op: Any, argument: Any, folded: bool) -> str:
    """One parse-tree item in Hyperscan's dialect, restricted to one line, never narrower than in `re`."""
    if op is SRE.LITERAL:
        return _class({argument}, folded)
    if op is SRE.NOT_LITERAL:
        return _class(ALL - fold({argument}, folded), False)
    if op is SRE.ANY:
        return "."
    if op is SRE.IN:
        return _class(members_of(argument, folded), False)
    if op is SRE.BRANCH:
        return "(?:" + "|".join(_sequence(branch, folded) for branch in argument[1]) + ")"
    if op is SRE.SUBPATTERN:
        return "(?:" + _sequence(argument[3], folded_in(argument, folded)) + ")"
    if op is SRE.ATOMIC_GROUP:
        return "(?:" + _sequence(argument, folded) + ")"
    if op in REPEATS:
        least, most, inner = argument
        return _repeat(least, most, inner, folded)
    if op is SRE.AT:
        return _anchor(argument)
    if op in (SRE.ASSERT, SRE.ASSERT_NOT):
        return ""  # look-around only narrows; `re` decides
    raise Unknown(str(op))


def _repeat(least: int, most: Any, inner: Any, folded: bool) -> str:
    body = "(?:" + _sequence(inner, folded) + ")"
    if body == "(?:)" or most == 0:
        return ""
    if (least, most) == (1, 1):
        return body
    if least > MAX_REPEAT:
        least, most = MAX_REPEAT, SRE.MAXREPEAT
    if most == SRE.MAXREPEAT or most > MAX_REPEAT:
        return body + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return body + ("?" if (least, most) == (0, 1) else f"{{{least},{most}}}")


def _anchor(where: Any) -> str:
    known = {
        SRE.AT_BEGINNING: "^", SRE.AT_BEGINNING_STRING: "^",
        # The line that `re` sees has lost its carriage return; the buffer still has it.
        SRE.AT_END: "\\r?$", SRE.AT_END_STRING: "\\r?$",
        SRE.AT_BOUNDARY: "\\b", SRE.AT_NON_BOUNDARY: "",
    }  # fmt: skip
    if where not in known:
        raise Unknown(str(where))
    return known[where]


def _class(members: set[int] | frozenset[int], folded: bool) -> str:
    """A set of bytes without the newline as a literal or a class of hexadecimal escapes."""
    wanted = sorted(fold(members, folded) - {NEWLINE})
    if not wanted:
        raise Unknown("only a newline could match")
    if len(wanted) == 1:
        byte = chr(wanted[0])
        return byte if byte.isalnum() and byte.isascii() else f"\\x{wanted[0]:02x}"
    if len(wanted) == 255:
        return "."
    text, start = "", wanted[0]
    for here, after in zip(wanted, wanted[1:] + [-1], strict=True):
        if after != here + 1:
            text += f"\\x{start:02x}" + (f"-\\x{here:02x}" if here > start else "")
            start = after
    return f"[{text}]"
