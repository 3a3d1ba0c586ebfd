"""A folder with every hostile thing in it: nothing raises, nothing outside is read, memory stays bounded, all is said.

The collection runs in a process of its own, so that its memory can be measured and the files it opens be recorded,
while this process makes files grow, shrink and vanish under it.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPARSE = 200 << 20
TINY = 10_000
MEMORY = 400 << 20
"""Resident bytes that a collection of this folder, each artifact read to its end, may need at most."""

CHILD = """
import json, sys
from pathlib import Path
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from collector.model import Artifact, Budget, RunRef
from collector.sources.log_dir import LogDir
from collector.readers import checkpoint, error_file, exit_file
READERS = {"checkpoint": checkpoint, "error_file": error_file, "exit_file": exit_file}
artifacts, ledger = {}, {}
for found in LogDir(Path(sys.argv[1])).collect(RunRef("x"), Budget()):
    if not isinstance(found, Artifact):
        ledger.setdefault(found.path, []).append([found.outcome, found.detail])
        continue
    size, secret = 0, False
    try:
        with found.open() as stream:
            while block := stream.read(1 << 20):
                size += len(block)
                secret = secret or b"outside-secret" in block
    except FileNotFoundError:
        size = -1
    rows = READERS[found.kind].read(found) if found.kind in READERS else []
    artifacts[found.path] = [found.kind, size, secret, [row.get("status") for row in rows]]
