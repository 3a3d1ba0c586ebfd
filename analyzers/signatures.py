"""The signature base: what is known of each failure line, loaded from YAML and matched in one pass.

A signature is data (`signatures/<family>/<name>.yaml`, its path is its id), because the people who meet new failures
are not the people who write detectors. Two decisions follow. First, a folder is judged as a whole: every problem of
every file is reported at once, and the examples inside the files are their tests (`check`, also a user command for
site signatures). Second, parsing several hundred YAML files costs more than diagnosing a short log, so the decoded set
is cached in the user's cache directory under a key of names, sizes and times of the files; a cache that is missing,
damaged or not safely ours only costs time, never the result.

Dialect of the patterns: the intersection of Python `re` and hyperscan on bytes (no look-around, no back-references).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from analyzers.case import CAUSES, ROLES, SCOPES, Hit
from collector import usercache
from collector.data import data_dir
from collector.model import LogLine

if TYPE_CHECKING:
    from collector.patterns import PatternSet

# fmt: off
GROUPS = frozenset((
    "rank", "local_rank", "pg_rank", "accused_rank", "accused_ranks", "accused_node", "node", "pid", "device", "pci",
    "xid", "entity", "port", "host", "seq", "op", "step", "exit_code", "signal", "timeout_ms", "ran_ms", "version",
    "code", "count", "bytes",
))
# fmt: on
"""Names a capture may have. `rank` is the global rank of the printer, `pg_rank` its number within a process group,
`accused_rank` a rank the line blames, `accused_ranks` a comma-separated list of such ranks; `signal` is a number or a
name, as the line spells it."""

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*/[a-z0-9]+(?:-[a-z0-9]+)*")
_NOT_IN_DIALECT = re.compile(r"(?<!\\)\(\?(?!:|P<)|\\[1-9]|(?<!\\)[*+?}]\+")


class SignatureError(ValueError):
    """A signature folder cannot be used. `problems` lists every problem as `path: what is wrong`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One regular expression and a line it must match."""

    regex: str
    example: str


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One failure (or symptom, echo, summary) that prints a recognisable line. Field meanings: DESIGN sections 4, 5."""

    id: str
    """Family and name, from the file's path."""
    title: str
    """Headline for a person: the cause, or the symptom where the line does not tell the cause."""
    status: Literal["experimental", "stable", "deprecated"] = "stable"
    reads: tuple[Literal["rank_log", "kernel_log", "scheduler"], ...]
    cause: str
    role: str
    scope: str
    strength: Annotated[int, msgspec.Meta(ge=1, le=3)]
    """3 names the cause by itself, 2 strong, 1 a hint or a symptom."""
    patterns: Annotated[tuple[Pattern, ...], msgspec.Meta(min_length=1)]
    says: str
    """The mechanism."""
    judge: str = ""
    """How to tell whether this began the failure or echoes one."""
    confirm: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    verify: tuple[str, ...] = ()
    caused_by: tuple[str, ...] = ()
    """Signatures this one is often an echo of."""
    causes: tuple[str, ...] = ()
    confused_with: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Signatures that may match the same lines, on purpose."""
    versions: str = ""
    references: tuple[str, ...] = ()
    no_match: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """Healthy or look-alike lines that must not match."""
    hot: bool = True
    """False for patterns that healthy runs print again and again: known, but not scanned for."""
    code: bool = False
    """True if the patterns are meant for source lines that a traceback quotes; other signatures ignore such lines,
    because code that mentions an error is not the error."""

    @property
    def family(self) -> str:
        """First part of the id."""
        return self.id.partition("/")[0]


class SignatureSet:
    """All signatures in force, and their patterns compiled together."""

    def __init__(self, signatures: Iterable[Signature], digest: str | None = None) -> None:
        self.by_id: dict[str, Signature] = {s.id: s for s in sorted(signatures, key=lambda s: s.id)}
        self.hash: str = digest or _digest(self.by_id.values())
        """Content hash (hex): equal sets have equal hashes on every machine."""
        hot = [(s.id, p.regex) for s in self.by_id.values() if s.hot for p in s.patterns]
        self._owner = [owner for owner, _ in hot]
        self.patterns: list[str] = [regex for _, regex in hot]
        """Every pattern that is scanned for."""
        self._compiled: dict[int, re.Pattern[bytes]] = {}

    @cached_property
    def _set(self) -> PatternSet:
        from collector.patterns import compile_patterns

        return compile_patterns(self.patterns)

    def prefilter(self) -> PatternSet:
        """The compiled patterns, for scanning raw bytes before lines are built."""
        return self._set

    def match(self, lines: Sequence[LogLine]) -> list[Hit]:
        """Where signatures match, ordered by line: at most one Hit per signature and line, with its best captures."""
        texts = [line.text for line in lines]
        joined = "\n".join(texts)
        if joined.count("\n") >= max(len(texts), 1) or "\r" in joined:
            joined = "\n".join(re.sub(r"[\r\n]", " ", text) for text in texts)
        data = joined.encode("utf-8", "replace")
        hits: list[Hit] = []
        index = position = 0
        best: dict[str, dict[str, str]] = {}
        for found in self._set.scan(data):
            if found.start > position:
                hits += _hits(best, lines, index)
                best = {}
                index += data.count(b"\n", position, found.start)
                position = found.start
            owner = self._owner[found.pattern]
            if not self.by_id[owner].code and _is_quoted_code(lines, index):
                continue
            captures = self._captures(found.pattern, data[found.start : found.end])
            if owner not in best or len(captures) > len(best[owner]):
                best[owner] = captures
        return hits + _hits(best, lines, index)

    def _captures(self, pattern: int, line: bytes) -> dict[str, str]:
        compiled = self._compiled.get(pattern)
        if compiled is None:
            compiled = self._compiled[pattern] = re.compile(self.patterns[pattern].encode())
        found = compiled.search(line)
        if found is None:
            return {}
        return {k: v.decode("utf-8", "replace") for k, v in found.groupdict().items() if v is not None}


def _is_quoted_code(lines: Sequence[LogLine], index: int) -> bool:
    """True for the source line below a traceback's `File "...", line N, in f` (or one that raises by itself)."""
    text = lines[index].text
    if not text.startswith("    "):
        return False
    return text.lstrip().startswith("raise ") or (index > 0 and lines[index - 1].text.lstrip().startswith('File "'))


