"""Hand-written data parallelism: gradients are averaged by explicit collectives, and so can be averaged wrongly."""

import fcntl
import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

MODE = os.environ.get("SYNC", "")
ODD = int(os.environ.get("SYNC_RANK", "-1"))
LIMIT = int(os.environ.get("SYNC_TIMEOUT", "15"))


def average(grads):
    flat = torch.cat([g.flatten() for g in grads])
    if MODE == "dtype" and dist.get_rank() == ODD:
        flat = flat.double()
    dist.all_reduce(flat)
    return flat / dist.get_world_size()


def clip(norm, log):
    """Global gradient norm; a rank that leaves early leaves the others alone in it."""
    if MODE == "skip_clip" and dist.get_rank() == ODD and norm > 0:
        log.info("gradient norm %.3f below threshold, clipping not needed", norm)
        return norm
    total = torch.tensor([norm])
    dist.all_reduce(total)
    return total.item()


def gather_metrics(step):
    size = 5 if MODE == "ragged_gather" and dist.get_rank() == ODD else 4
    mine = torch.full((size,), float(step))
    parts = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts).mean().item()


def refresh_cache(log):
    log.info("refreshing dataset cache")
    with open("/scratch/run/cache.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        time.sleep(0.1)


def publish(log):
    """Rank 0 announces the new weights; every rank has to take part."""
    version = torch.zeros(1)
    if MODE == "lonely_broadcast" and dist.get_rank() == ODD:
        dist.broadcast(version, src=0)
        log.info("weights published")


def main():
    rank = int(os.environ["RANK"])
    form = os.environ.get("SYNC_FORMAT", "%(levelname)s:%(name)s:[{rank}/{world}] %(message)s")
    logging.basicConfig(level=logging.INFO, format=form.format(rank=rank, world=os.environ["WORLD_SIZE"]))
    log = logging.getLogger("trainer")
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    log.info("joined")
    torch.manual_seed(rank)
    weight = torch.randn(200, 10, requires_grad=True)
    for step in range(1, 31):
        x = torch.randn(16, 200)
        if MODE == "slow_io" and rank == ODD and step == 12:
            log.info("reading shard 12 from the object store")
            time.sleep(3600)
        loss = (x @ weight).square().mean()
        (grad,) = torch.autograd.grad(loss, weight)
        if step >= 8 and MODE == "skip_clip":
            clip(grad.norm().item(), log)
        mean = average([grad])
        with torch.no_grad():
            weight -= 0.01 * mean.to(weight.dtype).reshape(weight.shape)
        time.sleep(0.1)
        if step % 3 == 0:
            log.info("step %d loss %.2f", step, loss.item())
        if step == 12 and MODE == "locked" and rank == ODD:
            refresh_cache(log)
        if step == 12 and MODE == "ragged_gather":
            gather_metrics(step)
        if step == 12 and MODE == "checkpoint_barrier":
            if rank == ODD:
                log.info("compacting replay buffer")
                time.sleep(LIMIT + 25)
            dist.monitored_barrier(timeout=timedelta(seconds=LIMIT), wait_all_ranks=True)
        if step == 12 and MODE == "lonely_broadcast":
            publish(log)
    log.info("all steps done")


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
