"""An image classifier under DDP with progress bars on every rank and log lines in loguru's layout, without a rank."""

import os
import random
import resource
import sys
import time
from datetime import datetime, timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from tqdm import tqdm

FAULT = os.environ.get("JOB_DATA", "")
WHERE = int(os.environ.get("JOB_SHARD", "-1"))


def log(level, message):
    frame = sys._getframe(1)
    now = datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    sys.stderr.write(f"{now} | {level:<8} | __main__:{frame.f_code.co_name}:{frame.f_lineno} - {message}\n")
    sys.stderr.flush()


class Pictures(Dataset):
    def __init__(self, rank, size=640):
        self.rank, self.size = rank, size
        self.handles = []

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if self.rank == WHERE:
            if FAULT == "leak_handles":
                self.handles += [open(os.devnull) for _ in range(12)]
            if FAULT == "truncated" and i == 77:
                return decode(b"\x89PNG\r\n\x1a\n" + bytes(11))
            if FAULT == "native" and i == 77:
                import ctypes

                ctypes.string_at(8)
            if FAULT == "ragged" and i == 77:
                return torch.rand(1, 12, 14), 3
            if FAULT in ("hoard", "swell") and i % 8 == 0:
                self.handles.append(np.ones(9_000_000))
        return torch.rand(1, 12, 12), i % 10


def decode(raw):
    width, height = np.frombuffer(raw[8:16], dtype=">u4")
    return torch.from_numpy(np.frombuffer(raw[16:], dtype=np.uint8)).reshape(1, height, width), 0


def limit():
    if FAULT == "leak_handles":
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    if FAULT == "hoard":
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + 400_000_000, used + 400_000_000))


def train(rank, world, loader, model, opt, epochs):
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        bar = tqdm(loader, desc=f"epoch {epoch}", position=rank, mininterval=0.3)
        for image, label in bar:
            loss = F.cross_entropy(model(image), label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            bar.set_postfix(loss=f"{loss.item():.3f}")
            time.sleep(0.05)
        acc = torch.tensor([random.random()])
        dist.all_reduce(acc)
        log("INFO", f"epoch {epoch} val_acc={acc.item() / world:.3f}")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    log("INFO", f"host ready, pid={os.getpid()} world={world}")
    if rank == WHERE:
        limit()
    data = Pictures(rank)
    workers = int(os.environ.get("JOB_WORKERS", "0"))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(800, 10))
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    train(rank, world, loader, model, opt, epochs=int(os.environ.get("JOB_EPOCHS", "2")))
    log("SUCCESS", "training complete")


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
