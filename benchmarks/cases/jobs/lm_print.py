"""A small language model under DDP that speaks with bare print(): only rank 0 reports, nothing carries a rank or a time."""

import argparse
import json
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB = 61


class Corpus:
    """Random tokens; what is odd about it is said by the flags."""

    def __init__(self, rank, flags, n=4000):
        g = torch.Generator().manual_seed(100 + rank)
        self.tokens = torch.randint(0, VOCAB, (n, 17), generator=g)
        self.rank = rank
        if rank == flags.bad_label_rank:
            self.tokens[33, 9] = VOCAB

    def batches(self, size=8):
        for i in range(0, len(self.tokens), size):
            chunk = self.tokens[i : i + size]
            yield chunk[:, :-1].clamp(max=VOCAB - 1), chunk[:, 1:]


class TinyLM(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, x, y):
        h, _ = self.mix(self.tok(x))
        return nn.functional.cross_entropy(self.out(h).flatten(0, 1), y.flatten())


def save(model, step, root):
    path = os.path.join(root, f"iter_{step:07d}", "weights.pt")
    print(f"saving to {path}")
    torch.save(model.state_dict(), path)


def resume(model, path):
    with open(os.path.join(path, "manifest.json")) as f:
        manifest = json.load(f)
    print("resuming from iteration", manifest["iteration"])
    return manifest["iteration"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--pause", type=float, default=0.05)
    p.add_argument("--timeout", type=int, default=60)
    p.add_argument("--save-every", type=int, default=0)
    p.add_argument("--save-to", default="/scratch/run/ckpt")
    p.add_argument("--resume", default="")
    p.add_argument("--bad-label-rank", type=int, default=-1)
    p.add_argument("--wait-rank", type=int, default=-1)
    p.add_argument("--everyone-prints", action="store_true")
    flags = p.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=flags.timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"world {world}, vocabulary {VOCAB}")
    torch.manual_seed(0)
    raw = TinyLM()
    start = resume(raw, flags.resume) if flags.resume else 0
    model = DDP(raw)
    opt = torch.optim.AdamW(model.parameters(), 3e-3)
    shown = time.time()
    for it, (x, y) in enumerate(Corpus(rank, flags).batches(), start + 1):
        loss = model(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(flags.pause)
        if it % 5 == 0 and (rank == 0 or flags.everyone_prints):
            print(f"iter {it:4d} | loss {loss.item():.3f} | {1000 * (time.time() - shown) / 5:.0f} ms/it")
            shown = time.time()
        if flags.save_every and it % flags.save_every == 0:
            if rank == 0:
                save(raw, it, flags.save_to)
            dist.barrier()
        if rank == flags.wait_rank and it == 12:
            signal.pause()
        if it == flags.iters:
            break
    if rank == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
