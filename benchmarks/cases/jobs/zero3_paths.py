"""ZeRO-3 over a stack of experts of which one path is taken per step; the path may change, on one rank or on all."""

import os
import time

import deepspeed
import torch
from deepspeed.ops import __compatible_ops__
from torch import nn

__compatible_ops__["deepspeed_shm_comm"] = False


class Experts(nn.Module):
    def __init__(self, width=96, paths=3):
        super().__init__()
        self.stem = nn.Linear(32, width)
        self.paths = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(paths)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x, path, shallow=False):
        h = self.stem(x)
        if shallow:
            return h.mean()
        return self.head(self.paths[path](h)).mean()


def main():
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 500000,
            "stage3_max_live_parameters": 1000000000,
            "stage3_max_reuse_distance": 1000000000,
        },
    }
    deepspeed.init_distributed("gloo")
    rank = deepspeed.comm.get_rank()
    engine, *_ = deepspeed.initialize(model=Experts(), config=config)
    switch = os.environ.get("SWITCH", "")
    for step in range(12):
        path = 0
        shallow = False
        if switch == "all" and step == 6:
            path = 2
        if switch == str(rank) and step == 6:
            shallow = True
        loss = engine(torch.randn(4, 32), path, shallow)
        engine.backward(loss)
        engine.step()
        print(f"[r{rank}] step={step} path={path} loss={loss.item():.4f}", flush=True)
        time.sleep(0.1)
    print(f"[r{rank}] training ended", flush=True)


if __name__ == "__main__":
    main()
