"""What a line must contain for a regular expression to match it: the facts that let one scan stand for many patterns.

Two necessary conditions are read off the parse tree of `re` itself (so they can never disagree with `re` about syntax):

* literals: byte strings of which at least one occurs in each matching line;
* an expression in Hyperscan's dialect that matches wherever the pattern does, and never across a newline.

Both may hold for lines that do not match; `re` has the last word. Where the tree holds something unknown (a newer
Python, an exotic flag) the condition is simply absent, and the pattern is tried on every line.

The expression is made as cheap as it can be. Measured on 200 MB of training log with 523 patterns: the patterns as they
are scan at 0.33 GB/s and compile in 0.33 s; the best stretch between two `.*` 0.80 and 0.21; of that only the eight
rarest bytes, where ordinary logs do not contain them, 0.96 and 0.04.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from typing import Any, NamedTuple

# CPython's own regular-expression parser; named `sre_parse` before 3.11, where that name warns. Not in typeshed.
_PARSER: Any = importlib.import_module("re._parser")
_SRE: Any = importlib.import_module("re._constants")
_REPEATS = (_SRE.MAX_REPEAT, _SRE.MIN_REPEAT, _SRE.POSSESSIVE_REPEAT)

MIN_LITERAL = 3
"""Shorter literals occur in nearly every line of a log and would sort nothing out."""
MAX_ALTERNATIVES = 64
"""More literals than this for one pattern cost more than they save."""
MAX_CLASS = 10
"""A class of more bytes ends a literal."""
MAX_REPEAT = 32
"""Bounded repeats above this become unbounded in the Hyperscan expression: a counter costs it far more than a loop."""
WINDOW = 8
"""Bytes of a literal shown to Hyperscan, whose literal matcher hashes no more (5, 6 and 10 measured slower)."""
MIN_WINDOW = 5
"""A shorter literal is too common to stand for its pattern."""

_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGIT = frozenset(b"0123456789")
_WORD = _LETTERS | _DIGIT | {0x5F}
_SPACE = frozenset(b" \t\n\r\f\v")
_ALL = frozenset(range(256))
_NEWLINE = 0x0A


class Literals(NamedTuple):
    """At least one of `any_of` occurs in each line that the pattern matches."""

    any_of: tuple[bytes, ...]
    folded: bool
    """True if they are lower case and must be sought in lower-cased data."""


class _Unknown(Exception):
    """The parse tree holds something for which no safe condition is known here."""


def literals(pattern: bytes) -> Literals | None:
    """Literals necessary for `re.search(pattern, line)`, long ones; None where none are known.

    Raises re.error if the pattern is not a regular expression.
    """
    tree = _PARSER.parse(pattern)
    flags = int(tree.state.flags)
    if flags & re.LOCALE:
        return None
    if not flags & re.IGNORECASE:
        run = _longest_run(tree)
        if len(run) >= WINDOW:  # good enough, at a fifth of the cost of looking into every group
            return Literals((run,), False)
    return _best(_known(tree, bool(flags & re.IGNORECASE)))


def _longest_run(items: Any) -> bytes:
    """The longest run of adjacent literal bytes outside of groups."""
    best, run = b"", bytearray()
    for op, argument in [*items, (None, None)]:
        if op is _SRE.LITERAL:
            run.append(argument)
        elif op is not _SRE.AT:
            best = max(best, bytes(run), key=len)
            run.clear()
    return best


class Ordinary:
    """Text that logs hold while nothing is wrong, to tell rare bytes from common ones."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._trigrams = Counter(text[i : i + 3] for i in range(len(text) - 2))

    def rarest(self, literal: bytes) -> bytes | None:
        """The rarest WINDOW bytes of `literal`; None if the text contains even these, or if they are too few."""
        windows = [literal[i : i + WINDOW] for i in range(max(1, len(literal) - WINDOW + 1))]
        rarest = min(windows, key=lambda window: (window in self._text, self._commonness(window)))
        return None if len(rarest) < MIN_WINDOW or rarest in self._text else rarest

    def _commonness(self, window: bytes) -> int:
        return sum(self._trigrams[window[i : i + 3]] for i in range(len(window) - 2))


