from pathlib import Path

from click.testing import CliRunner

from analyzers import stack_classes, stack_threads, stacks_cli
from collector.readers import stacks

CASES = Path(__file__).parents[1] / "cases"
ENGINE = "DeepSpeedEngine.forward (deepspeed/runtime/engine.py:3007)"
FETCH = "PartitionedParameterCoordinator.fetch_sub_module (deepspeed/runtime/zero/partitioned_param_coordinator.py:344)"


def dump(rank: int, *threads: tuple[str, list[str]], number: int = 0, pid: int | None = None, path: str = "") -> list:
    """Rows of one process: threads as (name, frames innermost first)."""
    pid = pid or 100 + rank
    text = f"Process {pid}: python train.py\nPython v3.11.7 (python)\n\n"
    for index, (name, frames) in enumerate(threads):
        text += f'Thread {pid + index} (idle): "{name}"\n' + "".join(f"    {frame}\n" for frame in frames)
    return stacks.parse_text(text, path=path or f"rank{rank}.txt", rank=rank, dump=number)


def main(*frames: str) -> tuple[str, list[str]]:
    return "MainThread", [*frames, "main (train.py:40)", "<module> (train.py:50)"]


def one(*threads: tuple[str, list[str]]) -> stack_classes.Process:
    (process,) = stack_classes.processes(dump(0, *threads))
    return process


def test_the_innermost_frame_that_says_something_decides():
    assert (
        one(main("all_reduce (torch/distributed/distributed_c10d.py:9)", "clip (train.py:3)")).speaker.doing
        == "all_reduce"
    )
    saving = one(
        main("barrier (torch/distributed/distributed_c10d.py:9)", "save_checkpoint (deepspeed/runtime/engine.py:3)")
    )
    assert (saving.kind, saving.speaker.role) == ("waits", "barrier")
    loading = one(
        main("wait (threading.py:320)", "get (queue.py:180)", "_try_get_data (torch/utils/data/dataloader.py:1011)")
    )
    assert (loading.kind, loading.speaker.role, loading.speaker.frame.short) == ("outside", "data", "_try_get_data")


def test_a_gather_claims_the_collective_and_the_device_wait_inside_it():
    for inner in (
        "all_gather_into_tensor (torch/distributed/distributed_c10d.py:2709)",
        "synchronize (torch/cuda/streams.py:95)",
    ):
        process = one(main(inner, FETCH, "Actor.forward (ppo.py:10)", ENGINE, "actor_loss (ppo.py:36)"))
        assert process.speaker.doing == "ZeRO-3 parameter gather of Actor"


def test_models_are_told_apart_by_class_by_caller_or_not_at_all():
    def model(*frames: str) -> stack_threads.Model:
        (found,) = one(main(FETCH, *frames)).gathers
        return found

    block = "Block.forward (model.py:5)"
    actor = model(block, "Llama.forward (llama.py:9)", ENGINE, "Actor.forward (actor.py:3)", "step (ppo.py:4)")
    critic = model(block, "Llama.forward (llama.py:9)", ENGINE, "Critic.forward (critic.py:3)", "step (ppo.py:5)")
    other_layer = model(
        "Head.forward (model.py:8)",
        "Llama.forward (llama.py:9)",
        ENGINE,
        "Actor.forward (actor.py:3)",
        "step (ppo.py:4)",
    )
    assert (actor.differs(critic), actor.differs(other_layer)) == (2, 0)
    old = model("forward (llama.py:9)", "forward (deepspeed/runtime/engine.py:9)", "reference_logits (ppo.py:8)")
    also_old = model("forward (llama.py:9)", "forward (deepspeed/runtime/engine.py:9)", "value_loss (ppo.py:8)")
    assert (old.differs(also_old), old.differs(old)) == (1, 0)
    recompute = model(block, "backward (torch/autograd/__init__.py:266)", "update (ppo.py:70)")
    assert (recompute.classes, recompute.differs(actor)) == ((), 0)


