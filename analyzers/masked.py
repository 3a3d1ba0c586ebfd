"""Masks secrets in everything that is about to be shown: names of files and folders may hold them too.

Texts of logs are masked where they are read; paths are not, because they must open their file. So what leaves the
program is masked once more, each distinct string alone, after one scan of all of them has said which ones need it.
"""

from __future__ import annotations

from typing import Any

from collector.redact import redact


def masked(value: Any) -> Any:
    """A copy of `value` (dicts, lists, tuples, plain values) whose strings, keys of dicts excepted, hold no secret.

    `value` itself is returned if nothing had to be masked.
    """
    strings = list(_strings(value))
    changed = _changed(strings)
    return _replaced(value, changed) if changed else value


def _strings(value: Any) -> dict[str, None]:
    """The distinct strings in `value`, in order."""
    found: dict[str, None] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found[item] = None
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return found


def _changed(strings: list[str]) -> dict[str, str]:
    """String -> masked string, of those that hold a secret."""
    joined = "\n".join(strings)
    scanned, count = redact(joined)
    if not count:
        return {}
    found: dict[str, str] = {}
    at, pieces = 0, scanned.split("\n")  # masking never changes the number of newlines
    for text in strings:
        size = text.count("\n") + 1
        if "\n".join(pieces[at : at + size]) != text:
            # Alone again: the scan of all takes what follows the head of a private key for a part of it.
            found[text] = redact(text)[0]
        at += size
    return found


def _replaced(value: Any, changed: dict[str, str]) -> Any:
    if isinstance(value, str):
        return changed.get(value, value)
    if isinstance(value, dict):
        return {key: _replaced(item, changed) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, changed) for item in value]
    if type(value) is tuple:
        return tuple(_replaced(item, changed) for item in value)
    return value
