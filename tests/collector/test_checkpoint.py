"""Checkpoints of every known form: whole, with a part missing, and cut off."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.checkpoint_files import check_file, dcp_extents, numbers_in_pickle
from collector.checkpoint_names import step_of
from collector.model import Artifact, ArtifactKind, Budget, Origin, RunRef
from collector.readers.checkpoint import from_listing, read
from collector.sources.log_dir import LogDir

DATA = Path(__file__).parent / "data" / "checkpoints"
"""Written by torch 2.13 (state.pt, legacy.pt, dcp/) and DeepSpeed 0.19.8 (model states)."""
STATE = (DATA / "state.pt").read_bytes()
Change = Callable[[Path], object]


def safetensors(size: int = 16) -> bytes:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def rows_of(root: Path) -> dict[str, dict[str, Any]]:
    found = LogDir(root).collect(RunRef("x"), Budget())
    rows = [
        row for one in found if isinstance(one, Artifact) and one.kind is ArtifactKind.CHECKPOINT for row in read(one)
    ]
    assert len({row["path"] for row in rows}) == len(rows)
    return {row["path"]: row for row in rows}


def put(root: Path, names: list[str], data: bytes = STATE) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def build_dcp(root: Path) -> str:
    for name in (".metadata", "__0_0.distcp", "__0_1.distcp"):
        put(root, [f"step-20/{name}"], (DATA / "dcp" / "step-20" / name).read_bytes())
    return "step-20"


def build_deepspeed(root: Path) -> str:
    put(root, [f"global_step6/zero_pp_rank_{d}_mp_rank_{m:02d}_optim_states.pt" for d in range(3) for m in range(2)])
    put(root, [f"global_step6/mp_rank_{m:02d}_model_states.pt" for m in range(2)])
    (root / "latest").write_text("global_step6")
    return "global_step6"


def build_zero3(root: Path) -> str:
    model = (DATA / "zero_pp_rank_0_mp_rank_00_model_states.pt").read_bytes()
    put(root, [f"global_step6/zero_pp_rank_{d}_mp_rank_00_model_states.pt" for d in range(2)], model)
    put(root, [f"global_step6/zero_pp_rank_{d}_mp_rank_00_optim_states.pt" for d in range(2)])
    return "global_step6"


def build_megatron(root: Path) -> str:
    put(root, [f"iter_0001000/mp_rank_{t:02d}_{p:03d}/model_optim_rng.pt" for t in range(2) for p in range(2)])
    (root / "latest_checkpointed_iteration.txt").write_text("1000\n")
    return "iter_0001000"


def build_trainer(root: Path) -> str:
    put(root, [f"checkpoint-500/{name}" for name in ("optimizer.pt", "scheduler.pt", "training_args.bin")])
    put(root, [f"checkpoint-500/rng_state_{rank}.pth" for rank in range(2)])
    put(root, [f"checkpoint-500/model-0000{n}-of-00002.safetensors" for n in (1, 2)], safetensors())
    index = {"weight_map": {f"w{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}}
    put(root, ["checkpoint-500/model.safetensors.index.json"], json.dumps(index).encode())
    put(root, ["checkpoint-500/trainer_state.json"], b'{"global_step": 512}')
    return "checkpoint-500"


def build_shards(root: Path) -> str:
    put(root, [f"step_000010/shard_{n:02d}_of_04.pt" for n in range(4)])
    return "step_000010"


def build_ranks(root: Path) -> str:
    put(root, [f"epoch_3/model_rank_{n}.pt" for n in range(4)])
    return "epoch_3"


def build_lightning(root: Path) -> str:
    put(root, ["epoch=3-step=1200.ckpt"])
    return "epoch=3-step=1200.ckpt"


def truncate(name: str, size: int = 1000) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


BUILDERS = [
    (build_dcp, "dcp", 20, 2, False),
    (build_deepspeed, "deepspeed", 6, 8, True), (build_zero3, "deepspeed", 6, 4, False),
    (build_megatron, "megatron", 1000, 4, True), (build_trainer, "hf-sharded", 512, 2, False),
    (build_shards, "torch", 10, 4, False), (build_ranks, "torch", None, None, False),
    (build_lightning, "torch", 1200, None, False),
]  # fmt: skip


@pytest.mark.parametrize(("build", "form", "step", "expected", "latest"), BUILDERS)
def test_a_whole_checkpoint_is_complete(
    tmp_path: Path, build: Callable[[Path], str], form: str, step: int | None, expected: int | None, latest: bool
) -> None:
    path = build(tmp_path)
    row = rows_of(tmp_path)[path]
    assert (row["status"], row["format"], row["step"], row["latest"]) == ("complete", form, step, latest), row["why"]
    assert row["shards_expected"] == expected
    files = (
        [tmp_path / path]
        if form == "torch" and step == 1200
        else [f for f in (tmp_path / path).rglob("*") if f.is_file()]
    )
    assert row["bytes"] == sum(file.stat().st_size for file in files)
    assert abs(row["saved_at"] / 1e6 - (tmp_path / path).stat().st_mtime) < 100


@pytest.mark.parametrize(
    ("build", "change", "status", "word"),
    [
        (build_dcp, remove(".metadata"), "partial", ".metadata is missing"),
        (build_dcp, remove("__0_1.distcp"), "partial", "__0_1.distcp is missing"),
        (build_dcp, truncate("__0_0.distcp", 500), "corrupt", "__0_0.distcp has 500 bytes, .metadata needs 10976"),
        (build_dcp, truncate("__0_0.distcp", 0), "corrupt", "__0_0.distcp has 0 bytes"),
        (build_dcp, truncate(".metadata", 0), "corrupt", ".metadata has 0 bytes"),
        (build_dcp, truncate(".metadata", 60), "unknown", "could not be read"),
        (build_deepspeed, remove("mp_rank_01_model_states.pt"), "partial", "mp_rank_01_model_states.pt is missing"),
        (
            build_deepspeed,
            remove("zero_pp_rank_1_mp_rank_01_optim_states.pt"),
            "partial",
            "zero_pp_rank_1_mp_rank_01_optim",
        ),
        (build_deepspeed, truncate("zero_pp_rank_2_mp_rank_00_optim_states.pt"), "corrupt", "no central directory"),
        (build_megatron, remove("mp_rank_01_001/model_optim_rng.pt"), "partial", "mp_rank_01_001 is missing"),
        (
            build_megatron,
            truncate("mp_rank_00_001/model_optim_rng.pt", 0),
            "corrupt",
            "mp_rank_00_001/model_optim_rng.pt has 0",
        ),
        (build_trainer, remove("trainer_state.json"), "partial", "trainer_state.json is missing"),
        (build_trainer, remove("optimizer.pt"), "partial", "no optimizer state"),
        (build_trainer, remove("rng_state_0.pth"), "partial", "rng_state_0.pth is missing"),
        (build_trainer, remove("model-00002-of-00002.safetensors"), "partial", "shard 2 of 2"),
        (build_trainer, truncate("model-00001-of-00002.safetensors", 110), "corrupt", "it was cut off"),
        (build_shards, remove("shard_02_of_04.pt"), "partial", "shard 2 of 4"),
        (build_shards, truncate("shard_02_of_04.pt"), "corrupt", "shard_02_of_04.pt: no central directory"),
        (build_ranks, remove("model_rank_2.pt"), "partial", "model_rank_2.pt is missing"),
        (build_ranks, lambda folder: put(folder, ["extra.pt.tmp"]), "partial", "never renamed"),
    ],
)
def test_a_broken_checkpoint_says_what_is_wrong(
    tmp_path: Path, build: Callable[[Path], str], change: Change, status: str, word: str
) -> None:
    path = build(tmp_path)
    change(tmp_path / path)
    row = rows_of(tmp_path)[path]
    assert row["status"] == status, row["why"]
    assert word in row["why"]


def test_the_last_data_parallel_rank_is_missed_because_the_model_states_its_size(tmp_path: Path) -> None:
    path = build_zero3(tmp_path)
    for what in ("model", "optim"):
        (tmp_path / path / f"zero_pp_rank_1_mp_rank_00_{what}_states.pt").unlink()
    row = rows_of(tmp_path)[path]
    assert (row["status"], row["shards_expected"], row["shards_found"]) == ("partial", 4, 2)


def test_a_tracker_that_names_a_missing_folder(tmp_path: Path) -> None:
    build_deepspeed(tmp_path)
    (tmp_path / "latest").write_text("global_step12")
    rows = rows_of(tmp_path)
    assert (rows["global_step12"]["status"], rows["global_step12"]["latest"]) == ("partial", True)
    assert "`latest` names global_step12" in rows["global_step12"]["why"]
    assert (rows["global_step6"]["status"], rows["global_step6"]["latest"]) == ("complete", False)


def test_a_tracker_inside_a_trainer_checkpoint(tmp_path: Path) -> None:
    put(tmp_path, ["checkpoint-5/global_step5/mp_rank_00_model_states.pt", "checkpoint-5/training_args.bin"])
    put(tmp_path, ["checkpoint-5/trainer_state.json"], b'{"global_step": 5}')
    put(tmp_path, ["checkpoint-5/latest"], b"global_step6")
    row = rows_of(tmp_path)["checkpoint-5"]
    assert row["status"] == "partial"
    assert "names global_step6" in row["why"]


def test_an_unfinished_save(tmp_path: Path) -> None:
    put(tmp_path, ["tmp-checkpoint-500/optimizer.pt"])
    assert rows_of(tmp_path)["tmp-checkpoint-500"]["status"] == "partial"


def test_an_index_names_what_is_missing(tmp_path: Path) -> None:
    put(tmp_path, ["hub/a.safetensors"], safetensors())
    put(tmp_path, ["hub/model.safetensors.index.json"], b'{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}')
    row = rows_of(tmp_path)["hub"]
    assert (row["status"], row["shards_expected"], row["shards_found"]) == ("partial", 2, 1)
    assert "b.safetensors is missing" in row["why"]


@pytest.mark.parametrize(
    ("name", "data", "status"),
    [
        ("a.pt", STATE, "complete"),
        ("a.pt", STATE[:-1], "corrupt"),
        ("a.pt", b"", "corrupt"),
        ("a.pt", bytes(4096), "corrupt"),
        ("a.pt", (DATA / "legacy.pt").read_bytes(), "unknown"),
        ("a.pt", (DATA / "legacy.pt").read_bytes()[:100], "corrupt"),
        ("a.pt", b"\x80\x02]q\x00.", "complete"),
        ("a.pt", b"\x80\x02]q\x00", "corrupt"),
        ("a.pt", b"something else", "unknown"),
        ("a.safetensors", safetensors(), "complete"),
        ("a.safetensors", safetensors(15), "corrupt"),
        ("a.safetensors", safetensors(17), "corrupt"),
        ("a.safetensors", b"\xff" * 8 + safetensors()[8:], "corrupt"),
        ("a.safetensors", b"1234", "corrupt"),
        ("a.safetensors", (4).to_bytes(8, "little") + b"[[[[", "corrupt"),
    ],
)
def test_one_file(tmp_path: Path, name: str, data: bytes, status: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert check_file(tmp_path / name).status == status


def test_a_record_beyond_the_data_is_found(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"x" * 1000)
        archive.writestr("a/data/0", b"y" * 1000)
    whole = buffer.getvalue()
    # a hole of lost bytes in the middle, the directory at the end intact
    (tmp_path / "a.pt").write_bytes(whole[:200] + whole[400:])
    assert check_file(tmp_path / "a.pt").status == "corrupt"


def test_no_file_can_raise(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(STATE)
    for start in range(0, len(STATE), 37):
        damaged = bytearray(STATE)
        damaged[start : start + 8] = b"\xff" * 8
        (tmp_path / "a.pt").write_bytes(damaged)
        assert check_file(tmp_path / "a.pt").status in ("complete", "corrupt", "unknown")
        numbers_in_pickle(tmp_path / "a.pt", frozenset({"step"}))
    assert check_file(tmp_path / "gone.pt").status == "unknown"
    assert check_file(tmp_path).status == "unknown"


def test_numbers_are_read_without_executing_the_pickle(tmp_path: Path) -> None:
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", evil)
    numbers_in_pickle(tmp_path / "a.pt", frozenset({"step"}))
    assert check_file(tmp_path / "a.pt").status == "complete"
    assert not (tmp_path / "ran").exists()
    sizes = numbers_in_pickle(DATA / "zero_pp_rank_0_mp_rank_00_model_states.pt", frozenset({"dp_world_size"}))
    assert sizes == {"dp_world_size": 2}


def test_extents_are_those_of_the_files() -> None:
    folder = DATA / "dcp" / "step-20"
    extents = dcp_extents((folder / ".metadata").read_bytes())
    assert extents == {name: (folder / name).stat().st_size for name in ("__0_0.distcp", "__0_1.distcp")}
    assert dcp_extents(b"\x80\x04garbage") == {}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("global_step6", 6), ("checkpoint-500", 500), ("iter_0001000", 1000), ("step_000010", 10), ("step-100", 100),
        ("epoch=3-step=1200.ckpt", 1200), ("epoch_3", None), ("model_final.pt", None), ("ckpt_77.pt", 77),
        ("run-step=400-consumed_samples=12800.0", 400), ("ckpt/step_000010/model.safetensors", 10),
        ("ep3-ba1000", 1000),
    ],
)  # fmt: skip
def test_steps_in_names(name: str, step: int | None) -> None:
    assert step_of(name) == step


FIND = """      4096 2026-12-01T01:54:02.787765Z 0755 ckpt/step_000010
    594451 2026-12-01T01:53:54.954011Z 0644 ckpt/step_000010/__0_0.distcp
    582985 2026-12-01T01:53:54.938011Z 0644 ckpt/step_000010/__1_0.distcp
