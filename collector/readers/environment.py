"""Versions and settings -> `environment`: collect_env, ds_report, package lists, NCCL's version, environment dumps.

Decision: one name for one fact whoever states it (`torch`, `driver`, `nccl`, `package:<name>`, `env:<NAME>`), so that
nodes can be compared. Of an environment dump only names of an allow-list are taken, and none that smells of a secret:
what is not read cannot leak.

Sources: torch.utils.collect_env, deepspeed.env_report, pip freeze/list, conda list, env(1), /proc/PID/environ; how full
disks and quotas are, by collector.readers.disk_usage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from collector.model import Artifact
from collector.readers import disk_usage

_MAX_BYTES = 16 << 20
_WIDTH = 1000
"""Longer lines are cut: no report has them, and patterns take their time on them."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class _Fact(NamedTuple):
    name: str
    value: str
    source: str
    line: int


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line[:_WIDTH]) for number, line in enumerate(text.splitlines(), 1))


# --- collect_env ------------------------------------------------------------------------------------------------------

_COLLECT_ENV = {
    "PyTorch version": "torch",
    "CUDA used to build PyTorch": "cuda_build",
    "ROCM used to build PyTorch": "rocm_build",
    "CUDA runtime version": "cuda_runtime",
    "HIP runtime version": "hip_runtime",
    "Nvidia driver version": "driver",
    "NCCL version": "nccl",
    "cuDNN version": "cudnn",
    "Is CUDA available": "cuda_available",
    "Python version": "python",
    "Python platform": "platform",
    "OS": "os",
    "Libc version": "libc",
    "GCC version": "gcc",
    "Model name": "cpu",
    "CPU(s)": "cpus",
}
_UNKNOWN = frozenset({"", "n/a", "none", "could not collect"})
_COLLECTED_PACKAGE = re.compile(r"\[(?:pip\d?|conda)\] ([A-Za-z0-9][\w.-]*)(?:==|\s+)(\d\S*)")
_GPU = re.compile(r"(?:GPU models and configuration:\s*)?GPU (\d+): (.+)")


def _collect_env(text: str) -> Iterator[_Fact]:
    if "PyTorch version:" not in text or "Is debug build:" not in text:
        return
    for number, line in _lines(text):
        name, colon, value = line.partition(":")
        known = _COLLECT_ENV.get(name.strip())
        if colon and known is not None and value.strip().lower() not in _UNKNOWN:
            yield _Fact(known, value.strip(), "collect_env", number)
        elif package := _COLLECTED_PACKAGE.match(line):
            yield _Fact(f"package:{_package(package[1])}", package[2], "collect_env", number)
        elif gpu := _GPU.match(line):
            yield _Fact(f"gpu:{gpu[1]}", gpu[2].strip(), "collect_env", number)
        elif (variable := _VARIABLE.match(line)) and allowed(variable[1]):
            yield _Fact(f"env:{variable[1]}", _unquote(variable[2]), "collect_env", number)


# --- ds_report --------------------------------------------------------------------------------------------------------

_DS_REPORT = {
    "torch version": "torch",
    "torch cuda version": "cuda_build",
    "torch hip version": "rocm_build",
    "nvcc version": "nvcc",
    "deepspeed wheel compiled w.": "deepspeed_compiled_with",
    "shared memory (/dev/shm) size": "shm_size",
}
_DS_LINE = re.compile(r"^([a-z][\w ()/.]*?) \.{3,} (.+?)\s*$")


def _ds_report(text: str) -> Iterator[_Fact]:
    if "DeepSpeed general environment info" not in text:
        return
    for number, line in _lines(_ANSI.sub("", text)):
        pair = _DS_LINE.match(line)
        if pair is None:
            continue
        if pair[1] == "deepspeed info":
            yield _Fact("package:deepspeed", pair[2].split(",")[0].strip(), "ds_report", number)
        elif pair[1] in _DS_REPORT and pair[2].strip().lower() not in _UNKNOWN:
            yield _Fact(_DS_REPORT[pair[1]], pair[2].strip(), "ds_report", number)


# --- packages ---------------------------------------------------------------------------------------------------------

_FROZEN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:===?(\S+)| @ (\S+))\s*(?:;.*)?$")
_EDITABLE = re.compile(r"-e \S+#egg=([\w.-]+)")
_CREDENTIALS = re.compile(r"(://)[^/@\s]*@")
_TABLE_HEAD = re.compile(r"Package\s+Version\b|# packages in environment at ")
_TABLE_ROW = re.compile(r"([A-Za-z0-9_][\w.-]*)\s+(\d\S*)")
_MIN_PACKAGES = 5


