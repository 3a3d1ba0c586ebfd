"""One spelling for PCI addresses: kernel, NVIDIA driver and nvidia-smi each write the same device differently."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?$", re.IGNORECASE)


def pci_address(text: str | None) -> str | None:
    """`text` as `dddd:bb:ss.f` in lower case, or None if it is no PCI address.

    Understands `0000:3b:00` (Xid), `00000000:3B:00.0` (nvidia-smi), `3b:00.0` (lspci) and a leading `PCI:`. A domain
    wider than 16 bits loses its leading zeros only.
    """
    match = _ADDRESS.match(text.strip()) if text else None
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{slot.lower()}.{(function or '0').lower()}"


def nccl_bus_id(text: str) -> str | None:
    """NCCL's `busId`, such as `9b000` for `0000:9b:00.0`, as `dddd:bb:ss.f`; None if it is no hexadecimal number.

    NCCL removes the punctuation of the address and prints the rest as one number (`busIdToInt64` in its sources).
    """
    try:
        number = int(text, 16)
    except ValueError:
        return None
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