def test_the_main_thread_speaks_unless_it_waits_for_another():
    join = main("Thread._wait_for_tstate_lock (threading.py:1139)", "Thread.join (threading.py:1119)")
    worker = (
        "fwd",
        [FETCH, "Critic.forward (m.py:19)", ENGINE, "critic_loss (m.py:40)", "Thread.run (threading.py:982)"],
    )
    assert one(join, worker).speaker.doing == "ZeRO-3 parameter gather of Critic"
    assert one(join).kind == "outside"
    loading = main("_try_get_data (torch/utils/data/dataloader.py:1011)")
    assert one(loading, worker).speaker.role == "data"
    backward = main("backward (torch/autograd/__init__.py:266)")
    hook = (
        "Thread-9",
        [
            "all_gather_into_tensor (deepspeed/comm/torch.py:219)",
            "__all_gather_params (deepspeed/runtime/zero/partitioned_param_coordinator.py:463)",
        ],
    )
    assert one(backward, hook).speaker.doing == "ZeRO-3 parameter gather"


def test_background_threads_are_folded_but_busy_pool_threads_are_not():
    bar = ("Thread-1", ["wait (threading.py:324)", "wait (threading.py:607)", "run (tqdm/_monitor.py:60)"])
    feeder = ("QueueFeederThread", ["wait (threading.py:320)", "_feed (multiprocessing/queues.py:231)"])
    idle = ("pool_0", ["_worker (concurrent/futures/thread.py:81)", "run (threading.py:982)"])
    busy = (
        "pool_1",
        ["evaluate (train.py:9)", "run (concurrent/futures/thread.py:58)", "_worker (concurrent/futures/thread.py:83)"],
    )
    process = one(main("f (train.py:1)"), bar, feeder, idle, busy)
    assert [thread.name for thread in process.threads] == ["MainThread", "pool_1"]


def test_native_frames_show_a_wait_that_has_no_frame_in_python():
    wait = one(main("c10d::Work::wait (libtorch_cpu.so)", "evaluate (train.py:29)"))
    assert (wait.kind, wait.speaker.doing) == ("waits", "c10d::Work::wait")
    device = one(main("cudaStreamSynchronize (libcudart.so.12)", "log_loss (train.py:29)"))
    assert device.kind == "neutral"
    assert one(main("log_loss (train.py:29)")).kind == "outside"
    assert one(main("forward (model.py:3)", "_call_impl (torch/nn/modules/module.py:1)")).kind == "neutral"


def test_loader_workers_and_launchers_are_no_ranks():
    worker = dump(
        0,
        (
            "MainThread",
            ["poll (multiprocessing/popen_fork.py:27)", "_worker_loop (torch/utils/data/_utils/worker.py:300)"],
        ),
        pid=900,
    )
    agent = dump(1, ("MainThread", ["_invoke_run (torch/distributed/elastic/agent/server/api.py:870)"]), pid=901)
    spawned = dump(
        2,
        (
            "MainThread",
            ["f (t.py:3)", "_wrap (torch/multiprocessing/spawn.py:75)", "_bootstrap (multiprocessing/process.py:314)"],
        ),
    )
    forked = dump(3, ("MainThread", ["feeder (t.py:3)", "_bootstrap (multiprocessing/process.py:314)"]))
    for rows, helper in ((worker, True), (agent, True), (spawned, False), (forked, True)):
        assert [process.helper for process in stack_classes.processes(rows)] == [helper]
    rank = dump(0, main("all_reduce (torch/distributed/distributed_c10d.py:9)"))
    assert [p.pid for p in stack_classes.processes([*worker, *rank])] == [100]


def test_one_dump_in_three_forms_counts_once():
    rows = [
        *dump(0, main("f (train.py:1)"), path="hang1.rank0.json"),
        *dump(0, main("f (train.py:1)"), path="hang1.rank0.txt"),
        *dump(0, main("sem_wait (libc.so.6)", "f (train.py:1)"), path="hang1.rank0.native.txt"),
        *dump(0, main("g (train.py:2)"), path="later.txt"),
    ]
    (process,) = stack_classes.processes(rows)
    assert [frame.function for frame in process.speaker.frames] == ["sem_wait", "f", "main", "<module>"]
    assert process.speaker.frame.path == "hang1.rank0.native.txt"


