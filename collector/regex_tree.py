"""The parse tree of a regular expression, as `re` itself makes it, and the bytes that its items stand for.

Read off CPython's own parser, so that it can never disagree with `re` about syntax; in one place, because that parser
is no public interface: what a newer Python adds to it is answered with `Unknown`, never with a guess.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

# CPython's own regular-expression parser; named `sre_parse` before 3.11, where that name warns. Not in typeshed.
PARSER: Any = importlib.import_module("re._parser")
SRE: Any = importlib.import_module("re._constants")
REPEATS = (SRE.MAX_REPEAT, SRE.MIN_REPEAT, SRE.POSSESSIVE_REPEAT)

LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGIT = frozenset(b"0123456789")
_WORD = LETTERS | _DIGIT | {0x5F}
_SPACE = frozenset(b" \t\n\r\f\v")
ALL = frozenset(range(256))
NEWLINE = 0x0A


class Unknown(Exception):
    """The parse tree holds something for which no safe condition is known here."""


def folded_in(subpattern: Any, folded: bool) -> bool:
    """Whether case is ignored inside a group, which may have flags of its own."""
    _, add, remove, _ = subpattern
    return (folded or bool(add & re.IGNORECASE)) and not remove & re.IGNORECASE


def members_of(items: Any, folded: bool) -> frozenset[int]:
    """The bytes of a character class."""
    negated, found = False, set[int]()
    for op, argument in items:
        if op is SRE.NEGATE:
            negated = True
        elif op is SRE.LITERAL:
            found.add(argument)
        elif op is SRE.RANGE:
            found.update(range(argument[0], argument[1] + 1))
        elif op is SRE.CATEGORY:
            found.update(_category(argument))
        else:
            raise Unknown(str(op))
    known = fold(found, folded)
    return ALL - known if negated else known


def _category(name: Any) -> frozenset[int]:
    known = {
        SRE.CATEGORY_DIGIT: _DIGIT, SRE.CATEGORY_NOT_DIGIT: ALL - _DIGIT,
        SRE.CATEGORY_SPACE: _SPACE, SRE.CATEGORY_NOT_SPACE: ALL - _SPACE,
        SRE.CATEGORY_WORD: _WORD, SRE.CATEGORY_NOT_WORD: ALL - _WORD,
    }  # fmt: skip
    if name not in known:
        raise Unknown(str(name))
    return known[name]


def fold(members: set[int] | frozenset[int], folded: bool) -> frozenset[int]:
    """`members`, and if `folded` both cases of their ASCII letters."""
    if not folded:
        return frozenset(members)
    text = bytes(members)
    return frozenset(text.lower() + text.upper())