def _hits(best: dict[str, dict[str, str]], lines: Sequence[LogLine], index: int) -> list[Hit]:
    return [Hit(signature, lines[index], index, captures) for signature, captures in best.items()]


def _digest(signatures: Iterable[Signature]) -> str:
    digest = hashlib.sha256()
    for signature in signatures:
        digest.update(msgspec.msgpack.encode(signature))
    return digest.hexdigest()


def load(extra: Path | None = None) -> SignatureSet:
    """The shipped signatures, and those of a site in the folder `extra` (same layout; an equal id replaces ours).

    Raises SignatureError listing every problem of every file.
    """
    shipped = data_dir("signatures")
    roots = [shipped, *([extra] if extra is not None else [])]
    files = [(root, path) for root in roots for path in _files(root)]
    folder, name, key = usercache.default_folder(), _cache_name(roots), _cache_key(files)
    cached = _unpack(usercache.get(folder, name), key)
    if cached is not None:
        return cached
    decoded: dict[str, Signature] = {}
    problems: list[str] = []
    for root, path in files:
        # Compiling 650 patterns to see that they compile costs as much as decoding the files: of ours the tests do it.
        signature, wrong = _decode(root, path, vocabulary=root != shipped)
        problems += wrong
        if signature is not None:
            decoded[signature.id] = signature
    if problems:
        raise SignatureError(problems)
    loaded = SignatureSet(decoded.values())
    usercache.put(folder, name, msgspec.msgpack.encode((key, loaded.hash, list(loaded.by_id.values()))))
    return loaded


def _files(root: Path) -> list[Path]:
    """Signature files below `root`; folders that begin with `_` hold lookup tables and rules of other kinds."""
    if not root.is_dir():
        raise SignatureError([f"{root}: not a folder"])
    families = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(("_", ".")))
    loose = [p for p in root.iterdir() if p.suffix in (".yaml", ".yml")]
    return sorted(loose) + [path for family in families for path in sorted(family.rglob("*.y*ml"))]


def _decode(root: Path, path: Path, vocabulary: bool = True) -> tuple[Signature | None, list[str]]:
    import yaml

    try:
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not isinstance(content, dict):
            return None, [f"{path}: not a mapping of fields"]
        identity = path.relative_to(root).with_suffix("").as_posix()
        signature = msgspec.convert({**content, "id": identity}, Signature)
    except (yaml.YAMLError, msgspec.ValidationError, OSError, UnicodeDecodeError) as error:
        return None, [f"{path}: {' '.join(str(error).split())}"]
    return signature, [f"{path}: {wrong}" for wrong in _vocabulary(signature)] if vocabulary else []


def _vocabulary(signature: Signature) -> Iterator[str]:
    if not _ID.fullmatch(signature.id):
        yield f"id {signature.id!r} is not <family>/<name> in kebab case"
    for field, allowed in (("cause", CAUSES), ("role", ROLES), ("scope", SCOPES)):
        if getattr(signature, field) not in allowed:
            yield f"{field} {getattr(signature, field)!r} is not one of {', '.join(allowed)}"
    if not signature.reads:
        yield "reads is empty"
    for pattern in signature.patterns:
        if wrong := _NOT_IN_DIALECT.search(pattern.regex):
            yield f"{wrong.group()!r} in {pattern.regex!r} is outside the dialect (both re and hyperscan must take it)"
            continue
        try:
            groups = re.compile(pattern.regex.encode()).groupindex
        except re.error as error:
            yield f"{pattern.regex!r} does not compile: {error}"
            continue
        if unknown := sorted(set(groups) - GROUPS):
            yield f"unknown group {', '.join(unknown)} in {pattern.regex!r}"


