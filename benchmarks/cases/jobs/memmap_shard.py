"""Reads token shards through memory maps in DataLoader workers; one shard is shorter than its index says."""

import logging
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ["RANK"])
logging.basicConfig(level=20, format=f"[%(asctime)s] p%(process)s {{rank {RANK}}} %(levelname)s - %(message)s")
log = logging.getLogger()


class Shard(Dataset):
    def __init__(self, path, rows=600, width=4096):
        self.map = np.memmap(path, dtype="int32", mode="r+", shape=(rows, width))

    def __len__(self):
        return len(self.map)

    def __getitem__(self, i):
        return torch.from_numpy(self.map[i, :16].astype("float32"))


def main():
    dist.init_process_group("gloo")
    path = f"/scratch/run/shard{RANK}.bin"
    with open(path, "wb") as f:
        f.truncate(600 * 4096 * 4)
    data = Shard(path)
    if str(RANK) == os.environ.get("SHORT"):
        os.truncate(path, 200 * 4096 * 4)
    log.info("opened %s with %d rows", path, len(data))
    model = DDP(torch.nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), 0.001)
    loader = DataLoader(data, batch_size=8, num_workers=int(os.environ.get("READERS", "1")))
    for step, rows in enumerate(loader):
        loss = model(rows).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            log.info("step %d loss %.3f", step, loss.item())
        time.sleep(0.05)
    log.info("end of shard")


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