def _package(name: str) -> str:
    """PEP 503: runs of `-`, `_` and `.` are one dash, lower case."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _packages(text: str) -> Iterator[_Fact]:
    listed: list[_Fact] = []
    table = False
    for number, line in _lines(text):
        line = line.strip()
        if _TABLE_HEAD.match(line):
            table = True
        elif frozen := _FROZEN.match(line):
            value = frozen[2] or _CREDENTIALS.sub(r"\1", frozen[3])
            listed.append(_Fact(f"package:{_package(frozen[1])}", value, "pip", number))
        elif editable := _EDITABLE.match(line):
            listed.append(_Fact(f"package:{_package(editable[1])}", "editable", "pip", number))
        elif table and (row := _TABLE_ROW.match(line)):
            listed.append(_Fact(f"package:{_package(row[1])}", row[2], "pip", number))
    if len(listed) >= _MIN_PACKAGES or (listed and len(listed) == sum(1 for line in text.splitlines() if line.strip())):
        yield from listed


# --- environment variables --------------------------------------------------------------------------------------------

_ALLOWED = re.compile(
    r"(?:NCCL|TORCH|TORCHELASTIC|CUDA|GLOO|FI|UCX|DS|DEEPSPEED|SLURM|PMI|OMPI_COMM_WORLD|HSA|ROCR|HIP|RCCL|PYTORCH)_[A-Z0-9_]+|"
    r"MASTER_(?:ADDR|PORT)|(?:LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(?:LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|LOCAL_SIZE|"
    r"OMP_NUM_THREADS|MKL_NUM_THREADS|PYTHONFAULTHANDLER|PYTHONUNBUFFERED"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASS|AUTH|CRED|JWT|COOKIE|PRIVATE|(?:^|_)KEY|KEY$")
_VARIABLE = re.compile(r"(?:export |declare -x )?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")


def allowed(name: str) -> bool:
    """Whether the value of an environment variable may be read: on the allow-list and no secret by its name."""
    return _ALLOWED.fullmatch(name) is not None and _SECRET.search(name) is None


def _unquote(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value


def _variables(text: str) -> Iterator[_Fact]:
    separator = "\0" if "\0" in text else "\n"
    for number, line in enumerate(text.split(separator), 1):
        variable = _VARIABLE.match(line.rstrip("\r"))
        if variable is not None and allowed(variable[1]):
            yield _Fact(f"env:{variable[1]}", _unquote(variable[2]), "env", number)


# --- NCCL -------------------------------------------------------------------------------------------------------------

_NCCL = re.compile(r"\bNCCL version:? v?(\d+\.\d+[\w.+]*)")


def _nccl(text: str) -> Iterator[_Fact]:
    for number, line in _lines(text):
        if version := _NCCL.search(line):
            yield _Fact("nccl", version[1], "log", number)


# --- disks and quotas -------------------------------------------------------------------------------------------------


def _disks(text: str) -> Iterator[_Fact]:
    return (_Fact(usage.name, usage.value, "disk", usage.line) for usage in disk_usage.read(text))


# --- all of them ------------------------------------------------------------------------------------------------------

_READERS: tuple[Callable[[str], Iterator[_Fact]], ...] = (
    _collect_env, _ds_report, _packages, _variables, _nccl, _disks,
)  # fmt: skip


def read(artifact: Artifact) -> list[dict[str, Any]]:
    """Rows of `environment`, in the order of the file; one file may hold several reports, one after the other."""
    try:
        with artifact.open() as stream:
            data = stream.read(_MAX_BYTES)
    except OSError:
        return []
    text = data.decode("utf-8", "replace")
    facts: dict[tuple[str, int], _Fact] = {}
    for reader in _READERS:
        for fact in reader(text):
            facts.setdefault((fact.name, fact.line), fact)
    place = {"node": artifact.origin.node, "rank": artifact.origin.rank, "path": artifact.path, "offset": None}
    ordered = sorted(facts.values(), key=lambda fact: fact.line)
    return [
        place | {"name": f.name, "value": f.value[:500], "source": f.source, "line": f.line} for f in ordered if f.value
    ]


def looks_like(head: bytes) -> bool:
    """Whether a file is such a report and nothing else: a rank's log that starts with one stays a rank's log."""
    text = head.decode("utf-8", "replace")
    parts = text.split("\0") if "\0" in text else text.splitlines()
    lines = [line.strip() for _, line in _lines(_ANSI.sub("", "\n".join(parts))) if line.strip()]
    if not lines:
        return False
    if disk_usage.looks_like(text):
        return True
    if any(line.startswith("PyTorch version:") for line in lines[:6]) and "Is debug build:" in text:
        return _share(lines, r"[^:]{2,60}:(?: |$)|\[(?:pip|conda)|GPU\d|[A-Z_]+=|Legend|NIC\d|[XSNPB]\w* +=") > 0.8
    if any("DeepSpeed C++/CUDA extension op report" in line for line in lines[:4]):
        return _share(lines, r"-{5}|NOTE:|.* \.{2,} |\[WARNING\]|\[\d{4}-|[\w ]+$|.*:$|.*\.$") > 0.8
    if _share(lines, _FROZEN.pattern) > 0.9 and len(lines) >= _MIN_PACKAGES:
        return True
    if _TABLE_HEAD.match(lines[0]):
        return _share(lines, r"[A-Za-z0-9_#-][\w.-]*\s+\S|-{3,}|#") > 0.9
    return _is_dump(lines)


def _is_dump(lines: list[str]) -> bool:
    """`env` or /proc/PID/environ: almost only assignments, most to upper-case names, some that a job or a shell has."""
    names = [match[1] for line in lines if (match := _VARIABLE.match(line))]
    upper = sum(1 for name in names if name.isupper())
    typical = sum(1 for name in names if name in ("PATH", "HOME", "PWD", "USER", "HOSTNAME", "SHELL") or allowed(name))
    return len(names) >= 5 and len(names) > 0.85 * len(lines) and upper > 0.7 * len(names) and typical >= 2


def _share(lines: list[str], pattern: str) -> float:
    compiled = re.compile(pattern)
    return sum(1 for line in lines if compiled.match(line)) / len(lines)