def _cache_name(roots: Sequence[Path]) -> str:
    """One file per combination of folders: a changed folder overwrites its cache instead of adding one."""
    return f"signatures-{hashlib.sha256(repr([str(r) for r in roots]).encode()).hexdigest()[:16]}.msgpack"


def _cache_key(files: Sequence[tuple[Path, Path]]) -> str:
    """What the cached set was made of: every file's name, size and time, and the schema it was read by."""
    digest = hashlib.sha256(repr((Signature.__struct_fields__, CAUSES, ROLES, SCOPES, sorted(GROUPS))).encode())
    for _, path in files:
        facts = path.stat()
        digest.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _unpack(content: bytes | None, key: str) -> SignatureSet | None:
    if content is None:
        return None
    try:
        made_of, digest, signatures = msgspec.msgpack.decode(content, type=tuple[str, str, list[Signature]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return SignatureSet(signatures, digest) if made_of == key else None


def check(root: Path) -> list[str]:
    """Every problem of a signature folder, as `path: what is wrong`; an empty list if there is none.

    Looks at schema, ids, dialect, group names, that each pattern matches its example and no pattern of a signature its
    `no_match` lines, that ids named in relations exist (here or among the shipped ones), and that no signature matches
    another's example unless one of the two says that they belong together.
    """
    problems: list[str] = []
    own: dict[str, Signature] = {}
    for path in _files(root):
        signature, wrong = _decode(root, path)
        problems += wrong
        if signature is not None and not wrong:
            own[signature.id] = signature
    shipped = data_dir("signatures")
    known = own if root.resolve() == shipped.resolve() else {**load().by_id, **own}
    for signature in own.values():
        where = root / f"{signature.id}.yaml"
        problems += [f"{where}: {wrong}" for wrong in (*_examples(signature), *_relations(signature, known))]
    problems += [f"{root / owner}.yaml: {wrong}" for owner, wrong in _overlaps(own, known)]
    return problems + [f"{root}: {wrong}" for wrong in _hyperscan([p.regex for s in own.values() for p in s.patterns])]


def _examples(signature: Signature) -> Iterator[str]:
    compiled = [re.compile(p.regex.encode()) for p in signature.patterns]
    for pattern, regex in zip(signature.patterns, compiled, strict=True):
        if not regex.search(pattern.example.encode()):
            yield f"{pattern.regex!r} does not match its example {pattern.example!r}"
    for line in signature.no_match:
        for regex in compiled:
            if regex.search(line.encode()):
                yield f"{regex.pattern.decode()!r} matches the line it must not match: {line!r}"


def _relations(signature: Signature, known: dict[str, Signature]) -> Iterator[str]:
    for field in ("caused_by", "causes", "confused_with", "also"):
        for other in getattr(signature, field):
            if other not in known:
                yield f"{field} names {other!r}, which does not exist"
            elif other == signature.id:
                yield f"{field} names the signature itself"


def _overlaps(own: dict[str, Signature], known: dict[str, Signature]) -> Iterator[tuple[str, str]]:
    """Examples that another signature matches too, although neither says that they are related."""
    tried = SignatureSet(msgspec.structs.replace(s, hot=True) for s in known.values())
    examples = [(s.id, p.example) for s in own.values() for p in s.patterns]
    lines = [LogLine(None, "", 1, 0, 0, None, None, None, None, None, "rank", None, None, e) for _, e in examples]
    for hit in tried.match(lines):
        owner, other = own[examples[hit.index][0]], tried.by_id[hit.signature]
        if other.id == owner.id or "context" in (owner.role, other.role):
            continue
        if other.id not in _related(owner) and owner.id not in _related(other):
            yield owner.id, f"{other.id} also matches the example {hit.line.text!r}"


def _related(signature: Signature) -> set[str]:
    return {*signature.caused_by, *signature.causes, *signature.confused_with, *signature.also}


def _hyperscan(patterns: Sequence[str]) -> Iterator[str]:
    """Patterns that hyperscan refuses; silent where it is not installed (the other engine takes all)."""
    try:
        import hyperscan
    except ImportError:
        return
    for pattern in patterns:
        database: Any = hyperscan.Database()
        try:
            database.compile(expressions=[pattern.encode()], flags=hyperscan.HS_FLAG_MULTILINE)
        except hyperscan.error as error:
            yield f"hyperscan refuses {pattern!r}: {error}"
