"""Xids: of hardware, of programs, and echoes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from building import Run
from registry import SURE, case, key_error, others_time_out, seconds

ECC = "uncorrectable ECC error encountered"
LAUNCH = "unspecified launch failure"
NVLINK = "uncorrectable NVLink error detected during the execution"
XIDS = {
    79: ("GPU has fallen off the bus.", False, LAUNCH),
    48: (
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 0.",
        False, ECC,
    ),
    94: ("Contained: SM (0x1). RST: No, D-RST: No", True, ECC),
    95: ("Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No", False, ECC),
    63: ("Row Remapper: New row marked for remapping, reset gpu to activate.", False, ECC),
    64: ("Row Remapper: Error writing a row remapping entry to the InfoROM.", False, ECC),
    74: (
        "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        False, NVLINK,
    ),
    119: (
        "Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8).",
        True, LAUNCH,
    ),
    149: (
        "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        False, NVLINK,
    ),
}  # fmt: skip
SIGNATURES = {149: "gpu/xid-144-150", 63: "(?:gpu/xid-63|cuda/ecc-error)"}


def _xid_case(code: int) -> None:
    text, with_pid, error = XIDS[code]

    @case(f"xid-{code}")
    def fails(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(3, last + seconds(9.2), code, text, run.pid(3) if with_pid else None)
        run.cuda_error(3, last + seconds(10.4), error)
        others_time_out(run, 3, last + seconds(11))
        return {
            "status": SURE, "signature": SIGNATURES.get(code, f"gpu/xid-{code}"), "cause": "gpu", "ranks": [3],
            "nodes": ["gpu-node-08"],
        }  # fmt: skip

    @case(f"xid-{code}-yesterday")
    def old(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(3, timedelta(hours=-21), code, text, 3377 if with_pid else None)
        return key_error(run, 1, last)

    @case(f"xid-{code}-other-node")
    def elsewhere(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(3, last + seconds(9.2), code, text, 3377 if with_pid else None, node="gpu-node-33")
        others_time_out(run, -1, last + seconds(11))
        return {"not": {"cause": "gpu", "nodes": "gpu-node-33"}}


for _code in XIDS:
    _xid_case(_code)

ILLEGAL = "an illegal memory access was encountered"
FAULTS = {
    13: "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
}


def _program_fault(code: int) -> None:
    @case(f"xid-{code}-program")
    def program(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(2, last + seconds(9.2), code, FAULTS[code], run.pid(2))
        run.xid(2, last + seconds(9.6), 43, "Ch 00000008", run.pid(2))
        run.cuda_error(2, last + seconds(10.4), ILLEGAL, "out = fused_rope(q, k, cos, sin, offsets)")
        others_time_out(run, 2, last + seconds(11))
        return {
            "status": SURE, "signature": f"gpu/xid-{code}|cuda/illegal-memory-access|torch/watchdog-cuda-error",
            "cause": "user_code", "ranks": [2], "nodes": ["gpu-node-08"],
        }  # fmt: skip

    @case(f"xid-{code}-one-device")
    def device(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        for days, pid in ((-1.6, 8121), (-1.1, 12911), (-0.4, 30552)):
            run.xid(2, timedelta(days=days), code, FAULTS[code], pid)
        run.xid(2, last + seconds(9.2), code, FAULTS[code], run.pid(2))
        run.cuda_error(2, last + seconds(10.4), ILLEGAL)
        others_time_out(run, 2, last + seconds(11))
        return {"status": SURE, "signature": f"gpu/xid-{code}", "cause": "gpu", "ranks": [2], "nodes": ["gpu-node-08"]}

    @case(f"xid-{code}-yesterday")
    def old(run: Run) -> dict[str, Any]:
        last = run.begin()
        run.quiet_kernel()
        run.xid(2, timedelta(hours=-19), code, FAULTS[code], 8121)
        return key_error(run, 1, last)


for _code in FAULTS:
    _program_fault(_code)


@case("xid-45-after-79")
def xid_45_after_79(run: Run) -> dict[str, Any]:
    """Channels are removed on the GPU that is lost and on its neighbour."""
    last = run.begin()
    run.quiet_kernel()
    run.xid(3, last + seconds(9.2), 79, "GPU has fallen off the bus.")
    run.xid(3, last + seconds(9.5), 45, "Ch 00000010", run.pid(3))
    run.xid(2, last + seconds(11.5), 45, "Ch 00000011", run.pid(2))
    run.cuda_error(3, last + seconds(10.4), LAUNCH)
    others_time_out(run, 3, last + seconds(11))
    return {"status": SURE, "signature": "gpu/xid-79", "cause": "gpu", "ranks": [3], "nodes": ["gpu-node-08"]}


@case("xid-45-at-teardown")
def xid_45_at_teardown(run: Run) -> dict[str, Any]:
    """The driver cleans up after processes that were killed because another rank had failed."""
    last = run.begin()
    run.quiet_kernel()
    for rank in (2, 3):
        run.xid(rank, last + seconds(6), 45, "Ch 00000010", run.pid(rank))
    return key_error(run, 1, last)


@case("xid-43-after-assert")
def xid_43_after_assert(run: Run) -> dict[str, Any]:
    """A device-side assertion of the program; the driver stops the channel and says so."""
    last = run.begin()
    run.quiet_kernel()
    run.raw(
        2,
        "../aten/src/ATen/native/cuda/Indexing.cu:1237: indexSelectSmallIndex: block: [3,0,0], thread: [64,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
    )
    run.xid(2, last + seconds(9.6), 43, "Ch 00000008", run.pid(2))
    run.cuda_error(2, last + seconds(9.4), "device-side assert triggered", "hidden = self.embed(ids)")
    others_time_out(run, 2, last + seconds(11))
    return {"status": SURE, "signature": "cuda/device-side-assert", "ranks": [2], "not": {"cause": "gpu"}}


@case("xid-43-alone")
def xid_43_alone(run: Run) -> dict[str, Any]:
    """A stopped channel, timeouts everywhere, and nothing that says what came first."""
    last = run.begin()
    run.quiet_kernel()
    run.xid(2, last + seconds(612), 43, "Ch 00000008", run.pid(2))
    others_time_out(run, -1, last + seconds(11))
    return {"not": {"cause": "gpu", "signature": "gpu/.*"}}


@case("xid-79-undated")
def xid_79_undated(run: Run) -> dict[str, Any]:
    """The kernel log counts seconds since a boot that nobody knows; the rank's own error answers to it."""
    run.uptime = True
    last = run.begin()
    run.quiet_kernel()
    run.xid(3, last + seconds(9.2), 79, "GPU has fallen off the bus.")
    run.cuda_error(3, last + seconds(10.4), LAUNCH)
    others_time_out(run, 3, last + seconds(11))
    return {"status": SURE, "signature": "gpu/xid-79", "cause": "gpu", "ranks": [3], "nodes": ["gpu-node-08"]}


@case("xid-79-undated-beside-exception")
def xid_79_undated_beside_exception(run: Run) -> dict[str, Any]:
    """The same kernel log, in which the Xid may be of another day, beside an exception of another rank."""
    run.uptime = True
    last = run.begin()
    run.quiet_kernel()
    run.xid(3, timedelta(hours=-21), 79, "GPU has fallen off the bus.")
    return key_error(run, 1, last)
