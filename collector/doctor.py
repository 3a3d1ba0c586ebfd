"""`firstfault doctor`: is this machine able to collect, and if not, what mends it.

Each check is one sentence about what was found and, where something is not as it should be, the command or setting
that mends it. Nothing is changed but one probe object in the store, which is removed again.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import collector
from collector import slurm_install
from collector.config import DEFAULT_PATH, Config, ConfigError, load, pseudonym_key
from collector.lake import safe_name
from collector.slurm_ask import Tools, Unanswered
from collector.spool import Spool, SpoolError
from collector.store import Store, StoreError, StoreRefused, StoreUnavailable, open_store

OLD_TICKET = 3600.0
"""Seconds after which a waiting ticket says that no drain runs, or that it cannot work."""
_FREE = 256 << 20
_SKEW_WARN, _SKEW_WRONG = 10.0, 300.0
"""Seconds between our clock and the store's: times of evidence suffer; beyond 15 minutes S3 refuses all requests."""


class Check(NamedTuple):
    """One finding."""

    name: str
    state: str
    """ok | warn | wrong."""
    found: str
    mend: str = ""


def examine(config_path: Path | None) -> list[Check]:
    """All checks, in the order in which they are best mended."""
    checks = list(_installation())
    try:
        config = load(config_path)
    except ConfigError as error:
        return [
            *checks,
            Check("configuration", "wrong", str(error), "correct the file; see slurm/README.md for all keys"),
        ]
    found = str(config.path) if config.path else f"no file, all defaults (expected {DEFAULT_PATH})"
    checks.append(Check("configuration", "ok" if config.path else "warn", found,
                        "" if config.path else f"write {DEFAULT_PATH} with at least [store] uri"))  # fmt: skip
    checks += _pseudonyms(config)
    checks += _store(config)
    checks += _spools(config)
    checks += _slurm(config)
    return checks


def _installation() -> Iterator[Check]:
    where = Path(collector.__file__).parent
    yield Check("version", "ok", f"firstfault {collector.__version__}, Python {sys.version.split()[0]}, in {where}")
    try:
        listed = metadata.distribution("firstfault")
        home = Path(str(listed.locate_file(""))).resolve()
        editable = any("__editable__" in str(file) or str(file).endswith(".pth") for file in listed.files or ())
        if not editable and home != where.parent.resolve():
            yield Check("import", "wrong", f"`collector` comes from {where}, not from the installation in {home}",
                        "run it with `python -I`, and from a folder without a `collector`")  # fmt: skip
    except metadata.PackageNotFoundError:
        yield Check("import", "warn", "firstfault is not installed, it runs from a checkout", "pip install firstfault")
    missing = [name for name in ("pyarrow", "duckdb", "yaml", "click") if importlib.util.find_spec(name) is None]
    if missing:
        yield Check("packages", "wrong", f"missing: {', '.join(missing)}", "pip install --force-reinstall firstfault")


def _pseudonyms(config: Config) -> Iterator[Check]:
    path = config.redaction.pseudonym_key_file
    if path is None:
        return
    try:
        pseudonym_key(config)
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except (ConfigError, OSError) as error:
        mend = f"head -c 32 /dev/urandom | base64 > {path}; chmod 600 {path}; the same file on all machines"
        yield Check("pseudonyms", "wrong", str(error), mend)
        return
    if mode & 0o077:
        yield Check("pseudonyms", "wrong", f"{path} can be read by others", f"chmod 600 {path}")
    else:
        yield Check("pseudonyms", "ok", f"key in {path}")


# --- store and clock --------------------------------------------------------------------------------------------------


def _store(config: Config) -> Iterator[Check]:
    if config.store.uri.startswith("s3://") and importlib.util.find_spec("boto3") is None:
        yield Check("store", "wrong", "boto3 is not installed", "pip install 'firstfault[s3]'")
        return
    try:
        store = open_store(config.store.uri, options=config.store.options)
        yield from _probe(store)
    except StoreRefused as error:
        yield Check("store", "wrong", f"{config.store.uri} refuses: {error}", "check address, bucket and credentials")
    except StoreUnavailable as error:
        yield Check("store", "wrong", f"{config.store.uri} is not reachable: {error}",
                    "check the network and endpoint_url; tickets wait meanwhile, nothing is lost")  # fmt: skip
    except StoreError as error:
        yield Check("store", "wrong", f"{config.store.uri}: {error}", "see the message")


