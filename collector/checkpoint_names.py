"""Which files of a folder belong to which checkpoint, by their names alone.

A checkpoint is a folder named after a step (`global_step6`, `checkpoint-500`, `iter_0001000`), a folder that a tracker
file names (`latest`), a folder that holds the files of a sharded format, or one file. Names only: nothing is opened but
the tracker files, by a function that the caller gives, so that a listing can be grouped like a real folder.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Parts = tuple[str, ...]

TRACKERS = frozenset(
    {"latest", "latest_universal", "latest_checkpointed_iteration.txt", "last_checkpoint", "latest_checkpoint",
     "latest_step", "latest_step.txt", "checkpoint_latest"}
)  # fmt: skip
"""Files that name the newest checkpoint (DeepSpeed, Megatron-LM, Detectron2 and others)."""

STEP_FOLDER = re.compile(
    r"^(?:tmp[-_.])?(?:[a-z]\w*[-_.])?(?:global[-_]?step|step|checkpoint|ckpt|iter|iteration|epoch|ba|ep\d+-ba)[-_=]?(\d+)"
    r"(?:[-_.](?:tmp|universal|step[-_=]?\d+|consumed[\w.=-]*|[\w]*unfinished[\w]*|last|ckpt|hf|steps?))*(?:\.(?:ckpt|tmp|pt))?$"
    r"|^.*[-_.]step[-_=](\d+)[\w.=-]*$",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?:^|[-_.=/])(?:global[-_]?steps?|steps?|checkpoint|ckpt|iter|iteration|it|ba)[-_=]?0*(\d+)(?=$|[-_./])",
    re.IGNORECASE,
)
_INNER = re.compile(
    r"^(?:mp_rank_\d+(?:_\d+)*|(?:pytorch_)?model(?:_fsdp)?(?:_\d+)?|optim(?:izer)?(?:_\d+)?|weights|checkpoint|context|"
    r"zero|dcp|distcp|sharded_state|trainer_state|data|rng|extra_state|dist_ckpt|model_weights)$"
)

DCP = re.compile(r"^(?:\.metadata|.*\.distcp)$")
DEEPSPEED = re.compile(r"_(?:model|optim)_states\.pt$")
INDEX = re.compile(r"\.(?:safetensors|bin|pt|ckpt)\.index(?:\.[\w-]+)?\.json$")
SHARD_OF = re.compile(r"^(?P<stem>.*?)[-_](?P<index>\d+)[-_]of[-_](?P<total>\d+)(?P<rest>(?:\.\w+)*)$")
MEGATRON = re.compile(r"^(?:model_optim_rng|model_rng|distrib_optim|optim)\.pt$")
TRAINER = re.compile(r"^trainer_state\.json$")
TENSOR = re.compile(
    r"\.(?:pt|pth|ckpt|safetensors)$"
    r"|^(?:pytorch_model|adapter_model|optimizer|training_args|diffusion_pytorch_model|random_states_\d+|model)\w*\.(?:bin|pkl)$"
)
_CHECKPOINT_NAME = re.compile(
    r"ckpt|checkpoint|(?:^|[-_.])(?:model|weights?|last|best|final|optim\w*|state(?:_dict)?|snapshot|epoch|step|iter)(?:[-_.=\d]|$)",
    re.IGNORECASE,
)
_TAG = re.compile(r"^[\w.=-]{1,128}$")
_LOGS = re.compile(r"\.(?:log|out|err|txt)(?:\.\w+)?$", re.IGNORECASE)


@dataclass(slots=True)
class Group:
    """One checkpoint: where it is, the files that belong to it, and the trackers that name it."""

    path: Parts
    """Folder, or file of a single-file checkpoint."""
    members: list[Parts] = field(default_factory=list)
    trackers: list[Parts] = field(default_factory=list)


def step_of(name: str) -> int | None:
    """The training step in a name or path (the last one named): `global_step6` is 6, `epoch=3-step=1200.ckpt` 1200."""
    found = _STEP.findall(re.sub(r"\.(?:ckpt|pt|pth|safetensors|bin|tmp)$", "", name))
    return int(found[-1]) if found and len(found[-1]) < 16 else None


def is_sharded(name: str) -> bool:
    """True for a file that only a checkpoint of several files has."""
    return bool(
        DCP.search(name)
        or DEEPSPEED.search(name)
        or INDEX.search(name)
        or MEGATRON.search(name)
        or TRAINER.search(name)
        or (SHARD_OF.search(name) and TENSOR.search(name))
    )


def _home(parts: Parts, tags: Iterable[Parts]) -> Parts | None:
    """The checkpoint that a file belongs to, or None if it is none of a checkpoint."""
    folders, name = parts[:-1], parts[-1]
    if not (is_sharded(name) or TENSOR.search(name)):
        return None
    for tag in tags:
        if folders[: len(tag)] == tag:
            return tag
    for depth in range(len(folders), 0, -1):
        if STEP_FOLDER.match(folders[depth - 1]):
            return _outermost(folders[:depth])
    if is_sharded(name):
        while folders and _INNER.match(folders[-1]):
            folders = folders[:-1]
        return folders
    inside = any(re.search(r"ckpt|checkpoint|weights|snapshot", folder, re.IGNORECASE) for folder in folders)
    if name.endswith(".ckpt") or inside or _CHECKPOINT_NAME.search(name):
        return parts
    return None


def _outermost(folder: Parts) -> Parts:
    """HF Trainer with DeepSpeed writes checkpoint-500/global_step500: one checkpoint, the outer folder."""
    while (
        len(folder) > 1
        and STEP_FOLDER.match(folder[-1])
        and STEP_FOLDER.match(folder[-2])
        and step_of(folder[-1]) == step_of(folder[-2])
    ):
        folder = folder[:-1]
    return folder


def group(files: Iterable[Parts], read_small: Callable[[Parts], bytes | None]) -> list[Group]:
    """The checkpoints among `files`, sorted by path. `read_small` reads a tracker file, None if it cannot.

    A tracker that names a folder which is not there, though others beside it are, yields a Group of the tracker alone.
    """
    listed = sorted(files)
    tags = _tags(listed, read_small)
    homes: dict[Parts, list[Parts]] = defaultdict(list)
    for parts in listed:
        if (home := _home(parts, tags)) is not None:
            homes[home].append(parts)
    _join_folders(listed, homes)
    groups = {home: Group(home, members) for home, members in homes.items()}
    placed = {parts for members in homes.values() for parts in members}
    for parts in listed:
        if parts not in placed:
            _adopt(parts, groups)
    # where no checkpoint at all was kept beside the tracker, the missing one may only not have been copied
    beside = {home[:-1] for home in homes}
    for folder, trackers in tags.items():
        known = groups.get(folder)
        if known is None and folder[:-1] in beside:
            known = groups[folder] = Group(folder)
        if known is not None:
            known.trackers.extend(trackers)
    return [groups[home] for home in sorted(groups)]


def _join_folders(files: list[Parts], homes: dict[Parts, list[Parts]]) -> None:
    """Tensor files beside those of a sharded checkpoint belong to it, whatever their names (an index may name them)."""
    placed = {parts for home, members in homes.items() for parts in members if home != parts}
    for parts in files:
        folder = parts[:-1]
        if TENSOR.search(parts[-1]) and folder in homes and parts not in placed:
            homes.pop(parts, None)
            homes[folder].append(parts)


def _adopt(parts: Parts, groups: dict[Parts, Group]) -> None:
    """Other files in a step's folder (configurations, leftovers of an interrupted save) belong to it; logs do not."""
    for depth in range(len(parts) - 1, 0, -1):
        owner = groups.get(parts[:depth])
        if owner is not None:
            if STEP_FOLDER.match(parts[depth - 1]) and not _LOGS.search(parts[-1]):
                owner.members.append(parts)
            return


def _tags(files: list[Parts], read_small: Callable[[Parts], bytes | None]) -> dict[Parts, list[Parts]]:
    """Folder named by tracker files -> those tracker files."""
    tags: dict[Parts, list[Parts]] = defaultdict(list)
    for parts in files:
        if parts[-1] in TRACKERS:
            said = tracked(parts[-1], read_small(parts) or b"")
            if said:
                tags[_outermost((*parts[:-1], said))].append(parts)
    return dict(tags)


def tracked(tracker: str, content: bytes) -> str | None:
    """The folder that a tracker file names: a plain tag, or Megatron's iteration number as `iter_0001000`."""
    text = content[:512].decode("utf-8", "replace").strip().rstrip("/").rpartition("/")[2]
    if not _TAG.match(text) or text in (".", ".."):
        return None
    if tracker == "latest_checkpointed_iteration.txt" and text.isdigit():
        return f"iter_{int(text):07d}"
    return text
