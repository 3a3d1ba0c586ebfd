"""Files of a hostile user on hostile file systems, read by a child that is that user."""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector import user_files
from collector.user_files import Limits, Wanted, copy, load

UID = 65534
TOKEN = b"hf_a1b2C3d4E5f6g7H8i9J0kLmNoPqRsTuVwX"


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the user nobody, reachable by that user."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    folder = Path(tempfile.mkdtemp(prefix="ff-user-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "w").mkdir()
    os.chown(folder / "w", UID, UID)
    yield folder
    shutil.rmtree(folder)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    os.chown(path, UID, UID)
    return path


def take(home: Path, glob: str, mask: bool = True, **limits: float) -> user_files.Copies:
    return copy(home / "out", UID, [Wanted(f"{home}/w/{glob}")], Limits(**limits), mask=mask)  # type: ignore[arg-type]


def content(home: Path, copies: user_files.Copies, name: str) -> bytes:
    file = next(one for one in copies.files if one.path.endswith("/" + name))
    return (home / "out" / file.name).read_bytes()


def test_only_what_the_user_may_read(home: Path) -> None:
    """Links to secrets, files of others, FIFOs, sockets and devices: rows of the ledger, never content."""
    w = home / "w"
    write(w / "good.log", b"hello\n")
    secret = home / "secret"
    secret.write_bytes(b"root's own\n")
    secret.chmod(0o600)
    (w / "link.log").symlink_to(secret)
    (w / "shadow.log").symlink_to("/etc/shadow")
    (w / "dangling.log").symlink_to("/nowhere")
    (w / "loop.log").symlink_to("loop.log")
    (w / "inside.log").symlink_to("good.log")
    shutil.copy(secret, w / "others.log")
    (w / "others.log").chmod(0o600)
    os.mkfifo(w / "fifo.log")
    os.mknod(w / "zero.log", 0o20666, os.makedev(1, 5))
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(w / "sock.log"))
    bound.close()
    (w / "folder.log").mkdir()
    copies = take(home, "*.log")
    assert [Path(file.path).name for file in copies.files] == ["good.log"]
    refused = {Path(path).name: outcome for path, outcome, _ in copies.refused}
    assert refused == {
        "link.log": "refused", "shadow.log": "refused", "dangling.log": "unreachable", "loop.log": "unreachable",
        "others.log": "refused", "fifo.log": "refused", "zero.log": "refused", "sock.log": "refused",
    }  # fmt: skip
    assert b"root's own" not in b"".join(path.read_bytes() for path in (home / "out").iterdir())


def test_linked_folders_are_the_users_choice(home: Path) -> None:
    """A work folder is often a link to a scratch file system: followed with the user's own rights."""
    (home / "w" / "real").mkdir()
    write(home / "w" / "real" / "a.log", b"x\n")
    (home / "w" / "linked").symlink_to("real")
    copies = take(home, "linked/a.log")
    assert len(copies.files) == 1
    hidden = home / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "a.log").write_bytes(b"root's own\n")
    (home / "w" / "away").symlink_to(hidden)
    shutil.rmtree(home / "out")
    assert take(home, "away/*.log").files == []


def test_secrets_are_masked_before_they_reach_the_copy(home: Path) -> None:
    """And every place in the copy leads back to the place in the original."""
    original = b"one\n" + b"export HF_TOKEN=" + TOKEN + b"\n" + b"three\nfour " + TOKEN + b" five\nsix\n"
    write(home / "w" / "a.log", original)
    copies = take(home, "a.log")
    masked = content(home, copies, "a.log")
    (file,) = copies.files
    assert TOKEN not in masked
    assert file.masked >= 1
    for text in (b"one", b"export", b"three", b"four", b"six"):
        at = masked.index(text)
        assert file.original(at, masked[:at].count(b"\n") + 1) == (
            original.index(text), original[: original.index(text)].count(b"\n") + 1,
        )  # fmt: skip


def test_large_files_keep_head_and_tail(home: Path) -> None:
    lines = [f"line {number} {'x' * 80}\n".encode() for number in range(30_000)]
    original = b"".join(lines)
    write(home / "w" / "big.log", original)
    copies = take(home, "big.log", file_bytes=1 << 19, bytes=1 << 19)
    (file,) = copies.files
    kept = content(home, copies, "big.log")
    assert len(kept) <= 1 << 19
    assert kept.startswith(lines[0])
    assert kept.endswith(lines[-1])
    ((start, stop),) = file.gaps
    assert stop is not None
    assert kept == original[:start] + original[stop:]
    at = kept.index(lines[-1])
    assert file.original(at, kept[:at].count(b"\n") + 1) == (original.index(lines[-1]), 30_000)
    (row,) = copies.ledger()
    assert (row.outcome, row.dropped_from, row.dropped_to) == ("truncated", start, stop)


