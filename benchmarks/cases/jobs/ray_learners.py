"""Three Ray actors average numbers by gloo; the driver asks for rounds."""

import logging
import os
import sys
import time

import ray
import torch
import torch.distributed as dist

logging.basicConfig(level=20, format="%(asctime)s driver %(levelname)s %(message)s")


@ray.remote(num_cpus=0.5)
class Worker:
    def __init__(self, rank, world, how):
        self.rank, self.how = rank, how
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29977")
        dist.init_process_group("gloo", rank=rank, world_size=world)
        print(f"worker rank={rank} ready", flush=True)

    def step(self, number):
        if self.rank == 2 and number == 4:
            if self.how == ["kill"]:
                os.kill(os.getpid(), 9)
            return self.normalise([])
        t = torch.ones(3)
        dist.all_reduce(t)
        print(f"worker rank={self.rank} step {number}", flush=True)
        return t.sum().item()

    def normalise(self, weights):
        return [w / sum(weights) for w in weights] or 1 / sum(weights)


def main():
    ray.init(num_cpus=2, include_dashboard=False)
    how = sys.argv[1:]
    workers = [Worker.remote(rank, 3, how) for rank in range(3)]
    for number in range(8):
        logging.info("round %d: %s", number, ray.get([w.step.remote(number) for w in workers]))
        time.sleep(0.2)
    logging.info("done %s", how)


if __name__ == "__main__":
    main()
