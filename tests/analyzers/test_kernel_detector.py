import io
from pathlib import Path

import pytest

from analyzers.case import CAUSES, ROLES, Case, Observation
from analyzers.detectors import kernel
from collector.data import data_dir, lookup
from collector.model import Artifact, ArtifactKind, LogLine, Origin
from collector.readers import kernel_log

DATA = Path(__file__).parents[1] / "collector" / "data" / "kernel"
SECOND = 1_000_000
START = 1796088000 * SECOND


def rows(text: str | bytes, path: str = "dmesg.txt", node: str | None = None) -> list[dict]:
    data = text if isinstance(text, bytes) else text.encode()
    return kernel_log.read(
        Artifact(ArtifactKind.KERNEL_LOG, path, Origin(node=node), len(data), lambda: io.BytesIO(data), START / SECOND)
    )


def rank(number: int, **more: object) -> dict:
    return {"rank": number, "attempt": 0, "node": None, "pid": 4000 + number, "local_rank": number} | more


def detect(
    events: list[dict], ranks: list[dict] | None = None, lines: list[LogLine] | None = None, **tables: list
) -> list[Observation]:
    return list(
        kernel.detect(Case("i", lines=lines or [], tables={"kernel_events": events, "ranks": ranks or []} | tables))
    )


def log_line(text: str, rank: int | None) -> LogLine:
    return LogLine(0, "rank.log", 1, 0, 0, None, rank, rank, None, "stderr", "rank", None, None, text)


def dmesg(*messages: str) -> str:
    return "".join(f"[{100 + number}.000000] {message}\n" for number, message in enumerate(messages))


def iso(seconds: float, message: str, host: str = "gpu-07") -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(START / SECOND + seconds, UTC)
    return f"{moment.isoformat(timespec='microseconds')} {host} kernel: {message}\n"


def xid(number: int, bus: str = "3b", pid: str = "'<unknown>'", text: str = "text") -> str:
    return f"NVRM: Xid (PCI:0000:{bus}:00): {number}, pid={pid}, name=python3, {text}"


def oom(pid: int, process: str = "python3", how: str = "Memory cgroup out of memory") -> str:
    return f"{how}: Killed process {pid} ({process}) total-vm:12kB, anon-rss:11kB, file-rss:0kB, UID:0"


# --- out of memory ----------------------------------------------------------------------------------------------------


def test_one_kill_in_two_logs_and_a_counter_is_one_observation_of_the_rank() -> None:
    events = [row for path in sorted(DATA.iterdir()) for row in rows(path.read_bytes(), path.name)]
    assert len(events) == 3
    (seen,) = detect(events, [rank(0), rank(1, pid=31637), rank(2)])
    assert (seen.signature, seen.rank, seen.strength, seen.role, seen.cause) == (
        "host/cgroup-oom-killer", 1, 3, "initiating", "host_memory",
    )  # fmt: skip
    assert (seen.path, seen.line, seen.issuer, seen.source, seen.scope) == (
        "dmesg_T.txt", 60, "kernel", "kernel_log", "rank",
    )  # fmt: skip
    assert seen.at_lo is not None and seen.detail["constraint"] == "memcg"


