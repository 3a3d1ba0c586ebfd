"""What the node Epilog costs a job: our hook beside an empty one, run as slurmd runs it (no PATH, fork and exec).

    python benchmarks/collect/hook.py [--runs 300]

Prints a Markdown table of milliseconds: median, 90th percentile, and the difference of the medians.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from collector.config import Config, SpoolConfig
from collector.slurm_install import render

BASE = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_RESTART_COUNT": "0", "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "alice", "SLURMD_NODENAME": "n1", "SLURM_NODELIST": "n[1-512]", "SLURM_CLUSTER_NAME": "alpha",
}  # fmt: skip


def once(script: Path, environment: dict[str, str]) -> float:
    """Milliseconds from fork to exit."""
    started = time.perf_counter()
    pid = os.posix_spawn(script, [str(script)], environment)
    os.waitpid(pid, 0)
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="ff-hook-") as folder:
        root = Path(folder)
        config = Config(spool=SpoolConfig(f"{root}/node", f"{root}/head", f"{root}/tasks"))
        scripts = {"empty Epilog (`exit 0`)": (root / "empty.sh", "#!/bin/sh\nexit 0\n")}
        scripts["our Epilog, job succeeded"] = (root / "epilog.sh", render("epilog.sh", config))
        scripts["our EpilogSlurmctld"] = (root / "head.sh", render("epilog-slurmctld.sh", config))
        scripts["our TaskEpilog"] = (root / "task.sh", render("task-epilog.sh", config))
        (root / "tasks").mkdir()
        for path, text in scripts.values():
            path.write_text(text)
            path.chmod(0o755)
        task = {**BASE, "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
        times: dict[str, list[float]] = {name: [] for name in scripts}
        luck = random.Random(1)
        for _ in range(runs):  # interleaved, so that a busy moment hits all alike
            for name in luck.sample(list(scripts), len(scripts)):
                times[name].append(once(scripts[name][0], task))
        base = statistics.median(times["empty Epilog (`exit 0`)"])
        print("| hook | median ms | p90 ms | over empty ms |\n|---|---|---|---|")
        for name, found in times.items():
            middle, high = statistics.median(found), statistics.quantiles(found, n=10)[-1]
            print(f"| {name} | {middle:.1f} | {high:.1f} | {middle - base:.1f} |")


if __name__ == "__main__":
    main()
