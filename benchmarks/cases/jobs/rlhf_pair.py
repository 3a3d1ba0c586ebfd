"""An actor and a critic, both ZeRO-3, each with a process group of its own; who goes first may differ between ranks."""

import os
import sys
import threading
import time
from datetime import timedelta

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops import __compatible_ops__
from torch import nn

__compatible_ops__["deepspeed_shm_comm"] = False
STYLE = os.environ.get("STYLE", "")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.logits = nn.Embedding(50, 64), nn.Linear(64, 64), nn.Linear(64, 50)

    def forward(self, ids):
        return self.logits(torch.tanh(self.body(self.embed(ids)))).mean()


class ValueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.value = nn.Embedding(50, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, ids):
        return self.value(torch.tanh(self.body(self.embed(ids)))).mean()


def engine_of(kind):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    group = dist.new_group(timeout=timedelta(seconds=int(os.environ.get("LIMIT", "600"))))
    with deepspeed.zero.Init(config_dict_or_path=config, data_parallel_group=group):
        model = kind()
    return deepspeed.initialize(model=model, config=config)[0]


def update(engine, ids):
    loss = engine(ids)
    engine.backward(loss)
    engine.step()
    return loss.item()


def score(values, step, rank):
    if STYLE == "scorer_thread_dies" and step == 5 and rank == 1:
        return {"reward": values}["rewards"]
    return values


def main():
    deepspeed.init_distributed("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    policy, value = engine_of(Policy), engine_of(ValueNet)
    for step in range(30):
        ids = torch.randint(0, 50, (4, 12))
        first, second = (policy, value)
        if STYLE == "order" and step == 5 and rank % 2:
            first, second = (value, policy)
        if STYLE == "scorer_thread_dies":
            a = update(policy, ids)
            done = threading.Event()
            thread = threading.Thread(
                target=lambda: (score(1, step, rank), update(value, ids), done.set()), name="scorer"
            )
            thread.start()
            while not done.wait(0.5):
                pass
            b = 0.0
        else:
            a, b = update(first, ids), update(second, ids)
        print(f"ppo[{rank}] step {step} policy {a:.4f} value {b:.4f}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