def expression(pattern: bytes, ordinary: Ordinary) -> bytes | None:
    """A Hyperscan expression for flags MULTILINE without DOTALL, CASELESS, UTF8; None where none is known.

    Raises re.error if the pattern is not a regular expression.
    """
    tree = _PARSER.parse(pattern)
    flags = int(tree.state.flags)
    if flags & re.LOCALE:
        return None
    folded = bool(flags & re.IGNORECASE)
    stretch = _best_stretch(list(tree), folded)
    # Hyperscan refuses what matches the empty string; such a pattern sorts nothing out anyway.
    if not _PARSER.SubPattern(tree.state, stretch).getwidth()[0]:
        return None
    for found in sorted(_known(stretch, folded), key=_worth, reverse=True):
        windows = [ordinary.rarest(text) for text in found.any_of]
        if all(windows):
            return b"|".join(sorted({_quoted(window, found.folded) for window in windows if window}))
    try:
        return _sequence(stretch, folded).encode("ascii")
    except _Unknown:
        return None


# Literals ----------------------------------------------------------------------------------------------------------


class _Runs:
    """Follows the stretches of a sequence whose bytes are known, and keeps the requirements they make.

    A run is a set of texts, because `gh[pos]_` is as good as three literals.
    """

    def __init__(self) -> None:
        self.found: list[Literals] = []
        self._texts = [b""]
        self._folded: bool | None = None
        """Whether the letters of the run ignore case; None while it has no letters."""

    def add(self, options: list[bytes], folded: bool) -> None:
        """Go on with one of `options`. A text without letters fits either kind of run."""
        kind = folded if any(not _LETTERS.isdisjoint(option) for option in options) else None
        if kind is not None and self._folded not in (None, kind):
            self.flush()
        if len(options) > 1:
            self._offer()  # what stands before may well be enough
        if len(self._texts) * len(options) > MAX_ALTERNATIVES:
            self.flush()
        self._folded = kind if self._folded is None else self._folded
        self._texts = [text + option for text in self._texts for option in options]

    def flush(self) -> None:
        """End the current run and keep what it requires."""
        self._offer()
        self._texts, self._folded = [b""], None

    def _offer(self) -> None:
        folded = bool(self._folded)
        texts = {text.lower() if folded else text for text in self._texts}
        if min(map(len, texts)) >= MIN_LITERAL:
            # `(?:abc)?def`: where `abcdef` is, `def` is
            least = (text for text in texts if not any(other in text for other in texts if other != text))
            self.found.append(Literals(tuple(sorted(least)), folded))


def _worth(found: Literals) -> tuple[int, bool]:
    """Long ones first (of several, the shortest counts, and each doubling costs a byte), then those that keep case."""
    return min(len(item) for item in found.any_of) - len(found.any_of).bit_length(), not found.folded


def _best(found: list[Literals]) -> Literals | None:
    return max(found, key=_worth, default=None)


def _known(items: Any, folded: bool) -> list[Literals]:
    """All requirements of a sequence of parse-tree items; each holds for each match."""
    runs = _Runs()
    for op, argument in items:
        if op is _SRE.AT:
            continue  # an anchor has no width: the run goes on
        options = _options(op, argument, folded)
        if options is not None:
            runs.add(options, folded)
            continue
        runs.flush()
        if op is _SRE.SUBPATTERN:
            runs.found += _known(argument[3], _folded_in(argument, folded))
        elif op is _SRE.ATOMIC_GROUP:
            runs.found += _known(argument, folded)
        elif op in _REPEATS and argument[0]:
            runs.found += _known(argument[2], folded)
        elif op is _SRE.BRANCH:
            runs.found += _any_of([_best(_known(branch, folded)) for branch in argument[1]])
    runs.flush()
    return runs.found


