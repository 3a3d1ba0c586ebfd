"""Makes real flight-recorder dumps on one machine without GPUs: four gloo ranks, five process groups, one fault.

    python benchmarks/flight_recorder/make_gloo.py OUT FAULT...      (needs torch; a fault takes about ten seconds)

Each rank belongs to a "tensor" pair, a "data" pair and the world, and dumps when it ends.
`tests/analyzers/data/flight/gloo` was made with it (torch 2.13.0, CPU).
"""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FAULTS = {
    "healthy": "no fault",
    "keyerror": "rank 1 raises before its collectives of step 7",
    "outside": "rank 3 sleeps through step 7",
    "subgroup_outside": "rank 2 sleeps through step 7",
    "skip": "rank 1 leaves out the collectives of step 7",
}


def train(rank: int, fault: str, dist: Any, pairs: list[Any], ones: Any) -> None:
    """Twelve steps of three all-reduces."""
    for step in range(12):
        at_fault = step == 7
        if at_fault and (fault, rank) in (("outside", 3), ("subgroup_outside", 2)):
            time.sleep(9)
            raise RuntimeError("slow")
        if at_fault and (fault, rank) == ("keyerror", 1):
            raise KeyError("labels")
        if at_fault and (fault, rank) == ("skip", 1):
            continue
        for group in pairs:
            dist.all_reduce(ones, group=group)
        dist.all_reduce(ones)


def rank_main(rank: int, fault: str, out: Path) -> None:
    import torch
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=6)
    dist.init_process_group("gloo", rank=rank, world_size=4, timeout=timeout)
    groups = {members: dist.new_group(list(members), timeout=timeout) for members in ((0, 1), (2, 3), (0, 2), (1, 3))}
    try:
        train(rank, fault, dist, [group for members, group in groups.items() if rank in members], torch.ones(100))
    except Exception as error:
        print(rank, type(error).__name__, str(error)[:100], flush=True)
    (out / f"rank{rank}.json").write_bytes(torch._C._distributed_c10d._dump_fr_trace_json())
    os._exit(0)


def main() -> None:
    out, faults = Path(sys.argv[1]), sys.argv[2:]
    if len(faults) == 2 and faults[1].isdigit():
        return rank_main(int(faults[1]), faults[0], out)
    for fault in faults or FAULTS:
        (out / fault).mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_FR_BUFFER_SIZE": "2000"}
        env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(out / fault), fault, str(r)], env=env) for r in range(4)
        ]
        for process in ranks:
            process.wait(60)
    return None


if __name__ == "__main__":
    main()
