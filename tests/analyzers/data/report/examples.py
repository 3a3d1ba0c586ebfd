"""Diagnoses as `diagnose --json` gives them, one per kind of page that the reports must be good at.

Run with `runpy.run_path` by the tests (test folders are no packages). Each function returns a fresh dict.
"""


def cite(path, line, rank, text):
    return {"path": path, "line": line, "rank": rank, "text": text}


def end(rank, node, state, step, at, end, path, line, text):
    return {"rank": rank, "node": node, "state": state, "last_step": step, "last_at": at, "end": end,
            "evidence": {"path": path, "line": line, "text": text}}  # fmt: skip


def event(at, rank, node, role, signature, title, path, line, text):
    return {"at": at, "rank": rank, "node": node, "role": role, "signature": signature, "title": title, "path": path,
            "line": line, "text": text}  # fmt: skip


def details(**more):
    return {
        "ranks": [], "timeline": [], "first_difference": None, "checkpoints": [],
        "inputs": {"files": 9, "bytes": 48_213, "lines": 412, "root": "runs/lm-117"},
        "signature_set": "9c1f0b7e5a2d44c0", "version": "0.1.0", "seconds": 0.4, "ledger_rows": [],
    } | more  # fmt: skip


PEER = (
    "[rank{r}]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed "
    "by peer [127.0.0.1]:{port}. This is typically caused by a remote worker crashing. Check the logs of the remote "
    "worker before reporting an error. GLHF! 🏖️"
)


