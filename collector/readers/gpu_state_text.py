"""GPU state as text: `nvidia-smi -q`, `--query-gpu ... --format=csv`, the default table, `-L`, and messages instead."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping

from collector.readers.gpu_state_tree import SHARED, Gpu, from_tree

_WIDTH = 1000
_GPU_HEADER = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_PAIR = re.compile(r"^(\s*)(\S.*?)\s*(?: : (.*)|:)?$")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, cut: no form has long ones, and patterns take their time on them."""
    return ((number, line[:_WIDTH]) for number, line in enumerate(text.splitlines(), 1))


def read_query(text: str) -> Iterator[Gpu]:
    """GPUs of `nvidia-smi -q` (any `-d` selection): sections by indentation, `name : value` leaves."""
    if "NVSMI LOG" not in text[:4096]:
        return
    shared: dict[str, str] = {}
    tree: dict[str, str] = {}
    opened: int | None = None
    stack: list[tuple[int, str]] = []
    index = -1
    for number, line in _lines(text):
        if header := _GPU_HEADER.match(line):
            if opened is not None:
                yield from_tree(tree, opened, shared)
            index += 1
            tree, opened, stack = {"pci/bus_id": header[1], "index": str(index)}, number, []
        elif "NVSMI LOG" in line:  # the next run of a loop
            if opened is not None:
                yield from_tree(tree, opened, shared)
            opened, index = None, -1
        elif pair := _PAIR.match(line):
            indent, name, value = len(pair[1]), _key(pair[2]), pair[3]
            stack = [section for section in stack if section[0] < indent]
            path = "/".join([*(section for _, section in stack), name])
            if value is None:
                stack.append((indent, name))
            elif opened is None:
                shared.update({SHARED[name]: value} if name in SHARED else {})
            else:
                # `HW Slowdown` has a value and lines below it: those then belong to the section around it
                tree.setdefault(path, value.strip())
    if opened is not None:
        yield from_tree(tree, opened, shared)


def _key(name: str) -> str:
    return re.sub(r"\s+", "_", name.strip().lower())


# --- CSV --------------------------------------------------------------------------------------------------------------

_COLUMNS = {
    "timestamp": "timestamp",
    "index": "index",
    "name": "model",
    "gpu_name": "model",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "serial": "serial",
    "gpu_serial": "serial",
    "pci.bus_id": "pci",
    "gpu_bus_id": "pci",
    "driver_version": "driver",
    "ecc.errors.uncorrected.volatile.total": "ecc_volatile_uncorrected",
    "ecc.errors.uncorrected.aggregate.total": "ecc_aggregate_uncorrected",
    "remapped_rows.pending": "remap_pending",
    "retired_pages.pending": "remap_pending",
    "remapped_rows.failure": "remap_failure",
    "power.draw": "power_w",
    "power.draw.instant": "power_w",
    "temperature.gpu": "temperature_c",
    "memory.used": "memory_used_mib",
    "memory.total": "memory_total_mib",
}
_RETIRED_COLUMNS = ("retired_pages.double_bit.count", "retired_pages.single_bit_ecc.count", "retired_pages.dbe")
_REASON_COLUMN = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
# NVML, nvmlClocksEventReasons: bits of `clocks_event_reasons.active`
_REASON_BITS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting",
)  # fmt: skip


_PLAIN_COLUMN = re.compile(r"[a-z][a-z0-9_.]*")
_TELLING = frozenset({"uuid", "gpu_uuid", "gpu_bus_id", "driver_version"})


def _columns(line: str) -> list[str] | None:
    """Query names of a header line of `--format=csv`, without units; None if the line is none.

    Names such as `index, name` head many a table: one that only this tool uses has to be among them.
    """
    names = [re.sub(r"\s*\[.*\]$", "", part.strip()) for part in line[:4096].split(",")]
    if not all(_PLAIN_COLUMN.fullmatch(name) for name in names):
        return None
    known = [name for name in names if name in _COLUMNS or _REASON_COLUMN.fullmatch(name)]
    telling = any(name in _TELLING or "." in name for name in known)
    return names if len(known) >= 2 and telling else None


def read_csv(text: str) -> Iterator[Gpu]:
    """GPUs of `nvidia-smi --query-gpu=... --format=csv[,nounits]`; without its header a table cannot be understood."""
    names: list[str] | None = None
    for number, line in _lines(text):
        header = _columns(line)
        if header is not None:
            names = header
        elif names is not None and line.strip():
            values = next(csv.reader([line], skipinitialspace=True), [])
            if len(values) == len(names):
                yield _csv_gpu(dict(zip(names, values, strict=True)), number)


def _csv_gpu(cells: Mapping[str, str], number: int) -> Gpu:
    fields = {_COLUMNS[name]: value.strip() for name, value in cells.items() if name in _COLUMNS}
    counts = [int(cells[name]) for name in _RETIRED_COLUMNS if cells.get(name, "").strip().isdecimal()]
    if counts:
        fields["retired_pages"] = str(sum(counts))
    reasons: list[str] | None = None
    for name, value in cells.items():
        column = _REASON_COLUMN.fullmatch(name)
        if column is None or column[1] == "supported":
            continue
        reasons = [] if reasons is None else reasons
        if column[1] == "active" and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value.strip()):
            mask = int(value, 16)
            reasons += [bit for place, bit in enumerate(_REASON_BITS) if mask >> place & 1]
        elif value.strip() == "Active":
            reasons.append(column[1])
    return Gpu(fields, number, reasons, next((v.strip() for v in cells.values() if _BROKEN.search(v)), None))


