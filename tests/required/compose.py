# ruff: noqa: E501 (texts are as wide as the tools print them)
"""Writes the folders of the required verdicts: `python tests/required/compose.py`. Each function is one failure.

Every failure has a twin that must not accuse: the same alarming evidence, but old, on another node, or beside a cause
that is proven. `expect.yaml` in each folder says what must be said; tests/analyzers/test_required_verdicts.py asks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from building import NCCL, START, Run

HERE = Path(__file__).resolve().parent
CASES: dict[str, tuple[Callable[[Run], dict[str, Any]], dict[str, Any]]] = {}
SURE = ["established", "supported"]
KEY_ERROR = "KeyError: 'attention_mask'"
COLLATE = "batch = collate(records)"


def case(name: str, **layout: Any) -> Callable[[Callable[[Run], dict[str, Any]]], Callable[[Run], dict[str, Any]]]:
    """Register a function that composes one run and returns what must be said of it."""

    def register(compose: Callable[[Run], dict[str, Any]]) -> Callable[[Run], dict[str, Any]]:
        CASES[name] = (compose, layout)
        return compose

    return register


def seconds(number: float) -> timedelta:
    """So many seconds."""
    return timedelta(seconds=number)


def others_time_out(run: Run, culprit: int, began: timedelta) -> None:
    """All ranks but one run into the collective timeout."""
    for rank in range(run.size):
        if rank != culprit:
            run.watchdog(rank, began)


def key_error(run: Run, rank: int, last: timedelta) -> dict[str, Any]:
    """A plain exception on one rank, the others lose the connection; what must be said of it."""
    run.traceback(rank, KEY_ERROR, COLLATE)
    for other in range(run.size):
        if other != rank:
            run.lost_peer(other, last + seconds(4 + 0.1 * other), rank)
    return {"status": SURE, "signature": "python/uncaught-exception", "cause": "user_code", "ranks": [rank]}


# --- Xids -------------------------------------------------------------------------------------------------------------

ECC = "uncorrectable ECC error encountered"
LAUNCH = "unspecified launch failure"
NVLINK = "uncorrectable NVLink error detected during the execution"
XIDS = {
    79: ("GPU has fallen off the bus.", False, LAUNCH),
    48: (
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 0.",
        False, ECC,
    ),
    94: ("Contained: SM (0x1). RST: No, D-RST: No", True, ECC),
    95: ("Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No", False, ECC),
    63: ("Row Remapper: New row marked for remapping, reset gpu to activate.", False, ECC),
    64: ("Row Remapper: Error writing a row remapping entry to the InfoROM.", False, ECC),
    74: (
        "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        False, NVLINK,
    ),
    119: (
        "Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8).",
        True, LAUNCH,
    ),
    149: (
        "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        False, NVLINK,
    ),
}  # fmt: skip
SIGNATURES = {149: "gpu/xid-144-150", 63: "(?:gpu/xid-63|cuda/ecc-error)"}


def _xid_case(code: int) -> None:
    text, with_pid, error = XIDS[code]

    @case(f"xid-{code}")
    def fails(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(3, last + seconds(9.2), code, text, run.pid(3) if with_pid else None)
        run.cuda_error(3, last + seconds(10.4), error)
        others_time_out(run, 3, last + seconds(11))
        return {
            "status": SURE, "signature": SIGNATURES.get(code, f"gpu/xid-{code}"), "cause": "gpu", "ranks": [3],
            "nodes": ["gpu-node-08"],
        }  # fmt: skip

    @case(f"xid-{code}-yesterday")
    def old(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(3, timedelta(hours=-21), code, text, 3377 if with_pid else None)
        return key_error(run, 1, last)

    @case(f"xid-{code}-other-node")
    def elsewhere(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(3, last + seconds(9.2), code, text, 3377 if with_pid else None, node="gpu-node-33")
        others_time_out(run, -1, last + seconds(11))
        return {"not": {"cause": "gpu", "nodes": "gpu-node-33"}}


for _code in XIDS:
    _xid_case(_code)

ILLEGAL = "an illegal memory access was encountered"
FAULTS = {
    13: "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
}


def _program_fault(code: int) -> None:
    @case(f"xid-{code}-program")
    def program(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(2, last + seconds(9.2), code, FAULTS[code], run.pid(2))
        run.xid(2, last + seconds(9.6), 43, "Ch 00000008", run.pid(2))
        run.cuda_error(2, last + seconds(10.4), ILLEGAL, "out = fused_rope(q, k, cos, sin, offsets)")
        others_time_out(run, 2, last + seconds(11))
        return {
            "status": SURE, "signature": f"gpu/xid-{code}|cuda/illegal-memory-access|torch/watchdog-cuda-error",
            "cause": "user_code", "ranks": [2], "nodes": ["gpu-node-08"],
        }  # fmt: skip

    @case(f"xid-{code}-one-device")
    def device(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        for days, pid in ((-1.6, 8121), (-1.1, 12911), (-0.4, 30552)):
            run.xid(2, timedelta(days=days), code, FAULTS[code], pid)
        run.xid(2, last + seconds(9.2), code, FAULTS[code], run.pid(2))
        run.cuda_error(2, last + seconds(10.4), ILLEGAL)
        others_time_out(run, 2, last + seconds(11))
        return {"status": SURE, "signature": f"gpu/xid-{code}", "cause": "gpu", "ranks": [2], "nodes": ["gpu-node-08"]}

    @case(f"xid-{code}-yesterday")
    def old(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(2, timedelta(hours=-19), code, FAULTS[code], 8121)
        return key_error(run, 1, last)


for _code in FAULTS:
    _program_fault(_code)


@case("xid-45-after-79")
def xid_45_after_79(run: Run) -> dict[str, Any]:
    """Channels are removed on the GPU that is lost and on its neighbour."""
    last = run.begin()
    run.quiet_kernel()
    run.xid(3, last + seconds(9.2), 79, "GPU has fallen off the bus.")
    run.xid(3, last + seconds(9.5), 45, "Ch 00000010", run.pid(3))
    run.xid(2, last + seconds(11.5), 45, "Ch 00000011", run.pid(2))
    run.cuda_error(3, last + seconds(10.4), LAUNCH)
    others_time_out(run, 3, last + seconds(11))
    return {"status": SURE, "signature": "gpu/xid-79", "cause": "gpu", "ranks": [3], "nodes": ["gpu-node-08"]}


@case("xid-45-at-teardown")
def xid_45_at_teardown(run: Run) -> dict[str, Any]:
    """The driver cleans up after processes that were killed because another rank had failed."""
    last = run.begin()
    run.quiet_kernel()
    for rank in (2, 3):
        run.xid(rank, last + seconds(6), 45, "Ch 00000010", run.pid(rank))
    return key_error(run, 1, last)


@case("xid-43-after-assert")
def xid_43_after_assert(run: Run) -> dict[str, Any]:
    """A device-side assertion of the program; the driver stops the channel and says so."""
    last = run.begin()
    run.quiet_kernel()
    run.raw(
        2,
        "../aten/src/ATen/native/cuda/Indexing.cu:1237: indexSelectSmallIndex: block: [3,0,0], thread: [64,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
    )
    run.xid(2, last + seconds(9.6), 43, "Ch 00000008", run.pid(2))
    run.cuda_error(2, last + seconds(9.4), "device-side assert triggered", "hidden = self.embed(ids)")
    others_time_out(run, 2, last + seconds(11))
    return {"status": SURE, "signature": "cuda/device-side-assert", "ranks": [2], "not": {"cause": "gpu"}}


@case("xid-43-alone")
def xid_43_alone(run: Run) -> dict[str, Any]:
    """A stopped channel, timeouts everywhere, and nothing that says what came first."""
    last = run.begin()
    run.quiet_kernel()
    run.xid(2, last + seconds(612), 43, "Ch 00000008", run.pid(2))
    others_time_out(run, -1, last + seconds(11))
    return {"not": {"cause": "gpu", "signature": "gpu/.*"}}


# --- host memory ------------------------------------------------------------------------------------------------------


def _oom(run: Run, at: timedelta, pid: int, name: str, rank: int) -> None:
    usage = "total-vm:214998872kB, anon-rss:188321004kB, file-rss:74112kB, shmem-rss:12288kB"
    run.kernel(
        run.node(rank), at,
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "CPU: 34 PID: 40113 Comm: python3 Tainted: P           OE     5.15.0-113-generic #123-Ubuntu",
        f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/system.slice/slurmstepd.scope/job_5512,task={name},pid={pid},uid=1207",
        f"Out of memory: Killed process {pid} ({name}) {usage}, UID:1207 pgtables:371224kB oom_score_adj:0",
    )  # fmt: skip


@case("oom-killed-rank")
def oom_killed_rank(run: Run) -> dict[str, Any]:
    """The kernel kills a rank; it prints nothing, its peers lose the connection."""
    last = run.begin()
    run.quiet_kernel()
    _oom(run, last + seconds(14), run.pid(1), "python3", 1)
    for rank in (0, 2, 3):
        run.lost_peer(rank, last + seconds(15 + 0.1 * rank), 1)
    return {
        "status": SURE,
        "signature": "host/oom-killer",
        "cause": "host_memory",
        "ranks": [1],
        "nodes": ["gpu-node-07"],
    }


@case("oom-killed-bystander")
def oom_killed_bystander(run: Run) -> dict[str, Any]:
    """The kernel kills a process of somebody else; the job fails of its own exception."""
    last = run.begin()
    run.quiet_kernel()
    _oom(run, last - seconds(44), 2210, "java", 2)
    return key_error(run, 1, last)


def _worker_killed(run: Run, rank: int, pid: int) -> None:
    run.traceback(rank, f"RuntimeError: DataLoader worker (pid(s) {pid}) exited unexpectedly", "for batch in loader:")


@case("oom-killed-worker")
def oom_killed_worker(run: Run) -> dict[str, Any]:
    """The kernel kills a DataLoader worker; its rank raises, the others lose the connection."""
    last = run.begin()
    run.quiet_kernel()
    _oom(run, last + seconds(14), 41977, "pt_data_worker", 2)
    _worker_killed(run, 2, 41977)
    for rank in (0, 1, 3):
        run.lost_peer(rank, last + seconds(19 + 0.1 * rank), 2)
    return {
        "status": SURE,
        "signature": "host/oom-killer",
        "cause": "host_memory",
        "ranks": [2],
        "nodes": ["gpu-node-08"],
    }


@case("worker-exited-with-old-oom")
def worker_exited_with_old_oom(run: Run) -> dict[str, Any]:
    """A worker exits; the OOM kill in the kernel log is of yesterday and of another process."""
    last = run.begin()
    run.quiet_kernel()
    _oom(run, timedelta(hours=-16), 8890, "python3", 2)
    _worker_killed(run, 2, 41977)
    for rank in (0, 1, 3):
        run.lost_peer(rank, last + seconds(19 + 0.1 * rank), 2)
    return {"ranks": [2], "not": {"signature": "host/oom-killer"}}


# --- fabric and nodes -------------------------------------------------------------------------------------------------


def _completion_error(run: Run, rank: int, peer: str) -> None:
    gids = "localGid fe80::ba3f:d2ff:fe11:20a4 remoteGidsfe80::ba3f:d2ff:fe0e:91c2"
    run.nccl(
        rank, f"NET/IB : Got completion from peer {peer}<52114> with status=12 opcode=0 len=0 vendor err 129 (Recv) {gids}",
        "WARN", "transport/net_ib.cc:1909",
    )  # fmt: skip
    for place in ("transport/net.cc:1302 -> 6", "proxy.cc:698 -> 6", "proxy.cc:878 -> 6 [Progress Thread]"):
        run.nccl(rank, place)


def _remote_error(run: Run, rank: int, at: timedelta) -> None:
    error = f"NCCL error: remote process exited or there was a network error, NCCL version {NCCL.partition('+')[0]}"
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    run.torch(
        rank,
        at,
        "ProcessGroupNCCL.cpp:1896",
        f"{group} Process group watchdog thread terminated with exception: {error}",
    )
    run.raw(
        rank,
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    )


@case("ib-link-down")
def ib_link_down(run: Run) -> dict[str, Any]:
    """A link of one node goes down; the ranks of the other node get completion errors."""
    last = run.begin()
    run.quiet_kernel()
    run.kernel("gpu-node-08", last + seconds(5), "mlx5_core 0000:41:00.0 mlx5_0: Port: 1 Link DOWN")
    for rank in (0, 1):
        _completion_error(run, rank, "10.12.4.8")
        _remote_error(run, rank, last + seconds(27 + 0.2 * rank))
    for rank in (2, 3):
        run.lost_peer(rank, last + seconds(31 + 0.2 * rank), 0)
    return {
        "status": SURE,
        "signature": "host/mlx5-link-down",
        "cause": "fabric",
        "nodes": ["gpu-node-08"],
        "scope": "node",
    }


@case("ib-link-down-yesterday")
def ib_link_down_yesterday(run: Run) -> dict[str, Any]:
    """The same link, but it went down and came back yesterday."""
    last = run.begin()
    run.quiet_kernel()
    run.kernel(
        "gpu-node-08", timedelta(hours=-20),
        "mlx5_core 0000:41:00.0 mlx5_0: Port: 1 Link DOWN", "mlx5_core 0000:41:00.0 mlx5_0: Port: 1 Link ACTIVE",
    )  # fmt: skip
    return key_error(run, 1, last)


@case("node-lost", nodes=("gpu-node-07", "gpu-node-08", "gpu-node-09"))
def node_lost(run: Run) -> dict[str, Any]:
    """A node goes without a word; the ranks of all others lose their connections or time out."""
    last = run.begin()
    for rank in (0, 1, 4, 5):
        run.lost_peer(rank, last + seconds(33 + 0.1 * rank), 2)
    return {
        "status": SURE,
        "signature": "silence/node-lost",
        "cause": "node",
        "ranks": [2, 3],
        "nodes": ["gpu-node-08"],
        "scope": "node",
    }


@case("node-silent-after-exception", nodes=("gpu-node-07", "gpu-node-08", "gpu-node-09"))
def node_silent_after_exception(run: Run) -> dict[str, Any]:
    """A node's ranks end without a word because somebody else failed and the launcher took them down."""
    last = run.begin()
    run.traceback(4, KEY_ERROR, COLLATE)
    for rank in (0, 1, 5):
        run.lost_peer(rank, last + seconds(33 + 0.1 * rank), 4)
    return {"status": SURE, "signature": "python/uncaught-exception", "ranks": [4]}


