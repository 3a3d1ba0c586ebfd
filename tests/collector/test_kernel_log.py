import io
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.data import lookup
from collector.model import Artifact, ArtifactKind, Origin
from collector.pci import pci_address
from collector.readers import kernel_log
from collector.readers.kernel_prefix import split

DATA = Path(__file__).parent / "data" / "kernel"
TABLE = lookup("kernel_events")


def artifact(data: bytes, node: str | None = None, modified: float | None = None) -> Artifact:
    return Artifact(
        ArtifactKind.KERNEL_LOG, "dmesg.txt", Origin(node=node), len(data), lambda: io.BytesIO(data), modified
    )


def read(text: str | bytes, node: str | None = None, modified: float | None = None) -> list[dict]:
    return kernel_log.read(artifact(text if isinstance(text, bytes) else text.encode(), node, modified))


def micros(*moment: int, microsecond: int = 0) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * 1_000_000 + microsecond


def examples(key: str) -> list:
    return [
        pytest.param(entry["event"], entry, line, id=f"{entry['event']}[{key}-{index}-{number}]")
        for index, entry in enumerate(TABLE["patterns"])
        for number, line in enumerate(entry[key])
    ]


@pytest.mark.parametrize(("event", "entry", "line"), examples("match"))
def test_a_pattern_is_the_first_that_matches_its_examples(event: str, entry: dict, line: str) -> None:
    found = kernel_log.find(line, kernel=not entry.get("userspace", False))
    assert found is not None and found[0].event == event and found[0].regex.pattern == entry["regex"]


@pytest.mark.parametrize(("event", "entry", "line"), examples("no_match"))
def test_a_pattern_does_not_match_its_look_alikes(event: str, entry: dict, line: str) -> None:
    found = kernel_log.find(line, kernel=not entry.get("userspace", False))
    assert found is None or found[0].regex.pattern != entry["regex"]


def test_every_event_of_a_pattern_is_judged() -> None:
    judged = set(TABLE["events"]) | {"xid", "sxid"}
    assert {entry["event"] for entry in TABLE["patterns"]} <= judged


OOM = "Memory cgroup out of memory: Killed process 31637 (python3) total-vm:1764656kB, anon-rss:1049912kB, UID:0"


@pytest.mark.parametrize(
    ("prefix", "lo", "hi", "host"),
    [
        ("[ 1922.724705] ", None, None, None),
        ("[ 1922.724705][ T4242] ", None, None, None),
        ("<4>[ 1922.724705] ", None, None, None),
        ("kern  :err   : [ 1922.724705] ", None, None, None),
        ("4,1234,1922724705,-;", None, None, None),
        ("[Tue Dec  1 01:24:59 2026] ", micros(2026, 12, 1, 1, 24, 58), micros(2026, 12, 1, 1, 25, 0) + 999_999, None),
        ("2026-12-01T02:24:59,287197+01:00 ", *[micros(2026, 12, 1, 1, 24, 59, microsecond=287197)] * 2, None),
        ("kern  :err : 2026-12-01T01:24:59,000001+00:00 ", *[micros(2026, 12, 1, 1, 24, 59, microsecond=1)] * 2, None),
        (
            "2026-12-01T01:24:59+0000 gpu-07 kernel: ",
            micros(2026, 12, 1, 1, 24, 59),
            micros(2026, 12, 1, 1, 24, 59) + 999_999,
            "gpu-07",
        ),
        (
            "2026-12-01T01:24:59.250000+00:00 gpu-07 kernel: [ 1922.724705] ",
            *[micros(2026, 12, 1, 1, 24, 59, microsecond=250000)] * 2,
            "gpu-07",
        ),
        (
            "<4>1 2026-12-01T01:24:59.5Z gpu-07 kernel - - - ",
            *[micros(2026, 12, 1, 1, 24, 59, microsecond=500000)] * 2,
            "gpu-07",
        ),
        ("Tue 2026-12-01 01:24:59 UTC gpu-07 kernel: ", micros(2026, 12, 1, 1, 24, 59), None, "gpu-07"),
        ("1796088299.316524 gpu-07 kernel: ", *[1796088299316524] * 2, "gpu-07"),
        ("Dec  1 01:24:59 gpu-07 kernel: [ 1922.724705] ", micros(2026, 12, 1, 1, 24, 59), None, "gpu-07"),
        ("Dec  1 01:24:59 kernel: ", micros(2026, 12, 1, 1, 24, 59), None, None),
    ],
)  # fmt: skip
def test_every_spelling_of_the_prefix(prefix: str, lo: int | None, hi: int | None, host: str | None) -> None:
    modified = datetime(2026, 12, 1, 2, tzinfo=UTC).timestamp()
    (row,) = read(f"{prefix}{OOM}\n", modified=modified)
    assert (row["pid"], row["process"], row["text"], row["at_lo"]) == (31637, "python3", OOM, lo)
    assert row["node"] == host
    if lo is not None:
        assert row["at_hi"] == (lo + 999_999 if hi is None else hi)


