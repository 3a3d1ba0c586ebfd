"""Many pods that fail at once: how long until all logs are safe, how many requests, how much memory.

usage: run.py JOBS PODS [LINES]    such as `run.py 1 1000` and `run.py 50 20`; needs the binaries of tests/kube/build.sh
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
specification = importlib.util.spec_from_file_location("kube", HERE.parents[1] / "tests" / "kube" / "conftest.py")
assert specification is not None and specification.loader is not None
kube: Any = importlib.util.module_from_spec(specification)
specification.loader.exec_module(kube)


def memory(pid: int) -> int:
    """Largest resident size so far, MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) // 1024


def metrics(port: int) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
        return text


def main(jobs: int, pods: int, lines: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-kube-"))
    cluster = kube.Cluster(folder / "cluster")
    try:
        cluster.start()
        measure(cluster, folder, jobs, pods, lines)
    finally:
        cluster.stop()


def measure(cluster: Any, folder: Path, jobs: int, pods: int, lines: int) -> None:
    api = cluster.api()
    api.json("POST", kube.path_of("v1", "namespaces"), None, {"metadata": {"name": "bench"}})
    kube.until(lambda: kube.Cluster._there(api, kube.path_of("v1", "serviceaccounts", "bench", "default")))
    space = kube.Space(cluster, "bench")
    text = "\n".join(f"step {number} loss 2.345 throughput 123.4 samples/s" for number in range(lines))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: create(space, f"job-{number}", pods), range(jobs)))
        kube.until(lambda: len(bound(space)) >= jobs * pods, seconds=600)
        listed = bound(space)
        for pod in listed:
            space.log(pod, text)
        list(pool.map(space.runs, listed))
        site = kube.Site(space, folder)
        process = site.process("--no-analyze", "--no-annotate", "--no-events")
        port = json.loads((folder / "watch.log").read_text().splitlines()[0])["port"]
        kube.until(lambda: f"pods_watched {jobs * pods}" in metrics(port), seconds=120)
        idle = memory(process.pid)
        started = time.monotonic()
        list(pool.map(space.fails, listed))
        failed = time.monotonic()
        kube.until(lambda: whole(site) >= jobs * pods, lambda: str(whole(site)), seconds=900)
    safe = time.monotonic()
    requests: Counter[str] = Counter()
    for line in metrics(port).splitlines():
        if line.startswith("firstfault_api_requests_total"):
            requests[line.split('resource="')[1].split('"')[0]] += int(float(line.rsplit(" ", 1)[1]))
    total = sum(requests.values())
    print(f"{jobs} jobs x {pods} pods x {lines} lines: statuses written in {failed - started:.1f} s, all logs in the "
          f"store {safe - failed:.1f} s after the last, {total / jobs / pods:.2f} requests per pod {dict(requests)}, "
          f"memory {idle} MiB idle, {memory(process.pid)} MiB at most")  # fmt: skip
    process.terminate()
    process.wait(60)


def create(space: Any, name: str, pods: int) -> None:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"backoffLimit": 10_000, "parallelism": pods, "completions": pods,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}  # fmt: skip
    space.api.json(
        "POST", kube.path_of("batch/v1", "jobs", space.name), None, {"metadata": {"name": name}, "spec": spec}
    )


def bound(space: Any) -> list[dict[str, Any]]:
    listed = space.api.list(kube.path_of("v1", "pods", space.name))
    return [pod for _, pod in listed if pod and pod["spec"].get("nodeName")]


def whole(site: Any) -> int:
    return sum(1 for item in site.store.list("raw/log_lines/") if "/pod-" in item.key)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 200)