def exception():
    """A KeyError on one rank of four; the others are echoes, two of which were terminated by torchrun."""
    logs = "ranks/attempt_0/{}/stderr.log"
    key = "[rank2]: KeyError: 'labels'"
    return {
        "schema": 1,
        "incident": {"id": "lm-117", "scheduler": "local", "world_size": 4, "attempts": 1},
        "verdict": {
            "status": "established", "signature": "python/key-error", "cause": "data",
            "title": "KeyError: 'labels' while a batch was fetched from the data set", "scope": "rank", "ranks": [2],
            "nodes": ["gpu-node-03"], "at": "2026-12-01T01:22:00.737000Z",
            "when_text": "2026-12-01 01:22:00 UTC, 3.2 s before the first other error",
            "why": "Rank 2 raised before any other rank printed an error, and the exception is of its own program: a "
                   "record without the key 'labels'.",
            "evidence": [cite(logs.format(2), 24, 2, key),
                         cite(logs.format(2), 22, 2, '[rank2]:     return {"input_ids": rec["input_ids"], '
                                                     '"labels": rec["labels"]}')],
            "fix": ["Skip or repair records without 'labels' in `Records.__getitem__` (train.py:10).",
                    "Validate the data set once before training, not in the loader."],
            "verify": ["Read the data set without training: `for r in Records(): r[\"labels\"]` must not raise."],
            "resume_from": {"path": "ckpt/step_400", "step": 400, "complete": True},
            "missing": [], "reference": ["https://docs.python.org/3/library/exceptions.html#KeyError"],
        },
        "candidates": [
            {"rank": 2, "node": "gpu-node-03", "signature": "python/key-error", "score": 0.96, "cause": "data",
             "title": "KeyError: 'labels' while a batch was fetched from the data set",
             "reasons": ["+ first error in time, by 3.2 s", "+ only on one rank", "+ exited with code 1 by itself"],
             "evidence": cite(logs.format(2), 24, 2, key)},
            {"rank": 0, "node": "gpu-node-01", "signature": "gloo/peer-closed", "score": 0.12, "cause": "fabric",
             "title": "Connection closed by peer",
             "reasons": ["+ no earlier error on this node", "- needs a peer that died first, and rank 2 did",
                         "- printed on two ranks at once"],
             "evidence": cite(logs.format(0), 31, 0, PEER.format(r=0, port=41991))},
        ],
        "collateral": [
            {"signature": "gloo/peer-closed", "title": "Connection closed by peer", "ranks": [0], "count": 1,
             "explained_by": "python/key-error", "evidence": cite(logs.format(0), 31, 0, PEER.format(r=0, port=41991))},
            {"signature": "gloo/peer-closed", "title": "Connection closed by peer", "ranks": [1], "count": 1,
             "explained_by": "python/key-error", "evidence": cite(logs.format(1), 31, 1, PEER.format(r=1, port=1193))},
            {"signature": "launcher/sigterm", "title": "Terminated by the launcher (SIGTERM)", "ranks": [3],
             "explained_by": "rank 2", "count": 1,
             "evidence": cite("merged.log", 118, None, "W1201 01:22:04.976000 29050 torch/distributed/elastic/"
                              "multiprocessing/api.py:1028] Sending process 29096 closing signal SIGTERM")},
        ],
        "ledger": {"expected": 4, "collected": 4, "gaps": []},
        "details": details(
            ranks=[
                end(0, "gpu-node-01", "echo", 400, "2026-12-01T01:22:03.950Z", "exit code 1", logs.format(0), 31, "…"),
                end(1, "gpu-node-02", "echo", 400, "2026-12-01T01:22:04.010Z", "exit code 1", logs.format(1), 31, "…"),
                end(2, "gpu-node-03", "initiated", 400, "2026-12-01T01:22:00.737Z", "exit code 1", logs.format(2), 24,
                    key),
                end(3, "gpu-node-04", "terminated", 400, "2026-12-01T01:22:00.534Z", "SIGTERM", logs.format(3), 8, "…"),
            ],
            timeline=[
                event("2026-12-01T01:22:00.534Z", 2, "gpu-node-03", "context", "progress/step", "Step 400",
                      logs.format(2), 2, "step 400/2000 loss=5.7440"),
                event("2026-12-01T01:22:00.737Z", 2, "gpu-node-03", "initiating", "python/key-error",
                      "KeyError: 'labels'", logs.format(2), 24, key),
                event("2026-12-01T01:22:03.950Z", 0, "gpu-node-01", "cascade", "gloo/peer-closed",
                      "Connection closed by peer", logs.format(0), 31, PEER.format(r=0, port=41991)),
                event("2026-12-01T01:22:04.010Z", 1, "gpu-node-02", "cascade", "gloo/peer-closed",
                      "Connection closed by peer", logs.format(1), 31, PEER.format(r=1, port=1193)),
                event("2026-12-01T01:22:04.976Z", 3, "gpu-node-04", "teardown", "launcher/sigterm",
                      "Terminated by the launcher", "merged.log", 118, "Sending process 29096 closing signal SIGTERM"),
                event("2026-12-01T01:22:05.200Z", None, None, "wrapper", "launcher/child-failed",
                      "ChildFailedError", "merged.log", 131, "torch.distributed.elastic.multiprocessing.errors."
                      "ChildFailedError:"),
            ],
            checkpoints=[
                {"path": "ckpt/step_400", "format": "dcp", "step": 400, "status": "complete",
                 "why": ".metadata names 4 files and all are there"},
                {"path": "ckpt/step_410", "format": "dcp", "step": 410, "status": "partial",
                 "why": ".metadata is missing: the save did not end"},
            ],
            ledger_rows=[{"path": logs.format(r), "outcome": "collected", "detail": None, "bytes_seen": 4100 + r,
                          "bytes_kept": 4100 + r} for r in range(4)]
            + [{"path": "merged.log", "outcome": "truncated", "detail": "middle dropped: 1.2 MB of progress bars",
                "bytes_seen": 1_231_000, "bytes_kept": 31_000}],
        ),
    }  # fmt: skip


