"""Two ways to say which of many patterns may occur in a piece of text: literals, or one Hyperscan pass.

An engine never misses a pattern that matches a line of the piece; it may name one that does not. `collector.patterns`
asks `re` for the rest. Hyperscan comes as a wheel for Linux only; where it is missing, or not yet worth the
compilation, the literals do the same work.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from collector import usercache
from collector.data import data_dir, lookup
from collector.locators import literals

_FORMAT = b"firstfault patterns 1\n"
"""First line of a cached database."""


class LiteralSearch:
    """Seeks the required literals of each pattern, one after the other."""

    def __init__(self, indices: Iterable[int], patterns: Sequence[bytes]) -> None:
        self._always: list[int] = []
        self._plain: dict[bytes, list[int]] = {}
        self._folded: dict[bytes, list[int]] = {}
        for index in indices:
            needed = literals(patterns[index])
            if needed is None:
                self._always.append(index)
                continue
            table = self._folded if needed.folded else self._plain
            for literal in needed.any_of:
                table.setdefault(literal, []).append(index)

    def present(self, piece: memoryview) -> list[int]:
        """Indices of the patterns that may match a line of `piece`, ascending."""
        found = set(self._always)
        if self._plain or self._folded:
            text = bytes(piece)
            found.update(index for literal, indices in self._plain.items() if literal in text for index in indices)
            if self._folded:
                text = text.lower()
                found.update(index for literal, indices in self._folded.items() if literal in text for index in indices)
        return sorted(found)


class Database:
    """A compiled Hyperscan database; patterns that it cannot express are sought by their literals beside it."""

    def __init__(self, database: Any, patterns: Sequence[bytes], outside: Sequence[int]) -> None:
        self._database = database
        self._local = threading.local()
        self._outside = LiteralSearch(outside, patterns) if outside else None
        self.present(memoryview(b"\n"))  # a database for another processor fails here

    def present(self, piece: memoryview) -> list[int]:
        """Indices of the patterns that may match a line of `piece`, ascending."""
        found: list[int] = []
        self._database.scan(piece, match_event_handler=_note, context=found, scratch=self._scratch())
        if self._outside is not None:
            found += self._outside.present(piece)
        return sorted(found) if len(found) > 1 else found

    def _scratch(self) -> Any:
        """Working memory of this thread; scanning releases the GIL, so threads must not share one."""
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            import hyperscan

            scratch = self._local.scratch = hyperscan.Scratch(self._database)
        return scratch


def _note(index: int, _start: int, _end: int, _flags: int, found: list[int]) -> None:
    found.append(index)


def available() -> bool:
    """True if Hyperscan can be imported here."""
    try:
        import hyperscan  # noqa: F401
    except ImportError:
        return False
    return True


def load(patterns: Sequence[bytes], cache: Path | None) -> Database | None:
    """The database of `patterns` from the cache; None if it is not there, damaged, or made for another machine."""
    if cache is None or not available():
        return None
    import hyperscan

    content = usercache.get(cache, _name(patterns))
    if content is None or not content.startswith(_FORMAT):
        return None
    digest, _, body = content[len(_FORMAT) :].partition(b"\n")
    if hashlib.blake2b(body, digest_size=16).hexdigest().encode() != digest:
        return None
    outside, _, serialised = body.partition(b"\n")
    try:
        database = hyperscan.loadb(serialised, hyperscan.HS_MODE_BLOCK)
        return Database(database, patterns, json.loads(outside))
    except (hyperscan.error, ValueError):
        return None


def build(patterns: Sequence[bytes], cache: Path | None) -> Database | None:
    """Compile the database of `patterns` and store it in the cache; None if Hyperscan is missing or refuses all."""
    if not available():
        return None
    import hyperscan

    from collector import expressions

    ordinary = expressions.Ordinary("\n".join(lookup("ordinary_log")).encode())
    wanted = {
        i: found
        for i, pattern in enumerate(patterns)
        if (found := expressions.expression(pattern, ordinary)) is not None
    }
    database = _compiled(wanted)
    if database is None:  # one bad expression spoils them all: leave out those that fail alone
        wanted = {i: found for i, found in wanted.items() if _compiled({i: found}) is not None}
        database = _compiled(wanted)
    if database is None:
        return None
    outside = [index for index in range(len(patterns)) if index not in wanted]
    body = json.dumps(outside).encode() + b"\n" + hyperscan.dumpb(database)
    digest = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    usercache.put(cache, _name(patterns), _FORMAT + digest + b"\n" + body)
    try:
        return Database(database, patterns, outside)
    except hyperscan.error:
        return None


def _compiled(expressions: dict[int, bytes]) -> Any | None:
    """A Hyperscan database, or None if it refuses one of the expressions (or if there are none).

    SINGLEMATCH: we only ask whether a pattern occurs, so a pattern in every line costs one callback per piece.
    """
    import hyperscan

    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=list(expressions.values()),
            ids=list(expressions),
            flags=hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_SINGLEMATCH,
        )
    except hyperscan.error:
        return None
    return database


def _name(patterns: Sequence[bytes]) -> str:
    """Cache name: what the database was made of, by what, and for which processor."""
    import hyperscan

    probe = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    probe.compile(expressions=[b"probe"], ids=[0], flags=0)  # its info names the processor features compiled for
    key = hashlib.blake2b(digest_size=16)
    parts: tuple[bytes, ...] = (
        _FORMAT,
        sys.version.encode(),
        getattr(hyperscan, "__version__", "").encode(),
        _derivation(),
        str(probe.info()).encode(),
        *_processor(),
        *patterns,
    )
    for part in parts:
        key.update(len(part).to_bytes(8, "little") + part)
    return f"patterns-{key.hexdigest()}.hsdb"


def _derivation() -> bytes:
    """What expressions are derived with: another release may derive others."""
    try:
        lines = data_dir("signatures") / "_lookup" / "ordinary_log.yaml"
        sources = [Path(__file__).with_name(name) for name in ("regex_tree.py", "locators.py", "expressions.py")]
        return b"".join(path.read_bytes() for path in [*sources, lines])
    except OSError:
        return b""


def _processor() -> Iterator[bytes]:
    """Machine and CPU features: homes are shared between unlike nodes."""
    yield os.uname().machine.encode()
    try:
        with Path("/proc/cpuinfo").open("rb") as file:
            head = file.read(4096)
    except OSError:
        return
    yield from (line for line in head.split(b"\n") if line.startswith((b"flags", b"Features")))
