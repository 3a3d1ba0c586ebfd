"""Fully sharded data parallel on CPU; one rank feeds a batch of another width."""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ODD = int(os.environ.get("ODD", "-1"))


def main():
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    rank = dist.get_rank()
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(25):
        width = 31 if rank == ODD and step == 13 else 32
        loss = net(torch.randn(4, width)).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        time.sleep(0.05)
        if step % 4 == 0:
            print(f"(rank {rank}) step={step} loss={loss.item():.5f}", flush=True)
    print(f"(rank {rank}) bye", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
