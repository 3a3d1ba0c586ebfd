"""The spool: nothing is lost, nothing is done twice, whatever dies and whenever."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.spool import FIRST_RETRY, LAST_RETRY, MARK_AGE, ORPHAN_AGE, Spool, SpoolError


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Spool:
    return Spool(tmp_path / "spool", clock=clock)


def test_ticket_goes_from_put_to_done(spool: Spool) -> None:
    spool.put("a", b"body")
    ticket = spool.claim()
    assert ticket is not None
    assert (ticket.name, ticket.body, ticket.attempts) == ("a", b"body", 0)
    spool.done(ticket)
    assert spool.claim() is None
    assert spool.names() == []


def test_held_ticket_is_nobody_elses(spool: Spool) -> None:
    spool.put("a")
    ticket = spool.claim()
    other = Spool(spool.path)
    assert ticket is not None
    assert other.claim() is None
    spool.defer(ticket, 0, "later")
    assert other.claim() is not None


def test_oldest_first(spool: Spool) -> None:
    for number, name in enumerate("cab"):
        spool.put(name)
        os.utime(spool.path / "new" / name, (1000 + number, 1000 + number))
    assert [ticket.name for ticket in spool.claims()] == ["c", "a", "b"]


def test_back_off_doubles_and_ends(spool: Spool, clock: Clock) -> None:
    spool.put("a")
    ticket = spool.claim()
    waits = []
    for _ in range(12):
        assert ticket is not None
        assert not spool.fail(ticket, "store down")
        before = clock.now
        while (ticket := spool.claim()) is None:
            clock.now += 1
        waits.append(clock.now - before)
    assert waits[0] == pytest.approx(FIRST_RETRY, abs=1)
    assert waits[1] == pytest.approx(2 * FIRST_RETRY, abs=1)
    assert waits[-1] == pytest.approx(LAST_RETRY, abs=1)


def test_too_many_failures_end_in_dead_with_reason(tmp_path: Path, clock: Clock) -> None:
    spool = Spool(tmp_path / "s", clock=clock, max_attempts=3)
    spool.put("a", b"body")
    for attempt in range(3):
        ticket = spool.claim()
        assert ticket is not None
        assert spool.fail(ticket, "bucket missing") is (attempt == 2)
        clock.now += LAST_RETRY
    assert spool.names() == []
    assert "bucket missing" in spool.dead()["a"]
    assert spool.revive("a")
    ticket = spool.claim()
    assert ticket is not None
    assert (ticket.body, ticket.attempts) == (b"body", 0)
    assert spool.dead() == {}


def test_fatal_is_dead_at_once(spool: Spool) -> None:
    spool.put("a")
    ticket = spool.claim()
    assert ticket is not None
    assert spool.fail(ticket, "no ticket of a hook", fatal=True)
    assert list(spool.dead()) == ["a"]


@pytest.mark.parametrize("jump", [-10 * 365 * 86400.0, -86400.0, 10 * 365 * 86400.0])
def test_clock_that_jumps_delays_no_ticket(spool: Spool, clock: Clock, jump: float) -> None:
    """A time written by a wrong clock does not hold a ticket for years."""
    spool.put("a")
    ticket = spool.claim()
    assert ticket is not None
    spool.fail(ticket, "down")
    clock.now += jump
    clock.now += LAST_RETRY + 61 if jump > 0 else 0
    assert spool.claim() is not None


def test_state_is_remembered(spool: Spool) -> None:
    spool.put("a", state={"n": 1})
    ticket = spool.claim()
    assert ticket is not None
    ticket.state["n"] += 1
    spool.keep(ticket)
    spool.defer(ticket, 0, "")
    again = spool.claim()
    assert again is not None
    assert again.state == {"n": 2}


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"attempts": 1', b"\xff\xfe"])
def test_damaged_memory_costs_no_ticket(spool: Spool, damage: bytes) -> None:
    spool.put("a")
    (spool.path / "new" / "a.retry").write_bytes(damage)
    ticket = spool.claim()
    assert ticket is not None
    assert ticket.state == {}


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "new\nline", "x" * 300])
def test_names_that_could_leave_the_folder_are_refused(spool: Spool, name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        spool.put(name)


def test_links_and_fifos_are_no_tickets(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (spool.path / "new" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(spool.path / "new" / "fifo")
    assert list(spool.claims()) == []


def test_a_link_is_no_spool(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SpoolError):
        Spool(tmp_path / "link")


def test_big_evidence_goes_oldest_first_and_says_so(spool: Spool) -> None:
    for number, name in enumerate("abc"):
        spool.put(name)
        folder = spool.path / "evidence" / name
        folder.mkdir()
        (folder / "dmesg.txt").write_bytes(b"x" * 100_000)
        os.utime(folder, (1000 + number, 1000 + number))
    assert spool.tidy(250_000) == [("a", 100_000)]
    assert "100000 bytes dropped" in (spool.path / "evidence" / "a" / "DROPPED").read_text()
    assert (spool.path / "evidence" / "b" / "dmesg.txt").exists()
    assert spool.names() == ["a", "b", "c"]


def test_leftovers_go_when_they_are_old(spool: Spool, clock: Clock) -> None:
    orphan = spool.path / "evidence" / "orphan"
    orphan.mkdir()
    spool.mark("old")
    (spool.path / "tmp" / "draft").write_bytes(b"")
    for path in (orphan, spool.path / "marks" / "old", spool.path / "tmp" / "draft"):
        os.utime(path, (clock.now, clock.now))
    spool.tidy(1 << 30)
    assert orphan.exists()
    clock.now += ORPHAN_AGE + 1
    spool.tidy(1 << 30)
    assert not orphan.exists()
    assert not (spool.path / "tmp" / "draft").exists()
    assert spool.marked("old") is not None
    clock.now += MARK_AGE
    spool.tidy(1 << 30)
    assert spool.marked("old") is None


# --- full disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs here: {done.stderr}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_loses_no_ticket(small_disk: Path) -> None:
    """Memory of attempts cannot be written, the tickets stay and can be finished."""
    spool = Spool(small_disk / "spool")
    for number in range(5):
        spool.put(f"t{number}", b"x")
    filler = small_disk / "filler"
    out = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError):
        while True:
            os.write(out, b"\0" * 4096)
    os.close(out)
    with pytest.raises(OSError):
        spool.put("one-more", b"y" * 8192)
    assert "one-more" not in spool.names()
    for ticket in list(spool.claims()):
        spool.fail(ticket, "store down")
    assert len(spool.names()) == 5
    filler.unlink()
    for name in spool.names():
        ticket = spool.claim_named(name, due=False)
        assert ticket is not None
        spool.done(ticket)
    assert spool.names() == []


# --- kill -9 at any moment --------------------------------------------------------------------------------------------

WORKER = """
import sys, time
from pathlib import Path
from collector.spool import Spool, write_atomically
root = Path(sys.argv[1])
spool, store = Spool(root / "spool"), root / "store"
for _ in range(2):
    for ticket in spool.claims():
        time.sleep(0.0005)
        if ticket.name.endswith("3") and ticket.attempts == 0:
            spool.fail(ticket, "first attempt fails")
            continue
        ticket.state["steps"] = ticket.state.get("steps", 0) + 1
        spool.keep(ticket)
        write_atomically(store / ticket.name, ticket.body * 100, root / "tmp")
        spool.mark(ticket.name)
        spool.done(ticket)