def node_lost():
    """A node with two ranks disappears without a word; the rest sees resets. Supported, not proven: no kernel log."""
    reset = (
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
        "[10.0.0.7]:39323: Connection reset by peer."
    )
    return {
        "schema": 1,
        "incident": {"id": "slurm-88213", "scheduler": "slurm", "world_size": 8, "attempts": 1},
        "verdict": {
            "status": "supported", "signature": "node/lost", "cause": "node",
            "title": "the node stopped writing in the middle of a step, without an error", "scope": "node",
            "ranks": [4, 5], "nodes": ["gpu-node-02"], "at": "2026-12-01T01:46:10Z", "when_text": None,
            "why": "All ranks of gpu-node-02 went silent within 0.2 s; the other nodes printed connection resets "
                   "afterwards and Slurm reports NODE_FAIL.",
            "evidence": [cite("sacct.txt", 3, None, "88213|lm|NODE_FAIL|1:0|gpu-node-[00-03]"),
                         cite("gpu-node-02.log", 212, 5, "2026-12-01 01:46:09,981 [rank5] INFO step 1810/20000 "
                                                         "loss=3.1180")],
            "fix": ["Exclude gpu-node-02 (`sbatch --exclude=gpu-node-02`) and resubmit.",
                    "Hand the node to the administrators: it needs a look at power, BMC and PCIe."],
            "verify": ["`scontrol show node gpu-node-02`: State and Reason.", "BMC event log of gpu-node-02 at 01:46."],
            "resume_from": {"path": "/scratch/lm/ckpt/global_step1800", "step": 1800, "complete": None},
            "missing": ["the kernel log of gpu-node-02 (journalctl -k -b -1) tells power loss from a kernel panic"],
            "reference": [],
        },
        "candidates": [
            {"rank": None, "node": "gpu-node-02", "signature": "node/lost", "score": 0.83, "cause": "node",
             "title": "the node stopped writing", "evidence": None,
             "reasons": ["+ both ranks silent at once", "+ NODE_FAIL in sacct", "- its kernel log is not there"]},
            {"rank": None, "node": "gpu-node-02", "signature": "fabric/link-down", "score": 0.31, "cause": "fabric",
             "title": "the node lost its network", "evidence": None,
             "reasons": ["+ would look the same from the other nodes",
                         "- the node's own log on the shared file system stopped too"]},
        ],
        "collateral": [
            {"signature": "gloo/peer-reset", "title": "Connection reset by peer", "ranks": [0, 1, 2, 3, 6, 7],
             "count": 6, "explained_by": "node/lost", "evidence": cite("gpu-node-00.log", 44, 0, reset)},
        ],
        "ledger": {"expected": 10, "collected": 9,
                   "gaps": [{"path": "gpu-node-02: dmesg", "outcome": "unreachable", "detail": "no answer in 30 s"}]},
        "details": details(
            ranks=[end(r, f"gpu-node-0{r // 2}", "initiated" if r in (4, 5) else "echo", 1810,
                       "2026-12-01T01:46:09.981Z" if r in (4, 5) else f"2026-12-01T01:46:1{r}.2Z",
                       "no end seen" if r in (4, 5) else "exit code 1", f"gpu-node-0{r // 2}.log", 44, reset)
                   for r in range(8)],
            timeline=[event("2026-12-01T01:46:09.981Z", r, "gpu-node-02", "initiating", "silence/rank-stopped",
                            "last line", "gpu-node-02.log", 210 + r, "step 1810/20000") for r in (4, 5)]
            + [event(f"2026-12-01T01:46:1{r}.2Z", r, f"gpu-node-0{r // 2}", "cascade", "gloo/peer-reset",
                     "Connection reset by peer", f"gpu-node-0{r // 2}.log", 44, reset) for r in (0, 1, 2, 3, 6, 7)]
            + [event("2026-12-01T01:51:12Z", None, "gpu-node-02", "confirmation", "slurm/node-fail",
                     "Slurm: NODE_FAIL", "sacct.txt", 3, "88213|lm|NODE_FAIL|1:0|gpu-node-[00-03]")],
            ledger_rows=[{"path": f"gpu-node-0{n}.log", "outcome": "collected", "detail": None, "bytes_seen": 90_000,
                          "bytes_kept": 90_000} for n in range(4)]
            + [{"path": "gpu-node-02: dmesg", "outcome": "unreachable", "detail": "no answer in 30 s",
                "bytes_seen": 0, "bytes_kept": 0}],
        ),
    }  # fmt: skip


