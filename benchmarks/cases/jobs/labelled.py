"""Start ranks like `srun -l` does: every line gets its task number. COMPOSED: the srun: lines are this script's own."""

import os
import subprocess
import sys
import threading


def copy(task, stream, lock):
    for line in stream:
        with lock:
            sys.stdout.write(f"{task}: {line.decode(errors='replace')}")
            sys.stdout.flush()


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
            text = "Killed" if code == -9 else "Terminated" if code == -15 else f"Exited with exit code {code}"
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
