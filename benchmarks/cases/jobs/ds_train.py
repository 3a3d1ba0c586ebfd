"""DeepSpeed ZeRO on CPU, started by the deepspeed launcher; log lines by DeepSpeed's own logger and print()."""

import argparse
import os
import sys
import time

import deepspeed
import torch
from deepspeed.ops import __compatible_ops__
from torch import nn

__compatible_ops__["deepspeed_shm_comm"] = False


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(40, 160), nn.Linear(160, 160), nn.Linear(160, 1)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def advantage(values, rank, step):
    if rank == int(os.environ.get("ODD", "-1")) and step == 7:
        values = values[:0]
    return values - values.max()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--local_rank", type=int, default=-1)
    p.add_argument("--stage", type=int, default=3)
    p.add_argument("--load", default="")
    p.add_argument("--steps", type=int, default=20)
    args = p.parse_args()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
        "steps_per_print": 5,
    }
    deepspeed.init_distributed("gloo")
    rank = deepspeed.comm.get_rank()
    engine, *_ = deepspeed.initialize(model=Mlp(), config=config)
    if args.load:
        path, _ = engine.load_checkpoint(args.load)
        if path is None:
            raise SystemExit(f"no checkpoint under {args.load}")
    for step in range(args.steps):
        value = engine(torch.randn(4, 40))
        loss = -advantage(value, rank, step).mean()
        engine.backward(loss)
        engine.step()
        if os.environ.get("SLEEPY") == str(rank) and step == 9:
            time.sleep(3600)
        if step % 3 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.1)
    if os.environ.get("SAVE"):
        engine.save_checkpoint(os.environ["SAVE"])
    print(f"rank {rank} finished", flush=True)


if __name__ == "__main__":
    sys.exit(main())
