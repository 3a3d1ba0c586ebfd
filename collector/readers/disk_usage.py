"""How full file systems and quotas are -> `environment` facts: output of df, quota and lfs quota.

Decision: one fact per file system or quota, named by what people know it by (`disk:/ckpt`, `inodes:/ckpt`,
`quota:filer:/ckpt`), whose value begins with `full` only if nothing is left: `Use% 100` alone is rounded up, and on a
large file system leaves room for many checkpoints. What can never be written to (loop devices) is left out.

Sources: df(1) with -h, -P, -T, -i in any combination; quota(1); lfs-quota(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

DISK, INODES, QUOTA = "disk:", "inodes:", "quota:"
FULL = "full"
"""How the value of a fact begins where nothing is left."""
_NOTHING_LEFT = 0.001
"""Share of the size below which a file system is full: torch needs more than a thousandth for any checkpoint."""

_DF_HEAD = re.compile(r"\s*Filesystem\s.*\bMounted on\s*$")
_DF_ROW = re.compile(
    r"(?P<source>\S+)\s+(?:[a-z][\w.]*\s+)?(?P<size>[\d.]+[KMGTPE]?i?B?)\s+(?P<used>[\d.]+[KMGTPE]?i?B?)\s+"
    r"(?P<free>-?[\d.]+[KMGTPE]?i?B?)\s+(?P<share>\d+|-)%?\s+(?P<mount>/\S*(?: \S+)*)\s*$"
)
_READ_ONLY = re.compile(r"/dev/loop\d|squashfs|/dev/sr\d|iso9660")
_QUOTA_HEAD = re.compile(r"\s*Disk quotas for (?:user|usr|group|grp|project|prj) ")
_QUOTA_COLUMNS = re.compile(r"\s*Filesystem\s.*\bquota\s+limit\b")
_QUOTA_ROW = re.compile(
    r"(?P<name>[^\s:]\S*)?\s+(?P<used>[\d.]+[kKMGTPE]?\*?|\[[^\]]*\])\s+(?P<soft>[\d.]+[kKMGTPE]?)\s+"
    r"(?P<hard>[\d.]+[kKMGTPE]?)(?:\s+(?P<grace>-|none|expired|[\dwdhms:]+(?:days)?))??"
    r"(?:\s+(?P<files>\d+\*?)\s+(?P<file_soft>\d+)\s+(?P<file_hard>\d+).*)?\s*$"
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}


class Usage(NamedTuple):
    """One fact: its name, its value in words, and the line that states it."""

    name: str
    value: str
    line: int


def looks_like(head: str) -> bool:
    """True if a text begins with a table of df or quota."""
    lines = [line for line in head.splitlines()[:8] if line.strip()]
    return any(_DF_HEAD.match(line) for line in lines[:2]) or bool(lines and _QUOTA_HEAD.match(lines[0]))


def read(text: str) -> Iterator[Usage]:
    """The facts of all tables in a text, in the order of the lines."""
    table, wrapped = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if _DF_HEAD.match(line):
            table = INODES if "IUse" in line or "Inodes" in line else DISK
        elif _QUOTA_HEAD.match(line) or _QUOTA_COLUMNS.match(line):
            table = QUOTA
        elif table and line.strip():
            joined = f"{wrapped} {line.strip()}" if wrapped else line
            found = list(_of_quota(joined, number) if table == QUOTA else _of_df(table, joined, number))
            yield from found
            # a long name stands on a line of its own
            wrapped = line.strip() if not found and not wrapped and len(line.split()) == 1 else ""


def _of_df(table: str, line: str, number: int) -> Iterator[Usage]:
    row = _DF_ROW.match(line.strip())
    if row is None or _READ_ONLY.search(line):
        return
    size, free = _bytes(row["size"]), _bytes(row["free"])
    full = size > 0 and row["share"] != "-" and free <= _NOTHING_LEFT * size
    state = FULL if full else f"{row['share']}% used"
    yield Usage(f"{table}{row['mount']}", f"{state}: {row['free']} of {row['size']} free", number)


def _of_quota(line: str, number: int) -> Iterator[Usage]:
    row = _QUOTA_ROW.match(line.strip())
    if row is None or not row["name"]:
        return
    yield _quota(row["name"], row["used"], row["soft"], row["hard"], "", number)
    if row["files"]:
        yield _quota(row["name"], row["files"], row["file_soft"], row["file_hard"], " files", number)


def _quota(name: str, used: str, soft: str, hard: str, what: str, number: int) -> Usage:
    """The hard limit refuses writes at once; a star says that the soft one is exceeded, and then time runs."""
    limit = _bytes(hard)
    full = limit > 0 and _bytes(used) >= (1 - _NOTHING_LEFT) * limit
    exceeded = "over the soft limit" if used.endswith("*") else "within limits"
    state = FULL if full else exceeded
    return Usage(
        f"{QUOTA}{name}{what}", f"{state}: {used.rstrip('*')} of {hard if limit else 'no limit'}{what}", number
    )


def _bytes(text: str) -> float:
    """A number with an optional unit of df or quota; 0 if it is none."""
    match = re.match(r"\[?(-?[\d.]+)([KMGTPE]?)", text.upper())
    try:
        return float(match[1]) * _UNITS[match[2]] if match else 0.0
    except ValueError:
        return 0.0
