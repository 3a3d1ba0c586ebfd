"""Asks for what this machine does not have."""

import os
import sys

import torch
import torch.distributed as dist


def main():
    if sys.argv[1] == "nccl":
        dist.init_process_group("nccl")
        dist.barrier()
    if sys.argv[1] == "cuda":
        dist.init_process_group("gloo")
        torch.nn.Linear(4, 4).cuda()
    if sys.argv[1] == "fused":
        dist.init_process_group("gloo")
        os.execv("/opt/train/bin/nvcc-wrapper", ["nvcc-wrapper", "--version"])


if __name__ == "__main__":
    main()
