"""`firstfault stacks PATH...`: the stacks of all ranks on one screen.

Three hundred dumps are read as a handful of classes: who waits where, who is elsewhere, and the tree of their frames
with the carrying frames of torch, DeepSpeed and threading left out. What the stacks say about the cause is printed
first, by the same detector that `firstfault diagnose` uses.
"""

from __future__ import annotations

import json
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from analyzers import stack_classes, stack_threads
from analyzers.case import Case
from analyzers.cli_files import status
from analyzers.detectors import stacks as detector
from analyzers.masked import masked
from analyzers.stack_classes import Process, StackClass, members
from analyzers.stack_threads import Frame

WIDTH = 80

_Branch = tuple[tuple[Frame, ...], StackClass]


def load(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Rows of `stack_frames` of all dumps below `paths`, secrets masked; what cannot be opened is passed over."""
    from collector.model import Artifact, ArtifactKind, Budget, RunRef
    from collector.readers import stacks
    from collector.sources.log_dir import LogDir

    rows: list[dict[str, Any]] = []
    for artifact in LogDir(list(paths)).collect(RunRef("stacks"), Budget()):
        if isinstance(artifact, Artifact) and artifact.kind is ArtifactKind.STACK_DUMP:
            try:
                rows.extend(stacks.read(artifact))
            except OSError as error:
                click.echo(masked(f"{artifact.path}: {error.strerror or error}"), err=True)
    shown: list[dict[str, Any]] = masked(rows)
    return shown


def render(found: Sequence[StackClass], width: int = WIDTH) -> str:
    """What each class does in words, then the tree of their stacks, outermost frame first, at most `width` wide."""
    doing: dict[str, list[Process]] = defaultdict(list)
    for group in found:
        doing[group.thread.doing].extend(group.processes)
    lines = [_sentence(what, who) for what, who in sorted(doing.items(), key=lambda item: -len(item[1]))]
    total = sum(len(group.processes) for group in found)
    branches = [(_shown(group), group) for group in found]
    return "\n".join(_fit(line, width) for line in [*lines, "", *_tree(branches, 0, total)])


def _sentence(what: str, who: Sequence[Process]) -> str:
    counted = f"{len(who)} ranks" if all(p.rank is not None for p in who) else f"{len(who)} processes"
    name = members(who)
    spans = f"  ({name})" if len(who) > 1 and name != counted else ""
    return f"{counted if len(who) > 1 else name} in {what}{spans}"


def _shown(group: StackClass) -> tuple[Frame, ...]:
    """The frames to show, outermost first: down to the deciding one, without those that only carry the call."""
    frames = _frames(group)
    outward = frames[frames.index(group.thread.frame) :]
    gap = group.gap()
    kept = [f for f in outward[1:] if f == gap or (not f.native and not stack_threads.is_plumbing(f))]
    return (*reversed(kept), outward[0])


def _frames(group: StackClass) -> tuple[Frame, ...]:
    """The frames of a class, innermost first, with a mark where some were left out."""
    frames, gap = group.thread.frames, group.gap()
    if gap is None:
        return frames
    return (*frames[: stack_classes.INNERMOST], gap, *frames[stack_classes.INNERMOST :])


def _tree(branches: Sequence[_Branch], depth: int, above: int) -> list[str]:
    """The prefix tree: what all of a branch share stands once, and is indented where the branch forks."""
    lines: list[str] = []
    forks: dict[tuple[str, str], list[_Branch]] = defaultdict(list)
    for frames, group in branches:
        forks[frames[0].function, frames[0].file].append((frames, group))
    for fork in forks.values():
        listed = [process for _, group in fork for process in group.processes]
        mark = f"  <- {members(listed)}" if len(listed) != above else ""
        lines.append(f"{'  ' * depth}{fork[0][0][0]}{mark}")
        for frames, group in fork:
            if len(frames) == 1 and len(fork) > 1:  # its stack ends here, those of others go on
                lines.append(f"{'  ' * (depth + 1)}at line {frames[0].lineno}  <- {members(group.processes)}")
        rest = [(frames[1:], group) for frames, group in fork if len(frames) > 1]
        if rest:
            forked = len(rest) < len(fork) or len({frames[0].function for frames, _ in rest}) > 1
            lines.extend(_tree(rest, depth + forked, len(listed)))
    return lines


def _fit(line: str, width: int) -> str:
    """Cut the middle out of a line that is too long: both its frame and its ranks matter."""
    if len(line) <= width:
        return line
    tail = (width - 3) // 2
    return f"{line[: width - 3 - tail]}...{line[-tail:]}"


def _since(shots: Sequence[Sequence[Process]]) -> str:
    """Who moved between the last two dumps, as one line; empty if there is but one dump."""
    if len(shots) < 2:
        return ""
    moves = stack_classes.moved(shots[-2], shots[-1])
    movers = [process for process in shots[-1] if moves.get(process.identity)]
    who = f"{members(movers)} moved" if movers else "nobody moved" if moves else "no process is in both"
    return f"Since dump {shots[-2][0].dump}: {who}."


def _as_json(shots: Sequence[Sequence[Process]], says: Sequence[Mapping[str, Any]]) -> str:
    dumps = [
        {
            "dump": shot[0].dump,
            "classes": [
                {
                    "ranks": [p.rank for p in group.processes if p.rank is not None],
                    "processes": [p.name for p in group.processes],
                    "kind": group.processes[0].kind,
                    "doing": group.thread.doing,
                    "frames": [str(frame) for frame in group.thread.frames],
                    **(
                        {"left_out": group.left_out, "left_out_after": stack_classes.INNERMOST}
                        if group.left_out
                        else {}
                    ),
                }
                for group in stack_classes.classes(shot)
            ],
        }
        for shot in shots
    ]
    return json.dumps({"schema": 1, "says": list(says), "dumps": dumps}, indent=1)


@click.command("stacks")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print all dumps and classes as JSON.")
@click.option("--all", "every", is_flag=True, help="Show every dump in time, not only the last.")
def stacks(paths: tuple[Path, ...], as_json: bool, every: bool) -> None:
    """Show what all ranks are doing, from their stack dumps (py-spy, faulthandler, pystack, gdb)."""
    for path in paths:
        found = status(path)
        if found is not None and not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            raise click.UsageError(f"{path} is neither a folder nor a regular file")
    rows = load(paths)
    shots = stack_classes.snapshots(stack_classes.processes(rows))
    seen = list(detector.detect(Case("stacks", tables={"stack_frames": rows})))
    if as_json:
        says = [{"signature": o.signature, "role": o.role, "title": o.title, "text": o.text} for o in seen]
        click.echo(_as_json(shots, says))
        return
    if not shots:
        raise click.ClickException("no stack dump of a rank found there")
    for observation in seen:
        click.echo(click.wrap_text(f"{observation.title}.", WIDTH, subsequent_indent="  "))
    for shot in shots if every else shots[-1:]:
        click.echo(f"\nDump {shot[0].dump}: {len(shot)} process{'es' * (len(shot) > 1)}")
        click.echo(render(stack_classes.classes(shot)))
    if since := _since(shots):
        click.echo(f"\n{since}")
