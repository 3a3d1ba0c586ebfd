"""A job that needs a compiled extension; the log lines have the layout of absl."""

import os
import sys
import time

if os.environ.get("BROKEN_ON") in ("all", os.environ.get("NODE")):
    sys.modules["numpy"] = None

import numpy as np
import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    for step in range(1, 40):
        value = torch.tensor(np.float32(step))
        dist.all_reduce(value)
        if step % 10 == 0:
            stamp = time.strftime("%m%d %H:%M:%S")
            print(
                f"I{stamp}.000000 {os.getpid()} imports_fused.py:23] step {step} sum {value.item():.0f}",
                file=sys.stderr,
            )
        time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