def hang():
    """Eight ranks stop at the same step without an error and without stacks: honest undetermined."""
    return {
        "schema": 1,
        "incident": {"id": "ppo-31", "scheduler": "kubernetes", "world_size": 8, "attempts": 1},
        "verdict": {
            "status": "undetermined", "signature": None, "cause": "unknown",
            "title": "the job hangs since step 412; no rank printed an error and no stack dump is among the evidence",
            "scope": "job", "ranks": [], "nodes": [], "at": "2026-12-01T01:13:17Z", "when_text": None,
            "why": "All 8 ranks printed step 412 and nothing after it for 31 minutes; the job was then cancelled.",
            "evidence": [cite("rank6.log", 902, 6, "2026-12-01 01:13:17,204 [rank6] INFO step 412/3000 kl=0.0132")],
            "fix": [], "verify": [],
            "resume_from": {"path": "ckpt/step_400", "step": 400, "complete": True},
            "missing": ["stacks of all ranks the next time it hangs: `py-spy dump --pid PID` in every pod, twice, 10 s "
                        "apart; the rank outside the collective is the suspect",
                        "the flight recorder: run with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
                        "TORCH_NCCL_DUMP_ON_TIMEOUT=1"],
            "reference": ["https://pytorch.org/tutorials/prototype/flight_recorder_tutorial.html"],
        },
        "candidates": [
            {"rank": None, "node": None, "signature": "deepspeed/zero3-gather-deadlock", "score": 0.4,
             "cause": "framework", "title": "ranks gather parameters of different models (actor and critic)",
             "reasons": ["+ two ZeRO-3 engines in one process", "+ every rank is silent at the same step",
                         "- nothing shows where the ranks are"], "evidence": None},
            {"rank": 3, "node": "gpu-17", "signature": "silence/straggler", "score": 0.3, "cause": "unknown",
             "title": "rank 3 was slower than its peers", "evidence": cite("rank3.log", 899, 3, "step 412/3000"),
             "reasons": ["+ printed step 412 1.9 s after the others"]},
            {"rank": None, "node": None, "signature": "kernel/xid", "score": 0.0, "cause": "gpu",
             "title": "a GPU error", "reasons": ["- kernel logs of both nodes cover the time and have no Xid"],
             "evidence": None},
            {"rank": None, "node": None, "signature": "kernel/oom-kill", "score": 0.0, "cause": "host_memory",
             "title": "a process killed for memory", "evidence": None,
             "reasons": ["- no OOM-kill record", "- all 8 processes were alive when the job was cancelled"]},
        ],
        "collateral": [
            {"signature": "k8s/pod-deleted", "title": "Terminated with the job (SIGTERM)", "ranks": list(range(8)),
             "count": 8, "explained_by": "the cancellation of the job", "evidence": None},
        ],
        "ledger": {"expected": 10, "collected": 10, "gaps": []},
        "details": details(
            ranks=[end(r, f"gpu-{16 + r // 4}", "silent", 412, f"2026-12-01T01:13:1{7 + (r == 3)}.204Z", "SIGTERM",
                       f"rank{r}.log", 902, "step 412/3000") for r in range(8)],
            timeline=[event(f"2026-12-01T01:13:1{7 + (r == 3)}.204Z", r, f"gpu-{16 + r // 4}", "context",
                            "progress/step", "Step 412, the last", f"rank{r}.log", 902, "step 412/3000")
                      for r in range(8)]
            + [event("2026-12-01T01:44:20Z", r, f"gpu-{16 + r // 4}", "teardown", "k8s/pod-deleted",
                     "Terminated with the job", f"rank{r}.log", 903, "SIGTERM") for r in range(8)],
        ),
    }  # fmt: skip


def healthy():
    """A run that ended well."""
    return {
        "schema": 1,
        "incident": {"id": "lm-118", "scheduler": "local", "world_size": 4, "attempts": 1},
        "verdict": {
            "status": "no_failure", "signature": None, "cause": "unknown",
            "title": "all 4 ranks reached step 2,000 and ended with exit code 0",
            "scope": "job", "ranks": [], "nodes": [], "at": None, "when_text": None,
            "why": "Two warnings were followed by progress on every rank.",
            "evidence": [cite("ranks/attempt_0/0/stdout.log", 411, 0, "training finished in 812 s")],
            "fix": [], "verify": [], "resume_from": None, "missing": [], "reference": [],
        },
        "candidates": [], "collateral": [], "ledger": {"expected": 4, "collected": 4, "gaps": []},
        "details": details(ranks=[end(r, "n1", "finished", 2000, "2026-12-01T02:00:00Z", "exit code 0",
                                      f"ranks/attempt_0/{r}/stdout.log", 411, "training finished") for r in range(4)]),
    }  # fmt: skip


