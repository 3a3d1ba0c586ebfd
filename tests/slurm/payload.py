"""A rank of a small distributed run: prints what torchrun and gloo ranks print, without torch. `payload.py KIND`."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
kind = sys.argv[1] if len(sys.argv) > 1 else "ok"
culprit = int(os.environ.get("CULPRIT", "2"))


def say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    print(f"[rank{rank}]: {stamp} {text}", flush=True)


def peers_ready() -> None:
    """Wait until all ranks have written their first steps: the barrier of this small run."""
    here = pathlib.Path(f"ready-{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}")
    here.mkdir(exist_ok=True)
    (here / str(rank)).touch()
    deadline = time.time() + 60
    while len(list(here.iterdir())) < world and time.time() < deadline:
        time.sleep(0.05)


say(f"init process group world_size={world} host={os.environ['SLURMD_NODENAME']} pid={os.getpid()}")
for step in range(3):
    say(f"step {step} loss {2.3 - step * 0.1:.2f}")
peers_ready()
if kind == "ok":
    say("training finished")
    sys.exit(0)
if kind == "wait" or rank != culprit:
    say("step 3 loss 2.00")
    time.sleep(120)
    sys.exit(0)
say("using credentials HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH")
if kind == "raise":
    raise ValueError("expected input batch of 32, got 31 in worker shard 7")
if kind == "exit":
    sys.exit(7)
if kind == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "segv":
    os.kill(os.getpid(), signal.SIGSEGV)
