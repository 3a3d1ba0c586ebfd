"""Reads pickles that hold plain data only: None, bool, int, float, str, bytes, list, tuple and dict.

Decision: an untrusted pickle is not unpickled, it is interpreted here, on top of `pickletools.genops`. The opcodes that
import a name, call something or fetch a persistent object have no meaning in this module, so there is nothing to
disable. `pickle.Unpickler` with a refusing `find_class` would still let a small file exhaust memory (LONG_BINPUT makes
it allocate a memo of the size the file names) or the C stack (hashing a deeply nested tuple as a dict key).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

MAX_OPCODES = 20_000_000
"""A dump of 20 000 collectives with 20 frames each has about 4 million."""

_MARK = object()
_LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "INT", "BINFLOAT", "FLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING", "STRING"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_GET = frozenset({"BINGET", "LONG_BINGET", "GET"})
_PUT = frozenset({"BINPUT", "LONG_BINPUT", "PUT"})
_KEYS = (str, int, bytes, type(None))


class NotPlain(ValueError):
    """The pickle is damaged, too large, or holds more than plain data."""


class _Machine:
    """The stack, the memo and the few opcodes that build containers."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.build: dict[str, Callable[[], None]] = {
            "MARK": lambda: self.stack.append(_MARK),
            "EMPTY_LIST": lambda: self.stack.append([]),
            "EMPTY_DICT": lambda: self.stack.append({}),
            "LIST": lambda: self.stack.append(self._above_mark()),
            "DICT": lambda: self.stack.append(_pairs(self._above_mark())),
            "TUPLE": lambda: self.stack.append(tuple(self._above_mark())),
            "TUPLE1": lambda: self._tuple(1),
            "TUPLE2": lambda: self._tuple(2),
            "TUPLE3": lambda: self._tuple(3),
            "APPEND": lambda: self._append([self.stack.pop()]),
            "APPENDS": lambda: self._append(self._above_mark()),
            "SETITEM": self._setitem,
            "SETITEMS": lambda: self._update(self._above_mark()),
            "MEMOIZE": lambda: self.memo.__setitem__(len(self.memo), self.stack[-1]),
        }

    def _above_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    def _tuple(self, size: int) -> None:
        items = tuple(self.stack[-size:])
        if len(items) != size or _MARK in items:
            raise NotPlain("tuple over too few items")
        self.stack[-size:] = [items]

    def _append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise NotPlain("append to something that is no list")
        target.extend(items)

    def _setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise NotPlain("item set on something that is no dict")
        target.update(_pairs(items))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2 or not all(isinstance(key, _KEYS) for key in items[::2]):
        raise NotPlain("a dict key that is no plain scalar")
    return dict(zip(items[::2], items[1::2], strict=True))


def _run(data: bytes, max_opcodes: int) -> Any:
    machine = _Machine()
    stack, memo, build = machine.stack, machine.memo, machine.build
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if count >= max_opcodes:
            raise NotPlain(f"more than {max_opcodes} opcodes")
        if name in _LITERALS:
            stack.append(argument)
        elif name in _GET:
            stack.append(memo[int(argument or 0)])
        elif name in _PUT:
            memo[int(argument or 0)] = stack[-1]
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in build:
            build[name]()
        elif name == "STOP":
            break
        elif name not in ("PROTO", "FRAME"):
            raise NotPlain(f"opcode {name} is refused: the file asks for more than plain data")
    if len(stack) != 1 or stack[0] is _MARK:
        raise NotPlain("no single object at the end")
    return stack[0]


def loads(data: bytes, max_opcodes: int = MAX_OPCODES) -> Any:
    """The object that the pickle `data` describes.

    Shared and self-containing lists are possible: whoever walks the result must bound the walk. Raises NotPlain for
    whatever is damaged, truncated, longer than `max_opcodes` opcodes, or needs an opcode beyond plain data.
    """
    try:
        return _run(data, max_opcodes)
    except NotPlain:
        raise
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise NotPlain(f"damaged or truncated pickle: {error}") from error
