"""Blocks of which the required cases are composed: logs of ranks, kernel logs, states of GPUs, in the tools' wording.

Decision: no machine here has a GPU, so these evidences are re-typed faithfully: every line has the form that the driver,
NCCL, torch or the kernel prints (versions in the constants), only names, times and numbers are invented. The composed
folders are committed; `python tests/required/compose.py` writes them anew.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 11, 20, 8, 11, 0, tzinfo=UTC)
BUSES = ("1b", "43", "9b", "c3")
SITE = "/opt/conda/lib/python3.11/site-packages"
TIMEOUT = timedelta(milliseconds=600_000)
NCCL = "2.21.5+cuda12.4"


class Run:
    """The folder of one run: `logs/rankN.log`, and a folder for each node."""

    def __init__(self, root: Path, nodes: tuple[str, ...] = ("gpu-node-07", "gpu-node-08"), each: int = 2) -> None:
        self.root, self.nodes, self.each = root, nodes, each
        self.size = len(nodes) * each
        self.skew: dict[str, timedelta] = {}
        """What a node's clock is ahead."""
        self.uptime = False
        """Kernel logs with seconds since boot, as dmesg prints them by default."""
        self.logs: dict[int, list[str]] = {rank: [] for rank in range(self.size)}
        self.files: dict[str, list[str]] = {}

    def node(self, rank: int) -> str:
        """The node of a rank."""
        return self.nodes[rank // self.each]

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return 41230 + 1000 * (rank // self.each) + rank % self.each

    def bus(self, rank: int) -> str:
        """PCI bus of a rank's GPU."""
        return BUSES[rank % self.each]

    def shown(self, node: str, at: timedelta) -> datetime:
        """What the clock of a node shows `at` after the start."""
        return START + at + self.skew.get(node, timedelta())

    def say(self, rank: int, at: timedelta, text: str) -> None:
        """A line of the training script's own logger."""
        moment = self.shown(self.node(rank), at)
        stamp = f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"
        self.logs[rank].append(f"{stamp} [rank{rank}] INFO {text}")

    def raw(self, rank: int, *lines: str) -> None:
        """Lines as they are."""
        self.logs[rank] += lines

    def torch(self, rank: int, at: timedelta, place: str, text: str, level: str = "E") -> None:
        """A line of torch's C++ logger (2.4 and later)."""
        moment = self.shown(self.node(rank), at)
        stamp = f"{level}{moment:%m%d %H:%M:%S}.{moment.microsecond:06d}{rank * 37 + 104:03d}"
        self.logs[rank].append(f"[rank{rank}]:[{stamp} {place}] {text}")

    def nccl(self, rank: int, text: str, level: str = "INFO", place: str = "") -> None:
        """A line of NCCL."""
        where = f"{place} NCCL WARN" if level == "WARN" else "NCCL INFO"
        front = f"{self.node(rank)}:{self.pid(rank)}:{self.pid(rank) + 300} [{rank % self.each}] "
        self.logs[rank].append(front + f"{where} {text}")

    def begin(self, steps: int = 12, versions: dict[str, str] | None = None, every: float = 40.0) -> timedelta:
        """Start-up and healthy steps of all ranks; the moment of the last step."""
        for rank in range(self.size):
            node = self.node(rank)
            at = timedelta(seconds=2.1 + 0.07 * rank)
            local = rank % self.each
            self.say(rank, at, f"world_size={self.size} local_rank={local} host={node} pid={self.pid(rank)}")
            self.nccl(rank, f"Bootstrap : Using eth0:10.12.4.{7 + rank // self.each}<0>")
            version = (versions or {}).get(node, NCCL)
            if local == 0:
                self.raw(rank, f"NCCL version {version}")
            self.nccl(rank, "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.12.4.7<0>")
            comm = f"comm 0x55d1c3f0{rank:02x} rank {rank} nranks {self.size} cudaDev {local} nvmlDev {local}"
            self.nccl(rank, f"ncclCommInitRank {comm} busId {self.bus(rank)}000 commId 0x8f1cd25e - Init COMPLETE")
        last = timedelta()
        for step in range(1, steps + 1):
            last = timedelta(seconds=20 + step * every)
            for rank in range(self.size):
                loss = 11.2 - 0.31 * step
                self.say(rank, last + timedelta(milliseconds=3 * rank), f"step {step * 10} loss {loss:.4f}")
        return last

    def watchdog(self, rank: int, began: timedelta, seq: int = 1580, completed: int = 1579) -> None:
        """A collective that began at `began` times out on this rank."""
        at = began + TIMEOUT + timedelta(milliseconds=61 + 13 * rank)
        ran = 600_061 + 13 * rank
        work = f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=13107200, NumelOut=13107200, Timeout(ms)=600000)"
        timeout = f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {ran} milliseconds"
        group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        counts = f"last enqueued NCCL work: {seq + 2}, last completed NCCL work: {completed}."
        self.torch(rank, at, "ProcessGroupNCCL.cpp:632", f"{timeout} before timing out.")
        detected = "Exception (either an error or timeout) detected by watchdog at work:"
        self.torch(rank, at, "ProcessGroupNCCL.cpp:1879", f"{group} {detected} {seq}, {counts}")
        late = at + timedelta(milliseconds=400)
        self.torch(
            rank, late, "ProcessGroupNCCL.cpp:684",
            f"[Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
            "kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        )  # fmt: skip
        down = f"[Rank {rank}] To avoid data inconsistency, we are taking the entire process down."
        self.torch(rank, late, "ProcessGroupNCCL.cpp:698", down)
        ended = f"{group} Process group watchdog thread terminated with exception: {timeout} before timing out."
        self.torch(rank, late, "ProcessGroupNCCL.cpp:1896", ended)
        self.raw(
            rank,
            "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 "
            "(most recent call first):",
            f"frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f3a1c in {SITE}/torch/lib/libc10.so)",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            f"  what():  {ended}",
        )

    def cuda_error(self, rank: int, at: timedelta, error: str, where: str = "loss.backward()") -> None:
        """The rank's own GPU fails: watchdog, then the traceback of the main thread."""
        group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        died = f"{group} Process group watchdog thread terminated with exception: CUDA error: {error}"
        self.torch(rank, at, "ProcessGroupNCCL.cpp:1896", died)
        hint = "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
        self.raw(
            rank, hint, "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", "",
        )  # fmt: skip
        self.traceback(rank, f"torch.AcceleratorError: CUDA error: {error}", where, extra=(hint,))

    def traceback(self, rank: int, error: str, where: str = "loss.backward()", extra: tuple[str, ...] = ()) -> None:
        """An uncaught exception of the training script, as torch's excepthook prints it."""
        lines = [
            "Traceback (most recent call last):",
            '  File "/home/alice/llm/train.py", line 214, in <module>',
            "    main()",
            '  File "/home/alice/llm/train.py", line 168, in main',
            f"    {where}",
        ]
        if where == "loss.backward()":
            lines += [
                f'  File "{SITE}/torch/_tensor.py", line 626, in backward',
                "    torch.autograd.backward(",
                f'  File "{SITE}/torch/autograd/__init__.py", line 347, in backward',
                "    _engine_run_backward(",
            ]
        lines += [error, *extra]
        self.raw(rank, *(f"[rank{rank}]: {line}" for line in lines))

    def lost_peer(self, rank: int, at: timedelta, peer: int) -> None:
        """NCCL notices that the process at the other end is gone."""
        address = f"10.12.4.{7 + peer // self.each}<41{rank:02d}8>"
        self.nccl(
            rank,
            f"socketProgress: Connection closed by remote peer {self.node(peer)}<{address}",
            "WARN",
            "misc/socket.cc:58",
        )
        group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        error = f"NCCL error: remote process exited or there was a network error, NCCL version {NCCL.partition('+')[0]}"
        self.torch(
            rank, at, "ProcessGroupNCCL.cpp:1896",
            f"{group} Process group watchdog thread terminated with exception: {error}",
        )  # fmt: skip
        self.raw(
            rank,
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
        )

    def kernel(self, node: str, at: timedelta, *messages: str) -> None:
        """Lines of `dmesg --time-format iso` of a node."""
        moment = self.shown(node, at)
        stamp = f"{moment:%Y-%m-%dT%H:%M:%S},{moment.microsecond:06d}+00:00"
        if self.uptime:
            stamp = f"[{(at + timedelta(days=2)).total_seconds():12.6f}]"
        self.files.setdefault(f"{node}/dmesg.txt", []).extend(f"{stamp} {message}" for message in messages)

    def quiet_kernel(self) -> None:
        """What every kernel log has besides: messages of the boot, two days before."""
        for node in self.nodes:
            self.kernel(
                node, timedelta(days=-2),
                "Linux version 5.15.0-113-generic (buildd@lcy02-amd64-072) (gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0, GNU ld 2.38) #123-Ubuntu SMP",
                "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024",
                "nvidia-uvm: Loaded the UVM driver, major device number 511.",
            )  # fmt: skip

    def xid(
        self, rank: int, at: timedelta, code: int, text: str, pid: int | None = None, node: str | None = None
    ) -> None:
        """An Xid on the GPU of a rank (or on the same bus of another node)."""
        who = f"pid='{pid}', name=python3" if pid else "pid='<unknown>', name=<unknown>"
        if code >= 144:
            who = ""
        self.kernel(
            node or self.node(rank),
            at,
            f"NVRM: Xid (PCI:0000:{self.bus(rank)}:00): {code}, {who}{', ' * bool(who)}{text}",
        )

    def file(self, path: str, *lines: str) -> None:
        """A file of any other kind."""
        self.files.setdefault(path, []).extend(lines)

    def write(self) -> None:
        """Write everything below `root`."""
        logs = {f"logs/rank{rank}.log": lines for rank, lines in self.logs.items() if lines}
        for path, lines in {**logs, **self.files}.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("\n".join(lines) + "\n", encoding="utf-8")
