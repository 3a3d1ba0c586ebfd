import io
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.model import Artifact, ArtifactKind, Origin
from collector.readers import environment

DATA = Path(__file__).parent / "data" / "environment"


def rows(text: str | bytes) -> list[dict]:
    data = text if isinstance(text, bytes) else text.encode()
    origin = Origin(node="n1", rank=3)
    return environment.read(Artifact(ArtifactKind.ENVIRONMENT, "env.txt", origin, len(data), lambda: io.BytesIO(data)))


def read(text: str | bytes) -> dict[str, str]:
    return {row["name"]: row["value"] for row in rows(text)}


def test_collect_env() -> None:
    data = (DATA / "collect_env.txt").read_bytes()
    facts = read(data)
    assert environment.looks_like(data)
    assert facts["torch"] == "2.13.0+cpu" and facts["cuda_runtime"] == "13.0.88" and facts["cpu"] == "AMD EPYC"
    assert facts["package:pytorch-lightning"] == "2.6.6" and facts["cuda_available"] == "False"
    assert "driver" not in facts and "cudnn" not in facts and "package:could" not in facts
    lines = data.decode().splitlines()
    for row in rows(data):
        assert row["value"] in lines[row["line"] - 1] and (row["node"], row["rank"]) == ("n1", 3)


def test_collect_env_with_gpus_conda_and_variables() -> None:
    text = (
        "PyTorch version: 2.4.0+cu124\nIs debug build: False\nCUDA used to build PyTorch: 12.4\n"
        "GPU models and configuration: \nGPU 0: NVIDIA A100-SXM4-80GB\nGPU 1: NVIDIA A100-SXM4-80GB\n\n"
        "Nvidia driver version: 550.90.07\nNCCL version: 2.20.5\ncuDNN version: 9.1.0\n"
        "[conda] nvidia-nccl-cu12          2.20.5                   pypi_0    pypi\n"
        "NCCL_DEBUG=INFO\nHF_TOKEN=hf_secret\n"
    )
    assert read(text) == {
        "torch": "2.4.0+cu124", "cuda_build": "12.4", "gpu:0": "NVIDIA A100-SXM4-80GB", "gpu:1": "NVIDIA A100-SXM4-80GB",
        "driver": "550.90.07", "nccl": "2.20.5", "cudnn": "9.1.0", "package:nvidia-nccl-cu12": "2.20.5", "env:NCCL_DEBUG": "INFO",
    }  # fmt: skip


def test_ds_report() -> None:
    data = (DATA / "ds_report.txt").read_bytes()
    assert environment.looks_like(data)
    assert read(data) == {
        "torch": "2.13.0+cpu",
        "package:deepspeed": "0.19.8",
        "deepspeed_compiled_with": "torch 0.0",
        "shm_size": "23.54 GB",
    }


def test_pip_freeze() -> None:
    data = (DATA / "pip_freeze.txt").read_bytes()
    facts = read(data)
    assert environment.looks_like(data)
    assert facts["package:deepspeed"] == "0.19.8" and facts["package:absl-py"] == "2.5.1"
    assert len(facts) == sum(1 for line in data.splitlines() if line.strip())


def test_package_lists_in_other_forms() -> None:
    freeze = (
        "torch==2.4.0\nFlash_Attn @ git+https://user:tok@git.example.org/x.git@abc\nnumpy==1.26.4\n"
        "-e git+https://git.example.org/me/train.git@abc#egg=train\na==1\nb===2.0\n"
    )
    facts = read(freeze)
    assert facts["package:flash-attn"] == "git+https://git.example.org/x.git@abc"
    assert facts["package:train"] == "editable" and facts["package:b"] == "2.0"
    table = (
        "Package    Version   Editable project location\n---------- ---------\ntorch      2.4.0\nNumPy      1.26.4\n"
    )
    table += "zipp       3.1\nyarl       1.9\nxxhash     3.4\n"
    assert environment.looks_like(table.encode())
    assert read(table) == {
        "package:torch": "2.4.0", "package:numpy": "1.26.4", "package:zipp": "3.1", "package:yarl": "1.9",
        "package:xxhash": "3.4",
    }  # fmt: skip
    conda = "# packages in environment at /opt/conda:\n#\n# Name Version Build Channel\npytorch 2.4.0 py3.11_cuda12.4 pytorch\n"
    conda += "".join(f"lib{letter} 1.0 h0 defaults\n" for letter in "abcd")
    assert environment.looks_like(conda.encode()) and read(conda)["package:pytorch"] == "2.4.0"


