"""Checkpoints: is it complete, partial or corrupt, and which file says so. Rows of the `checkpoints` table.

A training run that cannot resume usually says nothing useful (a bare AssertionError, an EOFError), while the folder
says it all: a shard that is missing, cut off or empty, a tracker that names a folder that is not there. Here the files
are put in order; `collector.checkpoint_rules` judges them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from collector import checkpoint_names as names
from collector.checkpoint_listing import Listed, hides_dot_files, parse_listing
from collector.checkpoint_rules import MP_FOLDER, STATUSES, File, facts, read_json, read_whole, smaller_than_elsewhere
from collector.model import Artifact

_MAX_LISTING = 8 << 20
_LISTED = " (listed in "


def read(artifact: Artifact) -> list[dict[str, Any]]:
    """Rows of table `checkpoints` (without `incident`). Never raises on content.

    With `members` the artifact is one checkpoint: a folder, or a file. Without, it is the text of a listing
    (`ls -lR`), which may hold several and can prove a checkpoint bad, never whole.
    """
    if not artifact.members:
        return list(_listed(artifact))
    files, trackers = _members(artifact)
    return [_row(artifact.path, files, trackers, artifact.modified)]


def _members(artifact: Artifact) -> tuple[list[File], list[str]]:
    """The checkpoint's own files, and the names of the tracker files beside it that name it."""
    last = PurePosixPath(artifact.path).name
    trackers: list[str] = []
    members: list[File] = []
    base = _base([m for m in artifact.members if m.rpartition("/")[2] not in names.TRACKERS], last)
    for absolute in artifact.members:
        try:
            status = os.lstat(absolute)
        except (OSError, ValueError):
            continue
        name = absolute.rpartition("/")[2]
        if base is not None and absolute.startswith(base):
            members.append(File(absolute[len(base) :], status.st_size, status.st_mtime, absolute))
        elif name in names.TRACKERS and names.tracked(name, read_whole(absolute, 4096) or b"") == last:
            trackers.append(name)
    return members, trackers


def _base(members: Sequence[str], last: str) -> str | None:
    """Absolute folder (with `/`) of a checkpoint called `last`, from the paths of its files."""
    if not members:
        return None
    folder = os.path.commonpath([os.path.dirname(member) for member in members])  # noqa: PTH120 - surrogate names
    above = folder
    while above not in ("/", ""):
        if above.rpartition("/")[2] == last:
            return above + "/"
        above = above.rpartition("/")[0]
    return folder.rstrip("/") + "/"


def _row(
    path: str, files: Sequence[File], trackers: Sequence[str], modified: float | None, hidden: bool = False
) -> dict[str, Any]:
    found = list(facts(path, files, trackers, hidden))
    worst = max(found, key=lambda fact: STATUSES.index(fact.status))
    counted = next((fact for fact in found if fact.expected is not None), None)
    times = [file.modified for file in files if file.modified is not None]
    saved = max(times) if times else modified if files else None
    return {
        "path": path,
        "format": _format(files),
        "step": _step(path, files),
        "saved_at": None if saved is None else int(saved * 1e6),
        "bytes": sum(file.size for file in files),
        "shards_expected": counted.expected if counted else None,
        "shards_found": counted.found if counted else len(files),
        "status": worst.status,
        "why": worst.why,
        "latest": bool(trackers),
    }


def _format(files: Sequence[File]) -> str:
    last = [file.last for file in files]
    forms = (
        ("megatron", any(MP_FOLDER.search(file.name) or names.MEGATRON.search(file.last) for file in files)),
        ("deepspeed", any(names.DEEPSPEED.search(name) for name in last)),
        ("dcp", any(names.DCP.search(name) for name in last)),
        ("hf-sharded", any(names.INDEX.search(name) for name in last)),
        ("safetensors", any(name.endswith(".safetensors") for name in last)),
        ("torch", any(names.TENSOR.search(name) for name in last)),
    )
    return next((form for form, found in forms if found), "unknown")


def _step(path: str, files: Sequence[File]) -> int | None:
    for file in files:
        if names.TRAINER.search(file.last) and file.absolute:
            state = read_json(file.absolute)
            if isinstance(state, dict) and isinstance(state.get("global_step"), int):
                return int(state["global_step"])
    return names.step_of(path)


def from_listing(row: Mapping[str, Any]) -> bool:
    """True for a row that only a listing supports; the row of the files themselves knows more of the same place."""
    return _LISTED in str(row.get("why"))


def _listed(artifact: Artifact) -> Iterator[dict[str, Any]]:
    try:
        with artifact.open() as stream:
            text = stream.read(_MAX_LISTING).decode("utf-8", "replace")
    except (OSError, ValueError):
        return
    listed: dict[names.Parts, Listed] = {entry.parts: entry for entry in parse_listing(text)}
    checkpoints: dict[str, list[File]] = {}
    for group in names.group(listed, lambda parts: None):
        checkpoints["/".join(group.path)] = [
            File("/".join(parts[len(group.path) :]) or parts[-1], listed[parts].size, listed[parts].modified, None)
            for parts in group.members
        ]
    hidden = hides_dot_files(text)
    cut = smaller_than_elsewhere(checkpoints)
    for path, files in checkpoints.items():
        row = _row(path, files, [], None, hidden)
        if row["status"] == "unknown" and path in cut:
            row["why"] = cut[path]
        yield {**row, "why": f"{row['why']}{_LISTED}{artifact.path})"}
