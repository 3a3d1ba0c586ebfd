import io
import json
from pathlib import Path

import pytest

from analyzers.case import Case
from analyzers.detectors.stacks import detect
from collector.model import Artifact, ArtifactKind, LogLine, Origin
from collector.readers import stacks

CASES = Path(__file__).parents[1] / "cases"
C10D = "(torch/distributed/distributed_c10d.py:2501)"
ENGINE = "DeepSpeedEngine.forward (deepspeed/runtime/engine.py:3007)"
FETCH = "fetch_sub_module (deepspeed/runtime/zero/partitioned_param_coordinator.py:344)"
WAIT = "AllGatherCoalescedHandle.wait (deepspeed/runtime/zero/partition_parameters.py:765)"
ROOT = ["main (train.py:40)", "<module> (train.py:50)"]
REDUCE = [f"all_reduce {C10D}", "reduce_grads (train.py:33)", *ROOT]
LOADING = [
    "wait (threading.py:320)",
    "get (queue.py:180)",
    "_try_get_data (torch/utils/data/dataloader.py:1011)",
    "__next__ (torch/utils/data/dataloader.py:530)",
    *ROOT,
]
BACKWARD = ["_engine_run_backward (torch/autograd/graph.py:824)", "Tensor.backward (torch/_tensor.py:648)", *ROOT]


def gather(model: str, root: list[str] = ROOT, caller: str = "") -> list[str]:
    return [
        WAIT,
        FETCH,
        f"{model}.forward (models.py:10)",
        ENGINE,
        f"{caller or model.lower() + '_loss'} (ppo.py:9)",
        *root,
    ]


def dump(rank, frames, number=0, thread="MainThread", state="idle"):
    text = f'Process {100 + rank}: python\nThread {100 + rank} ({state}): "{thread}"\n'
    return stacks.parse_text(
        text + "".join(f"    {frame}\n" for frame in frames), path=f"rank{rank}.txt", rank=rank, dump=number
    )


def case(*stacks_of_ranks, world=None, again=None, **tables):
    """A case with one stack for each rank (None: no dump), and `again` the stacks of a second dump."""
    rows = []
    for number, dumped in enumerate([stacks_of_ranks, again or []]):
        for rank, frames in enumerate(dumped):
            rows += dump(rank, frames, number) if frames else []
    incidents = [{"world_size": world or len(stacks_of_ranks)}]
    return Case("i", tables={"stack_frames": rows, "incidents": incidents, **tables})


def roles(observations):
    return [(o.role, o.signature, o.strength, o.detail["ranks"]) for o in observations]


def real(name, view, **tables):
    rows = []
    for file in sorted((CASES / name / view / "pyspy").iterdir()):
        data = file.read_bytes()
        rows += stacks.read(
            Artifact(ArtifactKind.STACK_DUMP, file.name, Origin(), len(data), lambda data=data: io.BytesIO(data))
        )
    world = json.loads((CASES / name / "scenario.json").read_text())["world_size"]
    return Case(name, tables={"stack_frames": rows, "incidents": [{"world_size": world}], **tables})


@pytest.mark.parametrize(
    ("name", "view"),
    [("s2a_deadlock_order_2r", "tee"), ("s2a_deadlock_order_2r", "plain"), ("s2a_deadlock_threads_2r", "tee")],
)
def test_real_actor_critic_deadlocks(name, view):
    (seen,) = detect(real(name, view))
    assert (seen.signature, seen.role, seen.cause, seen.scope, seen.strength) == (
        "deepspeed/zero3-gather-deadlock", "initiating", "framework", "job", 3,
    )  # fmt: skip
    assert seen.detail["ranks"] == [0, 1]
    assert "(rank 0 in Actor, rank 1 in Critic)" in seen.title
    cited = (CASES / name / view / "pyspy" / seen.path).read_text().splitlines()[seen.line - 1]
    assert seen.text == cited.strip()
    if "threads" in name:
        assert seen.detail["threads"]["rank 0"]["critic-fwd"].endswith("critic_worker (train_ppo_threads.py:27)")


@pytest.mark.parametrize(
    ("name", "waiting", "missing"),
    [("s2b_lookalike_rank_died_2r", [0], 1), ("s2b_lookalike_rank_died_4r_timeout", [0, 2, 3], 1)],
)
def test_real_look_alikes_accuse_nobody(name, waiting, missing):
    (seen,) = detect(real(name, "plain"))
    assert (seen.role, seen.signature, seen.detail["ranks"]) == ("cascade", "stacks/waiting-in-collective", waiting)
    assert seen.detail["missing"] == [f"stack dump of rank {missing}"]