# --- clocks -----------------------------------------------------------------------------------------------------------


def _later_trouble(run: Run, rank: int, at: timedelta) -> None:
    """A consequence that no signature knows as an echo: the program's own handler fails when its peers are gone."""
    run.say(rank, at, "step failed, flushing metrics")
    run.traceback(
        rank, "RuntimeError: metrics server rejected step 121: previous step is not closed", "metrics.flush()"
    )


@case("clock-20s-behind")
def clock_20s_behind(run: Run) -> dict[str, Any]:
    """The second node's clock is 20 s behind, so that its later failure carries the earlier time."""
    run.skew["gpu-node-08"] = seconds(-20)
    last = run.begin(every=3.0)
    run.say(1, last + seconds(2), "reading shard 0412")
    run.traceback(1, KEY_ERROR, COLLATE)
    run.say(1, last + seconds(2.2), "closing data loader")
    run.lost_peer(0, last + seconds(6), 1)
    _later_trouble(run, 2, last + seconds(9))
    run.lost_peer(3, last + seconds(11), 2)
    return {"status": [*SURE, "suspected"], "signature": "python/uncaught-exception", "ranks": [1], "title": "KeyError"}


@case("clock-20s-ahead")
def clock_20s_ahead(run: Run) -> dict[str, Any]:
    """The first node's clock is 20 s ahead: the same seen from the other side."""
    run.skew["gpu-node-07"] = seconds(20)
    last = run.begin(every=3.0)
    run.say(1, last + seconds(2), "reading shard 0412")
    run.traceback(1, KEY_ERROR, COLLATE)
    run.say(1, last + seconds(2.2), "closing data loader")
    run.lost_peer(0, last + seconds(6), 1)
    _later_trouble(run, 2, last + seconds(9))
    run.lost_peer(3, last + seconds(11), 2)
    return {"status": [*SURE, "suspected"], "signature": "python/uncaught-exception", "ranks": [1], "title": "KeyError"}


