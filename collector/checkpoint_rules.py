"""The rules of completeness of each checkpoint format: by names and sizes, then each file's own structure.

Every rule yields facts and the worst fact decides. "Complete" is said only if nothing is missing by the format's rule
and every file ends where its format says; doubt is "unknown".

Sources of the rules: DeepSpeed runtime/engine.py (`latest`, *_model_states.pt, *_optim_states.pt), Megatron-LM
training/checkpointing.py, torch.distributed.checkpoint.filesystem, transformers trainer.py and modeling_utils.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from collector import checkpoint_names as names
from collector.checkpoint_files import MAX_PICKLE, check_file, dcp_extents, numbers_in_pickle
from collector.opening import open_file

MAX_CHECKED = 2000
"""Files of one checkpoint whose structure is read; of the others only name and size count."""
STATUSES = ("complete", "unknown", "partial", "corrupt")
"""From the best to the worst."""
_MAX_INDEX = 64 << 20

_ZERO = re.compile(r"zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_(?P<what>model|optim)_states\.pt$")
_MODEL = re.compile(r"^mp_rank_(?P<mp>\d+)(?:_\d+)*_model_states\.pt$")
MP_FOLDER = re.compile(r"(?:^|/)mp_rank_(?P<t>\d+)(?:_(?P<p>\d+))?(?:_(?P<e>\d+))?/")
_RNG = re.compile(r"^(?:rng_state|random_states)_(?P<index>\d+)\.(?:pth|pkl)$")
_RANKED = re.compile(
    r"^(?P<stem>.*?(?:rank|shard|part)[-_]?)(?P<index>\d+)(?P<rest>\.(?:pt|pth|ckpt|bin|safetensors))$"
)
_TEMPORARY = re.compile(r"(?:\.(?:tmp|part|partial|incomplete|unfinished)|[-_.]tmp[-_.]?\w*)$|^\.?tmp[-_.]")
_WEIGHTS = re.compile(
    r"(?:safetensors|pytorch_model\w*\.bin|adapter_model\.bin|model\.pt|_states\.pt|\.distcp|\.index\.json)$"
)
_DEEPSPEED_SIZES = frozenset({"dp_world_size", "mp_world_size"})


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint."""

    name: str
    """Relative to the checkpoint, with `/`."""
    size: int
    modified: float | None
    absolute: str | None
    """Where its content can be read; None if only a listing is known."""

    @property
    def last(self) -> str:
        """The name without folders."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Fact:
    """What one rule says of a checkpoint."""

    status: str
    why: str
    expected: int | None = None
    found: int | None = None


def read_json(absolute: str) -> Any:
    """The parsed JSON file, None if it is none."""
    try:
        return json.loads(read_whole(absolute, _MAX_INDEX) or b"")
    except (ValueError, RecursionError):
        return None


def read_whole(absolute: str, limit: int) -> bytes | None:
    """The whole file, or None if it is longer than `limit` or cannot be read."""
    folder, _, name = absolute.rpartition("/")
    try:
        with open_file(Path(folder or "/"), (name,)) as stream:
            if stream.size > limit:
                return None
            return stream.read(stream.size) or b""
    except (OSError, ValueError):
        return None


def facts(path: str, files: Sequence[File], trackers: Sequence[str], hidden: bool = False) -> Iterator[Fact]:
    """What every rule says of the checkpoint at `path`; never empty. `trackers` are those beside it that name it;
    `hidden` says that files whose names begin with a dot could not be seen.
    """
    last = PurePosixPath(path).name
    if not files:
        who = f"`{trackers[0]}` names {last}, but " if trackers else ""
        yield Fact("partial", f"{who}that folder is not there or has no checkpoint file", found=0)
        return
    only_listed = all(file.absolute is None for file in files)
    if _TEMPORARY.search(last):
        yield Fact("partial", f"{last} is the name of an unfinished save")
    yield from _temporary(files)
    yield from _inner_tracker(files)
    yield from _dcp(files, hidden)
    yield from _deepspeed(files)
    yield from _megatron(files)
    yield from _of_total(files)
    yield from _index(files)
    yield from _trainer(files, last)
    yield from _numbered(files)
    yield from _structure(files)
    if only_listed:
        yield from _uneven(files)
        yield Fact("unknown", "only its listing is here; no name is missing")
    else:
        yield Fact("complete", "every file is whole by its own format")


def _temporary(files: Sequence[File]) -> Iterator[Fact]:
    present = {file.name for file in files}
    for file in files:
        final = _TEMPORARY.sub("", file.name)
        if _TEMPORARY.search(file.last) and final not in present:
            yield Fact("partial", f"{file.name} was never renamed to its final name")
            return


def _inner_tracker(files: Sequence[File]) -> Iterator[Fact]:
    """HF Trainer with DeepSpeed: checkpoint-500/latest names the folder global_step500 in it."""
    for file in files:
        if file.name in names.TRACKERS and file.absolute:
            tag = names.tracked(file.name, read_whole(file.absolute, 4096) or b"")
            if tag and not any(other.name.startswith(f"{tag}/") for other in files):
                yield Fact("partial", f"`{file.name}` in it names {tag}, but that folder is not there")


def _dcp(files: Sequence[File], hidden: bool) -> Iterator[Fact]:
    """torch.distributed.checkpoint: `.metadata` is written last, by one rank, and names every file."""
    folders: dict[str, list[File]] = {}
    for file in files:
        if names.DCP.search(file.last):
            folders.setdefault(file.name.rpartition("/")[0], []).append(file)
    for folder, inside in folders.items():
        sizes = {file.last: file.size for file in inside}
        shards = [name for name in sizes if name != ".metadata"]
        where = f"{folder}/" if folder else ""
        metadata = next((file for file in inside if file.last == ".metadata"), None)
        if metadata is None and hidden:
            yield Fact("unknown", "its listing does not show names that begin with a dot", None, len(shards))
            continue
        if metadata is None:
            yield Fact("partial", f"{where}.metadata is missing: it is written last, so the save did not finish",
                       None, len(shards))  # fmt: skip
            continue
        if metadata.size == 0:
            yield Fact("corrupt", f"{where}.metadata has 0 bytes")
            continue
        content = read_whole(metadata.absolute, MAX_PICKLE) if metadata.absolute else None
        ends = dcp_extents(content) if content else {}
        for name, end in sorted(ends.items()):
            if name not in sizes:
                yield Fact("partial", f"{where}{name} is missing, .metadata names it", len(ends), len(shards))
            elif sizes[name] < end:
                yield Fact("corrupt", f"{where}{name} has {sizes[name]} bytes, .metadata needs {end}", len(ends))
        # a rank with nothing to save leaves an empty file: only the extents tell whether 0 bytes are wrong
        if ends:
            yield Fact("complete", "every file that .metadata names is there", len(ends), len(shards))
        else:
            yield Fact("unknown", f"which files {where}.metadata names could not be read", None, len(shards))


def _deepspeed(files: Sequence[File]) -> Iterator[Fact]:
    """DeepSpeed: one optimizer file for each data-parallel and model-parallel rank, and the model files beside them."""
    cells: dict[str, set[tuple[int, int]]] = {"model": set(), "optim": set()}
    models: set[int] = set()
    for file in files:
        if match := _ZERO.search(file.last):
            cells[match["what"]].add((int(match["dp"]), int(match["mp"])))
        elif match := _MODEL.match(file.last):
            models.add(int(match["mp"]))
    partitioned = cells["model"] | cells["optim"]
    if not partitioned and not models:
        return
    stated = _stated_sizes(files)
    dp = max([cell[0] + 1 for cell in partitioned] + [stated.get("dp_world_size", 0) if partitioned else 0])
    mp = max([cell[1] + 1 for cell in partitioned] + [m + 1 for m in models] + [stated.get("mp_world_size", 0)])
    expected = {(d, m) for d in range(dp) for m in range(mp)}
    found = len(cells["optim"]) + len(cells["model"]) + len(models)
    total = len(expected) * (1 + bool(cells["model"])) + (0 if cells["model"] else mp)
    if cells["optim"]:
        yield from _missing(expected - cells["optim"], "zero_pp_rank_{0}_mp_rank_{1:02d}_optim_states.pt", total, found)
    if cells["model"] and not models:
        yield from _missing(expected - cells["model"], "zero_pp_rank_{0}_mp_rank_{1:02d}_model_states.pt", total, found)
    elif not any(file.last.startswith("layer_") for file in files):
        yield from _missing({(m,) for m in range(mp)} - {(m,) for m in models}, "mp_rank_{0:02d}_model_states.pt",
                            total, found)  # fmt: skip
    yield Fact("complete", f"all {total} files of {dp} x {mp} ranks are there", total, found)


def _stated_sizes(files: Sequence[File]) -> dict[str, int]:
    """The world sizes that a model file itself states."""
    one = next((file for file in files if file.last.endswith("_model_states.pt") and file.absolute), None)
    if one is None or one.absolute is None:
        return {}
    sizes = numbers_in_pickle(one.absolute, _DEEPSPEED_SIZES)
    return {key: value for key, value in sizes.items() if 0 < value <= 65_536}


def _missing(cells: set[Any], form: str, total: int, found: int) -> Iterator[Fact]:
    if cells:
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        verb = "are" if more else "is"
        yield Fact("partial", f"{form.format(*min(cells))}{more} {verb} missing", total, found)


def _megatron(files: Sequence[File]) -> Iterator[Fact]:
    """Megatron-LM: a folder mp_rank_TT[_PPP[_EEE]] for each tensor-, pipeline- (and expert-) parallel rank."""
    folders: dict[tuple[int, int, int], set[str]] = {}
    shape = ""
    for file in files:
        if match := MP_FOLDER.search(file.name):
            cell = (int(match["t"]), int(match["p"] or 0), int(match["e"] or 0))
            folders.setdefault(cell, set()).add(file.last)
            shape = match[0].strip("/")
    if not folders:
        return
    spans = [range(max(cell[axis] for cell in folders) + 1) for axis in range(3)]
    expected = {(t, p, e) for t in spans[0] for p in spans[1] for e in spans[2]}
    usual = set.union(*folders.values())
    parts = shape.count("_") - 1
    form = "mp_rank_{0:02d}" + "_{1:03d}" * (parts >= 2) + "_{2:03d}" * (parts >= 3)
    # expert ranks need not fill the box with the others
    if parts < 3:
        yield from _missing(expected - folders.keys(), form, len(expected), len(folders))
    model = {name for name in usual if name.startswith("model")}
    for cell, inside in sorted(folders.items()):
        if model and not inside & model:
            yield Fact("partial", f"{form.format(*cell)}/{min(model)} is missing", len(expected), len(folders))
    yield Fact("complete", f"{len(folders)} folders of ranks are there", len(expected), len(folders))


def _of_total(files: Sequence[File]) -> Iterator[Fact]:
    """`model-00001-of-00003.safetensors`, `shard_02_of_04.pt`: the names state how many there must be."""
    families: dict[tuple[str, str, int], set[int]] = {}
    for file in files:
        match = names.SHARD_OF.match(file.name)
        if match and names.TENSOR.search(file.last):
            family = (match["stem"], match["rest"], int(match["total"]))
            families.setdefault(family, set()).add(int(match["index"]))
    for (stem, rest, total), indices in families.items():
        start = 0 if 0 in indices else 1
        if total > 100_000:
            continue
        absent = sorted(set(range(start, start + total)) - indices)
        if absent:
            yield Fact("partial", f"shard {absent[0]} of {total} of {stem}*{rest} is missing", total, len(indices))
        else:
            yield Fact("complete", f"all {total} shards are there", total, total)


def _index(files: Sequence[File]) -> Iterator[Fact]:
    """Hugging Face sharded models: the index's weight_map names every file."""
    for file in files:
        if not names.INDEX.search(file.last) or file.absolute is None:
            continue
        index = read_json(file.absolute)
        if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
            yield Fact("corrupt", f"{file.name} is not an index of weights")
            continue
        needed = {str(name) for name in index["weight_map"].values()}
        folder = file.name[: -len(file.last)]
        absent = sorted(needed - {other.name[len(folder) :] for other in files if other.name.startswith(folder)})
        found = len(needed) - len(absent)
        if absent:
            yield Fact("partial", f"{absent[0]} is missing, {file.name} names it", len(needed), found)
        else:
            yield Fact("complete", f"all {len(needed)} files of {file.name} are there", len(needed), found)


