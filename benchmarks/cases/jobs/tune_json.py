"""Fine-tuning under DDP with one JSON object per log line on stdout; the rank is a field of it."""

import json
import math
import os
import sys
import time
from datetime import datetime, timedelta, timezone

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = os.environ.get("TUNE_PROFILE", "")
ODD = int(os.environ.get("TUNE_PART", "-1"))
RANK = int(os.environ.get("RANK", "0"))


def emit(event, level="info", **fields):
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    print(json.dumps({"ts": now, "level": level, "rank": RANK, "event": event, **fields}), flush=True)


def examples(count):
    g = torch.Generator().manual_seed(7 + RANK)
    for _ in range(count):
        yield torch.randn(6, 20, generator=g), torch.randn(6, 1, generator=g)


def accuracy(hits, seen):
    return hits / seen


def evaluate(model, part):
    hits = seen = 0
    with torch.no_grad():
        for x, y in part:
            hits += int(((model.module(x) > 0) == (y > 0)).sum())
            seen += len(x)
    score = torch.tensor([accuracy(hits, seen)])
    dist.all_reduce(score)
    emit("eval", score=round(score.item() / dist.get_world_size(), 4))


def check_finite(loss, step):
    if not math.isfinite(loss):
        emit("loss_not_finite", "error", step=step, loss=str(loss))
        raise ArithmeticError(f"loss is {loss} at step {step}, refusing to update")


def run(model, opt, steps):
    count = 9 if CASE == "short_part" and RANK == ODD else steps
    for step, (x, y) in enumerate(examples(count), 1):
        if CASE == "poison" and step == 14 and RANK in (ODD, ODD if ODD >= 0 else RANK):
            x = x * float("inf")
        loss = nn.functional.mse_loss(model(x), y)
        if CASE == "poison":
            check_finite(loss.item(), step)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if step % 4 == 0:
            emit("step", step=step, loss=round(loss.item(), 4))
        if CASE == "vocab_guard" and RANK == ODD and step == 15:
            emit("tokenizer checksum differs from the manifest: got 5d1e, expected 77c0; stopping", "critical")
            sys.exit(3)
        if CASE == "quit_early" and RANK == ODD and step == 15:
            os._exit(0)


@record
def main():
    config = {"lr": 0.01, "steps": 40}
    emit("config", **config)
    if CASE == "old_config":
        config["warmup"] = config["schedule"]["warmup_steps"]
    dist.init_process_group("gloo", timeout=timedelta(seconds=45))
    emit("ready", world=dist.get_world_size(), pid=os.getpid())
    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(model.parameters(), config["lr"])
    run(model, opt, config["steps"])
    evaluate(model, list(examples(0 if CASE == "no_eval_rows" and RANK == ODD else 5)))
    emit("finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
