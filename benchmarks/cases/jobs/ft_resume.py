"""Training that resumes after torchrun restarts it; `print` with a wall clock, the rank as `rank=`."""

import os
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

WORK = os.environ.get("WORK", "/scratch/run")
PLAN = os.environ.get("PLAN", "")
ODD = int(os.environ.get("PLAN_RANK", "-1"))


def say(text):
    print(f"{time.strftime('%H:%M:%S')} rank={os.environ['RANK']} {text}", flush=True)


def acquire_run_lock():
    """One writer per run; a crashed attempt leaves its lock behind."""
    fd = os.open(f"{WORK}/run.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, str(os.getpid()).encode())


def load_shard(rank, index):
    path = f"{WORK}/shards/part-{rank:02d}-{index:03d}.npy"
    return torch.from_numpy(np.load(path))


def write_shards(world):
    os.makedirs(f"{WORK}/shards", exist_ok=True)
    for rank in range(world):
        for index in range(6):
            path = f"{WORK}/shards/part-{rank:02d}-{index:03d}.npy"
            if not os.path.exists(path):
                np.save(path, np.random.default_rng(index).normal(size=(64, 12)).astype("float32"))
    if PLAN.startswith("lost_shard") and ODD >= 0:
        os.remove(f"{WORK}/shards/part-{ODD:02d}-003.npy")


def export(model, rank, step):
    """Every rank writes its own optimizer shard."""
    target = os.environ.get("EXPORT")
    if target:
        np.save(f"{target}/opt-{rank}-{step}.npy", np.zeros(200_000 if rank == ODD else 1000))
        say(f"exported step {step}")


def join(attempt):
    """gloo finds the dead attempt's keys in torchrun's store; a port of its own per attempt avoids that."""
    port = int(os.environ.get("FRESH_PORT", "0"))
    limit = timedelta(seconds=40)
    if not port:
        return dist.init_process_group("gloo", timeout=limit)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", port + attempt, world, is_master=rank == 0, timeout=limit)
    return dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)


@record
def main():
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    join(attempt)
    rank, world = dist.get_rank(), dist.get_world_size()
    say(f"attempt {attempt} pid {os.getpid()}")
    if rank == 0 and PLAN == "lost_shard" and "NO_LOCK" not in os.environ:
        acquire_run_lock()
    if rank == 0 and not (PLAN == "lost_shard_once" and attempt):
        write_shards(world)
    elif rank == 0:
        write_missing(world)
    dist.barrier()
    model = DDP(torch.nn.Linear(12, 1))
    opt = torch.optim.SGD(model.parameters(), 0.01)
    step = 0
    for index in range(6):
        rows = load_shard(rank, index)
        for batch in rows.split(8):
            loss = model(batch).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            time.sleep(0.04)
        say(f"shard {index} step {step} loss {loss.item():.4f}")
        if PLAN == "flaky_exit" and rank == ODD and index == 2 and attempt == 0:
            say("CUDA-free worker asked to stop by preflight check")
            sys.exit(17)
        if PLAN == "second_trouble" and rank == ODD and index == 3 and attempt == 1:
            rows.view(7, -1)
        export(model, rank, step)
    say("run complete")
    dist.destroy_process_group()


def write_missing(world):
    say("restoring missing shards")
    np.save(f"{WORK}/shards/part-{ODD:02d}-003.npy", np.zeros((64, 12), dtype="float32"))


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
