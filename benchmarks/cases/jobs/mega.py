"""Data-parallel pretraining whose console looks like Megatron's: only the last rank reports, with many fields a line."""

import datetime
import logging
import os
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

TROUBLE = os.environ.get("TROUBLE", "")
ODD = int(os.environ.get("TROUBLE_RANK", "-1"))
LIMIT = int(os.environ.get("LIMIT", "20"))


def print_rank_last(message):
    if dist.get_rank() == dist.get_world_size() - 1:
        print(message, flush=True)


def print_rank_0(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


class Blend(Dataset):
    def __init__(self, rank):
        self.odd = rank == ODD

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        if self.odd and i == 88 and TROUBLE == "loader_stall":
            time.sleep(3600)
        return torch.randn(24)


def prefetch(loader, box, odd):
    for number, rows in enumerate(loader):
        if odd and number == 14 and TROUBLE == "prefetch_dies":
            rows = rows.view(-1, 23)
        box.put(rows)


def batches(rank):
    loader = DataLoader(
        Blend(rank),
        batch_size=8,
        num_workers=1 if TROUBLE == "loader_stall" else 0,
        timeout=5 if TROUBLE == "loader_stall" else 0,
    )
    if TROUBLE != "prefetch_dies":
        yield from loader
    box = queue.Queue(2)
    threading.Thread(target=prefetch, args=(loader, box, rank == ODD), daemon=True, name="prefetcher").start()
    while True:
        yield box.get()


class StepFailed(Exception):
    pass


def parse_weight(text):
    return float(text)


def train_step(model, opt, rows, rank, iteration):
    if TROUBLE == "chained" and rank == ODD and iteration == 14:
        try:
            parse_weight("0.5,")
        except ValueError as error:
            raise StepFailed(f"iteration {iteration} could not be completed") from error
    if TROUBLE == "bare_assert" and rank == ODD and iteration == 14:
        assert rows.shape[0] == 16
    loss = model(rows).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def validate(rank):
    print_rank_0("running validation on 1 rank")
    if rank == ODD:
        time.sleep(LIMIT + 30)


def train(rank, world):
    model = DDP(torch.nn.Linear(24, 24))
    opt = torch.optim.Adam(model.parameters())
    start = time.time()
    for iteration, rows in enumerate(batches(rank), 1):
        loss = train_step(model, opt, rows, rank, iteration)
        time.sleep(0.05)
        if iteration % 5 == 0:
            now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
            spent = 1000 * (time.time() - start) / 5
            print_rank_last(
                f" [{now}] iteration {iteration:8d}/     500 | consumed samples: {iteration * 8 * world:12d} | elapsed time per"
                f" iteration (ms): {spent:.1f} | learning rate: 1.000000E-04 | global batch size: {8 * world:5d} | lm loss:"
                f" {loss:.6E} | grad norm: 1.204 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
            start = time.time()
        if iteration == 15 and TROUBLE == "lonely_validation":
            validate(rank)
        if iteration == 60 and TROUBLE != "endless":
            break


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT))
    rank, world = dist.get_rank(), dist.get_world_size()
    print_rank_0(f"using world size: {world}, data-parallel size: {world}, tensor-model-parallel size: 1")
    print_rank_0(
        "------------------------ arguments ------------------------\n  exit_on_missing_checkpoint ...... False"
    )
    if TROUBLE == "indivisible":
        micro, total = 4, 50
        assert total % (micro * world) == 0, (
            f"global batch size ({total}) is not divisible by micro batch size ({micro}) times data parallel size ({world})"
        )
    try:
        train(rank, world)
    except Exception:
        if TROUBLE != "chained":
            raise
        logging.getLogger("pretrain").exception("training stopped on this rank")
        sys.exit(1)
    print_rank_0("[after training is done] exiting program")


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