def _trainer(files: Sequence[File], last: str) -> Iterator[Fact]:
    """transformers.Trainer: weights first, then optimizer and random states, trainer_state.json near the end."""
    if not last.startswith("checkpoint-"):
        return
    present = {file.last for file in files}
    random_states = {int(match["index"]) for name in present if (match := _RNG.match(name))}
    with_random = bool(random_states) or "rng_state.pth" in present
    optimizer = any(name.startswith(("optimizer", "optim")) or "optim_states" in name for name in present) or any(
        "optimizer" in file.name for file in files
    )
    from_trainer = with_random or "training_args.bin" in present or "trainer_state.json" in present
    if not from_trainer:
        return
    if not any(_WEIGHTS.search(name) for name in present):
        yield Fact("partial", "no file of weights is in it")
    if "trainer_state.json" not in present:
        yield Fact("partial", "trainer_state.json is missing: the save did not finish")
    if with_random and not optimizer:
        yield Fact("partial", "it has random states but no optimizer state")
    if random_states and (gaps := sorted(set(range(max(random_states) + 1)) - random_states)):
        yield Fact("partial", f"rng_state_{gaps[0]}.pth is missing")


def _numbered(files: Sequence[File]) -> Iterator[Fact]:
    """A gap in files numbered by rank or shard; how many there must be is not known, a gap is."""
    families: dict[tuple[str, str], set[int]] = {}
    for file in files:
        if (
            (match := _RANKED.match(file.name))
            and not names.SHARD_OF.match(file.name)
            and int(match["index"]) < 100_000
        ):
            families.setdefault((match["stem"], match["rest"]), set()).add(int(match["index"]))
    for (stem, rest), indices in families.items():
        gaps = sorted(set(range(min(indices), max(indices))) - indices)
        if gaps and len(gaps) <= len(indices):
            yield Fact("partial", f"{stem}{gaps[0]}{rest} is missing between its neighbours")