# --- table, list, messages --------------------------------------------------------------------------------------------

_BROKEN = re.compile(r"ERR!|GPU is lost|Unknown Error|GPU requires reset|Reset required", re.IGNORECASE)
_BANNER = re.compile(r"\|\s*NVIDIA-SMI\s+\S+\s+Driver Version:\s*(\S+)")
_ROW = re.compile(r"\|\s*(\d+)\s+(\S.*?)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)\s.*?\|\s*(\S+)\s*\|")
_USAGE = re.compile(r"\|\s*\S+\s+(\d+)C\s+\S+\s+(\d+)W\s*/\s*\S+\s*\|\s*(\d+)MiB\s*/\s*(\d+)MiB")
_LISTED = re.compile(r"GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-f-]+)\)")
_MESSAGES = (
    re.compile(r"Unable to determine the device handle for (?:GPU|gpu)\s?(?P<pci>[0-9A-Fa-f:.]*[0-9A-Fa-f]): .*"),
    re.compile(r"No devices were found"),
    re.compile(r"Failed to initialize NVML: .+"),
    re.compile(r"NVIDIA-SMI has failed because .+"),
    re.compile(r"GPU is lost\..*"),
)


def read_table(text: str) -> Iterator[Gpu]:
    """GPUs of the table that plain `nvidia-smi` prints: two lines each, old and new column widths."""
    banner = _BANNER.search(text[:8192])
    if banner is None:
        return
    gpu: Gpu | None = None
    for number, line in _lines(text):
        if row := _ROW.match(line):
            if gpu is not None:
                yield gpu
            index, model, pci, ecc = row.groups()
            model = re.sub(r"\s+(?:On|Off|ERR!)$", "", model)
            fields = {"driver": banner[1], "index": index, "model": model, "pci": pci, "ecc_volatile_uncorrected": ecc}
            gpu = Gpu(fields, number, error="ERR!" if "ERR!" in line else None)
        elif gpu is not None and gpu.line == number - 1:
            if usage := _USAGE.match(line):
                names = ("temperature_c", "power_w", "memory_used_mib", "memory_total_mib")
                gpu.fields.update(zip(names, usage.groups(), strict=True))
            gpu.error = gpu.error or ("ERR!" if "ERR!" in line else None)
    if gpu is not None:
        yield gpu


def read_list(text: str) -> Iterator[Gpu]:
    """GPUs of `nvidia-smi -L`, and the messages between them."""
    if not any(_LISTED.match(line.strip()) for _, line in _lines(text)):
        return
    for number, line in _lines(text):
        if listed := _LISTED.match(line.strip()):
            yield Gpu({"index": listed[1], "model": listed[2], "uuid": listed[3]}, number)
        else:
            yield from _message(line, number)


def read_messages(text: str) -> Iterator[Gpu]:
    """What nvidia-smi says instead of a state: one entry per message."""
    for number, line in _lines(text[: 1 << 16]):
        yield from _message(line, number)


def _message(line: str, number: int) -> Iterator[Gpu]:
    for pattern in _MESSAGES:
        if match := pattern.search(line):
            yield Gpu({"pci": match.groupdict().get("pci") or ""}, number, error=match.group().strip()[:200])
            return


# --- recognition ------------------------------------------------------------------------------------------------------

_DATE = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d+ [\d:]{8}(?: [A-Z]{3,4})? \d{4}\s*$")


def looks_like(head: bytes) -> bool:
    """Whether a file is the output of nvidia-smi, rocm-smi or amd-smi and nothing else.

    Job scripts like to run nvidia-smi first: a rank's log that starts with its table stays a rank's log.
    """
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    lines = [line for _, line in _lines(text) if line.strip() and not _DATE.match(line)]
    if not lines:
        return False
    first = lines[0].strip()
    if first.startswith(("<?xml", "<!DOCTYPE", "<nvidia_smi_log")):
        return "<nvidia_smi_log" in text[:4096]
    if first.startswith(("{", "[")):
        return bool(re.match(r'\s*\{\s*"card\d+"\s*:\s*\{', text)) or bool(
            re.match(r'\s*(?:\{\s*"gpu_data"\s*:\s*)?\[\s*\{\s*"gpu"\s*:\s*\d+', text)
        )
    if "NVSMI LOG" in first:
        return _share(lines, r"=+NVSMI LOG=+|.* : .*|.*:\s*$|GPU [0-9A-Fa-f:.]+|\s+\S.*") > 0.9
    if first.startswith("+--") and any(_BANNER.search(line) for line in lines[:4]):
        return _share(lines, r"[|+].*") > 0.9
    if _columns(lines[0]) is not None:
        return True
    return len(lines) <= 64 and _share(lines, _MESSAGE_OR_GPU) >= 0.5 and _MESSAGE_START.match(first) is not None


_MESSAGE_OR_GPU = "|".join([_LISTED.pattern, *(re.sub(r"\?P<\w+>", "?:", p.pattern) for p in _MESSAGES)])
_MESSAGE_START = re.compile(_MESSAGE_OR_GPU)


def _share(lines: list[str], pattern: str) -> float:
    compiled = re.compile(pattern)
    return sum(1 for line in lines if compiled.match(line.strip("\r") if pattern[0] == "=" else line)) / len(lines)
