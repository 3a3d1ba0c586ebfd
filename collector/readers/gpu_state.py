"""GPU state of a node -> `gpus`: every output form of nvidia-smi, and the JSON of rocm-smi and amd-smi.

Decision: XML and `-q` text of all driver generations are brought into one tree of lower-case names, and a table of
paths says where a field may lie; a new driver is a new path, not new code. What a form does not tell is null, never
zero. XML is read without any document type: a file that declares entities is not from nvidia-smi.

Sources: nvidia-smi(1), nvsmi_device_v11 to v13 DTDs, `nvidia-smi --help-query-gpu`, NVML clock event reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from collector.model import Artifact
from collector.pci import pci_address
from collector.readers.gpu_state_text import looks_like, read_csv, read_list, read_messages, read_query, read_table
from collector.readers.gpu_state_tree import Gpu, read_json, read_xml

__all__ = ["looks_like", "read"]

_MAX_BYTES = 64 << 20
_TIMES = ("%a %b %d %H:%M:%S %Y", "%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S")

_Reader = Callable[[str], Iterator[Gpu]]
_READERS: tuple[_Reader, ...] = (read_xml, read_json, read_query, read_csv, read_table, read_list, read_messages)
"""Tried in this order; the first that finds a GPU or a message has understood the file."""


def read(artifact: Artifact) -> list[dict[str, Any]]:
    """Rows of `gpus`, in the order of the file. Content of any kind gives rows or nothing, never an error."""
    try:
        with artifact.open() as stream:
            data = stream.read(_MAX_BYTES)
    except OSError:
        return []
    text = data.decode("utf-8", "replace").lstrip("\ufeff")
    for reader in _READERS:
        found = list(reader(text))
        if found:
            attached = _whole(found[0].fields.get("attached"))
            whole = not attached or len(found) % attached == 0
            return [_row(artifact, gpu, whole) for gpu in found]
    return []


def _row(artifact: Artifact, gpu: Gpu, whole: bool) -> dict[str, Any]:
    """`whole` is False where some GPUs of the node are not in the file (`-i`): a place in it is then no index."""
    fields = gpu.fields
    counters = ("ecc_volatile_uncorrected", "ecc_aggregate_uncorrected")
    return {
        "node": artifact.origin.node,
        "rank": artifact.origin.rank,
        "taken_at": _moment(fields.get("timestamp")),
        "path": artifact.path,
        "line": gpu.line,
        "offset": None,
        "index": _whole(fields.get("index")) if whole else None,
        "uuid": _words(fields.get("uuid")),
        "serial": _words(fields.get("serial")),
        "pci": pci_address(fields.get("pci")) or _words(fields.get("pci")),
        "model": _words(fields.get("model")),
        "driver": _words(fields.get("driver")),
        **{name: _whole(fields.get(name)) for name in counters},
        "remap_pending": _yes(fields.get("remap_pending")),
        "remap_failure": _yes(fields.get("remap_failure")),
        "retired_pages": _whole(fields.get("retired_pages")),
        "throttle": gpu.throttle,
        "power_w": _amount(fields.get("power_w")),
        "temperature_c": _amount(fields.get("temperature_c")),
        "memory_used_mib": _amount(fields.get("memory_used_mib")),
        "memory_total_mib": _amount(fields.get("memory_total_mib")),
        "error": gpu.error,
    }


_NOTHING = frozenset(
    {"", "n/a", "[n/a]", "[not supported]", "not supported", "none", "requested functionality has been deprecated"}
)


def _words(text: str | None) -> str | None:
    return None if text is None or text.strip().lower() in _NOTHING or "ERR!" in text else text.strip()[:200]


def _amount(text: str | None) -> float | None:
    """The number a value with a unit starts with, such as `67.03 W`."""
    match = re.match(r"\s*(-?\d{1,12}(?:\.\d{1,6})?)", text or "", re.ASCII)
    return float(match[1]) if match else None


def _whole(text: str | None) -> int | None:
    number = _amount(text)
    return None if number is None else int(number)


def _yes(text: str | None) -> bool | None:
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}.get(
        (text or "").strip().lower()
    )


def _moment(text: str | None) -> int | None:
    """UTC microseconds of a local time that names no zone, read as UTC like every time without one."""
    for form in _TIMES if text else ():
        try:
            moment = datetime.strptime(" ".join(str(text).split()), form).replace(tzinfo=UTC)
        except ValueError:
            continue
        return int(moment.timestamp()) * 1_000_000 + moment.microsecond
    return None