def test_real_straggler_before_a_barrier():
    suspect, echo = detect(real("a15_monitored_barrier_4r", "tee"))
    assert (suspect.signature, suspect.rank, suspect.strength) == ("stacks/outside-collective", 2, 2)
    assert (suspect.text, suspect.cause) == ("evaluate (train.py:29)", "user_code")
    assert (echo.role, echo.detail["ranks"]) == ("cascade", [0, 1, 3])


def test_real_rank_in_another_collective_is_a_hint():
    suspect, echo = detect(real("a13d_kind_mismatch_plain_3r", "tee"))
    assert (suspect.signature, suspect.rank, suspect.strength) == ("stacks/different-collectives", 1, 1)
    assert "rank 1 in broadcast" in suspect.title
    assert echo.detail["ranks"] == [0, 2]


def test_four_ranks_in_two_models_are_all_in_the_cycle():
    (seen,) = detect(case(gather("Actor"), gather("Critic"), gather("Actor"), gather("Critic")))
    assert (seen.strength, seen.detail["ranks"]) == (3, [0, 1, 2, 3])
    assert "ranks 0, 2 in Actor, ranks 1, 3 in Critic" in seen.title


def test_a_cycle_beside_an_absent_or_busy_rank_is_less_sure():
    for third in (None, LOADING):
        seen, *_ = detect(case(gather("Actor"), gather("Critic"), third))
        assert (seen.signature, seen.strength, seen.detail["ranks"]) == ("deepspeed/zero3-gather-deadlock", 2, [0, 1])


def test_models_of_one_class_are_told_apart_by_their_callers():
    first, second = gather("Llama", caller="policy_logits"), gather("Llama", caller="reference_logits")
    (seen,) = detect(case(first, second))
    assert (seen.signature, seen.strength) == ("deepspeed/zero3-gather-deadlock", 2)
    assert "rank 0 in policy_logits, rank 1 in reference_logits" in seen.title


def test_models_of_two_programs_do_not_wait_for_each_other():
    actor, critic = gather("Actor", ["ActorWorker.fit (w.py:3)"]), gather("Critic", ["CriticWorker.fit (w.py:9)"])
    assert {o.role for o in detect(case(actor, actor, critic, critic))} == {"context"}


def test_gathers_of_two_layers_of_one_model_are_no_deadlock_of_models():
    first, second = gather("Llama"), gather("Llama")
    first.insert(2, "Expert.forward (models.py:70)")
    second.insert(2, "Router.forward (models.py:80)")
    assert not [o for o in detect(case(first, second)) if o.role == "initiating"]


def test_a_dead_thread_or_rank_makes_the_cycle_an_echo():
    frames = (gather("Actor"), gather("Critic"))
    died = LogLine(0, "r1.log", 1, 0, 0, None, 1, None, 9, None, "rank", None, None, "Exception in thread critic-fwd:")
    with_line = case(*frames)
    with_line.lines = [died]
    assert {o.role for o in detect(with_line)} == {"cascade"}
    ticking = case(*frames)
    ticking.lines = [died._replace(text="Exception in thread QueueFeederThread:")]
    assert {o.role for o in detect(ticking)} == {"initiating"}
    timed_out = case(*frames)
    timed_out.lines = [
        died,
        died._replace(line=2, text="Traceback (most recent call last):"),
        died._replace(line=3, text='  File "m.py", line 3, in f'),
        died._replace(line=4, text="RuntimeError: Timed out waiting 20000ms for recv operation to complete"),
    ]
    assert {o.role for o in detect(timed_out)} == {"initiating"}
    ended = case(
        *frames, None, ranks=[{"rank": 2, "exit_code": 1}, {"rank": 0, "signal": 15}, {"rank": 1, "signal": 15}]
    )
    assert {o.role for o in detect(ended)} == {"cascade"}
    killed = case(*frames, None, ranks=[{"rank": r, "signal": 15} for r in range(3)])
    assert next(detect(killed)).role == "initiating"


def test_a_gather_waited_for_while_the_peer_is_elsewhere_accuses_the_peer():
    suspect, echo = detect(case(gather("Critic"), LOADING))
    assert (suspect.signature, suspect.rank, suspect.cause) == ("stacks/outside-collective", 1, "data")
    assert (echo.role, echo.rank, echo.title) == ("cascade", 0, "Rank 0 waits in ZeRO-3 parameter gather of Critic")