def test_a_time_without_a_year_needs_the_files_date_and_never_lies_in_its_future() -> None:
    line = f"Dec 31 23:59:58 gpu-07 kernel: {OOM}\n"
    assert read(line)[0]["at_lo"] is None
    next_day = datetime(2027, 1, 1, 0, 10, tzinfo=UTC).timestamp()
    assert read(line, modified=next_day)[0]["at_lo"] == micros(2026, 12, 31, 23, 59, 58)


def test_a_message_that_another_program_repeats_is_not_the_kernels() -> None:
    assert read("Dec  1 01:24:59 gpu-07 gpud[77]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n") == []
    killed = "Dec  1 01:24:59 gpu-07 systemd-oomd[8]: Killed /job.slice due to memory pressure\n"
    assert [(row["event"], row["device"]) for row in read(killed)] == [("oom_kill", "/job.slice")]


def test_one_oom_kill_is_one_row_in_every_form_of_the_log() -> None:
    rows = {name: kernel_log.read(artifact((DATA / name).read_bytes())) for name in ("dmesg.txt", "dmesg_T.txt")}
    for listed in rows.values():
        assert [(row["event"], row["pid"], row["line"]) for row in listed] == [("oom_kill", 31637, 60)]
        assert listed[0]["text"].startswith("Memory cgroup out of memory: Killed process 31637 (python3)")
    assert rows["dmesg.txt"][0]["at_lo"] is None
    truth = 1796088299316523  # when the kill was seen from outside
    assert rows["dmesg_T.txt"][0]["at_lo"] <= truth <= rows["dmesg_T.txt"][0]["at_hi"]


def test_old_kernels_split_the_kill_over_two_lines_and_two_victims_stay_two() -> None:
    text = (
        "[100.000001] Out of memory: Kill process 10 (python) score 973 or sacrifice child\n"
        "[100.000002] Killed process 10 (python) total-vm:12kB, anon-rss:11kB, file-rss:0kB\n"
        "[100.000003] Out of memory: Kill process 11 (python) score 970 or sacrifice child\n"
        "[100.000004] oom_reaper: reaped process 10 (python), now anon-rss:0kB\n"
    )
    assert [(row["pid"], row["line"]) for row in read(text)] == [(10, 1), (11, 3)]


def test_a_cgroup_counter_is_a_kill_without_a_name() -> None:
    (row,) = read((DATA / "memory.oom_control").read_bytes())
    assert (row["event"], row["pid"], row["code"], row["line"]) == ("oom_kill", None, 1, 3)
    assert read("low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n") == []
    assert kernel_log.looks_like(b"low 0\nhigh 0\nmax 12\noom 3\noom_kill 1\noom_group_kill 0\n")


