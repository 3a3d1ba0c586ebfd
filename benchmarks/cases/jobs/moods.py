"""Coloured logs, binary noise, saves that fail and are survived, early stopping, a read that hangs on every rank."""

import logging
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

MOOD = os.environ.get("MOOD", "")
ODD = int(os.environ.get("ODD", "-1"))
COLOURS = {"INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}


class Colour(logging.Formatter):
    def format(self, record):
        head = f"{COLOURS.get(record.levelname, '')}{record.levelname:>7}\x1b[0m \x1b[90m{time.strftime('%T')}\x1b[0m"
        text = f"{head} \x1b[1mr{os.environ['RANK']}\x1b[0m {record.getMessage()}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(Colour())
logging.basicConfig(level=20, handlers=[handler])
log = logging.getLogger("moods")


class Score:
    def __init__(self, parts):
        self.parts = parts

    def total(self):
        return sum(part.value for part in self.parts)


def save(step):
    try:
        open(f"/scratch/run/absent/{step}.pt", "wb").close()
    except OSError:
        log.exception("checkpoint at step %d failed, will try again later", step)


def noise():
    sys.stdout.flush()
    os.write(1, bytes(range(256)) * 100 + b"\n")
    print(torch.arange(12_000).tolist(), flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("LIMIT", "60"))))
    rank = dist.get_rank()
    patience = 0
    for step in range(1, 41):
        value = torch.rand(10)
        if step == 16 and rank == ODD and MOOD == "attribute":
            if os.environ.get("NOISE"):
                noise()
            Score([None]).total()
        if step == 16 and MOOD == "all_read":
            log.info("opening shard on the shared file system")
            os.read(os.pipe()[0], 1)
        if step % 10 == 0 and rank == 0 and MOOD == "flaky_save":
            save(step)
        dist.all_reduce(value)
        time.sleep(0.06)
        if step % 5 == 0:
            log.info("step %d score %.3f", step, value.mean())
        if MOOD == "early_stop":
            patience += step > 12
            if patience > 6:
                log.warning("no improvement for 6 evaluations, stopping early at step %d", step)
                break
    log.info("bye")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
