"""A healthy run that talks of errors, retries and exceptions all the time, and says so in several loggers."""

import logging
import os
import time
import traceback
import warnings

import torch
import torch.distributed as dist

logging.basicConfig(format="%(asctime)s,%(name)s,%(levelname)s,r{}: %(message)s".format(os.environ["RANK"]), level=20)
log = logging.getLogger("job")


def fetch(key, attempt):
    if attempt < 2:
        raise ConnectionResetError(104, "Connection reset by peer")
    return key


def fetch_with_retry(key):
    for attempt in range(4):
        try:
            return fetch(key, attempt)
        except ConnectionError as error:
            log.warning("fetch of %s failed (%s), retry %d", key, error, attempt + 1)
            if attempt == 1:
                traceback.print_exc()
            time.sleep(0.1)


def main():
    dist.init_process_group("gloo")
    log.info("error_rate=0.0 max_errors=10 on_failure=abort NCCL_ASYNC_ERROR_HANDLING=1 nan_check=on")
    for step in range(1, 41):
        t = torch.randn(3)
        dist.all_reduce(t)
        if step % 5 == 0:
            log.info("step %d loss %.3f grad overflow: skipped 1 nan batch, errors so far: 0", step, 5 / step)
        if step == 12:
            fetch_with_retry("s3://bucket/tokens-0012")
        if step == 20:
            warnings.warn(
                "Detected kernel version 4.18.0, below the recommended minimum; this can cause the process to hang"
            )
            log.error("metrics endpoint refused the connection, continuing without metrics")
        time.sleep(0.1)
    log.info("finished: 0 failed, 40 ok")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
