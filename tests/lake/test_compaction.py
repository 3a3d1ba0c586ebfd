"""Compaction, analysis and readers at the same time, and killed at every moment: each row once, always."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzers import compaction, lake_sql, lakehouse, snapshot
from collector import lake
from collector.lake import LAKE_TABLES, LakeFile
from collector.store import LocalStore, Store, StoreError

DAY = "2026-12-01"


def publish(store: Store, incident: str, mark: int, *, date: str = DAY, old: str | None = None) -> str:
    """A small analysis: every row carries `mark`, so that a reader sees which analysis it got."""
    version = lake.new_version(f"{mark:08x}", old)
    rows: dict[str, list[dict[str, Any]]] = {
        "incidents": [{"incident": incident, "exit_code": mark}],
        "ledger": [{"incident": incident, "path": f"p{n}", "bytes_seen": mark} for n in range(2)],
        "observations": [{"incident": incident, "id": n, "strength": mark, "text": "x" * 20} for n in range(3)],
        "verdicts": [{"incident": incident, "date": date, "status": "suspected", "line": mark}],
    }
    for table in LAKE_TABLES:
        if table in rows:
            store.put(lake.lake_key(table, date, incident, version), lake.to_parquet(table, rows[table]))
    return version


def contents(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """What readers see, in one consistent snapshot."""
    columns = {
        "incidents": "incident, exit_code", "ledger": "incident, bytes_seen, path",
        "observations": "incident, strength, id", "verdicts": "incident, line, date",
        "allocations": "job, gpus, date",
    }  # fmt: skip

    def work(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
        return {t: sorted(connection.execute(f"SELECT {c} FROM {t}").fetchall()) for t, c in columns.items()}

    return lake_sql.read(store, work, columns)


def filled(store: Store, count: int = 3) -> None:
    for number in range(count):
        publish(store, f"slurm-c-{number}-0", 1)
    publish(store, "slurm-c-9-0", 1, date="2026-12-02")
    lake.publish_allocations(store, "c-1", DAY, [{"job": "1", "gpus": 8}])
    lake.publish_allocations(store, "c-2", DAY, [{"job": "2", "gpus": 4}])


def files(store: Store) -> list[str]:
    return sorted(item.key for item in store.list("lake/"))


def test_a_day_becomes_one_file_per_table(store: Store) -> None:
    filled(store)
    before = contents(store)
    report = compaction.compact(store)
    assert contents(store) == before
    assert report.days == [DAY] and report.problems == []
    today = [key for key in files(store) if f"date={DAY}/" in key]
    assert sorted(key.split("/")[1] for key in today) == [
        "allocations", "incidents", "ledger", "observations", "verdicts",
    ]  # fmt: skip
    assert all("/~day." in key for key in today)
    assert compaction.compact(store).days == []


def test_an_analysis_after_a_compaction_counts(store: Store) -> None:
    filled(store)
    old = snapshot.take(store).units["verdicts"]["slurm-c-1-0"]
    compaction.compact(store)
    publish(store, "slurm-c-1-0", 2, old=old)
    publish(store, "slurm-c-2-0", 2, date="2026-12-03", old=old)
    lake.publish_allocations(store, "c-1", DAY, [{"job": "1", "gpus": 6}])
    seen = contents(store)
    assert seen["verdicts"] == [
        ("slurm-c-0-0", 1, DAY), ("slurm-c-1-0", 2, DAY), ("slurm-c-2-0", 2, "2026-12-03"),
        ("slurm-c-9-0", 1, "2026-12-02"),
    ]  # fmt: skip
    assert {mark for incident, mark, _ in seen["observations"] if incident == "slurm-c-1-0"} == {2}
    assert seen["allocations"] == [("1", 6, DAY), ("2", 4, DAY)]
    compaction.compact(store)
    assert contents(store) == seen
    compaction.compact(store)
    assert contents(store) == seen


def test_a_day_that_lost_all_its_incidents_goes_away(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number in range(2):
        publish(store, f"i{number}", 1)
    old = snapshot.take(store).units["verdicts"]["i0"]
    compaction.compact(store)
    for number in range(2):
        publish(store, f"i{number}", 2, date="2026-12-05", old=old)
    seen = contents(store)
    compaction.compact(store)
    assert contents(store) == seen
    assert not [key for key in files(store) if DAY in key]


def test_tables_of_an_unfinished_analysis_are_not_seen(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    filled(store)
    seen = contents(store)
    version = lake.new_version("0" * 8, None)
    data = lake.to_parquet("observations", [{"incident": "slurm-c-0-0", "id": 1}])
    store.put(lake.lake_key("observations", DAY, "slurm-c-0-0", version), data)
    store.put(lake.lake_key("observations", DAY, "slurm-c-77-0", version), data)
    assert contents(store) == seen
    compaction.compact(store)
    assert contents(store) == seen
    assert any("slurm-c-77-0" in key for key in files(store)), "somebody may still be writing it"


def test_what_was_never_published_goes_after_a_day(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    filled(store)
    data = lake.to_parquet("observations", [{"incident": "slurm-c-77-0", "id": 1}])
    store.put(lake.lake_key("observations", DAY, "slurm-c-77-0", "v01000000000000000-00000000-0000"), data)
    compaction.compact(store)
    assert not any("slurm-c-77-0" in key for key in files(store))


def test_files_without_a_version_are_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(lake.lake_key("verdicts", DAY, "i"), lake.to_parquet("verdicts", [{"incident": "i", "line": 1}]))
    assert contents(store)["verdicts"] == [("i", 1, DAY)]
    publish(store, "i", 2)
    assert contents(store)["verdicts"] == [("i", 2, DAY)]
    publish(store, "j", 1)
    compaction.compact(store)
    assert contents(store)["verdicts"] == [("i", 2, DAY), ("j", 1, DAY)]


def test_a_damaged_file_keeps_its_day_as_it_is(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    filled(store)
    (key,) = [key for key in files(store) if "ledger" in key and "slurm-c-1-0" in key]
    good = store.get(key)
    store.put(key, b"damaged")
    before = files(store)
    report = compaction.compact(store)
    assert len(report.problems) == 1 and key in report.problems[0]
    assert set(before) <= set(files(store))
    store.put(key, good)
    seen = contents(store)
    compaction.compact(store)
    assert contents(store) == seen


def test_a_manifest_that_cannot_be_read_stops_readers(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    filled(store)
    compaction.compact(store)
    (key,) = [key for key in files(store) if key.startswith(snapshot.MANIFESTS)]
    store.put(key, b"{")
    with pytest.raises(StoreError, match="no manifest"):
        contents(store)


class Stop(BaseException):
    """A kill: nothing of the program runs after it."""


class Killed(LocalStore):
    """A store whose program dies before its n-th change."""

    def __init__(self, root: Path, after: int) -> None:
        super().__init__(root)
        self.left = after

    def _step(self) -> None:
        if not self.left:
            raise Stop
        self.left -= 1

    def put(self, key: str, data: bytes | Path) -> None:
        self._step()
        super().put(key, data)

    def delete(self, key: str) -> None:
        self._step()
        super().delete(key)


def changed_twice(store: Store) -> None:
    """A day with a day file, rows of it that no longer count, and new files."""
    filled(store, 2)
    old = snapshot.take(store).units["verdicts"]["slurm-c-0-0"]
    compaction.compact(store)
    publish(store, "slurm-c-0-0", 2, old=old)
    publish(store, "slurm-c-5-0", 1)


def test_killed_at_every_change(tmp_path: Path) -> None:
    reference = LocalStore(tmp_path / "reference")
    changed_twice(reference)
    expected = contents(reference)
    after = 0
    while True:
        store = LocalStore(tmp_path / str(after))
        changed_twice(store)
        try:
            compaction.compact(Killed(store.root, after), threads=1)
            break
        except Stop:
            pass
        assert contents(store) == expected, f"killed before change {after}"
        compaction.compact(store)
        assert contents(store) == expected, f"repaired after a kill before change {after}"
        after += 1
    assert after > 15, "there were that many moments"


_COMPACTOR = """
import sys
from pathlib import Path
from analyzers import compaction
from collector.store import LocalStore
print("ready", flush=True)
compaction.compact(LocalStore(Path(sys.argv[1])))
"""


def test_killed_for_real(tmp_path: Path) -> None:
    import time

    for number, delay in enumerate((0.0, 0.02, 0.05, 0.1, 0.2)):
        store = LocalStore(tmp_path / str(number))
        filled(store, 6)
        expected = contents(store)
        command = [sys.executable, "-c", _COMPACTOR, str(store.root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
            assert process.stdout is not None and process.stdout.readline()
            time.sleep(delay)
            os.kill(process.pid, signal.SIGKILL)
        assert contents(store) == expected
        compaction.compact(store)
        assert contents(store) == expected


def test_two_compactions_that_meet_lose_nothing(tmp_path: Path) -> None:
    """Each does the other's work in the middle of its own, at every change."""
    reference = LocalStore(tmp_path / "reference")
    changed_twice(reference)
    expected = contents(reference)
    for moment in range(100):
        store = LocalStore(tmp_path / str(moment))
        changed_twice(store)

        class Meeting(Killed):
            met = False

            def _step(self) -> None:
                if not self.left and not self.met:
                    self.met = True
                    compaction.compact(LocalStore(self.root))
                self.left -= 1

        meeting = Meeting(store.root, moment)
        compaction.compact(meeting, threads=1)
        assert contents(store) == expected, f"met at change {moment}"
        if not meeting.met:
            break
        compaction.compact(store)
        assert contents(store) == expected


