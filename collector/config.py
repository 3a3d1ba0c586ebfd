"""The one configuration file, `/etc/firstfault/firstfault.toml`: a typo is an error in words, never a silent default.

Every key has a default that works on one machine, so that an empty file is a configuration. Parsing is the standard
library's; the checking is small enough to stand here. Hooks do not read this file: `firstfault slurm install` writes
the one path they need into them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from collector.model import Budget

DEFAULT_PATH = Path("/etc/firstfault/firstfault.toml")
VARIABLE = "FIRSTFAULT_CONFIG"
"""Environment variable that names another file."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(|k|M|G|T)(i?)B?", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class ConfigError(Exception):
    """The configuration cannot be used; the message says where and what is expected."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """`[store]`: where evidence goes."""

    uri: str = "file:///var/lib/firstfault"
    """`file:///folder` or `s3://bucket/prefix`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the section, handed to `collector.store.open_store` (endpoint_url, region, path_style, ...)."""


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """`[budget]`: what the collection of one origin of one incident may cost."""

    seconds: float = 300.0
    bytes: int = 512 << 20
    """Log bytes kept of one origin."""
    file_bytes: int = 32 << 20
    """Log bytes kept of one file: its head and its tail."""
    artifact_bytes: int = 8 << 20
    """Bytes kept of a small artifact; larger ones are refused."""
    files: int = 5000
    lines: int = 1_500_000

    def budget(self) -> Budget:
        """The same as `collector.model.Budget`."""
        return Budget(self.seconds, self.bytes, self.files, self.lines)


@dataclass(frozen=True, slots=True)
class RedactionConfig:
    """`[redaction]`: what is masked before anything is written."""

    on: bool = True
    pseudonym_key_file: str | None = None
    """File with at least 16 bytes; with it users, hosts and home folders become pseudonyms."""


@dataclass(frozen=True, slots=True)
class SpoolConfig:
    """`[spool]`: local disk between the hooks and the drain."""

    node: str = "/var/spool/firstfault/node"
    """Of the node Epilog: owned by root."""
    head: str = "/var/spool/firstfault/head"
    """Of EpilogSlurmctld: owned by SlurmUser."""
    tasks: str = "/var/spool/firstfault/tasks"
    """Of TaskEpilog: writable by all, with the sticky bit; only names and times in it are read."""
    bytes: int = 2 << 30
    """Beyond this the oldest big evidence is dropped, and the ledger says so."""


FAILED_STATES = (
    "FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "BOOT_FAIL", "DEADLINE", "CANCELLED", "PREEMPTED", "REQUEUED",
    "LAUNCH_FAILED",
)  # fmt: skip
"""All ends but COMPLETED. REQUEUED is ours: an attempt that Slurm ended to run the job again."""


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """`[slurm]`: how the entrance behaves."""

    states: tuple[str, ...] = FAILED_STATES
    """Ends of jobs that are collected."""
    failed_steps: bool = True
    """Also collect a COMPLETED job with a failed step: a batch script without `set -e` hides its srun's failure."""
    conf: str | None = None
    """slurm.conf, where it is not in its default place: EpilogSlurmctld gets no SLURM_CONF."""
    bin: str = "/usr/bin"
    """Folder of scontrol and sacct."""
    globs: tuple[str, ...] = ()
    """More files of a job, read as its user; `%`-patterns are expanded, such as `/scratch/%u/%j/*.log`."""
    local_globs: tuple[str, ...] = ("/tmp/nccl_trace_rank_*", "/dev/shm/nccl_trace_rank_*")
    """Files on each node's own disks, read as the job's user: flight-recorder dumps."""
    patience: float = 120.0
    """Seconds a node waits for the head's word about a job before it goes on alone."""
    admin_comment: bool = False
    """Write the one-line verdict into the job's AdminComment."""
    pyslurm: bool = True
    """Ask through pyslurm where one that fits the cluster is installed."""


@dataclass(frozen=True, slots=True)
class Config:
    """All of it. `path` is None if there is no file and all values are defaults."""

    cluster: str | None = None
    """Name of the cluster in incident ids; Slurm's ClusterName by default."""
    store: StoreConfig = StoreConfig()
    budget: BudgetConfig = BudgetConfig()
    redaction: RedactionConfig = RedactionConfig()
    spool: SpoolConfig = SpoolConfig()
    slurm: SlurmConfig = SlurmConfig()
    path: Path | None = None


def load(path: Path | None = None) -> Config:
    """The configuration in `path`, else in $FIRSTFAULT_CONFIG, else in DEFAULT_PATH, else all defaults.

    Raises ConfigError if a named file is missing or unreadable, is no TOML, or has an unknown key or a wrong value.
    """
    named = path or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    chosen = named or DEFAULT_PATH
    try:
        raw = tomllib.loads(chosen.read_text("utf-8"))
    except FileNotFoundError:
        if named is None:
            return Config()
        raise ConfigError(f"{chosen} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{chosen} is not valid TOML: {error}") from error
    try:
        store = dict(raw.pop("store", {}))
        uri = store.pop("uri", StoreConfig().uri)
        if not isinstance(uri, str):
            raise ConfigError("store.uri must be a text")
        config: Config = _build(Config, raw, "")
        return dataclasses.replace(config, store=StoreConfig(uri, store), path=chosen)
    except ConfigError as error:
        raise ConfigError(f"{chosen}: {error}") from None


def pseudonym_key(config: Config) -> bytes | None:
    """The bytes of the pseudonym key file, None if none is configured. Raises ConfigError if it cannot be used."""
    if config.redaction.pseudonym_key_file is None:
        return None
    path = Path(config.redaction.pseudonym_key_file)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"the pseudonym key {path} cannot be read: {error.strerror}") from error
    if len(key) < 16:
        raise ConfigError(f"the pseudonym key {path} must have at least 16 bytes")
    return key


def _build(kind: type[Any], raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where.rstrip('.')} must be a section")
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in ("path", "store")}
    unknown = raw.keys() - hints.keys()
    if unknown:
        known = ", ".join(sorted(hints))
        raise ConfigError(f"unknown key {where}{sorted(unknown)[0]} (known here: {known})")
    return kind(**{name: _value(hints[name], value, f"{where}{name}") for name, value in raw.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, f"{where}.")  # type: ignore[arg-type]
    if hint is bool:
        return _checked(value, isinstance(value, bool), where, "true or false")
    if hint is float:
        return float(_checked(value, _number(value) and value > 0, where, "a number above 0"))
    if hint is int:
        return _size(value, where)
    if hint == tuple[str, ...]:
        texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return tuple(_checked(value, texts, where, "a list of texts"))
    return _checked(value, isinstance(value, str), where, "a text")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(value: Any, where: str) -> int:
    """A whole number, or a text with a unit of 1024 (`"64 MiB"`, `"2G"`)."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f'{where} must be a whole number above 0 or a size such as "64 MiB", not {value!r}')
    return int(float(match[1]) * 1024 ** _UNITS[match[2].lower()])


def _checked(value: Any, good: bool, where: str, expected: str) -> Any:
    if not good:
        raise ConfigError(f"{where} must be {expected}, not {value!r}")
    return value
