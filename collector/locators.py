"""What a line must contain for a regular expression to match it: the facts that let one scan stand for many patterns.

Literals are byte strings of which at least one occurs in each matching line. They may occur in lines that do not match;
`re` has the last word. Where the parse tree holds something unknown (a newer Python, an exotic flag) there are none,
and the pattern is tried on every line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from collector.regex_tree import LETTERS, NEWLINE, PARSER, REPEATS, SRE, Unknown, folded_in, members_of

MIN_LITERAL = 3
"""Shorter literals occur in nearly every line of a log and would sort nothing out."""
MAX_ALTERNATIVES = 128
"""More literals than this for one pattern cost more than they save."""
MAX_CLASS = 10
"""A class of more bytes ends a literal."""
MAX_TIMES = 9
"""So often is a short text repeated within a literal (`{0,8}` blanks of a padded number); beyond, the literal ends."""
WINDOW = 8
"""Bytes of a literal shown to Hyperscan, whose literal matcher hashes no more (5, 6 and 10 measured slower)."""


_TEXT = object()


class Literals(NamedTuple):
    """At least one of `any_of` occurs in each line that the pattern matches."""

    any_of: tuple[bytes, ...]
    folded: bool
    """True if they are lower case and must be sought in lower-cased data."""


def literals(pattern: bytes) -> Literals | None:
    """Literals necessary for `re.search(pattern, line)`, long ones; None where none are known.

    Raises re.error if the pattern is not a regular expression.
    """
    tree = PARSER.parse(pattern)
    flags = int(tree.state.flags)
    if flags & re.LOCALE:
        return None
    if not flags & re.IGNORECASE:
        run = _longest_run(tree)
        if len(run) >= WINDOW:  # good enough, at a fifth of the cost of looking into every group
            return Literals((run,), False)
    return best_of(requirements(tree, bool(flags & re.IGNORECASE)))


def _longest_run(items: Any) -> bytes:
    """The longest run of adjacent literal bytes outside of groups."""
    best, run = b"", bytearray()
    for op, argument in [*items, (None, None)]:
        if op is SRE.LITERAL:
            run.append(argument)
        elif op is not SRE.AT:
            best = max(best, bytes(run), key=len)
            run.clear()
    return best


class _Text(NamedTuple):
    """What a part of a match may end in."""

    end: bytes
    whole: bool = True
    """False if more stood before it, which is forgotten: what went before the part says nothing then."""


def _joined(first: Iterable[_Text], second: Iterable[_Text]) -> list[_Text]:
    """Every text of `first` followed by every one of `second`, without doubles."""
    first = list(first)
    return list(
        dict.fromkeys(
            _Text(before.end + text.end, before.whole) if text.whole else text for text in second for before in first
        )
    )


def _few(texts: list[_Text]) -> list[_Text] | None:
    """`texts`, or if they are too many their last bytes, which are fewer; None if even these are too many."""
    for size in range(WINDOW, 1, -1):
        if len(texts) <= MAX_ALTERNATIVES:
            return texts
        texts = list(dict.fromkeys(text if len(text.end) <= size else _Text(text.end[-size:], False) for text in texts))
    return texts if len(texts) <= MAX_ALTERNATIVES else None


class _Runs:
    """Follows the stretches of a sequence whose bytes are known, and keeps the requirements they make.

    A run is a set of texts, because `gh[pos]_` is as good as three literals.
    """

    def __init__(self, before: _Runs | None = None) -> None:
        """`before`: go on where that one stands."""
        self.found: list[Literals] = []
        self._texts: list[_Text] = [_Text(b"")] if before is None else before._texts
        self._folded: bool | None = None if before is None else before._folded
        """Whether the letters of the run ignore case; None while it has no letters."""

    def add(self, options: list[_Text], folded: bool) -> None:
        """Go on with one of `options`. A text without letters fits either kind of run."""
        kind = folded if any(not LETTERS.isdisjoint(option.end) for option in options) else None
        if kind is not None and self._folded not in (None, kind):
            self.flush()
        if len(options) > 1:
            self._offer()  # what stands before may well be enough
        texts = _few(_joined(self._texts, options))
        if texts is None:
            self.flush()
            texts = options
        self._texts = texts
        self._folded = kind if self._folded is None else self._folded

    def flush(self) -> None:
        """End the current run and keep what it requires."""
        self._offer()
        self._texts, self._folded = [_Text(b"")], None

    def _offer(self) -> None:
        folded = bool(self._folded)
        texts = {text.end.lower() if folded else text.end for text in self._texts}
        shortest = min(map(len, texts))
        if shortest >= MIN_LITERAL:
            # `(?:abc)?def`: where `abcdef` is, `def` is
            least = [t for t in texts if len(t) == shortest or not any(o in t for o in texts if len(o) < len(t))]
            self.found.append(Literals(tuple(sorted(least)), folded))


def worth(found: Literals) -> tuple[int, bool]:
    """Long ones first (of several, the shortest counts, and each doubling costs a byte), then those that keep case."""
    return min(len(item) for item in found.any_of) - len(found.any_of).bit_length(), not found.folded


def best_of(found: Iterable[Literals]) -> Literals | None:
    """The requirement worth most; None of none."""
    return max(found, key=worth, default=None)


def requirements(
    items: Any,
    folded: bool,
    best: Callable[[Iterable[Literals]], Literals | None] = best_of,
    before: _Runs | None = None,
) -> list[Literals]:
    """All requirements of a sequence of parse-tree items; each holds for each match.

    `best` chooses one requirement for each branch of an alternation. `before`: the run that leads to the sequence.
    """
    runs = _Runs(before)
    for op, argument in _merged(items):
        options = _options(op, argument, folded)
        if options is not None:
            runs.add(options, folded)
            continue
        if op is SRE.BRANCH:
            runs.found += _any_of([best(requirements(branch, folded, best, runs)) for branch in argument[1]])
        runs.flush()
        if op is SRE.SUBPATTERN:
            runs.found += requirements(argument[3], folded_in(argument, folded), best)
        elif op is SRE.ATOMIC_GROUP:
            runs.found += requirements(argument, folded, best)
        elif op in REPEATS and argument[0]:
            runs.found += requirements(argument[2], folded, best)
    runs.flush()
    return runs.found


def _merged(items: Any) -> Iterator[tuple[Any, Any]]:
    """`items` with adjacent literals as one item (_TEXT, bytes). An anchor has no width: the text goes on."""
    text = bytearray()
    for op, argument in items:
        if op is SRE.LITERAL and argument != NEWLINE:
            text.append(argument)
        elif op is not SRE.AT:
            if text:
                yield _TEXT, bytes(text)
                text.clear()
            yield op, argument
    if text:
        yield _TEXT, bytes(text)


def _options(op: Any, argument: Any, folded: bool) -> list[_Text] | None:
    """The few texts that an item can match, if it is that simple and keeps the case of its surroundings."""
    if op is _TEXT:
        return [_Text(argument)]
    if op is SRE.IN:
        try:
            members = members_of(argument, False) - {NEWLINE}  # which no line holds
        except Unknown:
            return None
        return [_Text(bytes([byte])) for byte in sorted(members)] if 0 < len(members) <= MAX_CLASS else None
    if op in REPEATS and argument[1] <= MAX_TIMES:
        least, most, inner = argument
        once = _sequence_options(inner, folded)
        if once is None or (most > 1 and (len(once) > 1 or not once[0].whole)):
            return None
        return [_Text(text.end * times, text.whole or not times) for times in range(least, most + 1) for text in once]
    if op is SRE.SUBPATTERN:
        return _sequence_options(argument[3], folded) if folded_in(argument, folded) == folded else None
    if op is SRE.BRANCH:
        branches = [_sequence_options(branch, folded) for branch in argument[1]]
        if any(branch is None for branch in branches):
            return None
        return _few(list(dict.fromkeys(option for branch in branches if branch for option in branch)))
    return None


def _sequence_options(items: Any, folded: bool) -> list[_Text] | None:
    texts: list[_Text] | None = [_Text(b"")]
    for op, argument in _merged(items):
        options = _options(op, argument, folded)
        if options is None or texts is None:
            return None
        texts = _few(_joined(texts, options))
    return texts


def _any_of(branches: list[Literals | None]) -> list[Literals]:
    """The requirement of an alternation: one of the requirements of its branches, if each branch has one."""
    if any(branch is None for branch in branches):
        return []
    known = [branch for branch in branches if branch is not None]
    folded = any(branch.folded for branch in known)
    texts = {text.lower() if folded else text for branch in known for text in branch.any_of}
    return [Literals(tuple(sorted(texts)), folded)] if len(texts) <= MAX_ALTERNATIVES else []
