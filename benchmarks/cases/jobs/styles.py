"""One small training loop behind five ways that tracebacks reach a console: rich, loguru, hydra, faulthandler, plain."""

import faulthandler
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

STYLE = os.environ.get("STYLE", "plain")
ODD = int(os.environ.get("ODD", "-1"))
EVENT = os.environ.get("EVENT", "")


def whiten(rows):
    """Whitening needs a matrix of full rank."""
    return np.linalg.inv(rows.T @ rows)


def read_text(path):
    return Path(path).read_text(encoding="utf-8")


def lookup(table, names):
    return [table[name] for name in names]


def incident(rank, step, say):
    if rank != ODD or step != 14:
        return
    if EVENT == "singular":
        whiten(np.zeros((4, 3)))
    if EVENT == "undecodable":
        Path("/scratch/run/vocab.txt").write_bytes(b"caf\xe9\n")
        read_text("/scratch/run/vocab.txt")
    if EVENT == "missing_key":
        lookup({"speed": 1}, ["speed", "height"])
    if EVENT == "freeze":
        say("syncing scratch directory")
        os.read(os.pipe()[0], 1)
    if EVENT == "deep":
        lookup(*[[]] * 3)


def loop(say):
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("LIMIT", "40"))))
    rank = dist.get_rank()
    weights = torch.zeros(16)
    for step in range(1, 31):
        grad = torch.randn(16)
        incident(rank, step, say)
        dist.all_reduce(grad)
        weights -= 0.1 * grad
        time.sleep(0.05)
        if step % 5 == 0:
            say(f"step {step}: |w| = {weights.norm():.3f}")
        if step == 20 and EVENT == "late_upload":
            break
    dist.barrier()
    say("training finished")
    if EVENT == "late_upload" and rank == ODD:
        import urllib.request

        urllib.request.urlopen("http://127.0.0.1:9/api/models", timeout=2)


def with_rich():
    from rich.console import Console
    from rich.traceback import install

    install(show_locals=False, width=110)
    console = Console(width=110)
    loop(lambda text: console.log(text))


def with_loguru():
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, format="{time:YYYY-MM-DD HH:mm:ss.SSS} | {level: <8} | {name}:{function}:{line} - {message}")

    @logger.catch(reraise=os.environ.get("RERAISE") == "1", onerror=lambda _: sys.exit(1))
    def run():
        loop(logger.info)

    run()


def with_hydra():
    import hydra

    sys.argv += ["hydra.run.dir=/scratch/run/hydra", "hydra.output_subdir=null"]

    @hydra.main(version_base=None, config_path=None)
    def run(_config):
        loop(print)

    run()


def with_faulthandler():
    faulthandler.dump_traceback_later(25, exit=True)
    rank = os.environ["RANK"]
    loop(lambda text: print(f"<{rank}> {text}", flush=True))


def plain():
    rank = os.environ["RANK"]
    loop(lambda text: print(f"{time.strftime('%b %d %H:%M:%S')} worker{rank}: {text}", flush=True))


if __name__ == "__main__":
    {"rich": with_rich, "loguru": with_loguru, "hydra": with_hydra, "faulthandler": with_faulthandler, "plain": plain}[
        STYLE
    ]()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
