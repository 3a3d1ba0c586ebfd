"""ZeRO-3 over a model whose forward takes one of several branches: the path may change after the trace is recorded."""

import os
import time

import deepspeed
import torch
from deepspeed.ops import __compatible_ops__
from torch import nn

# Without this DeepSpeed compiles its own shared-memory collectives for minutes and then bypasses gloo.
__compatible_ops__["deepspeed_shm_comm"] = False

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {
        "stage": 3,
        # toy parameters would otherwise stay resident and never be gathered
        "stage3_param_persistence_threshold": 0,
        # larger than a branch: the branch that will not come is in flight when the path changes
        "stage3_prefetch_bucket_size": 500_000,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
    },
}


class Branched(nn.Module):
    """Stem, one of three branches, head."""

    def __init__(self, width: int = 80) -> None:
        super().__init__()
        self.stem = nn.Linear(24, width)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.head(self.branches[branch](self.stem(x))).square().mean()


def main() -> None:
    deepspeed.init_distributed("gloo")
    rank = deepspeed.comm.get_rank()
    print(f"[rank {rank}] world_size={deepspeed.comm.get_world_size()} pid={os.getpid()}", flush=True)
    engine, *_ = deepspeed.initialize(model=Branched(), config=CONFIG)
    for step in range(9):
        # two steps record and freeze the trace; a changed path then leaves a prefetch that nobody waits for
        branch = 0 if os.environ["PATHS"] == "fixed" or step < 4 else 2
        loss = engine(torch.randn(2, 24), branch)
        engine.backward(loss)
        engine.step()
        print(f"[rank {rank}] step {step} branch {branch} loss {loss.item():.4f}", flush=True)
        time.sleep(0.1)
    print(f"[rank {rank}] training finished", flush=True)


if __name__ == "__main__":
    main()