"""


def test_kill_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Workers are killed at random moments, two at a time; in the end every ticket's work is there, whole."""
    for name in ("store", "tmp"):
        (tmp_path / name).mkdir()
    spool = Spool(tmp_path / "spool")
    names = [f"n.{number}" for number in range(120)]
    for name in names:
        spool.put(name, name.encode())
        (spool.path / "evidence" / name).mkdir()
    luck = random.Random(20261201)
    kills = 0
    for _ in range(60):
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], cwd=Path(__file__).parents[2])
            for _ in range(2)
        ]
        for worker in workers:
            try:
                worker.wait(timeout=luck.uniform(0.02, 0.45))
            except subprocess.TimeoutExpired:
                worker.send_signal(signal.SIGKILL)
                kills += 1
        for worker in workers:
            assert worker.wait(timeout=30) in (0, -signal.SIGKILL)
        unfinished = set(spool.names())
        # acknowledged means done: whatever is gone from the spool is in the store
        assert all((tmp_path / "store" / name).exists() for name in names if name not in unfinished)
        if not unfinished:
            break
    assert kills > 3
    for _ in range(3):
        subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], check=True, cwd=Path(__file__).parents[2])
        for name in spool.names():
            (spool.path / "new" / f"{name}.retry").write_text(json.dumps({"attempts": 1}))
    assert spool.names() == []
    Spool(spool.path, clock=lambda: time.time() + 2 * ORPHAN_AGE).tidy(1 << 30)
    assert not [path for folder in ("new", "evidence", "tmp") for path in (spool.path / folder).iterdir()]
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == sorted(names)
    assert all((tmp_path / "store" / name).read_bytes() == name.encode() * 100 for name in names)
    assert spool.dead() == {}