def test_hang_of_384_processes_with_one_in_the_data_loader():
    """Dumps of 48 nodes without ranks, as an old py-spy prints them; one waits for a worker, all others for it."""
    rows = []
    for node in range(48):
        text = ""
        for local in range(8):
            op = ("broadcast", "send" if local < 4 else "broadcast", "all_reduce")[node % 3]
            frames = [
                f"{op} {C10D}",
                "train_step (megatron/training.py:400)",
                "main (pretrain.py:200)",
                "<module> (p.py:9)",
            ]
            if (node, local) == (31, 4):
                frames = [
                    *LOADING[:4],
                    "train_step (megatron/training.py:380)",
                    "main (pretrain.py:200)",
                    "<module> (p.py:9)",
                ]
            text += f"Process {1000 + local}: python pretrain.py\nPython v3.8.12 (python)\n\n"
            text += f'Thread {1000 + local} (active+gil): "MainThread"\n' + "".join(f"    {f}\n" for f in frames)
            text += f"Process {2000 + local}: python pretrain.py\nPython v3.8.12 (python)\n\n"
            text += f'Thread {2000 + local} (idle): "MainThread"\n    poll (multiprocessing/connection.py:9)\n'
            text += "    _worker_loop (torch/utils/data/_utils/worker.py:167)\n"
        rows += stacks.parse_text(text, path=f"trace-n{node}.out", node=f"n{node}")
    suspect, *echoes = detect(Case("bloom", tables={"stack_frames": rows}))
    assert (suspect.signature, suspect.node, suspect.rank, suspect.strength) == (
        "stacks/outside-collective",
        "n31",
        None,
        2,
    )
    assert (suspect.detail["pid"], suspect.cause) == (1004, "data")
    assert suspect.text == "_try_get_data (torch/utils/data/dataloader.py:1011)"
    assert "383 processes wait in" in suspect.title
    assert {o.role for o in echoes} == {"cascade"}


def test_everybody_in_one_collective_is_only_context():
    (seen,) = detect(case(REDUCE, REDUCE, REDUCE))
    assert (seen.role, seen.signature) == ("context", "stacks/all-in-collective")


def test_pipelines_in_several_operations_accuse_nobody():
    send, receive = [f"send {C10D}", *ROOT], [f"recv {C10D}", *ROOT]
    assert {o.role for o in detect(case(send, receive, receive, receive))} == {"context"}
    assert {o.role for o in detect(case([f"barrier {C10D}", *ROOT], REDUCE))} == {"context"}


def test_healthy_runs_accuse_nobody():
    user = ["tokenize (train.py:12)", *ROOT]
    assert list(detect(case(user, LOADING, BACKWARD, REDUCE))) == []
    assert list(detect(case(user, user, LOADING, LOADING))) == []
    assert list(detect(case(user, user, user, user, user, user, REDUCE, REDUCE))) == []
    assert list(detect(case(BACKWARD, BACKWARD, BACKWARD))) == []
    assert list(detect(Case("empty"))) == []


def test_waiting_ranks_that_moved_between_dumps_were_slow_not_hung():
    later = [f"all_reduce {C10D}", "clip_norm (train.py:60)", *ROOT]
    assert list(detect(case(REDUCE, REDUCE, LOADING, again=[REDUCE, later, LOADING]))) == []
    suspect, _ = detect(case(REDUCE, REDUCE, LOADING, again=[REDUCE, REDUCE, ["retry (io.py:3)", *ROOT]]))
    assert (suspect.rank, suspect.strength, suspect.text) == (2, 2, "retry (io.py:3)")
    assert list(detect(case(gather("Actor"), gather("Critic"), again=[gather("Critic"), gather("Critic")]))) == []


def test_an_absent_dump_or_a_computing_peer_makes_the_accusation_a_hint():
    for third in (None, BACKWARD):
        suspect, *_ = detect(case(REDUCE, REDUCE, LOADING, third))
        assert (suspect.rank, suspect.strength) == (2, 1)


def test_a_computing_rank_is_suspect_only_if_nobody_moves():
    stuck = ["forward (model.py:3)", "_call_impl (torch/nn/modules/module.py:1)", *ROOT]
    assert not [o for o in detect(case(REDUCE, REDUCE, stuck)) if o.role == "initiating"]
    suspect, _ = detect(case(REDUCE, REDUCE, stuck, again=[REDUCE, REDUCE, stuck]))
    assert (suspect.rank, suspect.strength) == (2, 1)


def test_peers_in_backward_wait_for_the_one_that_is_not():
    suspect, echo = detect(case(BACKWARD, BACKWARD, LOADING, again=[BACKWARD, BACKWARD, LOADING]))
    assert (suspect.rank, suspect.strength, echo.detail["ranks"]) == (2, 2, [0, 1])
    suspect, _ = detect(case(BACKWARD, BACKWARD, LOADING))
    assert suspect.strength == 1
    assert list(detect(case(BACKWARD, LOADING))) == []


def test_the_fullest_dump_is_judged():
    suspect, _ = detect(case(REDUCE, LOADING, REDUCE, again=[REDUCE, None, None]))
    assert (suspect.rank, suspect.detail["ranks"]) == (1, [1])
