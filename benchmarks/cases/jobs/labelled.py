"""Start ranks like `srun -l` does: every line gets its task number. COMPOSED: the srun: and slurmstepd: lines are this script's own."""

import os
import signal
import subprocess
import sys
import threading
from datetime import datetime


def copy(task, stream, lock):
    for line in stream:
        with lock:
            sys.stdout.write(f"{task}: {line.decode(errors='replace')}")
            sys.stdout.flush()


def expire(tasks, host):
    """What slurmstepd says and does at the time limit."""
    now = datetime.now().strftime("%Y-%m-%dT%H:%M:%S")
    print(f"slurmstepd: error: *** STEP 90210.0 ON {host} CANCELLED AT {now} DUE TO TIME LIMIT ***", flush=True)
    for process, _, _ in tasks:
        process.terminate()


def main():
    count, hosts = int(sys.argv[1]), sys.argv[2].split(",")
    lock = threading.Lock()
    tasks = []
    for task in range(count):
        env = dict(os.environ, RANK=str(task), LOCAL_RANK=str(task % 2), WORLD_SIZE=str(count))
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29613", SLURM_PROCID=str(task))
        process = subprocess.Popen(sys.argv[3:], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        thread = threading.Thread(target=copy, args=(task, process.stdout, lock))
        thread.start()
        tasks.append((process, thread, hosts[task * len(hosts) // count]))
    limit = float(os.environ.get("TIME_LIMIT", "0"))
    if limit:
        threading.Timer(limit, expire, (tasks, hosts[0])).start()
    failed = None
    waiting = dict(enumerate(tasks))
    while waiting:
        for task, (process, thread, host) in list(waiting.items()):
            try:
                code = process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            thread.join()
            del waiting[task]
            text = signal.strsignal(-code) if code < 0 else f"Exited with exit code {code}"
            if code:
                print(f"srun: error: {host}: task {task}: {text}", flush=True)
            if code and failed is None:
                failed = task
                print("srun: Terminating StepId=90210.0", flush=True)
                for other, _, _ in tasks:
                    other.terminate()
    sys.exit(0 if failed is None else 1)


if __name__ == "__main__":
    main()

# ruff: noqa  (a job as its users write it; style is part of what is simulated)