@case("clock-right")
def clock_right(run: Run) -> dict[str, Any]:
    """No clock is off, and the second node really failed first: no correction may turn that round."""
    last = run.begin(every=3.0)
    _later_trouble(run, 2, last + seconds(2))
    run.lost_peer(3, last + seconds(4), 2)
    run.say(1, last + seconds(22), "reading shard 0412")
    run.traceback(1, KEY_ERROR, COLLATE)
    run.say(1, last + seconds(22.2), "closing data loader")
    run.lost_peer(0, last + seconds(25), 1)
    return {"status": [*SURE, "suspected"], "ranks": [2], "title": "metrics server"}


# --- storage ----------------------------------------------------------------------------------------------------------


def _save_fails(run: Run, rank: int, last: timedelta, error: str = "iostream") -> None:
    run.say(rank, last + seconds(5), "saving checkpoint to /ckpt/llm/step_000120.pt")
    if error == "iostream":
        lines = [
            "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 941056 vs 940948",
        ]
    else:
        lines = [error]
    run.traceback(rank, lines[0], "torch.save(state, path)")
    for other in range(run.size):
        if other != rank:
            run.lost_peer(other, last + seconds(9 + 0.1 * other), rank)


def _df(run: Run, node: str, used: str, free: str, percent: str) -> None:
    run.file(
        f"{node}/df.txt",
        "Filesystem                     Size  Used Avail Use% Mounted on",
        "tmpfs                          101G  3.6M  101G   1% /run",
        "/dev/nvme0n1p2                 879G  212G  623G  26% /",
        "tmpfs                          504G  1.1G  503G   1% /dev/shm",
        f"/dev/mapper/data-ckpt          3.5T  {used}  {free} {percent} /ckpt",
    )