def _structure(files: Sequence[File]) -> Iterator[Fact]:
    """Each file by its own format."""
    checked = 0
    for file in files:
        if names.DCP.search(file.last) or not names.TENSOR.search(file.last):
            continue
        if file.size == 0:
            yield Fact("corrupt", f"{file.name} has 0 bytes")
        elif file.absolute is not None and checked < MAX_CHECKED:
            checked += 1
            state = check_file(file.absolute)
            if state.status != "complete":
                yield Fact(state.status, f"{file.name}: {state.why}")


def _uneven(files: Sequence[File]) -> Iterator[Fact]:
    """In a listing: one shard much smaller than its equal siblings was probably cut off; a listing cannot prove it."""
    sizes: dict[str, list[File]] = {}
    for file in files:
        if names.TENSOR.search(file.last) and file.size:
            sizes.setdefault(re.sub(r"\d+", "#", file.name), []).append(file)
    for family in sizes.values():
        usual = sorted(file.size for file in family)[len(family) // 2]
        small = [file for file in family if file.size < 0.9 * usual]
        if len(family) >= 3 and len(small) == 1 and sum(file.size == usual for file in family) == len(family) - 1:
            yield Fact(
                "unknown", f"{small[0].name} has {small[0].size} bytes, its siblings {usual} each: probably cut off"
            )


def smaller_than_elsewhere(checkpoints: Mapping[str, Sequence[File]]) -> dict[str, str]:
    """Path -> why a listed checkpoint was probably cut off: one file is much smaller than in all the other steps."""
    sizes: dict[str, list[int]] = {}
    for files in checkpoints.values():
        for file in files:
            sizes.setdefault(file.name, []).append(file.size)
    suspects: dict[str, str] = {}
    for path, files in checkpoints.items():
        for file in files:
            usual = sorted(sizes[file.name])[len(sizes[file.name]) // 2]
            same = sizes[file.name].count(usual)
            if len(sizes[file.name]) >= 3 and same == len(sizes[file.name]) - 1 and file.size < 0.9 * usual:
                suspects[path] = f"{file.name} has {file.size} bytes, in the other steps {usual}: probably cut off"
    return suspects