def _options(op: Any, argument: Any, folded: bool) -> list[bytes] | None:
    """The few texts that an item can match, if it is that simple and keeps the case of its surroundings."""
    if op is _SRE.LITERAL and argument != _NEWLINE:
        return [bytes([argument])]
    if op is _SRE.IN:
        try:
            members = _members(argument, False) - {_NEWLINE}  # which no line holds
        except _Unknown:
            return None
        return [bytes([byte]) for byte in sorted(members)] if len(members) <= MAX_CLASS else None
    if op in _REPEATS and argument[1] != _SRE.MAXREPEAT and argument[1] <= 4:
        once = _sequence_options(argument[2], folded)
        if once is None or len(once) > 1:
            return None
        return [once[0] * times for times in range(argument[0], argument[1] + 1)]
    if op is _SRE.SUBPATTERN:
        return _sequence_options(argument[3], folded) if _folded_in(argument, folded) == folded else None
    if op is _SRE.BRANCH:
        branches = [_sequence_options(branch, folded) for branch in argument[1]]
        listed = [option for branch in branches if branch is not None for option in branch]
        return listed if None not in branches and len(listed) <= MAX_ALTERNATIVES else None
    return None


def _sequence_options(items: Any, folded: bool) -> list[bytes] | None:
    texts = [b""]
    for op, argument in items:
        options = _options(op, argument, folded)
        if options is None or len(texts) * len(options) > MAX_ALTERNATIVES:
            return None
        texts = [text + option for text in texts for option in options]
    return texts


def _folded_in(subpattern: Any, folded: bool) -> bool:
    """Whether case is ignored inside a group, which may have flags of its own."""
    _, add, remove, _ = subpattern
    return (folded or bool(add & re.IGNORECASE)) and not remove & re.IGNORECASE


def _any_of(branches: list[Literals | None]) -> list[Literals]:
    """The requirement of an alternation: one of the requirements of its branches, if each branch has one."""
    if any(branch is None for branch in branches):
        return []
    known = [branch for branch in branches if branch is not None]
    folded = any(branch.folded for branch in known)
    texts = {text.lower() if folded else text for branch in known for text in branch.any_of}
    return [Literals(tuple(sorted(texts)), folded)] if len(texts) <= MAX_ALTERNATIVES else []


# Hyperscan expression ----------------------------------------------------------------------------------------------


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

    def worth(stretch: list[Any]) -> tuple[int, bool]:
        found = _best(_known(stretch, folded))
        return (-99, False) if found is None else _worth(found)

    return _trimmed(max(stretches, key=worth))


def _gap(item: Any) -> bool:
    """True for `.*`, `[^x]+` and the like, alone in a group or not."""
    op, argument = item
    if op is _SRE.SUBPATTERN:
        return len(argument[3]) == 1 and _gap(argument[3][0])
    if op not in (_SRE.MAX_REPEAT, _SRE.MIN_REPEAT) or argument[1] <= MAX_REPEAT or len(argument[2]) != 1:
        return False
    inner, content = argument[2][0]
    if inner is _SRE.IN:
        try:
            return len(_members(content, False)) > 200
        except _Unknown:
            return False
    return bool(inner in (_SRE.ANY, _SRE.NOT_LITERAL))


def _trimmed(items: list[Any]) -> list[Any]:
    """Leave off what is optional at the ends of a stretch: `(?:Error: )?lost .?` needs no more than `lost `."""
    while items and _optional(items[-1]):
        items.pop()
    while items and _optional(items[0]):
        items.pop(0)
    return items


def _optional(item: Any) -> bool:
    op, argument = item
    if op in _REPEATS:
        return bool(argument[0] == 0)
    return bool(op is _SRE.SUBPATTERN and len(argument[3]) and all(_optional(inner) for inner in argument[3]))


def _sequence(items: Any, folded: bool) -> str:
    return "".join(_item(op, argument, folded) for op, argument in items)