DUMP = {
    "PATH": "/usr/bin", "HOME": "/home/me", "NCCL_SOCKET_IFNAME": "eth0", "RANK": "3", "WORLD_SIZE": "8",
    "MASTER_ADDR": "n1", "SLURM_JOB_ID": "42", "SLURM_JWT": "secret1", "WANDB_API_KEY": "secret2",
    "AWS_SECRET_ACCESS_KEY": "secret3", "NCCL_AUTH_TOKEN": "secret4", "OMP_NUM_THREADS": "8", "HF_HOME": "/data/hf",
}  # fmt: skip


@pytest.mark.parametrize("form", ["{}={}\n", "export {}='{}'\n", 'declare -x {}="{}"\n', "{}={}\0"])
def test_only_allowed_names_are_taken_from_a_dump(form: str) -> None:
    text = "".join(form.format(name, value) for name, value in DUMP.items())
    assert environment.looks_like(text.encode())
    assert read(text) == {
        "env:NCCL_SOCKET_IFNAME": "eth0", "env:RANK": "3", "env:WORLD_SIZE": "8", "env:MASTER_ADDR": "n1",
        "env:SLURM_JOB_ID": "42", "env:OMP_NUM_THREADS": "8",
    }  # fmt: skip
    assert "secret" not in repr(rows(text))


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("NCCL_DEBUG", True), ("LOCAL_RANK", True), ("CUDA_VISIBLE_DEVICES", True), ("UCX_TLS", True), ("DS_ACCELERATOR", True),
        ("FI_PROVIDER", True), ("GLOO_SOCKET_IFNAME", True), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", True),
        ("SLURM_JWT", False), ("AWS_ACCESS_KEY_ID", False), ("PATH", False), ("HF_TOKEN", False), ("USER", False),
        ("TORCH_HUB_TOKEN", False), ("CUDA_API_KEY", False), ("http_proxy", False), ("DATABASE_PASSWORD", False),
    ],
)  # fmt: skip
def test_the_allow_list(name: str, taken: bool) -> None:
    assert environment.allowed(name) is taken


def test_the_version_line_of_nccl() -> None:
    assert read("n1:12:12 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n") == {"nccl": "2.21.5+cuda12.4"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 1 loss 2.0\nstep 2 loss 1.9\n",
        (DATA / "collect_env.txt").read_text() + "step 1 loss 2.0 something happened here\n" * 100,
        "lr=0.1\nbatch=4\nseed=1\nepochs=3\nname=x\n",
        "[rank0]: Traceback (most recent call last):\n  File 'x.py', line 3\nKeyError: 'labels'\n",
        "Collecting environment information...\n",
        "torch==2.4.0\n",
    ],
)
def test_other_files_are_not_claimed(text: str) -> None:
    assert not environment.looks_like(text.encode())


@given(
    st.lists(
        st.one_of(st.binary(max_size=60), st.sampled_from([b"PyTorch version: 1", b"Is debug build:", b"A=1", b"a==1"]))
    )
)
def test_any_bytes_give_rows_or_nothing(parts: list[bytes]) -> None:
    data = b"\n".join(parts)
    environment.looks_like(data)
    assert all(row["name"] and row["value"] and row["line"] >= 1 for row in rows(data))


@pytest.mark.parametrize("filler", ("a", " ", ".", ": ", "| 1 ", "GPU 1: ", "A=1 ", "a==", "a .... "))
def test_a_long_line_costs_little(filler: str) -> None:
    start = time.process_time()
    for head in (
        (DATA / "ds_report.txt").read_text(),
        "PyTorch version: 1\nIs debug build: False\n",
        "Package Version\n",
        "",
    ):
        text = head + filler * (200_000 // len(filler)) + "x\n"
        read(text)
        environment.looks_like(text.encode()[:65536])
    assert time.process_time() - start < 2