def _probe(store: Store) -> Iterator[Check]:
    """Write, read, list and remove a small object; the time the store gives it tells about the clocks."""
    key = f"control/doctor/{safe_name(socket.gethostname())}-{os.getpid()}.txt"
    before = time.time()
    store.put(key, b"probe")
    after = time.time()
    try:
        whole = store.get(key) == b"probe"
        listed = [item for item in store.list(key) if item.key == key]
    finally:
        store.delete(key)
    if not whole or not listed:
        yield Check(
            "store", "wrong", f"{store.uri} does not give back what was written", "is it an S3 store of its own?"
        )
        return
    yield Check("store", "ok", f"{store.uri} takes, gives and lists objects ({(after - before) * 1000:.0f} ms)")
    skew = max(before - listed[0].modified, listed[0].modified - after, 0.0)
    # the store may count whole seconds
    skew = skew if skew > 1.5 else 0.0
    state = "ok" if skew < _SKEW_WARN else "warn" if skew < _SKEW_WRONG else "wrong"
    mend = "" if state == "ok" else "synchronise this machine's clock (chronyc tracking) or the store's"
    yield Check("clock", state, f"within {skew:.0f} s of the store's" if skew else "agrees with the store's", mend)


# --- spools -----------------------------------------------------------------------------------------------------------


def _spools(config: Config) -> Iterator[Check]:
    from collector.slurm import check_owner

    existing = [(role, Path(path)) for role, path in (("node", config.spool.node), ("head", config.spool.head))
                if Path(path).is_dir()]  # fmt: skip
    if not existing:
        yield Check("spool", "warn", f"neither {config.spool.node} nor {config.spool.head} is there",
                    "firstfault slurm install")  # fmt: skip
    for role, path in existing:
        try:
            check_owner(path)
            yield from _spool(role, Spool(path))
        except (SpoolError, OSError) as error:
            yield Check(f"spool {role}", "wrong", str(error), f"run doctor as the owner of {path}, or correct its mode")


def _spool(role: str, spool: Spool) -> Iterator[Check]:
    name, where = f"spool {role}", spool.path
    free = shutil.disk_usage(where).free >> 20
    if free < _FREE >> 20:
        yield Check(name, "wrong", f"{free} MiB free on the disk of {where}", "free space, or set spool.bytes lower")
    waiting = spool.names()
    ages = [time.time() - (where / "new" / ticket).lstat().st_mtime for ticket in waiting]
    oldest = max(ages, default=0.0)
    if oldest > OLD_TICKET:
        found = f"{len(waiting)} tickets wait, oldest {oldest / 3600:.1f} h: {spool.why(waiting[0]) or 'no drain'}"
        mend = f"systemctl status firstfault-{role}.timer; or `firstfault drain --role {role}` by hand"
        yield Check(name, "wrong", found, mend)
    else:
        yield Check(name, "ok", f"{len(waiting)} tickets wait in {where}")
    dead = spool.dead()
    if dead:
        ticket, why = next(iter(dead.items()))
        found = f"{len(dead)} tickets were given up, such as {ticket}: {(why or '?').splitlines()[0]}"
        mend = f"mend that, then `firstfault drain --role {role} --revive`; or remove them from {where}/dead"
        yield Check(name, "wrong", found, mend)
    last = spool.last_mark()
    if role == "node":
        text = f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(last))}" if last else "none so far"
        yield Check("last collection", "ok", text)


def _slurm(config: Config) -> Iterator[Check]:
    tools = Tools(config.slurm.bin, config.slurm.conf)
    if not (Path(tools.bin) / "scontrol").exists():
        yield Check("slurm", "warn", f"no scontrol in {tools.bin}", "set slurm.bin, or ignore this away from a cluster")
        return
    try:
        major, minor = tools.version()
        yield Check("slurm", "ok", f"Slurm {major}.{minor:02d}, cluster {tools.setting('ClusterName') or '?'}")
    except Unanswered as error:
        yield Check("slurm", "wrong", str(error), "scontrol ping; set slurm.conf if it is not in its default place")
        return
    problems = slurm_install.check(config, slurm_install.found_target(tools))
    for problem in problems:
        found, _, mend = problem.partition(": ") if ": " in problem else (problem, "", "")
        yield Check("hooks", "wrong", found, mend)
    if not problems:
        yield Check("hooks", "ok", "installed, of this version, and named in slurm.conf")