"""
LS = """/data/ckpt/step_{step}:
total {total}
{dots}-rw-r--r-- 1 root root {size} 2026-12-01 01:46:58.949992202 +0000 state.pt
"""
DOTS = "drwxr-xr-x 2 root root 60 2026-12-01 01:46:58 +0000 .\ndrwxr-xr-x 2 root root 60 2026-12-01 01:46:58 +0000 ..\n"


def listed(text: str) -> dict[str, dict[str, Any]]:
    artifact = Artifact(ArtifactKind.CHECKPOINT, "ls.txt", Origin(), len(text), lambda: io.BytesIO(text.encode()))
    rows = read(artifact)
    assert all(from_listing(row) for row in rows)
    return {row["path"]: row for row in rows}


def test_a_listing_can_prove_a_checkpoint_bad() -> None:
    row = listed(FIND)["ckpt/step_000010"]
    assert (row["status"], row["format"], row["step"]) == ("partial", "dcp", 10)
    assert row["saved_at"] == 1796090034000000
    row = listed(LS.format(step=10, total=0, dots=DOTS, size=0))["data/ckpt/step_10"]
    assert row["status"] == "corrupt"


def test_a_listing_cannot_prove_a_checkpoint_whole() -> None:
    assert listed(LS.format(step=10, total=4, dots=DOTS, size=123))["data/ckpt/step_10"]["status"] == "unknown"


def test_a_listing_without_dot_files_does_not_miss_the_metadata() -> None:
    text = "ckpt/step_10:\ntotal 8\n" + "".join(f"-rw-r--r-- 1 a a 10 Dec  1 01:46 __{n}_0.distcp\n" for n in (0, 1))
    row = listed(text)["ckpt/step_10"]
    assert row["status"] == "unknown"
    assert listed(text.replace("total 8\n", f"total 8\n{DOTS}"))["ckpt/step_10"]["status"] == "partial"


def test_a_file_that_is_smaller_than_in_the_other_steps_is_suspect() -> None:
    text = "\n".join(
        LS.format(step=step, total=9, dots=DOTS, size=size) for step, size in ((10, 900), (20, 900), (30, 400))
    )
    rows = listed(text)
    assert "probably cut off" in rows["data/ckpt/step_30"]["why"]
    assert "probably" not in rows["data/ckpt/step_20"]["why"]