# not ru_maxrss: that survives exec, so it may be the memory of the process that started this one
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
outside = [path for path in opened if "outside" in path or path.startswith("/etc/passwd")]
json.dump({"artifacts": artifacts, "ledger": ledger, "peak": peak, "outside": outside}, sys.stdout)
"""


def build(root: Path, outside: Path) -> None:
    outside.mkdir()
    (outside / "secret.log").write_text("outside-secret 01:02:03\n")
    root.mkdir()
    (root / "nul.log").write_bytes(b"step 1\0\0\0\n" * 1000)
    (root / "broken_utf8.log").write_bytes(b"\xff\xfe step \x80\x81 01:02:03\n" * 1000)
    with (root / "one_line.log").open("wb") as file:
        file.truncate(SPARSE)
    (root / "empty.log").touch()
    os.mkfifo(root / "fifo.log")
    (root / "loop_a").symlink_to(root / "loop_b")
    (root / "loop_b").symlink_to(root / "loop_a")
    (root / "self").symlink_to(root)
    (root / "passwd.log").symlink_to("/etc/passwd")
    (root / "outside_folder").symlink_to(outside)
    (root / "outside.log").symlink_to(outside / "secret.log")
    (root / "dangling.log").symlink_to(root / "nowhere")
    (root / "inside.log").symlink_to(root / "nul.log")
    (root / "unreadable.log").write_text("01:02:03 hello\n")
    (root / "unreadable.log").chmod(0)
    (root / "closed").mkdir()
    (root / "closed" / "a.log").write_text("01:02:03 hello\n")
    (root / "closed").chmod(0)
    bomb = gzip.compress(b"\0" * (64 << 20))
    (root / "bomb.log.gz").write_bytes(bomb * 32)
    (root / "cut.log.gz").write_bytes(gzip.compress(os.urandom(200_000))[:-5000])
    (root / "nested.json").write_bytes(b"[" * (5 << 20))
    (root / "error.json").write_bytes(b'{"message": {"message": "x", "extraInfo": ' + b'{"a":' * (1 << 20))
    (root / "exit.json").write_bytes(b'{"command": ["x"], "rcs": [' + b"[" * (5 << 20))
    (root / "new\nline\x1b[31m.log").write_text("01:02:03 hello\n")
    (root / os.fsdecode(b"bad\xff\xfename.log")).write_text("01:02:03 hello\n")
    (root / "archive.zip").write_bytes(b"PK\x03\x04" + bytes(100))
    checkpoint(root / "ckpt" / "step_10")
    deep = root
    for _ in range(50):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "deep.log").write_text("01:02:03 hello\n")
    many = root / "many"
    many.mkdir()
    for number in range(TINY):
        (many / f"f{number:05d}.log").write_bytes(b"01:02:03 x\n")


def checkpoint(folder: Path) -> None:
    """Files that a reader of checkpoints could choke on."""
    folder.mkdir(parents=True)
    (folder / "a.pt").write_bytes(b"PK\x05\x06" + b"\xff" * 18)
    (folder / "b.pt").write_bytes(b"\x80\x04" + b"]" * 100_000)
    (folder / "c.safetensors").write_bytes((5 << 20).to_bytes(8, "little") + b"[" * (5 << 20))
    (folder / ".metadata").write_bytes(b"\x80\x04" + b"\x8c\xffrelative_path" * 1000)
    (folder / "__0_0.distcp").write_bytes(b"")
    (folder / "model.safetensors.index.json").write_bytes(b'{"weight_map":' * 100_000)
    with (folder / "huge.pt").open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(SPARSE)
    (folder / "link.pt").symlink_to("/etc/passwd")


def disturb(root: Path, stop: threading.Event) -> None:
    """Grow, shrink and remove files until told to stop."""
    growing, shrinking = root / "growing.log", root / "shrinking.log"
    number = 0
    while not stop.is_set():
        number += 1
        with growing.open("ab") as file:
            file.write(b"01:02:03 more\n" * 100)
        shrinking.write_bytes(b"01:02:03 less\n" * (2000 if number % 2 else 2))
        fleeting = root / f"fleeting_{number % 50}.log"
        if fleeting.exists():
            fleeting.unlink()
        else:
            fleeting.write_bytes(b"01:02:03 now\n")
        stop.wait(0.001)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    base = tmp_path_factory.mktemp("hostile")
    root = base / "root"
    build(root, base / "outside")
    stop = threading.Event()
    thread = threading.Thread(target=disturb, args=(root, stop))
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(root)  # the path of a socket may only have 108 bytes
        server.bind("socket.log")
        os.chdir(here)
        thread.start()
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(root)], capture_output=True, timeout=100, check=False
            )
        finally:
            stop.set()
            thread.join()
    assert done.returncode == 0, done.stderr.decode()
    yield json.loads(done.stdout)
    (root / "closed").chmod(0o700)
    shutil.rmtree(base)


def test_nothing_outside_is_opened_or_read(result: dict[str, Any]) -> None:
    assert result["outside"] == []
    assert not any(secret for _, _, secret, _ in result["artifacts"].values())


def test_memory_is_bounded(result: dict[str, Any]) -> None:
    assert result["peak"] < MEMORY


@pytest.mark.parametrize(
    ("path", "outcome", "word"),
    [
        ("empty.log", "empty", "0 bytes"),
        ("fifo.log", "refused", "FIFO"),
        ("socket.log", "refused", "socket"),
        ("loop_a", "refused", "loop"),
        ("loop_b", "refused", "loop"),
        ("passwd.log", "refused", "leads out"),
        ("outside.log", "refused", "leads out"),
        ("outside_folder", "refused", "leads out"),
        ("dangling.log", "refused", "nowhere"),
        ("bomb.log.gz", "truncated", "expansion stopped"),
        ("cut.log.gz", "truncated", "cut off"),
        ("nested.json", "not_configured", "JSON"),
        ("archive.zip", "refused", "archive"),
        ("/".join("d" * 33), "refused", "deeper"),
    ],
)
def test_what_is_passed_over_is_said(result: dict[str, Any], path: str, outcome: str, word: str) -> None:
    ((said, detail),) = result["ledger"][path]
    assert said == outcome
    assert word in detail


def test_what_may_not_be_read_is_said(result: dict[str, Any]) -> None:
    if os.geteuid() == 0:  # root may read everything
        assert result["artifacts"]["unreadable.log"][0] == result["artifacts"]["closed/a.log"][0] == "rank_log"
    else:
        assert result["ledger"]["unreadable.log"][0][0] == result["ledger"]["closed"][0][0] == "refused"


def test_dirty_logs_are_logs(result: dict[str, Any]) -> None:
    artifacts = result["artifacts"]
    for path in ("nul.log", "broken_utf8.log", r"new\nline\x1b[31m.log", r"bad\xff\xfename.log", "many/f09999.log"):
        assert artifacts[path][0] == "rank_log", path
    assert artifacts["one_line.log"][:2] == ["rank_log", SPARSE]
    assert sum(path.startswith("many/") for path in artifacts) == TINY


def test_a_link_to_a_file_inside_adds_nothing(result: dict[str, Any]) -> None:
    assert "inside.log" not in result["artifacts"] and "inside.log" not in result["ledger"]
    assert not any(path.startswith("self/") for path in result["artifacts"])


def test_files_that_change_are_read_or_named(result: dict[str, Any]) -> None:
    assert result["artifacts"]["growing.log"][1] > 0
    for path, (_, size, _, _) in result["artifacts"].items():
        assert size >= 0 or path.startswith("fleeting_"), path


def test_a_hostile_checkpoint_is_never_called_complete(result: dict[str, Any]) -> None:
    kind, _, _, statuses = result["artifacts"]["ckpt/step_10"]
    assert (kind, statuses) == ("checkpoint", ["corrupt"])
