"""What a file is evidence of: by content first, by name second, and "nothing" when it is neither.

The readers say what they recognise (`looks_like`); this module knows the order in which they are asked, and
`signatures/_formats/files.yaml` holds the forms that no reader claims and what is never evidence. A name alone decides
only against a file (scripts, configurations, images) or for a log whose content says nothing. Text without any sign of
a log is left alone: a note that quotes an error message must not accuse anybody.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any, NamedTuple

from collector.data import data_dir
from collector.model import ArtifactKind, Outcome

HEAD_BYTES = 64 << 10
TEXT_BYTES = 16 << 10
"""Texts show their form sooner than pickles and JSON do; a thousand ranks' logs are asked too."""


class Kind(NamedTuple):
    """The answer: a kind, or why not. `outcome` is None where the ledger need not mention the file."""

    kind: ArtifactKind | None
    outcome: Outcome | None = None
    detail: str | None = None


_IGNORED = Kind(None)

_READERS: tuple[tuple[str, ArtifactKind, int], ...] = (
    ("flight_recorder", ArtifactKind.FLIGHT_RECORDER, HEAD_BYTES),
    ("error_file", ArtifactKind.ERROR_FILE, HEAD_BYTES),
    ("exit_file", ArtifactKind.EXIT_FILE, HEAD_BYTES),
    ("stacks", ArtifactKind.STACK_DUMP, HEAD_BYTES),
    ("gpu_state", ArtifactKind.GPU_STATE, TEXT_BYTES),
    ("environment", ArtifactKind.ENVIRONMENT, TEXT_BYTES),
    ("kernel_log", ArtifactKind.KERNEL_LOG, TEXT_BYTES),
    ("scheduler", ArtifactKind.SCHEDULER, TEXT_BYTES),
)
"""Readers in the order in which they are asked, from the most particular form to the loosest, and how much they see."""