def test_a_pid_gets_its_rank_from_the_table_of_ranks():
    rows = [{**row, "rank": None} for row in dump(0, main("f (train.py:1)"))]
    (process,) = stack_classes.processes(rows, [{"rank": 3, "node": "n1", "pid": 100}])
    assert process.name == "rank 3"
    (process,) = stack_classes.processes(rows)
    assert process.name == "process 100"


def test_classes_ignore_line_numbers_and_moves_do_not():
    before = [*dump(0, main("f (train.py:1)")), *dump(1, main("f (train.py:2)")), *dump(2, main("g (train.py:9)"))]
    after = [
        *dump(0, main("f (train.py:1)"), number=1),
        *dump(1, main("f (train.py:3)"), number=1),
        *dump(2, main("g (train.py:9)"), number=1),
    ]
    first, second = stack_classes.snapshots(stack_classes.processes([*after, *before]))
    assert [[p.rank for p in group.processes] for group in stack_classes.classes(first)] == [[0, 1], [2]]
    assert [stack_classes.moved(first, second)[p.identity] for p in second] == [False, True, False]


def test_members_are_short():
    ranks = [p for n in (0, 1, 2, 4) for p in stack_classes.processes(dump(n, main("f (train.py:1)")))]
    assert stack_classes.members(ranks) == "ranks 0-2, 4"
    assert stack_classes.members(ranks[-1:]) == "rank 4"
    assert stack_classes.members(ranks, most=1) == "4 ranks"


def test_render_is_a_tree_of_at_most_80_columns():
    rows = [
        row
        for n in range(8)
        if n != 5
        for row in dump(n, main("all_reduce (torch/distributed/distributed_c10d.py:9)", "reduce_grads (train.py:33)"))
    ]
    rows += dump(5, main("_next_data (torch/utils/data/dataloader.py:1011)", "a_long_name" * 9 + " (train.py:30)"))
    shown = stacks_cli.render(stack_classes.classes(stack_classes.processes(rows)))
    lines = shown.splitlines()
    assert lines[0] == "7 ranks in all_reduce  (ranks 0-4, 6-7)"
    assert lines[1] == "rank 5 in data loading (_next_data)"
    assert lines[3:6] == [
        "<module> (train.py:50)",
        "main (train.py:40)",
        "  reduce_grads (train.py:33)  <- ranks 0-4, 6-7",
    ]
    assert lines[-1].endswith("_next_data (torch/utils/data/dataloader.py:1011)")
    assert max(map(len, lines)) == 80


def test_render_says_where_a_stack_ends_that_others_continue():
    rows = dump(0, main("barrier (torch/distributed/distributed_c10d.py:9)", "evaluate (train.py:30)"))
    rows += dump(1, main("evaluate (train.py:29)"))
    shown = stacks_cli.render(stack_classes.classes(stack_classes.processes(rows)))
    assert "  at line 29  <- rank 1" in shown.splitlines()


def test_command_on_a_real_deadlock():
    folder = str(CASES / "s2a_deadlock_order_2r" / "tee")
    result = CliRunner().invoke(stacks_cli.stacks, [folder])
    assert result.exit_code == 0
    assert result.output.startswith("ZeRO-3 parameter gathers of different models wait for each other (rank 0 in")
    assert "rank 1 in ZeRO-3 parameter gather of Critic" in result.output
    assert "Since dump 1: nobody moved." in result.output
    as_json = CliRunner().invoke(stacks_cli.stacks, ["--json", folder])
    assert '"signature": "deepspeed/zero3-gather-deadlock"' in as_json.output


def test_command_without_dumps(tmp_path):
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    result = CliRunner().invoke(stacks_cli.stacks, [str(tmp_path)])
    assert result.exit_code == 1
    assert "no stack dump" in result.output
