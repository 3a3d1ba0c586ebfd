"""Characters: makes text of unknown origin safe to show and fits it into a width.

What a report quotes was printed by somebody's job, and a job may print anything: terminal escapes that repaint the
screen or set the window title, bidirectional overrides that turn a sentence around, lone surrogates that cannot be
encoded. Everything a report shows passes `clean` once, where the diagnosis is read, so that no later step has to think
of it. Colour sequences are dropped, for they say nothing; every other control character becomes its visible escape.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 100_000
"""Characters of one text that are looked at. Longer ones are cut: no reader needs them and no page survives them."""

# CSI and terminated OSC/DCS strings of ECMA-48 (7-bit). An unterminated string is not swallowed: its ESC is shown.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\))")
# What is not printable as it is: controls, format characters, lone surrogates, line and paragraph separators.
_HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_WORD = re.compile(r"\w{3,}")
_ELLIPSIS = "…"


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char == "\t":
        return "    "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(text: str) -> str:
    """`text` with nothing in it that acts on a terminal or hides itself; newlines stay, `\\r\\n` becomes `\\n`."""
    if len(text) > LONGEST:
        text = text[:LONGEST] + _ELLIPSIS
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(_escape, _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def inline(text: str) -> str:
    """`text` on one line: runs of white space become one space."""
    return " ".join(text.split())


def cells(text: str) -> int:
    """Columns that `text` takes in a terminal: 2 for wide characters of East Asia and emoji, 0 for combining ones."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.combining(char) or char in "\u200c\u200d\ufe0e\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns. Breaks at spaces where it can, inside a word where it must; keeps indentation.

    Spaces inside a line are kept as they are, because columns of a log mean something; newlines break.
    """
    return [piece for line in text.split("\n") for piece in _wrap_line(line.rstrip(), max(width, 2))]


def _wrap_line(line: str, width: int) -> list[str]:
    lines: list[str] = []
    while cells(line) > width:
        cut = _fits(line, width)
        space = line.rfind(" ", 0, cut + 1)
        # A break that leaves less than a third of the line would waste it on one long path or number.
        if space > cut // 3 and line[:space].strip():
            cut = space
        lines.append(line[:cut].rstrip())
        line = line[cut:].lstrip()
    return [*lines, line] if line or not lines else lines


def _fits(line: str, width: int) -> int:
    """How many characters of `line` fit into `width` columns; at least one."""
    if line[:width].isascii():
        return width
    used = 0
    for index, char in enumerate(line):
        used += _cell(char)
        if used > width:
            return max(index, 1)
    return len(line)


def cut(text: str, room: int) -> str:
    """`text` in at most `room` characters, cut at its end, for titles: they say the most important first."""
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + _ELLIPSIS


def shorten(text: str, room: int, hints: str = "") -> str:
    """`text` in at most `room` characters, cut to the part that shares most words with `hints`; … marks a cut.

    The important part of a long line is the part that the verdict talks about, so the verdict's own words find it.
    Without a common word head and tail are kept: a line says what it is at its start and how it ended at its end.
    """
    if len(text) <= room:
        return text
    if room < 8:
        return text[: max(room - 1, 0)] + _ELLIPSIS
    wanted = {word.lower() for word in _WORD.findall(hints)}
    places = [match.start() for match in _WORD.finditer(text) if match.group().lower() in wanted] if wanted else []
    if not places:
        tail = (room - 1) // 3
        return text[: room - 1 - tail] + _ELLIPSIS + text[len(text) - tail :]
    first, last = _densest(places, room - 2)
    start = max(0, min(first - room // 5, len(text) - room + 1))
    # The head says what a line is: it stays wherever the important part fits behind it.
    if start <= 1 or last < room * 4 // 5:
        return text[: room - 1] + _ELLIPSIS
    if start + room - 1 >= len(text):
        return _ELLIPSIS + text[-(room - 1) :]
    return _ELLIPSIS + text[start : start + room - 2] + _ELLIPSIS


def _densest(places: list[int], span: int) -> tuple[int, int]:
    """First and last of most (sorted) `places` that lie within four fifths of `span`; of equals the first."""
    best, most, end = (places[0], places[0]), 0, 0
    reach = span * 4 // 5
    for index, place in enumerate(places):
        while end < len(places) and places[end] < place + reach:
            end += 1
        if end - index > most:
            best, most = (place, places[end - 1]), end - index
    return best
