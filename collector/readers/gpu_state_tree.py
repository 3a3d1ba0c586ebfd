"""GPU state as a tree: XML of `nvidia-smi -q -x`, AMD's JSON, and where fields lie in every driver generation."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Gpu:
    """One GPU (or a message instead of one) as text; the caller turns the values into numbers."""

    fields: dict[str, str]
    line: int | None = None
    throttle: list[str] | None = None
    """Active clock event reasons, without the prefix of their generation; None if the form does not tell them."""
    error: str | None = None


SHARED = {"timestamp": "timestamp", "driver_version": "driver", "attached_gpus": "attached"}
"""What a file says once about all its GPUs."""

# Where a field may lie: paths of names from the GPU down. The first that has a value counts.
_PATHS: dict[str, tuple[str, ...]] = {
    "uuid": ("uuid", "gpu_uuid"),
    "serial": ("serial", "serial_number"),
    "pci": ("pci/pci_bus_id", "pci/bus_id"),
    "model": ("product_name",),
    "index": ("index",),
    "power_w": (
        "gpu_power_readings/power_draw",
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/instantaneous_power_draw",
        "gpu_power_readings/average_power_draw",
        "power_readings/power_draw",
    ),
    "temperature_c": ("temperature/gpu_temp", "temperature/gpu_current_temp"),
    "memory_used_mib": ("fb_memory_usage/used",),
    "memory_total_mib": ("fb_memory_usage/total",),
    "remap_failure": ("remapped_rows/remapped_row_failure", "remapped_rows/remapping_failure_occurred"),
}
_REMAP_PENDING = ("remapped_rows/remapped_row_pending", "remapped_rows/pending")
# before Ampere, bad pages were retired instead of rows remapped; both wait for a reset
_RETIRE_PENDING = tuple(
    f"retired_pages/{name}" for name in ("pending_retirement", "pending_blacklist", "pending_page_blacklist", "pending")
)
_RETIRED = (
    "retired_pages/double_bit_retirement/retired_count", "retired_pages/multiple_single_bit_retirement/retired_count",
    "retired_pages/double_bit_ecc", "retired_pages/single_bit_ecc",
)  # fmt: skip
# uncorrectable errors: a total before Ampere, parts since
_ECC_TOTALS = ("double_bit/total",)
_ECC_PARTS = (
    "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable_sec-ded",
    "dram_uncorrectable",
)  # fmt: skip
_REASONS = ("clocks_throttle_reasons/", "clocks_event_reasons/")
_REASON_PREFIX = re.compile(r"^clocks_(?:throttle|event)_reason_")
_WANTED = {
    "gpu_reset_status/reset_required": "Reset Required",
    "ecc_errors/unrepairable_memory": "Unrepairable Memory",
    "ecc_errors/channel_repair_pending": "Channel Repair Pending",
    "ecc_errors/tpc_repair_pending": "TPC Repair Pending",
}
_LOST = re.compile(r"GPU is lost|Unknown Error|GPU requires reset|Reset required", re.IGNORECASE)


def from_tree(tree: Mapping[str, str], line: int | None, shared: Mapping[str, str]) -> Gpu:
    """A GPU from the leaves of its tree (`path/of/names` -> text) and from what the file says about all."""
    fields = dict(shared)
    for name, paths in _PATHS.items():
        fields[name] = next((tree[path] for path in paths if _told(tree.get(path))), "")
    for scale in ("volatile", "aggregate"):
        count = _uncorrected(tree, f"ecc_errors/{scale}/")
        if count is not None:
            fields[f"ecc_{scale}_uncorrected"] = str(count)
    pending = [tree[path] for path in (*_REMAP_PENDING, *_RETIRE_PENDING) if _told(tree.get(path))]
    if pending:
        fields["remap_pending"] = "Yes" if "Yes" in pending else pending[0]
    retired = [int(tree[path]) for path in _RETIRED if _number(tree.get(path))]
    if retired:
        fields["retired_pages"] = str(sum(retired))
    return Gpu(fields, line, active_reasons(tree), _error(tree.values()) or _wanted_action(tree))


def active_reasons(tree: Mapping[str, str]) -> list[str] | None:
    """Names of the clock event reasons that are active, such as `hw_thermal_slowdown`."""
    found: dict[str, str] = {}
    for path, value in tree.items():
        if path.startswith(_REASONS):
            found[_REASON_PREFIX.sub("", path.rsplit("/", 1)[1])] = value.strip()
    return [name for name, value in found.items() if value == "Active"] if found else None


def _told(value: str | None) -> bool:
    return value is not None and value.strip() not in ("", "N/A", "[N/A]")


def _number(value: str | None) -> bool:
    return value is not None and value.strip().isascii() and value.strip().isdigit() and len(value) < 19


def _uncorrected(tree: Mapping[str, str], place: str) -> int | None:
    for total in _ECC_TOTALS:
        if _number(tree.get(place + total)):
            return int(tree[place + total])
    parts = [int(tree[place + part]) for part in _ECC_PARTS if _number(tree.get(place + part))]
    return sum(parts) if parts else None


def _error(values: Iterable[str]) -> str | None:
    for value in values:
        if "ERR!" in value or _LOST.search(value):
            return value.strip()[:200]
    return None


def _wanted_action(tree: Mapping[str, str]) -> str | None:
    """What newer drivers ask for, which is `None` on a GPU that is well."""
    action = tree.get("gpu_recovery_action", "").strip()
    if action not in ("", "None", "N/A"):
        return f"GPU Recovery Action: {action}"
    wanted = [name for path, name in _WANTED.items() if tree.get(path, "").strip() == "Yes"]
    return f"{wanted[0]}: Yes" if wanted else None


# --- XML --------------------------------------------------------------------------------------------------------------

_MAX_DEPTH = 12
_DOCTYPE = re.compile(r"<!DOCTYPE[^<>\[]*>")


def read_xml(text: str) -> Iterator[Gpu]:
    """GPUs of `nvidia-smi -q -x`, also of several runs in one file and of a file that was cut off."""
    if "<nvidia_smi_log" not in text[:4096]:
        return
    start = 0
    for document in re.split(r"(?=<\?xml )", text):
        # No entity is ever declared by nvidia-smi: declaring one is an attack on the parser.
        if "<!ENTITY" not in document:
            yield from _document(_DOCTYPE.sub("", document), text.count("\n", 0, start))
        start += len(document)


def _document(document: str, lines_above: int) -> Iterator[Gpu]:
    parser: ET.XMLPullParser[ET.Element] = ET.XMLPullParser(events=("end",))
    opens = [lines_above + 1 + document.count("\n", 0, match.start()) for match in re.finditer(r"<gpu[ >]", document)]
    shared: dict[str, str] = {}
    index = 0
    parser.feed(document)
    for element in _events(parser):
        if element.tag in SHARED:
            shared[SHARED[element.tag]] = element.text or ""
        elif element.tag == "gpu":
            tree = dict(_leaves(element, ""))
            tree.setdefault("pci/pci_bus_id", element.get("id") or "")
            tree.setdefault("index", str(index))
            yield from_tree(tree, opens[index] if index < len(opens) else None, shared)
            index += 1


def _events(parser: ET.XMLPullParser[ET.Element]) -> Iterator[ET.Element]:
    events = parser.read_events()
    while True:
        try:
            event: tuple[Any, ...] = next(events)
        except (StopIteration, ET.ParseError):
            return
        element = event[1]
        if isinstance(element, ET.Element):
            yield element


def _leaves(element: ET.Element, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    for child in element if depth < _MAX_DEPTH else ():
        if child.tag == "mig_devices":  # parts of a GPU, with names that the whole GPU has too
            continue
        name = f"{path}{child.tag}"
        if len(child):
            yield from _leaves(child, f"{name}/", depth + 1)
        else:
            yield name, (child.text or "").strip()


# --- AMD --------------------------------------------------------------------------------------------------------------


def read_json(text: str) -> Iterator[Gpu]:
    """GPUs of `rocm-smi --json` (an object of cards) and `amd-smi static|metric --json` (a list of GPUs)."""
    if text.lstrip()[:1] not in ("{", "["):
        return
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(content, dict) and isinstance(content.get("gpu_data"), list):
        content = content["gpu_data"]
    if isinstance(content, dict):
        system = content.get("system")
        driver = str(system.get("Driver version", "")) if isinstance(system, dict) else ""
        for name, card in content.items():
            if re.fullmatch(r"card\d+", name) and isinstance(card, dict):
                yield _rocm(name, {str(key): str(value) for key, value in card.items()}, driver)
    elif isinstance(content, list):
        for entry in content:
            if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):
                yield _amd(entry)


def _rocm(name: str, card: Mapping[str, str], driver: str) -> Gpu:
    def pick(*starts: str) -> str:
        return next((value for key, value in card.items() if key.startswith(starts)), "")

    used, total = (_mebibytes(pick(f"VRAM Total {kind}Memory (B)")) for kind in ("Used ", ""))
    fields = {
        "index": name.removeprefix("card"),
        "driver": driver,
        "model": pick("Card Series", "Card series", "Device Name"),
        "uuid": pick("Unique ID"),
        "serial": pick("Serial Number"),
        "pci": pick("PCI Bus"),
        "temperature_c": pick("Temperature (Sensor junction)", "Temperature (Sensor edge)"),
        "power_w": pick("Average Graphics Package Power", "Current Socket Graphics Package Power"),
        "memory_used_mib": used,
        "memory_total_mib": total,
    }
    return Gpu(fields, error=_error(card.values()))


def _mebibytes(text: str) -> str:
    return str(int(text) / (1 << 20)) if _number(text) else ""


def _amd(entry: Mapping[str, Any]) -> Gpu:
    def pick(*paths: str) -> str:
        for path in paths:
            value: Any = entry
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            if isinstance(value, dict):
                value = value.get("value")
            if value is not None and not isinstance(value, (list, dict)):
                return str(value)
        return ""

    fields = {
        "index": str(entry["gpu"]),
        "model": pick("asic/market_name", "board/product_name"),
        "uuid": pick("uuid"),
        "serial": pick("asic/asic_serial", "board/product_serial"),
        "pci": pick("bus/bdf", "bdf"),
        "driver": pick("driver/version", "driver/driver_version"),
        "temperature_c": pick("temperature/hotspot", "temperature/edge"),
        "power_w": pick("power/socket_power", "power/current_socket_power"),
        "memory_used_mib": pick("mem_usage/used_vram", "fb_memory_usage/used"),
        "memory_total_mib": pick("mem_usage/total_vram", "vram/size"),
        "ecc_volatile_uncorrected": pick("ecc/total_uncorrectable_count", "ecc/total_uncorrectable"),
    }
    return Gpu(fields)


__all__ = ["SHARED", "Gpu", "active_reasons", "from_tree", "read_json", "read_xml"]