def test_a_counter_alone_names_no_rank() -> None:
    (seen,) = detect(rows(b"oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "memory.oom_control"), [rank(0)])
    assert (seen.rank, seen.strength, seen.role) == (None, 2, "initiating")


def test_the_rank_that_names_a_killed_worker_is_the_rank() -> None:
    line = log_line("RuntimeError: DataLoader worker (pid 9100) is killed by signal: Killed.", 2)
    (seen,) = detect(rows(dmesg(oom(9100, "pt_data_worker"))), [rank(0), rank(2)], [line])
    assert (seen.rank, seen.strength) == (2, 3)


def test_a_process_of_the_job_without_a_rank_is_strong_and_others_are_context() -> None:
    text = dmesg(oom(9100, "python3.11"), oom(9101, "ray::IDLE"), oom(77, "mysqld", "Out of memory"))
    seen = detect(rows(text, node="n1"), [rank(0), rank(1)])
    assert [(s.role, s.strength, s.rank, s.node) for s in seen] == [
        ("initiating", 2, None, "n1"),
        ("context", 1, None, "n1"),
    ]
    assert seen[0].detail["pids"] == [9100, 9101] and seen[1].detail["process"] == "mysqld"


def test_the_same_pid_on_two_nodes_is_settled_by_the_node() -> None:
    ranks = [rank(0, pid=500, node="n1.cluster"), rank(1, pid=500, node="n2.cluster")]
    assert [s.rank for s in detect(rows(dmesg(oom(500)), node="n2"), ranks)] == [1]
    assert [s.rank for s in detect(rows(dmesg(oom(500))), ranks)] == [None]


def test_a_kill_long_before_the_job_is_context_but_a_ranks_own_pid_is_not() -> None:
    ranks = [rank(0, first_line_at=START, last_line_at=START + 600 * SECOND)]
    old = rows(iso(-7200, oom(9)))
    assert [(s.role, s.strength) for s in detect(old, ranks)] == [("context", 1)]
    near = rows(iso(300, oom(9)))
    assert [(s.role, s.strength) for s in detect(near, ranks)] == [("initiating", 2)]
    shifted = rows(iso(-7200, oom(4000)))
    assert [(s.role, s.rank, s.strength) for s in detect(shifted, ranks)] == [("initiating", 0, 3)]


# --- Xid --------------------------------------------------------------------------------------------------------------


def roles(seen: list[Observation]) -> dict[str, str]:
    return {s.signature: s.role for s in seen}


def test_a_lost_gpu_explains_its_echoes_and_is_reported_once() -> None:
    text = dmesg(
        xid(79, text="GPU has fallen off the bus."),
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        xid(154, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        xid(45, pid="4001", text="Ch 00000008"),
        xid(74, bus="5e", text="NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
        xid(31, bus="86", pid="4002", text="MMU Fault: faulted @ 0x7fd7_90743000"),
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    )
    seen = detect(rows(text, node="n1"), [rank(number, node="n1") for number in range(4)])
    assert roles(seen) == {
        "gpu/xid-79": "initiating",
        "gpu/xid-154": "confirmation",
        "gpu/xid-45": "cascade",
        "gpu/xid-74": "cascade",
        "gpu/xid-31": "cascade",
        "gpu/sxid-fatal": "cascade",
    }
    first = seen[0]
    assert (first.strength, first.cause, first.device, first.node, first.rank) == (3, "gpu", "0000:3b:00.0", "n1", None)
    assert "fallen off the bus" in first.title and first.detail["fix"]
    assert [s.rank for s in seen if s.signature == "gpu/xid-45"] == [1]


def test_the_link_error_above_a_gpu_comes_first() -> None:
    text = dmesg(
        "pcieport 0000:00:02.0: AER: Corrected error received: id=0010",
        "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010",
        "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0010",
        xid(79, bus="02", text="GPU has fallen off the bus."),
    )
    seen = detect(rows(text))
    assert [(s.signature, s.role) for s in seen] == [
        ("host/pcie-corrected", "context"),
        ("host/pcie-uncorrectable", "initiating"),
        ("gpu/xid-79", "initiating"),
    ]


def test_xid_31_accuses_the_program_of_the_rank() -> None:
    (seen,) = detect(rows(dmesg(xid(31, pid="4001"))), [rank(0), rank(1)])
    assert (seen.rank, seen.cause, seen.strength, seen.scope) == (1, "user_code", 2, "rank")
    (seen,) = detect(rows(dmesg(xid(31, pid="77"))), [rank(0), rank(1)])
    assert (seen.rank, seen.strength) == (None, 1)


def test_xid_31_on_one_device_over_several_processes_accuses_the_device() -> None:
    text = dmesg(*(xid(31, bus="db", pid=str(pid)) for pid in (13641, 14323, 33275)))
    (seen,) = detect(rows(text))
    assert (seen.cause, seen.strength, seen.device, seen.detail["count"]) == ("gpu", 2, "0000:db:00.0", 3)
    two = dmesg(*(xid(31, bus=bus, pid=str(pid)) for bus, pid in (("db", 1), ("db", 2), ("db", 3), ("3d", 4))))
    assert {s.cause for s in detect(rows(two))} == {"user_code"}


def test_an_echo_stands_for_the_xid_that_it_names() -> None:
    text = "".join(
        f"kernel: {xid(45, bus=bus, pid=str(pid), text=f'Ch 00000001 caused by previous Xid {cause}')}\n"
        for bus, pid, cause in (("dc", 10, 149), ("ed", 11, 145), ("dc", 10, 149))
    )
    seen = detect(rows(text))
    initiating = [(s.signature, s.device) for s in seen if s.role == "initiating"]
    assert initiating == [("gpu/xid-144-150", "0000:dc:00.0")]
    assert [(s.role, s.detail["caused_by"]) for s in seen if s.detail["xid"] == 145] == [("cascade", "gpu/xid-144-150")]
    assert all(s.role == "cascade" for s in seen if s.signature == "gpu/xid-45")


def test_the_word_nonfatal_makes_it_context() -> None:
    text = dmesg(
        xid(144, text="SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)"),
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate",
    )
    assert {s.role for s in detect(rows(text))} == {"context"}
    fatal = dmesg(xid(149, text="NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)"))
    assert [s.role for s in detect(rows(fatal))] == ["initiating"]


def test_an_old_xid_does_not_hide_the_new_one() -> None:
    ranks = [rank(0, node="gpu-07", first_line_at=START, last_line_at=START + 600 * SECOND)]
    text = iso(-86400, xid(48)) + iso(200, xid(48))
    seen = detect(rows(text), ranks)
    assert [(s.role, s.strength, s.line) for s in seen] == [("context", 1, 1), ("initiating", 3, 2)]


@pytest.mark.parametrize("device", ["0000:3b:00.0", "GPU-aaaa", "1"])
def test_a_device_belongs_to_the_rank_that_used_it(device: str) -> None:
    gpus = [
        {"node": "n1", "index": 0, "pci": "0000:19:00.0", "uuid": "GPU-bbbb"},
        {"node": "n1", "index": 1, "pci": "0000:3b:00.0", "uuid": "GPU-aaaa"},
    ]
    ranks = [rank(4, node="n1", local_rank=0), rank(5, node="n1", local_rank=1, device=device)]
    assert [s.rank for s in detect(rows(dmesg(xid(48)), node="n1"), ranks, gpus=gpus)] == [5]


def test_the_local_rank_is_the_gpu_index_only_on_a_full_node() -> None:
    gpus = [{"node": "n1", "index": i, "pci": f"0000:{bus}:00.0"} for i, bus in enumerate(("19", "3b"))]
    ranks = [rank(4, node="n1", local_rank=0), rank(5, node="n1", local_rank=1)]
    assert [s.rank for s in detect(rows(dmesg(xid(48)), node="n1"), ranks, gpus=gpus)] == [5]
    assert [s.rank for s in detect(rows(dmesg(xid(48)), node="n1"), ranks[:1], gpus=gpus)] == [None]


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_a_crash_of_a_rank_names_the_library_and_others_are_left_out() -> None:
    text = dmesg(
        "python3[4001]: segfault at 0 ip 00007f7c sp 00007f7c error 4 in libtorch_cpu.so[7f7c7ac00000+d3d3000]",
        "gnome-shell[12]: segfault at 0 ip 00007f7c sp 00007f7c error 4 in libgjs.so[7f7c7ac00000+d3d3000]",
    )
    (seen,) = detect(rows(text), [rank(1)])
    assert (seen.rank, seen.strength, seen.detail["library"]) == (1, 2, "libtorch_cpu.so")


def test_a_hung_task_is_an_echo_of_the_storage_it_waits_for() -> None:
    stuck = "INFO: task python3:4001 blocked for more than 120 seconds."
    seen = detect(rows(dmesg("nfs: server nas1 not responding, still trying", stuck, stuck)), [rank(1)])
    assert [(s.signature, s.role) for s in seen] == [
        ("storage/nfs-not-responding", "initiating"),
        ("host/hung-task", "cascade"),
    ]
    assert seen[1].detail == {"count": 2, "pid": 4001, "pids": [4001], "undated": True} | {
        "caused_by": "storage/nfs-not-responding",
        "fix": seen[1].detail["fix"],
    }


def test_a_reboot_counts_only_while_the_job_runs() -> None:
    ranks = [rank(0, first_line_at=START, last_line_at=START + 600 * SECOND)]
    boot = "Linux version 5.15.0-105-generic (buildd@x) (gcc 11.4.0) #115-Ubuntu SMP"
    assert detect(rows(iso(-300, boot)), ranks) == []
    assert [s.signature for s in detect(rows(iso(300, boot)), ranks)] == ["host/node-rebooted"]
    assert detect(rows(iso(300, boot))) == []


HEALTHY = dmesg(
    "Linux version 5.15.0-105-generic (buildd@lcy02-amd64-007) (gcc 11.4.0) #115-Ubuntu SMP",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:3a:0a.0 (INTERRUPT)",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 235",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023",
    "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
    "mlx5_core 0000:41:00.0 enp65s0f0np0: Link down",
    "mlx5_core 0000:41:00.0 enp65s0f0np0: Link up",
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
    "mce: [Hardware Error]: Machine check events logged",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    "Lustre: Mounted scratch-client",
    "nfs: server nas1 OK",
)


def test_a_healthy_node_accuses_nobody() -> None:
    seen = detect(rows(HEALTHY, node="n1"), [rank(0, node="n1")])
    assert {s.role for s in seen} <= {"context"} and all(s.strength == 1 for s in seen)
    assert {s.signature for s in seen} == {
        "host/pcie-corrected", "host/machine-check-logged", "gpu/peermem-invalid-context",
    }  # fmt: skip


def test_no_rows_no_observations() -> None:
    assert detect([]) == []


# --- the tables -------------------------------------------------------------------------------------------------------


def test_an_id_is_described_by_the_signature_base_or_by_its_own_fix() -> None:
    base = data_dir("signatures")
    for name, facts in lookup("kernel_events")["events"].items():
        described = (base / f"{facts['signature']}.yaml").is_file()
        assert described or facts.get("fix") or facts["role"] == "context" or facts.get("silent"), name
    assert (base / f"{lookup('kernel_events')['events']['oom_kill']['memcg']}.yaml").is_file()
    for number in (13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 154):
        assert (base / f"gpu/xid-{number}.yaml").is_file()


def test_the_tables_keep_to_the_closed_lists() -> None:
    for facts in (*lookup("xid").values(), *lookup("kernel_events")["events"].values()):
        assert facts["cause"] in CAUSES and facts["role"] in ROLES and facts["strength"] in (1, 2, 3)
    events = lookup("kernel_events")["events"]
    for name, facts in events.items():
        assert set(facts.get("caused_by", ())) <= set(events) | {"xid"}, name
        assert facts["role"] != "initiating" or facts["fix"], name
    for number, facts in lookup("xid").items():
        assert set(facts.get("caused_by", ())) <= set(lookup("xid")) | {"any"}, number
        assert facts["severity"] in ("fatal", "error", "warning", "info") and facts["meaning"] and facts["action"]
    assert {facts["level"] for facts in lookup("sxid").values()} == {"noise", "stall", "fatal", "always_fatal"}


@pytest.mark.parametrize(
    ("number", "role"), [(13, "initiating"), (43, "cascade"), (45, "cascade"), (63, "confirmation")]
)
def test_roles_of_the_xids_that_mislead(number: int, role: str) -> None:
    assert lookup("xid")[number]["role"] == role