_COMPRESSED = re.compile(r"\.(?:gz|zst|zstd|xz|bz2)$", re.IGNORECASE)
_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[\[{\"\]])")
_JSON_LOG = re.compile(
    rb'\s*\{(?=[^\n]*"(?:log|msg|message|text)"\s*:)(?=[^\n]*"(?:stream|level|levelname|severity|lvl)"\s*:)'
)
# cgroup files: memory.events, memory.oom_control
_CGROUP_COUNTER = re.compile(rb"(?:\w+ \d+\n){2,}")
# ls -l; find -printf "%s %time %mode %path"; aws s3 ls
_LISTING = re.compile(
    rb"^(?:[-dl][rwxsStT-]{9}[.+@]?\s+\d+\s+\S+\s+\S+\s+\d+ .*"
    rb"|[ \t]*\d+ \d{4}-\d\d-\d\dT\S+ \d{4} .+"
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +\d+ .+)$",
    re.MULTILINE,
)
_LISTED_CHECKPOINT = re.compile(
    rb"\.(?:distcp|safetensors|pt|pth|ckpt)\s*$|(?:global_?step|checkpoint-|step[_-]|iter_)\d+", re.MULTILINE
)


class _Tables:
    """`files.yaml`, compiled."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.never_suffixes = frozenset(suffix for row in raw["never_suffixes"] for suffix in row)
        self.content_suffixes = frozenset(raw["content_suffixes"])
        self.never_name = _any_of(raw["never_names"])
        self.log_name = _any_of(raw["log_names"])
        self.tool_log = _any_of(raw["tool_logs"])
        self.archives = [(at, magic.encode("latin-1")) for at, magic in raw["archives"]]
        self.binaries = tuple(magic.encode("latin-1") for magic in raw["binaries"])
        # apart, not as one alternation: `\A` at the head of a branch would make the rest slow
        self.scheduler_text = [re.compile(p.encode(), re.MULTILINE) for p in raw["scheduler_text"]]
        self.scheduler_json = [re.compile(p.encode(), re.MULTILINE) for p in raw["scheduler_json"]]
        self.scheduler_status = [re.compile(p.encode(), re.MULTILINE) for p in raw["scheduler_status"]]
        self.tool_output = [re.compile(p.encode(), re.MULTILINE) for p in raw["tool_output"]]
        self.own_report = [re.compile(p.encode(), re.MULTILINE) for p in raw["own_report"]]
        self.log_signs = re.compile("|".join(raw["log_signs"]).encode(), re.MULTILINE | re.IGNORECASE)


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


@cache
def _tables() -> _Tables:
    import yaml

    path = data_dir("signatures") / "_formats" / "files.yaml"
    return _Tables(yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@cache
def _looks_like(reader: str) -> object:
    """`looks_like` of a reader, or None where there is no such reader."""
    try:
        return getattr(importlib.import_module(f"collector.readers.{reader}"), "looks_like", None)
    except ModuleNotFoundError:
        return None


def _claimed(head: bytes) -> ArtifactKind | None:
    for reader, kind, seen in _READERS:
        test = _looks_like(reader)
        if callable(test) and test(head[:seen]):
            return kind
    return None


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name[1:] else ""


def never_evidence(path: str) -> bool:
    """True if the name alone says that this is no evidence, so that the file need not be opened."""
    name = _COMPRESSED.sub("", path.rpartition("/")[2])
    return _suffix(name) in _tables().never_suffixes or bool(_tables().never_name.search(name))


def classify(path: str, head: bytes) -> Kind:
    """What the file is. `path` has `/` between names; `head` is its first 64 KiB, decompressed. Never raises."""
    tables = _tables()
    if any(head[at : at + len(magic)] == magic for at, magic in tables.archives):
        return Kind(None, Outcome.REFUSED, "an archive: unpack it and name the folder")
    if _own_report(head):
        return Kind(None, Outcome.NOT_CONFIGURED, "a report of firstfault: it tells of evidence and is none")
    if kind := _claimed(head):
        return Kind(kind)
    name = _COMPRESSED.sub("", path.rpartition("/")[2])
    if _JSON.match(head):
        return _json(name, head)
    if head.startswith(tables.binaries):
        unknown = Kind(None, Outcome.NOT_CONFIGURED, "a binary file of unknown form")
        return unknown if tables.log_name.search(name) else _IGNORED
    return _text(path, name, head[:TEXT_BYTES])


def _own_report(head: bytes) -> bool:
    """True for a report in text, with nothing behind it: what it quotes would accuse once more."""
    begins, ends = _tables().own_report
    return bool(begins.match(head)) and (len(head) >= HEAD_BYTES or bool(ends.search(head)))


def _states(head: bytes) -> bool:
    return any(pattern.search(head) for pattern in _tables().scheduler_status)


def _json(name: str, head: bytes) -> Kind:
    tables = _tables()
    if any(pattern.search(head) for pattern in tables.scheduler_json) and _states(head):
        return Kind(ArtifactKind.SCHEDULER)
    if _JSON_LOG.match(head) or (tables.log_name.search(name) and _suffix(name) not in tables.content_suffixes):
        return Kind(ArtifactKind.RANK_LOG)
    return Kind(None, Outcome.NOT_CONFIGURED, "JSON that no reader knows")


def _text(path: str, name: str, head: bytes) -> Kind:
    tables = _tables()
    if any(pattern.search(head) for pattern in tables.scheduler_text) and (
        _suffix(name) not in ("yaml", "yml") or _states(head)
    ):
        return Kind(ArtifactKind.SCHEDULER)
    if b"oom_kill " in head and _CGROUP_COUNTER.fullmatch(head):
        return Kind(ArtifactKind.KERNEL_LOG)
    if _suffix(name) in tables.content_suffixes:
        return _IGNORED
    if _is_listing(head):
        if _LISTED_CHECKPOINT.search(head):
            return Kind(ArtifactKind.CHECKPOINT)
        return Kind(None, Outcome.NOT_CONFIGURED, "a listing of files without a checkpoint")
    if tables.tool_log.search(path):
        return Kind(None, Outcome.NOT_CONFIGURED, "what a tracking tool logs about itself")
    if tables.log_name.search(name):
        return Kind(ArtifactKind.RANK_LOG)
    if not is_text(head):
        return _IGNORED
    if any(pattern.search(head) for pattern in tables.tool_output):
        return Kind(None, Outcome.NOT_CONFIGURED, "output of a system tool that no reader knows")
    if tables.log_signs.search(head):
        return Kind(ArtifactKind.RANK_LOG)
    return Kind(None, Outcome.NOT_CONFIGURED, "text without any sign of a log")


def _is_listing(head: bytes) -> bool:
    lines = max(1, sum(1 for line in head.splitlines() if line.strip()))
    return len(_LISTING.findall(head)) >= 0.4 * lines


def is_text(head: bytes) -> bool:
    """True if the bytes are mostly printable: a log may have NULs and broken UTF-8, but not as a third of it."""
    decoded = head.decode("utf-8", "replace")
    odd = sum(1 for c in decoded if c == "\ufffd" or (c < " " and c not in "\t\n\r\x1b\x08"))
    return bool(head) and odd < 0.3 * len(decoded)