def test_sparse_twenty_gigabytes(home: Path) -> None:
    path = write(home / "w" / "sparse.log", b"first\n")
    with path.open("r+b") as file:
        file.truncate(20 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast line\n")
    copies = take(home, "sparse.log", file_bytes=1 << 20, seconds=60)
    assert content(home, copies, "sparse.log").endswith(b"last line\n")
    assert copies.files[0].kept <= 1 << 20


def test_many_files_share_the_budget(home: Path) -> None:
    for number in range(40):
        write(home / "w" / f"r-{number}.log", b"y" * 99 + b"\n")
    copies = take(home, "r-*.log", files=25)
    assert len(copies.files) == 25
    assert [outcome for _, outcome, _ in copies.refused] == ["truncated"]
    shutil.rmtree(home / "out")
    copies = take(home, "r-*.log", bytes=2000)
    assert sum(file.kept for file in copies.files) <= 2000
    assert len(copies.files) + len(copies.refused) == 40


def test_odd_names_and_hard_links(home: Path) -> None:
    w = os.fsencode(home / "w")
    for name in (b"new\nline.log", b"\xff\xfe.log", b"-rf.log", b"sp ace.log"):
        with open(os.path.join(w, name), "wb") as file:  # noqa: PTH118, PTH123 - names that are no text
            file.write(name)
    os.link(home / "w" / "-rf.log", home / "w" / "zz.log")
    os.system(f"chown -R {UID} {home}/w")
    copies = take(home, "*.log")
    assert sorted(Path(file.path).name for file in copies.files) == [
        "-rf.log",
        "\\xff\\xfe.log",
        "new\\nline.log",
        "sp ace.log",
    ]


def test_compressed_files_are_read(home: Path) -> None:
    write(home / "w" / "a.log.gz", gzip.compress(b"inside " + TOKEN + b"\n"))
    write(home / "w" / "bomb.log.gz", gzip.compress(b"\0" * (64 << 20)))
    copies = take(home, "*.gz", file_bytes=1 << 20)
    assert content(home, copies, "a.log.gz").startswith(b"inside [redacted")
    bomb = next(file for file in copies.files if file.path.endswith("bomb.log.gz"))
    assert bomb.kept == 1 << 20
    assert bomb.gaps == [(1 << 20, None)]


def test_patterns_choose_by_time_owner_and_rank(home: Path) -> None:
    now = time.time()
    for name, age in (("old-0.log", 1000), ("new-0.log", 10), ("new-0001.log", 10), ("new-2.log", 10)):
        os.utime(write(home / "w" / name, b"x\n"), (now - age, now - age))
    (home / "w" / "new-3.log").write_bytes(b"root's\n")
    wanted = Wanted(
        f"{home}/w/*-*.log", now - 100, owned=True, regex=r".*-(?P<rank>\d+)\.log", only={"rank": ["0", "1", "3"]}
    )
    copies = copy(home / "out", UID, [wanted], Limits())
    assert sorted(Path(file.path).name for file in copies.files) == ["new-0.log", "new-0001.log"]


def test_folders_of_any_depth(home: Path) -> None:
    deep = home / "w" / "logs" / "run1" / "attempt_0" / "3"
    deep.mkdir(parents=True)
    os.system(f"chown -R {UID} {home}/w")
    write(deep / "stderr.log", b"x\n")
    (home / "w" / "logs" / "up").symlink_to("..")
    copies = take(home, "logs/**/attempt_*/*/*")
    assert [Path(file.path).name for file in copies.files] == ["stderr.log"]


def test_what_was_copied_is_found_again(home: Path) -> None:
    write(home / "w" / "a.log", b"x " + TOKEN + b"\n")
    copies = take(home, "*")
    assert load(home / "out") == copies
    assert load(home / "none") is None


def test_a_user_that_does_not_exist(home: Path) -> None:
    (home / "w").chmod(0o755)
    write(home / "w" / "a.log", b"x\n")
    copies = copy(home / "out", 3_999_999, [Wanted(f"{home}/w/*.log")], Limits())
    assert len(copies.files) == 1


@pytest.fixture
def hung(home: Path) -> Iterator[Path]:
    """A file system that never answers: mounted with nobody behind it."""
    point = home / "hung"
    point.mkdir()
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"none", os.fsencode(point), b"fuse", 0, options) != 0:
        os.close(device)
        pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=False)
    os.close(device)


def test_a_hung_file_system_costs_one_child(home: Path, hung: Path) -> None:
    """The rest is read all the same, and what hung is in the ledger."""
    write(home / "w" / "a.log", b"before\n")
    write(home / "w" / "b.log", b"behind\n")
    wanted = [Wanted(f"{home}/w/a.log"), Wanted(f"{hung}/x/*.log"), Wanted(f"{home}/w/b.log")]
    copies = copy(home / "out", UID, wanted, Limits(stall=2.0, seconds=60))
    assert sorted(Path(file.path).name for file in copies.files) == ["a.log", "b.log"]
    assert [(path, outcome) for path, outcome, _ in copies.refused] == [(f"{hung}/x/*.log", "timed_out")]


def test_a_full_disk_is_an_error_and_no_manifest(home: Path) -> None:
    disk = home / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(disk)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs to mount a small file system")
    try:
        write(home / "w" / "big.log", b"z" * (1 << 20))
        with pytest.raises(OSError):
            copy(disk / "out", UID, [Wanted(f"{home}/w/big.log")], Limits())
        assert load(disk / "out") is None
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
