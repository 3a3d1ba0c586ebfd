"""Host memory, fabric, lost nodes and clocks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from building import NCCL, Run
from registry import COLLATE, KEY_ERROR, SURE, case, key_error, seconds


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