@case("disk-full-df")
def disk_full_df(run: Run) -> dict[str, Any]:
    """torch.save hides the reason; df of the node tells."""
    last = run.begin()
    _df(run, "gpu-node-07", "3.5T", "   0", "100%")
    _df(run, "gpu-node-08", "1.1T", "2.3T", " 33%")
    _save_fails(run, 0, last)
    return {
        "status": SURE,
        "signature": "storage/no-space-left",
        "cause": "storage",
        "ranks": [0],
        "nodes": ["gpu-node-07"],
    }


@case("disk-full-kernel")
def disk_full_kernel(run: Run) -> dict[str, Any]:
    """torch.save hides the reason; the kernel's delayed writes tell."""
    last = run.begin()
    run.quiet_kernel()
    run.kernel(
        "gpu-node-07", last + seconds(5.6),
        "EXT4-fs (dm-3): Delayed block allocation failed for inode 39321602 at logical offset 229376 with max blocks 2048 with error 28",
        "EXT4-fs (dm-3): This should not happen!! Data will be lost",
    )  # fmt: skip
    _save_fails(run, 0, last)
    return {
        "status": SURE,
        "signature": "storage/no-space-left",
        "cause": "storage",
        "ranks": [0],
        "nodes": ["gpu-node-07"],
    }