def _item(op: Any, argument: Any, folded: bool) -> str:
    """One parse-tree item in Hyperscan's dialect, restricted to one line, never narrower than in `re`."""
    if op is _SRE.LITERAL:
        return _class({argument}, folded)
    if op is _SRE.NOT_LITERAL:
        return _class(_ALL - _fold({argument}, folded), False)
    if op is _SRE.ANY:
        return "."
    if op is _SRE.IN:
        return _class(_members(argument, folded), False)
    if op is _SRE.BRANCH:
        return "(?:" + "|".join(_sequence(branch, folded) for branch in argument[1]) + ")"
    if op is _SRE.SUBPATTERN:
        return "(?:" + _sequence(argument[3], _folded_in(argument, folded)) + ")"
    if op is _SRE.ATOMIC_GROUP:
        return "(?:" + _sequence(argument, folded) + ")"
    if op in _REPEATS:
        least, most, inner = argument
        return _repeat(least, most, inner, folded)
    if op is _SRE.AT:
        return _anchor(argument)
    if op in (_SRE.ASSERT, _SRE.ASSERT_NOT):
        return ""  # look-around only narrows; `re` decides
    raise _Unknown(str(op))


def _repeat(least: int, most: Any, inner: Any, folded: bool) -> str:
    body = "(?:" + _sequence(inner, folded) + ")"
    if body == "(?:)" or most == 0:
        return ""
    if (least, most) == (1, 1):
        return body
    if least > MAX_REPEAT:
        least, most = MAX_REPEAT, _SRE.MAXREPEAT
    if most == _SRE.MAXREPEAT or most > MAX_REPEAT:
        return body + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return body + ("?" if (least, most) == (0, 1) else f"{{{least},{most}}}")


def _anchor(where: Any) -> str:
    known = {
        _SRE.AT_BEGINNING: "^", _SRE.AT_BEGINNING_STRING: "^",
        # The line that `re` sees has lost its carriage return; the buffer still has it.
        _SRE.AT_END: "\\r?$", _SRE.AT_END_STRING: "\\r?$",
        _SRE.AT_BOUNDARY: "\\b", _SRE.AT_NON_BOUNDARY: "",
    }  # fmt: skip
    if where not in known:
        raise _Unknown(str(where))
    return known[where]


def _members(items: Any, folded: bool) -> frozenset[int]:
    """The bytes of a character class."""
    negated, found = False, set[int]()
    for op, argument in items:
        if op is _SRE.NEGATE:
            negated = True
        elif op is _SRE.LITERAL:
            found.add(argument)
        elif op is _SRE.RANGE:
            found.update(range(argument[0], argument[1] + 1))
        elif op is _SRE.CATEGORY:
            found.update(_category(argument))
        else:
            raise _Unknown(str(op))
    known = _fold(found, folded)
    return _ALL - known if negated else known


def _category(name: Any) -> frozenset[int]:
    known = {
        _SRE.CATEGORY_DIGIT: _DIGIT, _SRE.CATEGORY_NOT_DIGIT: _ALL - _DIGIT,
        _SRE.CATEGORY_SPACE: _SPACE, _SRE.CATEGORY_NOT_SPACE: _ALL - _SPACE,
        _SRE.CATEGORY_WORD: _WORD, _SRE.CATEGORY_NOT_WORD: _ALL - _WORD,
    }  # fmt: skip
    if name not in known:
        raise _Unknown(str(name))
    return known[name]


def _fold(members: set[int] | frozenset[int], folded: bool) -> frozenset[int]:
    if not folded:
        return frozenset(members)
    text = bytes(members)
    return frozenset(text.lower() + text.upper())


def _class(members: set[int] | frozenset[int], folded: bool) -> str:
    """A set of bytes without the newline as a literal or a class of hexadecimal escapes."""
    wanted = sorted(_fold(members, folded) - {_NEWLINE})
    if not wanted:
        raise _Unknown("only a newline could match")
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