def symmetric(world=1024):
    """All ranks fail on the same line (a symmetric bug), three of them lose their logs."""
    error = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    lost = (17, 512, 513)
    seen = [r for r in range(world) if r not in lost]
    at = [f"2026-12-01T03:10:0{4 + r % 2}.{100 + r % 800:03d}Z" for r in range(world)]
    return {
        "schema": 1,
        "incident": {"id": "slurm-90111", "scheduler": "slurm", "world_size": world, "attempts": 2},
        "verdict": {
            "status": "established", "signature": "ddp/unused-parameters", "cause": "user_code",
            "title": "parameters of the model took no part in the loss", "scope": "job", "ranks": list(range(world)),
            "nodes": [f"gpu{n:04d}" for n in range(world // 8)], "at": at[0],
            "when_text": "2026-12-01 03:10:04 UTC, in the second step of attempt 1",
            "why": f"{len(seen):,} ranks raised the same exception within 1.8 s at the same step; no rank is alone.",
            "evidence": [cite("logs/rank0000.log", 88, 0, error)],
            "fix": ["Pass find_unused_parameters=True, or use every output of the model in the loss."],
            "verify": ["Two steps on one node are enough to see it."],
            "resume_from": None, "missing": [], "reference": [],
        },
        "candidates": [
            {"rank": 0, "node": "gpu0000", "signature": "ddp/unused-parameters", "score": 0.9, "cause": "user_code",
             "title": "parameters of the model took no part in the loss", "evidence": cite("logs/rank0000.log", 88, 0,
                                                                                           error),
             "reasons": [f"+ on {len(seen):,} of {world:,} ranks", "+ the same step on all"]}],
        "collateral": [
            {"signature": "nccl/abort", "title": "NCCL communicator was aborted", "ranks": list(range(8, world, 2)),
             "count": world, "explained_by": "ddp/unused-parameters",
             "evidence": cite("logs/rank0008.log", 95, 8, "NCCL communicator was aborted")}],
        "ledger": {"expected": world, "collected": len(seen),
                   "gaps": [f"logs/rank{r:04d}.log: not there" for r in lost]},
        "details": details(
            ranks=[end(r, f"gpu{r // 8:04d}", "unknown" if r in lost else "initiated", None if r in lost else 2,
                       None if r in lost else at[r], None if r in lost else "exit code 1", f"logs/rank{r:04d}.log", 88,
                       error) for r in range(world)],
            timeline=[event(at[r], r, f"gpu{r // 8:04d}", "initiating", "ddp/unused-parameters",
                            "Unused parameters", f"logs/rank{r:04d}.log", 88, error) for r in seen]
            + [event("2026-12-01T03:10:07Z", r, f"gpu{r // 8:04d}", "cascade", "nccl/abort", "NCCL abort",
                     f"logs/rank{r:04d}.log", 95, "NCCL communicator was aborted") for r in range(8, world, 2)],
            ledger_rows=[{"path": f"logs/rank{r:04d}.log", "outcome": "unreachable" if r in lost else "collected",
                          "detail": "no such file" if r in lost else None, "bytes_seen": 9000, "bytes_kept": 9000}
                         for r in range(world)],
            inputs={"files": len(seen), "bytes": 9_190_000, "lines": 98_016, "root": "/lustre/runs/90111"},
        ),
    }  # fmt: skip


def hostile():
    """Texts that attack the terminal or the page, and a line of 10,000 characters with the error in its middle."""
    evil = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\x00\u202egnp.exe\u2028'\"><img src=x onerror=alert(1)>"
    long = "0.1234, " * 620 + "ValueError: could not broadcast shapes (3,) and (4,) " + "9.87, " * 830
    base = exception()
    base["verdict"] |= {"title": f"could not broadcast shapes {evil}", "evidence": [cite(f"r{evil}.log", 7, 2, long)],
                        "reference": ["javascript:alert(1)", "https://example.org/?a=1&b=<i>"],
                        "fix": [evil, "`code` and `unclosed", "\ud800 lone surrogate"]}  # fmt: skip
    base["incident"]["id"] = evil
    base["details"]["timeline"][1]["text"] = evil
    base["details"]["timeline"][1]["title"] = evil
    return base
