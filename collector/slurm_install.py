"""Puts the hooks where slurm.conf can name them, with the spool's path written in; edits and restarts nothing.

`check` says what lacks of an installation, in sentences with the command that mends it.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from collector.config import Config, ConfigError
from collector.data import data_dir
from collector.slurm_ask import Tools, Unanswered

HOOKS = {
    "epilog.sh": "Epilog", "epilog-slurmctld.sh": "EpilogSlurmctld", "task-epilog.sh": "TaskEpilog",
    "task-prolog.sh": "TaskProlog",
}  # fmt: skip
"""File -> parameter of slurm.conf."""
DEFAULT_TARGET = Path("/etc/firstfault/hooks")
REQUIRED = ("epilog.sh", "epilog-slurmctld.sh")
_PATH = re.compile(r"/[A-Za-z0-9_./+-]+")
_TASKS_MODE = 0o1733


def render(name: str, config: Config) -> str:
    """The text of a hook with the configured spool in it. Raises ConfigError for a path that a shell would misread."""
    text = (data_dir("slurm") / name).read_text("utf-8")
    for variable, path in (
        ("spool", config.spool.head if name == "epilog-slurmctld.sh" else config.spool.node),
        ("tasks", config.spool.tasks),
    ):
        if not _PATH.fullmatch(path):
            raise ConfigError(f"spool path {path!r}: only letters, digits and _ . / + - may be in it")
        text = re.sub(rf"(?m)^{variable}=/\S+$", f"{variable}={path}", text)
    return text


def slurm_conf(target: Path) -> str:
    """The lines for slurm.conf."""
    lines = ["# slurm.conf: what is there already stays; several Epilogs are one glob or one script that runs all"]
    for name, parameter in HOOKS.items():
        optional = "" if name in REQUIRED else "# optional: "
        lines.append(f"{optional}{parameter}={target / name}")
    return "\n".join([*lines, "# then: scontrol reconfigure", ""])


def describe(config: Config, target: Path) -> str:
    """What `install` would do, and the hooks as they would be."""
    parts = [slurm_conf(target)]
    for path, mode, owner in _folders(config, _slurm_user(config)):
        parts.append(f"# folder {path}, mode {mode:o}, owner {owner}\n")
    for name in HOOKS:
        parts.append(f"# ---- {target / name}\n{render(name, config)}")
    return "\n".join(parts)


def install(config: Config, target: Path) -> Iterator[str]:
    """Do it; yields what was done. Raises OSError, ConfigError."""
    user = _slurm_user(config)
    target.mkdir(parents=True, exist_ok=True, mode=0o755)
    for name in HOOKS:
        draft = target / f".{name}.new"
        draft.write_text(render(name, config), "utf-8")
        draft.chmod(0o755)
        draft.rename(target / name)
        yield f"wrote {target / name}"
    for path, mode, owner in _folders(config, user):
        path.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            entry = pwd.getpwnam(owner)
            os.chown(path, entry.pw_uid, entry.pw_gid)
        path.chmod(mode)
        yield f"made {path}"


def check(config: Config, target: Path) -> list[str]:
    """What lacks, each with what mends it; empty if all is well."""
    return [*_check_files(config, target), *_check_folders(config), *_check_slurm(config, target)]


def found_target(tools: Tools) -> Path:
    """The folder of the hooks that slurm.conf names, else the default."""
    for name in REQUIRED:
        try:
            value = tools.setting(HOOKS[name]) or ""
        except Unanswered:
            break
        if value.endswith(f"/{name}"):
            return Path(value).parent
    return DEFAULT_TARGET


def _folders(config: Config, user: str) -> list[tuple[Path, int, str]]:
    spool = config.spool
    return [
        (Path(spool.node), 0o700, "root"),
        (Path(spool.head), 0o700, user),
        (Path(spool.tasks), _TASKS_MODE, "root"),
    ]


def _slurm_user(config: Config) -> str:
    try:
        setting = Tools(config.slurm.bin, config.slurm.conf).setting("SlurmUser")
    except Unanswered:
        setting = None
    name = (setting or "slurm").partition("(")[0]
    try:
        pwd.getpwnam(name)
    except KeyError:
        return "root"
    return name


def _check_files(config: Config, target: Path) -> Iterator[str]:
    again = f"run `firstfault slurm install --to {target}`"
    for name in HOOKS:
        path = target / name
        try:
            status, text = path.stat(), path.read_text("utf-8", "replace")
        except OSError as error:
            yield f"{path}: {error.strerror}; {again}"
            continue
        if status.st_mode & 0o111 != 0o111:
            yield f"{path} is not executable for all: chmod 755 {path}"
        if status.st_mode & 0o022 or status.st_uid != 0:
            yield f"{path} can be changed by others than root: chown root {path}; chmod 755 {path}"
        if text != render(name, config):
            yield f"{path} is not that of this version and configuration; {again}"


def _check_folders(config: Config) -> Iterator[str]:
    for path, mode, owner in _folders(config, _slurm_user(config)):
        try:
            status = path.lstat()
        except OSError as error:
            yield f"{path}: {error.strerror}: mkdir -p {path}; chown {owner} {path}; chmod {mode:o} {path}"
            continue
        if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) != mode:
            yield f"{path} has not mode {mode:o}: chmod {mode:o} {path}"
        if status.st_uid != pwd.getpwnam(owner).pw_uid:
            yield f"{path} does not belong to {owner}: chown {owner} {path}"


def _check_slurm(config: Config, target: Path) -> Iterator[str]:
    tools = Tools(config.slurm.bin, config.slurm.conf)
    for name in REQUIRED:
        parameter = HOOKS[name]
        try:
            value = tools.setting(parameter) or ""
        except Unanswered as error:
            yield f"Slurm cannot be asked for its configuration: {error}"
            return
        if str(target / name) not in value and not _runs(value, target):
            yield f"{parameter} in slurm.conf is {value or 'not set'}, not {target / name}: set it and reconfigure"


def _runs(value: str, target: Path) -> bool:
    """True if a glob covers the folder, or if the script there names our hooks."""
    if "*" in value:
        return str(target).startswith(value.partition("*")[0].rstrip("/"))
    try:
        return str(target) in Path(value).read_text("utf-8", "replace")
    except OSError:
        return False