@case("disk-full-elsewhere")
def disk_full_elsewhere(run: Run) -> dict[str, Any]:
    """A full file system that the job does not write to, beside an exception that has nothing to do with it."""
    last = run.begin()
    _df(run, "gpu-node-07", "3.5T", "   0", "100%")
    run.say(1, last + seconds(2), "reading shard 0412 of /data/shards")
    return key_error(run, 1, last)


@case("quota-kernel")
def quota_kernel(run: Run) -> dict[str, Any]:
    """A parallel file system refuses writes because of a quota; torch.save only reports a short write."""
    last = run.begin()
    run.quiet_kernel()
    run.kernel(
        "gpu-node-07", last + seconds(5.6),
        "LustreError: 11-0: scratch-OST0003-osc-ff3a91c2b800: operation ost_write to node 10.31.126.88@o2ib failed: rc = -122",
    )  # fmt: skip
    _save_fails(run, 0, last, "RuntimeError: basic_ios::clear: iostream error")
    return {
        "status": SURE,
        "signature": "storage/quota-exceeded",
        "cause": "storage",
        "ranks": [0],
        "nodes": ["gpu-node-07"],
    }


@case("quota-report")
def quota_report(run: Run) -> dict[str, Any]:
    """The quota of the user, as quota(1) prints it, is used up."""
    last = run.begin()
    run.file(
        "gpu-node-07/quota.txt",
        "Disk quotas for user alice (uid 1207): ",
        "     Filesystem   space   quota   limit   grace   files   quota   limit   grace",
        "filer:/export/ckpt",
        "                  2000G*  2000G   2000G            31217       0       0        ",
    )
    _save_fails(run, 0, last, "RuntimeError: basic_ios::clear: iostream error")
    return {"status": SURE, "signature": "storage/quota-exceeded", "cause": "storage", "ranks": [0]}


