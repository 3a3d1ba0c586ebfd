"""Saves with torch.distributed.checkpoint, or loads what does not fit; rich-like log lines."""

import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

HOW = os.environ.get("HOW", "")
RANK = int(os.environ["RANK"])


def note(text):
    print(f"{time.strftime('[%H:%M:%S]')} INFO     r{RANK}: {text:<60} dcp_save.py", flush=True)


class Picky(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.gate = torch.nn.Parameter(torch.zeros(width))


class FailingState(dict):
    """State of a plug-in that cannot be collected on one rank."""

    def state_dict(self):
        if str(RANK) == os.environ.get("ODD"):
            raise TimeoutError("sampler state was not delivered within 30 s")
        return {"cursor": RANK}

    def load_state_dict(self, state):
        pass


def main():
    dist.init_process_group("gloo")
    model = Picky(32)
    for step in range(1, 21):
        t = torch.ones(2)
        dist.all_reduce(t)
        time.sleep(0.05)
        if step % 5 == 0:
            note(f"step {step} loss {1 / step:.3f}")
    target = "/scratch/run/dcp"
    if HOW == "plugin":
        note("saving sharded checkpoint")
        dcp.save({"model": model.state_dict(), "sampler": FailingState()}, checkpoint_id=target)
    if HOW == "old_weights":
        if RANK == 0:
            torch.save(torch.nn.Sequential(torch.nn.Linear(32, 32)).state_dict(), "/scratch/run/old.pt")
        dist.barrier()
        model.load_state_dict(torch.load("/scratch/run/old.pt"))
    if HOW == "pickled_class":
        if RANK == 0:
            torch.save({"model": model}, "/scratch/run/whole.pt")
        dist.barrier()
        torch.load("/scratch/run/whole.pt")
    note("end")


if __name__ == "__main__":
    main()
