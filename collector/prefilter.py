"""Which lines of a log too large to keep are worth keeping: those that any signature could match.

Signatures are data; what they mean is the analyzers' matter. A collector only needs their expressions, to know around
which places of a large log it must not cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, BinaryIO

from collector.data import data_dir
from collector.patterns import PatternSet, compile_patterns
from collector.patterns import locate as locate_patterns

_PER_BLOCK = 200
"""Of each pattern at most so many lines per block: the rest repeats."""


def locate(file: BinaryIO) -> Iterator[tuple[int, int, int, int]]:
    """(pattern, line, offset, end) of the lines of `file` that a signature could match, in file order."""
    for found in locate_patterns(file, patterns(), limit=_PER_BLOCK):
        yield found.pattern, found.line, found.start, found.end


@cache
def patterns() -> PatternSet:
    """The expressions of all signatures that are scanned for (`hot`), compiled together when first used."""
    return compile_patterns([regex for regex in _expressions() if isinstance(regex, str)])


def _expressions() -> Iterator[Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for folder in sorted(data_dir("signatures").iterdir()):
        if folder.name.startswith("_") or not folder.is_dir():
            continue
        for path in sorted(folder.rglob("*.y*ml")):
            signature = yaml.load(path.read_bytes(), Loader=loader)
            if signature.get("hot", True):
                yield from (pattern["regex"] for pattern in signature["patterns"])
