"""Ranks started by torch.multiprocessing.spawn, no launcher; plain prints."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WHAT = sys.argv[1] if len(sys.argv) > 1 else "fine"


def reward(scores):
    best = max(scores)
    return [s / best for s in scores]


def work(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29811")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for step in range(30):
        t = torch.ones(4) * rank
        dist.all_reduce(t)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} total {t[0].item()}", flush=True)
        if rank == 2 and step == 17 and WHAT == "raise":
            reward([])
        if rank == 2 and step == 17 and WHAT == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and step == 17 and WHAT == "exit":
            sys.exit(4)
        time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(3,), nprocs=3)
    print("all workers joined")
