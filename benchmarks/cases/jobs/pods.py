"""Show ranks like `kubectl logs --prefix --timestamps` does. COMPOSED: prefix and time stamp are this script's own."""

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime


def copy(name, stream, lock):
    for line in stream:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        with lock:
            sys.stdout.write(f"[pod/{name}/pytorch] {now} {line.decode(errors='replace')}")
            sys.stdout.flush()


def main():
    count, lock, threads = int(sys.argv[1]), threading.Lock(), []
    for rank in range(count):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(count))
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29615")
        process = subprocess.Popen(sys.argv[2:], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        name = "llm-master-0" if rank == 0 else f"llm-worker-{rank - 1}"
        threads.append(threading.Thread(target=copy, args=(name, process.stdout, lock)))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
