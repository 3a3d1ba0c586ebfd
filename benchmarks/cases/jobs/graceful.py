"""Ranks that handle trouble themselves: collective errors are caught and wrapped, signals lead to a last checkpoint."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ODD = int(os.environ.get("ODD", "-1"))
MANNER = os.environ.get("MANNER", "")
stop = False


class PeerLost(Exception):
    """Raised where a collective fails, so that callers need not know the backend."""


def tell(level, text):
    print(f"[{time.strftime('%d/%m/%Y %H:%M:%S')}] [{level}] [gpu {os.environ['LOCAL_RANK']}] {text}", flush=True)


def on_signal(number, _frame):
    global stop
    stop = True
    tell("WARN", f"caught signal {number}, finishing the step")


def reduce(values):
    try:
        dist.all_reduce(values)
    except RuntimeError as error:
        raise PeerLost(f"all_reduce failed after {values.numel()} values") from error


def price(item):
    return {"small": 1, "large": 3}[item]


def emergency(step):
    torch.save({"step": step}, f"/scratch/run/emergency_{os.environ['RANK']}.pt")
    tell("INFO", f"emergency checkpoint at step {step} written")


def deepen(n):
    return deepen(n + 1)


def main():
    if MANNER == "signals":
        signal.signal(signal.SIGTERM, on_signal)
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("LIMIT", "30"))))
    rank = dist.get_rank()
    for step in range(1, int(os.environ.get("STEPS", "40"))):
        values = torch.randn(500)
        if rank == ODD and step == 17 and MANNER in ("wrapped", "swallowed"):
            price("medium")
        if rank == ODD and step == 17 and MANNER == "recursion":
            deepen(0)
        try:
            reduce(values)
        except PeerLost:
            if MANNER != "swallowed":
                raise
            tell("ERROR", "a peer is gone, leaving")
            emergency(step)
            return 75
        if step % 5 == 0:
            tell("INFO", f"step {step} objective {values.mean():.4f}")
        if stop:
            emergency(step)
            return 0
        time.sleep(0.1)
    tell("INFO", "finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
