"""An actor and a critic under ZeRO-3 in one process per rank: who gathers first may differ, or somebody may be gone.

CASE: order (odd ranks run the critic first), threads (two threads and a lock, taken in another order), rank_dies and
thread_dies (the look-alikes: the other ranks wait in the same gather, but for one that is dead), serial (healthy).
"""

import os
import threading
import time
from datetime import timedelta
from multiprocessing import get_context

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops import __compatible_ops__
from torch import nn

__compatible_ops__["deepspeed_shm_comm"] = False
CASE = os.environ["CASE"]
TURN = 3
"""The step from which the case differs from the healthy one."""
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


class ActorModel(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.out = nn.Embedding(40, 56), nn.Linear(56, 56), nn.Linear(56, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.mix(self.table(ids)))).logsumexp(-1).mean()


class CriticModel(nn.Module):
    """Tokens to one value each."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.out = nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.mix(self.table(ids)))).square().mean()


def engine_of(kind: type[nn.Module]) -> deepspeed.DeepSpeedEngine:
    """One engine with a process group of its own: gloo would pair up gathers of different models in a shared one."""
    group = dist.new_group(timeout=timedelta(minutes=20))
    with deepspeed.zero.Init(config_dict_or_path=CONFIG, data_parallel_group=group):
        model = kind()
    return deepspeed.initialize(model=model, config=CONFIG)[0]


def samples(rank: int, step: int) -> torch.Tensor:
    """The rollouts of a step; on rank 1 the filter may leave none."""
    ids = torch.randint(0, 40, (2, 10))
    if CASE in ("rank_dies", "thread_dies") and step == TURN and rank == 1:
        kept = ids[:0]
        raise ValueError(f"no rollout is left for step {step}: kept {kept.shape[0]} of {ids.shape[0]}")
    return ids


def overlapped(rank: int, actor: nn.Module, critic: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Both forwards in threads of their own, one at a time; which one is first depends on the rank."""
    losses: dict[str, torch.Tensor] = {}
    turn = threading.Lock()

    def run(name: str, engine: nn.Module, delay: float) -> None:
        time.sleep(delay)
        with turn:
            losses[name] = engine(ids)

    first = rank % 2
    threads = [
        threading.Thread(target=run, args=("actor", actor, 0.4 * first), name="actor-forward"),
        threading.Thread(target=run, args=("critic", critic, 0.4 * (1 - first)), name="critic-forward"),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return losses


def in_thread(rank: int, step: int, critic: nn.Module) -> torch.Tensor:
    """The critic in a thread of its own, which the main thread waits for even if it is dead."""
    losses: list[torch.Tensor] = []
    done = threading.Event()

    def run() -> None:
        losses.append(critic(samples(rank, step)))
        done.set()

    threading.Thread(target=run, name="critic-forward").start()
    while not done.wait(1.0):
        pass
    return losses[0]


def step_losses(rank: int, step: int, actor: nn.Module, critic: nn.Module) -> dict[str, torch.Tensor]:
    """The losses of one step, computed in the way of the case."""
    if CASE == "thread_dies":
        return {"actor": actor(torch.randint(0, 40, (2, 10))), "critic": in_thread(rank, step, critic)}
    if CASE == "rank_dies":
        return {"actor": actor(torch.randint(0, 40, (2, 10))), "critic": critic(samples(rank, step))}
    ids = samples(rank, step)
    if CASE == "threads" and step >= TURN:
        return overlapped(rank, actor, critic, ids)
    if CASE == "order" and step >= TURN and rank % 2:
        value = critic(ids)
        return {"actor": actor(ids), "critic": value}
    return {"actor": actor(ids), "critic": critic(ids)}


def main() -> None:
    deepspeed.init_distributed("gloo", timeout=timedelta(minutes=20))
    rank = dist.get_rank()
    print(f"[rank {rank}] world_size={dist.get_world_size()} pid={os.getpid()}", flush=True)
    actor, critic = engine_of(ActorModel), engine_of(CriticModel)
    if CASE == "rank_dies":
        # A feeder that outlives its parent keeps the sockets open, so the peers hang instead of getting a reset.
        get_context("fork").Process(target=time.sleep, args=(600,), daemon=False).start()
    for step in range(8):
        print(f"[rank {rank}] step {step} rollouts ready", flush=True)
        losses = step_losses(rank, step, actor, critic)
        for name, engine in (("actor", actor), ("critic", critic)):
            engine.backward(losses[name])
            engine.step()
        shown = " ".join(f"{name} {loss.item():.4f}" for name, loss in losses.items())
        print(f"[rank {rank}] step {step} done {shown}", flush=True)
    print(f"[rank {rank}] training finished", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        # a program that ends by itself waits for its children; this one leaves as a killed one would
        import traceback

        traceback.print_exc()
        os._exit(1)
