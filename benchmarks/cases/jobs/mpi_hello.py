"""Ranks started by mpirun; the rank comes from Open MPI's environment."""

import os
import time

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])


def pick(table, key):
    return table[key]


def main():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29905")
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    print(f"rank {RANK} of {WORLD} up", flush=True)
    for step in range(40):
        t = torch.ones(8)
        dist.all_reduce(t)
        if step % 8 == 0:
            print(f"rank {RANK} step {step}", flush=True)
        if RANK == int(os.environ.get("ODD", "-1")) and step == 20:
            if "CRASH" in os.environ:
                os.kill(os.getpid(), 11)
            pick({"en": 1, "de": 2}, "fr")
        time.sleep(0.1)
    print(f"rank {RANK} ok", flush=True)


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