@case("quota-unused")
def quota_unused(run: Run) -> dict[str, Any]:
    """Quotas far from used up say nothing."""
    last = run.begin()
    run.file(
        "gpu-node-07/quota.txt",
        "Disk quotas for user alice (uid 1207): ",
        "     Filesystem   space   quota   limit   grace   files   quota   limit   grace",
        "filer:/export/ckpt",
        "                   812G   2000G   2000G            31217       0       0        ",
    )
    return key_error(run, 1, last)


FILEID = ("NFS: server filer.cluster error: fileid changed", "fsid 0:61: expected fileid 0x6f001a2, got 0x6f00c11")


@case("stale-handle-kernel")
def stale_handle_kernel(run: Run) -> dict[str, Any]:
    """The NFS server lost the file's handle; the program only sees that its archive is broken."""
    last = run.begin()
    run.quiet_kernel()
    run.kernel(
        "gpu-node-07", last + seconds(5.4), *FILEID
    )
    _save_fails(run, 0, last, "RuntimeError: basic_ios::clear: iostream error")
    return {
        "status": SURE,
        "signature": "storage/stale-file-handle",
        "cause": "storage",
        "ranks": [0],
        "nodes": ["gpu-node-07"],
    }


@case("stale-handle-yesterday")
def stale_handle_yesterday(run: Run) -> dict[str, Any]:
    """The same message of yesterday."""
    last = run.begin()
    run.quiet_kernel()
    run.kernel(
        "gpu-node-07", timedelta(hours=-17), *FILEID
    )
    return key_error(run, 1, last)


# --- environment ------------------------------------------------------------------------------------------------------


@case("port-in-use")
def port_in_use(run: Run) -> dict[str, Any]:
    """The rendezvous port is taken on the first node; the second node's agent never finds a store."""
    stamp = f"{START:%m%d %H:%M:%S}"
    site = "/opt/conda/lib/python3.11/site-packages/torch/distributed"
    error = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    head = [
        "Traceback (most recent call last):",
        '  File "/opt/conda/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
    ]
    tail = [
        f'  File "{site}/elastic/rendezvous/static_tcp_rendezvous.py", line 66, in next_rendezvous',
        "    self._store = TCPStore(",
    ]
    run.file("gpu-node-07.log", f"W{stamp}.412000 40991 torch/distributed/run.py:793] ", *head, *tail, error)
    run.file(
        "gpu-node-08.log", f"W{stamp}.671000 38117 torch/distributed/run.py:793] ", *head, *tail,
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
    )  # fmt: skip
    return {
        "status": SURE,
        "signature": "torch/address-in-use",
        "cause": "environment",
        "scope": "launcher",
        "ranks": [],
    }


@case("port-in-use-retried")
def port_in_use_retried(run: Run) -> dict[str, Any]:
    """A metrics server finds its port taken, says so and takes the next; the job fails hours later of something else."""
    run.say(0, seconds(1.2), "metrics: OSError: [Errno 98] Address already in use (port 9100), using 9101")
    last = run.begin()
    return key_error(run, 1, last)


FOUR = ("gpu-node-07", "gpu-node-08", "gpu-node-09", "gpu-node-10")


def _collect_env(run: Run, node: str, torch: str, nccl: str, driver: str) -> None:
    run.file(
        f"{node}/collect_env.txt",
        "Collecting environment information...",
        f"PyTorch version: {torch}",
        "Is debug build: False",
        "CUDA used to build PyTorch: 12.4",
        "ROCM used to build PyTorch: N/A",
        "",
        "OS: Ubuntu 22.04.4 LTS (x86_64)",
        "Python version: 3.11.9 | packaged by conda-forge (64-bit runtime)",
        "Is CUDA available: True",
        f"Nvidia driver version: {driver}",
        "",
        "Versions of relevant libraries:",
        "[pip3] numpy==1.26.4",
        f"[pip3] nvidia-nccl-cu12=={nccl}",
        f"[pip3] torch=={torch.partition('+')[0]}",
    )