def test_an_analysis_in_the_middle_of_a_compaction_counts(tmp_path: Path) -> None:
    for moment in range(100):
        store = LocalStore(tmp_path / str(moment))
        changed_twice(store)

        class Meeting(Killed):
            met = False

            def _step(self) -> None:
                if not self.left and not self.met:
                    self.met = True
                    taken = snapshot.take(LocalStore(self.root), ["verdicts"])
                    old = taken.units["verdicts"]["slurm-c-5-0"]
                    plain = LocalStore(self.root)
                    publish(plain, "slurm-c-5-0", 3, old=old)
                    lakehouse.remove_version(plain, "slurm-c-5-0", DAY, old)
                self.left -= 1

        meeting = Meeting(store.root, moment)
        compaction.compact(meeting, threads=1)
        expected = 3 if meeting.met else 1
        assert [mark for incident, mark, _ in contents(store)["verdicts"] if incident == "slurm-c-5-0"] == [expected]
        compaction.compact(store)
        assert {mark for incident, mark, _ in contents(store)["ledger"] if incident == "slurm-c-5-0"} == {expected}
        if not meeting.met:
            break


def test_readers_beside_analyses_and_compactions(store: Store, until: Callable[[Callable[[], bool]], None]) -> None:
    """Every look shows each incident exactly once, whole, in one analysis, and never an older one than before."""
    incidents = [f"slurm-c-{number}-0" for number in range(4)]
    for incident in incidents:
        publish(store, incident, 1)
    stop = threading.Event()
    problems: list[str] = []
    looks = [0]

    def reader() -> None:
        newest = dict.fromkeys(incidents, 1)
        try:
            while not stop.is_set():
                seen = contents(store)
                looks[0] += 1
                marks = {incident: mark for incident, mark, _ in seen["verdicts"]}
                counts = {table: len(rows) for table, rows in seen.items()}
                mixed = {(i, m) for table in ("ledger", "observations") for i, m, _ in seen[table]} - set(marks.items())
                wrong = counts != {"incidents": 4, "ledger": 8, "observations": 12, "verdicts": 4, "allocations": 0}
                if wrong or mixed or any(marks[i] < newest[i] for i in incidents):
                    problems.append(f"{counts} {mixed} {marks} {newest}")
                newest = marks
        except BaseException as error:
            problems.append(repr(error))

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        for round_ in range(2, 8):
            for incident in incidents:
                taken = snapshot.take(store, ["verdicts"])
                old = taken.units["verdicts"][incident]
                where: list[LakeFile] = [file for file in taken.files["verdicts"] if file.unit == incident]
                publish(store, incident, round_, old=old)
                if where:
                    lakehouse.remove_version(store, incident, where[0].date, old)
            compaction.compact(store)
        until(lambda: looks[0] >= 5 or bool(problems))
    finally:
        stop.set()
        thread.join(120)
    assert problems == []
    assert {mark for _, mark, _ in contents(store)["verdicts"]} == {7}


