"""Storage, environment and stragglers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from building import NCCL, START, Run
from registry import SURE, case, key_error, others_time_out, seconds


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
    run.kernel("gpu-node-07", last + seconds(5.4), *FILEID)
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
    run.kernel("gpu-node-07", timedelta(hours=-17), *FILEID)
    return key_error(run, 1, last)


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