@case("version-mismatch", nodes=FOUR)
def version_mismatch(run: Run) -> dict[str, Any]:
    """One node has an older NCCL: the first communicator cannot be built, and no line says why."""
    versions = {node: "2.18.1+cuda12.1" if node == "gpu-node-09" else NCCL for node in FOUR}
    run.begin(steps=0, versions=versions)
    for node in FOUR:
        odd = node == "gpu-node-09"
        _collect_env(run, node, "2.1.2+cu121" if odd else "2.5.1+cu124", "2.18.1" if odd else "2.21.5", "550.90.07")
    for rank in range(run.size):
        run.nccl(rank, "Message truncated : received 1024 bytes instead of 256", "WARN", "bootstrap.cc:77")
        version = versions[run.node(rank)].partition("+")[0]
        error = (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
            f"internal error - please report this issue to the NCCL developers, NCCL version {version}"
        )
        run.traceback(
            rank, error, "model = DDP(model, device_ids=[local_rank])", ("ncclInternalError: Internal check failed.",)
        )
    return {
        "status": [*SURE, "suspected"], "signature": "environment/odd-one-out", "cause": "environment",
        "nodes": ["gpu-node-09"],
    }  # fmt: skip


@case("version-differs-harmlessly", nodes=FOUR)
def version_differs_harmlessly(run: Run) -> dict[str, Any]:
    """One node has another driver; the job trained on it and failed of an exception on another node."""
    last = run.begin()
    for node in FOUR:
        _collect_env(run, node, "2.5.1+cu124", "2.21.5", "535.183.01" if node == "gpu-node-09" else "550.90.07")
    return key_error(run, 1, last)


# --- stragglers -------------------------------------------------------------------------------------------------------


def _smi(run: Run, hot: int | None) -> None:
    header = (
        "index, uuid, pci.bus_id, driver_version, temperature.gpu, clocks_event_reasons.hw_slowdown, "
        "clocks_event_reasons.hw_thermal_slowdown, clocks_event_reasons.sw_thermal_slowdown, clocks.sm [MHz]"
    )
    for rank in range(run.size):
        if rank % run.each == 0:
            run.file(f"{run.node(rank)}/nvidia-smi.csv", header)
        bad = rank == hot
        active = "Active" if bad else "Not Active"
        cells = (
            rank % run.each, f"GPU-5e1f{rank:04d}-8c1a-77d2-0b1e-93ab1c5f0d{rank:02d}", f"00000000:{run.bus(rank).upper()}:00.0",
            "550.90.07", 93 if bad else 61, active, active, "Not Active", f"{405 if bad else 1980} MHz",
        )  # fmt: skip
        run.file(f"{run.node(rank)}/nvidia-smi.csv", ", ".join(map(str, cells)))


@case("thermal-straggler")
def thermal_straggler(run: Run) -> dict[str, Any]:
    """A hot GPU makes its rank so slow that the others give up waiting for it."""
    last = run.begin()
    _smi(run, hot=3)
    for rank in range(run.size):
        if rank != 3:
            run.say(rank, last + seconds(40), "step 130 loss 7.1703")
    others_time_out(run, 3, last + seconds(44))
    return {
        "status": [*SURE, "suspected"], "signature": "gpu/clocks-throttled", "cause": "gpu", "ranks": [3],
        "nodes": ["gpu-node-08"],
    }  # fmt: skip


@case("throttled-bystander")
def throttled_bystander(run: Run) -> dict[str, Any]:
    """A hot GPU, but an exception on another rank ended the job."""
    last = run.begin()
    _smi(run, hot=3)
    return key_error(run, 1, last)


def main() -> None:
    """Write all folders anew."""
    for name, (compose, layout) in CASES.items():
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        run = Run(folder / "run", **layout)
        expect = {"says": " ".join((compose.__doc__ or "").split()) or None, **compose(run)}
        run.write()
        expect = {key: value for key, value in expect.items() if value is not None}
        (folder / "expect.yaml").write_text(yaml.safe_dump(expect, sort_keys=False, width=110), encoding="utf-8")


if __name__ == "__main__":
    main()