class Busy(LocalStore):
    """A store in which, from the n-th listing or reading on, something happens after each."""

    def __init__(self, root: Path, after: int, events: list[Callable[[], None]]) -> None:
        super().__init__(root)
        self.left, self.events = after, list(events)

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0 and self.events:
            self.events.pop(0)()

    def list(self, prefix: str) -> Any:
        found = list(super().list(prefix))
        self._step()
        return iter(found)

    def get(self, key: str) -> bytes:
        self._step()
        return super().get(key)


class Recorder(LocalStore):
    """Does nothing, notes what was to be deleted."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.deleted: list[str] = []

    def delete(self, key: str) -> None:
        self.deleted.append(key)


def analysed_again(root: Path, at_once: int) -> list[Callable[[], None]]:
    """An analysis of slurm-c-0-0, then the removal of what it supersedes, so many objects at a time."""
    store = LocalStore(root)
    taken = snapshot.take(store, ["verdicts"])
    old = taken.units["verdicts"]["slurm-c-0-0"]
    recorder = Recorder()
    lakehouse.remove_version(recorder, "slurm-c-0-0", DAY, old)
    chunks = [recorder.deleted[i : i + at_once] for i in range(0, len(recorder.deleted), at_once)]

    def remove(keys: list[str]) -> None:
        for key in keys:
            store.delete(key)

    def begin() -> None:
        publish(store, "slurm-c-0-0", 3, old=old)
        remove(chunks[0])

    return [begin, *((lambda keys=keys: remove(keys)) for keys in chunks[1:])]


@pytest.mark.parametrize("day_file", [False, True], ids=["files", "day-file"])
@pytest.mark.parametrize("event", ["compaction", "analysis-1", "analysis-7", "analysis-14", "analysis-13-killed"])
def test_something_happens_between_any_two_steps_of_a_reader(tmp_path: Path, event: str, day_file: bool) -> None:
    """The observations that a reader gets are those of a whole lake before or after, even if it reads nothing else."""
    for moment in range(40):
        root = tmp_path / str(moment)
        (changed_twice if day_file else filled)(LocalStore(root))
        before = contents(LocalStore(root))["observations"]
        if event == "compaction":
            events: list[Callable[[], None]] = [lambda r=root: compaction.compact(LocalStore(r))]  # type: ignore[misc]
        else:
            events = analysed_again(root, int(event.split("-")[1]))
            events = events[:1] if event.endswith("killed") else events
        busy = Busy(root, moment, events)
        rows = lake_sql.query(busy, "SELECT incident, strength, id FROM observations").rows
        after = contents(LocalStore(root))["observations"]
        assert sorted(rows) in (before, after), f"step {moment}"
        if busy.left >= 0:
            assert moment > 3, "a look has that many steps"
            return
    raise AssertionError("a look never ended")