def test_xid_forms_of_several_driver_generations() -> None:
    text = (
        "[1.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "[1.000002] NVRM: Xid (PCI:0000:3B:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149\n"
        "[1.000003] NVRM: Xid (0000:03:00): 14, Channel 00000001\n"
    )
    found = [(row["code"], row["device"], row["pid"], row["process"]) for row in read(text)]
    assert found == [
        (79, "0000:3b:00.0", None, None),
        (45, "0000:3b:00.0", 1818990, "python3"),
        (14, "0000:03:00.0", None, None),
    ]


def test_the_driver_names_the_lost_gpu_two_lines_above() -> None:
    text = (
        "Feb 14 05:03:41 gpu-1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "                              NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "                              NVRM: fallen off the bus and is not responding to commands.\n"
    )
    modified = datetime(2026, 2, 15, tzinfo=UTC).timestamp()
    (row,) = read(text, modified=modified)
    assert (row["event"], row["device"], row["node"]) == ("gpu_lost", "0000:b3:00.0", "gpu-1")
    assert row["at_lo"] == micros(2026, 2, 14, 5, 3, 41)


def test_the_journal_as_json() -> None:
    def entry(message: object, **more: str) -> str:
        return json.dumps(
            {"__REALTIME_TIMESTAMP": "1796088299316524", "_HOSTNAME": "gpu-07", "MESSAGE": message} | more
        )

    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    text = "\n".join(
        [
            entry(xid, _TRANSPORT="kernel"),
            entry(list(xid.encode()), SYSLOG_IDENTIFIER="kernel"),
            entry(xid, SYSLOG_IDENTIFIER="nv-hostengine", _TRANSPORT="stdout"),
            entry(None, _TRANSPORT="kernel"),
            '{"MESSAGE": "NVRM: Xid (broken',
        ]
    )
    rows = read(text)
    assert [(row["line"], row["node"], row["at_lo"], row["text"]) for row in rows] == [
        (1, "gpu-07", 1796088299316524, xid),
        (2, "gpu-07", 1796088299316524, xid),
    ]
    assert kernel_log.looks_like(text.encode())


def test_links_that_come_up_at_boot_are_no_events() -> None:
    text = (
        "[   41.000001] mlx5_core 0000:41:00.0 enp65s0f0np0: Link down\n"
        "[86041.000001] mlx5_core 0000:41:00.0 enp65s0f0np0: Link down\n"
        "[86044.000001] mlx5_core 0000:41:00.0 enp65s0f0np0: Link up\n"
    )
    assert [(row["event"], row["line"]) for row in read(text)] == [("link", 2), ("link_up", 3)]


def test_a_flood_keeps_its_first_and_last_lines() -> None:
    line = "[{0}.000000] Buffer I/O error on dev dm-0, logical block {0}, lost async page write\n"
    rows = read("".join(line.format(number) for number in range(1, 3001)))
    assert len(rows) == 500 and (rows[0]["line"], rows[-1]["line"]) == (1, 3000)


def test_line_numbers_and_offsets_hold_over_block_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_BLOCK", 64)
    noise = "[1.000000] usb 1-1: new device\n"
    text = noise * 7 + f"[2.000000] {OOM}\n" + noise * 3 + f"[3.000000] {OOM.replace('31637', '5')}\n"
    rows = read(text)
    assert [row["line"] for row in rows] == [8, 12]
    assert all(text.encode()[row["offset"] :].startswith(b"[") and row["text"] in text[row["offset"] :] for row in rows)


def test_the_place_spells_the_node_where_both_mean_the_same() -> None:
    line = f"2026-12-01T01:24:59+0000 gpu-07 kernel: {OOM}\n"
    assert read(line, node="gpu-07.cluster.example")[0]["node"] == "gpu-07.cluster.example"
    assert read(line, node="logs")[0]["node"] == "gpu-07"
    assert read(f"[1.000000] {OOM}\n", node="gpu-07")[0]["node"] == "gpu-07"


@pytest.mark.parametrize(
    "text",
    [
        "Panic#1 Part1\n<4>[ 1922.724705] Kernel panic - not syncing: Fatal exception in interrupt\n",
        "-- Logs begin at Mon 2026-11-30. --\nDec 01 01:24:59 gpu-07 kernel: usb 1-1: new device\n",
        "[Tue Dec  1 01:24:59 2026] EXT4-fs (sda1): mounted filesystem\n",
        "2026-12-01T01:24:59,287197+00:00 audit: type=1400\n",
        "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001\n",
    ],
)
def test_kernel_logs_are_recognised(text: str) -> None:
    assert kernel_log.looks_like(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[2026-12-01 01:08:17,637] [INFO] [comm.py:658:init_distributed] cdb=None\n" * 5,
        "W1201 01:14:53.478000 18412 torch/distributed/run.py:792] \n" * 5,
        "2026-12-01T01:24:58.123456789Z stdout F NVRM: usb 1-1 nfs: Lustre\n" * 5,
        "2026-12-01 01:22:26,267 INFO kernel: flash attention with nvidia EDAC\n" * 5,
        "[rank0]: Traceback (most recent call last):\n  File 'x.py', line 3\nMemoryError\n",
        "step 1 loss 2.0\n[ 1922.724705] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost\nstep 2 loss 1.9\n",
        "Dec  1 01:24:59 gpu-07 python3[4242]: step 10 loss 2.0\n" * 5,
    ],
)
def test_logs_of_ranks_are_not_claimed(text: str) -> None:
    assert not kernel_log.looks_like(text.encode())


NEEDLES = st.sampled_from([line for entry in TABLE["patterns"] for line in entry["match"] + entry["no_match"]])
PREFIXES = st.sampled_from(["", "[1.000001] ", "[Tue Feb 30 25:61:61 2026] ", "Feb 31 99:99:99 a kernel: ", "{", "<9>"])


@given(st.lists(st.one_of(st.binary(max_size=60), st.tuples(PREFIXES, NEEDLES).map(lambda p: "".join(p).encode()))))
def test_any_bytes_give_rows_or_nothing(parts: list[bytes]) -> None:
    data = b"\n".join(parts)
    kernel_log.looks_like(data)
    count = data.count(b"\n") + 1
    assert all(1 <= row["line"] <= count for row in kernel_log.read(artifact(data)))


@pytest.mark.parametrize("needle", sorted({n for p in kernel_log.patterns() for n in p.needs}))
def test_a_long_line_costs_little(needle: str) -> None:
    start = time.process_time()
    for filler in ("a", " ", "a: ", f"{needle} ", "9[", "0000:00:00.0 "):
        read(f"[1.000000] {filler * (60_000 // len(filler))}{needle}\n[1.000001] {needle}{filler * 20_000}\n")
    assert time.process_time() - start < 2


def test_a_file_that_cannot_be_opened_gives_nothing() -> None:
    def refuse() -> io.BytesIO:
        raise PermissionError("no")

    assert kernel_log.read(Artifact(ArtifactKind.KERNEL_LOG, "x", Origin(), -1, refuse)) == []


def test_impossible_dates_are_no_times() -> None:
    assert split("[Tue Feb 30 01:24:59 2026] x").at_lo is None
    assert split("2026-13-01T01:24:59Z h kernel: x").at_lo is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PCI:0000:3b:00", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        ("00010000:81:00.0", "10000:81:00.0"),
        ("eth0", None),
        ("", None),
        (None, None),
    ],
)
def test_one_spelling_of_pci_addresses(text: str | None, address: str | None) -> None:
    assert pci_address(text) == address


def test_dmesg_iso_time_is_followed_by_the_message_not_by_a_program() -> None:
    text = "2026-11-20T08:19:29,200000+00:00 NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    line = split(text)
    assert line.kernel and line.host is None
    assert line.message.startswith("NVRM: Xid")
