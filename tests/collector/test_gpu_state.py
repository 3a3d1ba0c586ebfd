import io
import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.model import Artifact, ArtifactKind, Origin
from collector.readers import gpu_state


def read(text: str | bytes) -> list[dict]:
    data = text if isinstance(text, bytes) else text.encode()
    origin = Origin(node="n1")
    return gpu_state.read(Artifact(ArtifactKind.GPU_STATE, "smi", origin, len(data), lambda: io.BytesIO(data)))


def xml(*gpus: str, version: str = "v12", driver: str = "535.54.03") -> str:
    return (
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{version}.dtd">\n<nvidia_smi_log>\n'
        f"\t<timestamp>Fri Aug  4 11:44:30 2023</timestamp>\n\t<driver_version>{driver}</driver_version>\n"
        f"\t<cuda_version>12.2</cuda_version>\n\t<attached_gpus>{len(gpus)}</attached_gpus>\n"
        + "".join(gpus)
        + "</nvidia_smi_log>\n"
    )


def volta(volatile: int = 0, retired: str = "0", pending: str = "No") -> str:
    """A GPU in the layout before Ampere: single and double bit counts, page retirement, throttle reasons."""
    count = "<{0}><single_bit><total>4</total></single_bit><double_bit><device_memory>{1}</device_memory><total>{1}</total></double_bit></{0}>"
    return f"""\t<gpu id="00000000:1A:00.0">
        <product_name>Tesla V100-SXM2-32GB</product_name><serial>0323817061572</serial>
        <uuid>GPU-29017365-4723-b07f-2ddf-a631c231412d</uuid>
        <pci><pci_bus_id>00000000:1A:00.0</pci_bus_id></pci>
        <clocks_throttle_reasons><clocks_throttle_reason_gpu_idle>Active</clocks_throttle_reason_gpu_idle>
        <clocks_throttle_reason_hw_thermal_slowdown>Not Active</clocks_throttle_reason_hw_thermal_slowdown></clocks_throttle_reasons>
        <fb_memory_usage><total>32510 MiB</total><used>11 MiB</used></fb_memory_usage>
        <ecc_errors>{count.format("volatile", volatile)}{count.format("aggregate", 7)}</ecc_errors>
        <retired_pages><multiple_single_bit_retirement><retired_count>1</retired_count></multiple_single_bit_retirement>
        <double_bit_retirement><retired_count>{retired}</retired_count></double_bit_retirement>
        <pending_blacklist>{pending}</pending_blacklist></retired_pages>
        <remapped_rows>N/A</remapped_rows>
        <temperature><gpu_temp>40 C</gpu_temp></temperature>
        <power_readings><power_draw>26.78 W</power_draw></power_readings>
    </gpu>
"""


def hopper(
    bus: str = "19", dram: str = "0", sram: str = "0", pending: str = "No", failure: str = "No", **more: str
) -> str:
    """A GPU in the layout since driver 535: parts of ECC, remapped rows, event reasons, MIG instances inside."""
    reason = "clocks_event_reason"
    return f"""\t<gpu id="00000000:{bus}:00.0">
        <product_name>NVIDIA H100 80GB HBM3</product_name>
        <mig_devices><mig_device><index>5</index><fb_memory_usage><total>1 MiB</total></fb_memory_usage></mig_device></mig_devices>
        <serial>1650522003820</serial><uuid>GPU-{bus}</uuid>
        <gpu_recovery_action>{more.get("action", "None")}</gpu_recovery_action>
        <pci><pci_bus_id>00000000:{bus}:00.0</pci_bus_id></pci>
        <{reason}s><{reason}_gpu_idle>Not Active</{reason}_gpu_idle>
        <{reason}_hw_thermal_slowdown>{more.get("thermal", "Not Active")}</{reason}_hw_thermal_slowdown></{reason}s>
        <{reason}s_counters><{reason}s_counters_hw_therm_slowdown>9 us</{reason}s_counters_hw_therm_slowdown></{reason}s_counters>
        <fb_memory_usage><total>81559 MiB</total><used>{more.get("used", "2 MiB")}</used></fb_memory_usage>
        <ecc_errors><volatile><sram_correctable>0</sram_correctable><sram_uncorrectable_parity>{sram}</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_correctable>177</dram_correctable>
        <dram_uncorrectable>{dram}</dram_uncorrectable></volatile><aggregate><sram_uncorrectable_parity>N/A</sram_uncorrectable_parity>
        <dram_uncorrectable>5</dram_uncorrectable></aggregate></ecc_errors>
        <retired_pages><pending_blacklist>N/A</pending_blacklist><pending_retirement>N/A</pending_retirement></retired_pages>
        <remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
        <remapped_row_pending>{pending}</remapped_row_pending><remapped_row_failure>{failure}</remapped_row_failure></remapped_rows>
        <temperature><gpu_temp>{more.get("temperature", "34 C")}</gpu_temp></temperature>
        <gpu_power_readings><average_power_draw>70.1 W</average_power_draw><instant_power_draw>71.5 W</instant_power_draw></gpu_power_readings>
        <module_power_readings><power_draw>N/A</power_draw></module_power_readings>
    </gpu>
"""


def test_xml_before_ampere() -> None:
    (row,) = read(xml(volta(volatile=2, retired="3", pending="Yes"), version="v11", driver="515.105.01"))
    assert row["node"] == "n1" and row["line"] == 8 and row["index"] == 0
    assert (row["model"], row["serial"], row["driver"]) == ("Tesla V100-SXM2-32GB", "0323817061572", "515.105.01")
    assert (row["ecc_volatile_uncorrected"], row["ecc_aggregate_uncorrected"]) == (2, 7)
    assert (row["retired_pages"], row["remap_pending"], row["remap_failure"]) == (4, True, None)
    assert row["throttle"] == ["gpu_idle"] and row["pci"] == "0000:1a:00.0"
    assert (row["power_w"], row["temperature_c"]) == (26.78, 40.0)
    assert (row["memory_used_mib"], row["memory_total_mib"]) == (11.0, 32510.0)
    assert row["taken_at"] == int(datetime(2023, 8, 4, 11, 44, 30, tzinfo=UTC).timestamp()) * 1_000_000


def test_xml_since_ampere() -> None:
    rows = read(xml(hopper(), hopper("3b", dram="1", sram="2", pending="Yes", failure="Yes", thermal="Active")))
    assert [(row["index"], row["pci"], row["uuid"]) for row in rows] == [
        (0, "0000:19:00.0", "GPU-19"),
        (1, "0000:3b:00.0", "GPU-3b"),
    ]
    well, ill = rows
    assert (well["ecc_volatile_uncorrected"], well["ecc_aggregate_uncorrected"]) == (0, 5)
    assert (well["remap_pending"], well["remap_failure"], well["retired_pages"], well["error"]) == (
        False,
        False,
        None,
        None,
    )
    assert well["throttle"] == [] and well["memory_total_mib"] == 81559.0 and well["power_w"] == 71.5
    assert (ill["ecc_volatile_uncorrected"], ill["remap_pending"], ill["remap_failure"]) == (3, True, True)
    assert ill["throttle"] == ["hw_thermal_slowdown"]


@pytest.mark.parametrize(
    ("gpu", "error"),
    [
        (hopper(temperature="ERR!"), "ERR!"),
        (hopper(temperature="Unknown Error"), "Unknown Error"),
        (hopper(used="GPU requires reset"), "GPU requires reset"),
        (hopper(action="Reset"), "GPU Recovery Action: Reset"),
    ],
)
def test_an_error_stands_where_a_value_should(gpu: str, error: str) -> None:
    (row,) = read(xml(gpu))
    assert row["error"] == error and row["model"] == "NVIDIA H100 80GB HBM3"


def test_xml_that_was_cut_off_gives_its_whole_gpus() -> None:
    text = xml(hopper(), hopper("3b"))
    assert [row["uuid"] for row in read(text[: text.index("GPU-3b")])] == ["GPU-19"]


def test_a_place_among_some_gpus_of_a_node_is_no_index() -> None:
    some = xml(hopper()).replace("<attached_gpus>1<", "<attached_gpus>8<")
    assert [row["index"] for row in read(some)] == [None]
    assert [row["index"] for row in read(QUERY.replace(": 2\nGPU", ": 8\nGPU"))] == [None, None]


def test_several_runs_in_one_file() -> None:
    text = xml(hopper()) + xml(hopper("3b"))
    rows = read(text)
    assert [row["uuid"] for row in rows] == ["GPU-19", "GPU-3b"]
    assert [text.splitlines()[row["line"] - 1].strip()[:4] for row in rows] == ["<gpu", "<gpu"]


def test_entities_are_never_expanded() -> None:
    bomb = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    start = time.process_time()
    hostile = f'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a0 "x">{bomb}]><nvidia_smi_log><gpu id="1">&a9;</gpu></nvidia_smi_log>'
    assert read(hostile) == []
    outside = '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY x SYSTEM "file:///etc/passwd">]><nvidia_smi_log><gpu><uuid>&x;</uuid></gpu></nvidia_smi_log>'
    assert read(outside) == []
    assert time.process_time() - start < 2


def test_deep_nesting_is_no_error() -> None:
    deep = "<a>" * 5000 + "</a>" * 5000
    (row,) = read(xml(hopper().replace("</gpu>", deep + "</gpu>")))
    assert row["uuid"] == "GPU-19"


QUERY = """
==============NVSMI LOG==============

Timestamp                                 : Wed Jan 14 15:17:09 2026
Driver Version                            : 580.105.06
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:42:00.0
    Product Name                          : NVIDIA H200
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Serial Number                         : 1650522003820
    GPU UUID                              : GPU-072b19bd-4ccf-63cf-6435-cf462aff833d
    GPU Recovery Action                   : None
    PCI
        Bus                               : 0x42
        Bus Id                            : 00000000:42:00.0
    Clocks Event Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    Clocks Event Reasons Counters
        HW Thermal Slowdown               : 0 us
    FB Memory Usage
        Total                             : 143771 MiB
        Used                              : 1 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 1
            DRAM Correctable              : 177
            DRAM Uncorrectable            : 2
        Aggregate
            DRAM Correctable              : 177
            DRAM Uncorrectable            : 9
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 0
        Pending                           : Yes
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 639 bank(s)
    Temperature
        GPU Current Temp                  : 88 C
    GPU Power Readings
        Average Power Draw                : 600.50 W
    Processes                             : None

GPU 00000000:A2:00.0
    Product Name                          : Tesla V100-SXM2-16GB
    Clocks Throttle Reasons               : N/A
    Ecc Errors
        Volatile
            Single Bit
                Total                     : 0
            Double Bit
                Device Memory             : 1
                Total                     : 1
    Retired Pages
        Single Bit ECC                    : 2
        Double Bit ECC                    : 1
        Pending                           : No
    Temperature
        GPU Current Temp                  : ERR!
"""


def test_query_text_of_two_generations() -> None:
    new, old = read(QUERY)
    assert gpu_state.looks_like(QUERY.encode())
    assert (new["index"], new["pci"], new["model"], new["driver"], new["line"]) == (
        0, "0000:42:00.0", "NVIDIA H200", "580.105.06", 9,
    )  # fmt: skip
    assert (new["ecc_volatile_uncorrected"], new["ecc_aggregate_uncorrected"]) == (3, 9)
    assert (new["remap_pending"], new["remap_failure"], new["retired_pages"], new["error"]) == (True, False, None, None)
    assert new["throttle"] == ["hw_slowdown", "hw_thermal_slowdown"]
    assert (new["memory_total_mib"], new["temperature_c"], new["power_w"]) == (143771.0, 88.0, 600.5)
    assert new["taken_at"] == int(datetime(2026, 1, 14, 15, 17, 9, tzinfo=UTC).timestamp()) * 1_000_000
    assert (old["index"], old["pci"], old["ecc_volatile_uncorrected"]) == (1, "0000:a2:00.0", 1)
    assert (old["retired_pages"], old["remap_pending"], old["throttle"], old["error"]) == (3, False, None, "ERR!")


def test_csv_is_read_by_its_header() -> None:
    text = (
        "timestamp, index, name, uuid, pci.bus_id, driver_version, ecc.errors.uncorrected.volatile.total, "
        "remapped_rows.pending, power.draw [W], temperature.gpu, pstate, memory.used [MiB], clocks_event_reasons.active\n"
        "2026/12/01 01:24:59.250, 0, NVIDIA H100, GPU-a, 00000000:19:00.0, 550.54.15, 0, No, 70.03 W, 34, P0, 2 MiB, 0x0000000000000001\n"
        "2026/12/01 01:24:59.250, 1, NVIDIA H100, GPU-b, 00000000:3B:00.0, 550.54.15, [Unknown Error], Yes, [N/A], ERR!, P0, 2 MiB, 0x00000000000000C8\n"
    )
    assert gpu_state.looks_like(text.encode())
    well, ill = read(text)
    assert (well["line"], well["index"], well["ecc_volatile_uncorrected"], well["error"]) == (2, 0, 0, None)
    assert (well["power_w"], well["throttle"], well["remap_pending"]) == (70.03, ["gpu_idle"], False)
    assert well["taken_at"] == int(datetime(2026, 12, 1, 1, 24, 59, tzinfo=UTC).timestamp()) * 1_000_000 + 250_000
    assert (ill["ecc_volatile_uncorrected"], ill["power_w"], ill["remap_pending"]) == (None, None, True)
    assert ill["error"] == "[Unknown Error]" and ill["pci"] == "0000:3b:00.0"
    assert ill["throttle"] == ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"]


TABLE = """Wed Apr 28 08:39:21 2021
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 450.51.05    Driver Version: 450.51.05    CUDA Version: 11.0     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100S-PCI...  Off  | 00000000:00:07.0 Off |                    3 |
| N/A   50C    P0   219W / 250W |   4617MiB / 32510MiB |    100%      Default |
|                               |                      |                  N/A |
+-------------------------------+----------------------+----------------------+
|   1  ERR!                ERR! | 00000000:00:08.0 ERR!|                 ERR! |
|ERR!  ERR! ERR!    ERR! / ERR! |   4617MiB / 32510MiB |    ERR!      Default |
|                               |                      |                 ERR! |
+-------------------------------+----------------------+----------------------+
+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|    0   N/A  N/A      1234      C   python3                          4613MiB |
+-----------------------------------------------------------------------------+
"""


def test_the_table_old_and_new() -> None:
    assert gpu_state.looks_like(TABLE.encode())
    well, ill = read(TABLE)
    assert (well["index"], well["model"], well["pci"], well["ecc_volatile_uncorrected"]) == (
        0, "Tesla V100S-PCI...", "0000:00:07.0", 3,
    )  # fmt: skip
    assert (well["temperature_c"], well["power_w"], well["memory_used_mib"], well["error"]) == (
        50.0,
        219.0,
        4617.0,
        None,
    )
    assert (ill["index"], ill["pci"], ill["error"], ill["model"], ill["ecc_volatile_uncorrected"]) == (
        1, "0000:00:08.0", "ERR!", None, None,
    )  # fmt: skip
    wide = TABLE.replace("|   0  Tesla V100S-PCI...  Off  |", "|   0  NVIDIA H100 80GB HBM3          On  |").replace(
        "Driver Version: 450.51.05", "Driver Version: 550.54.15     "
    )
    (first, _) = read(wide)
    assert (first["model"], first["driver"]) == ("NVIDIA H100 80GB HBM3", "550.54.15")


@pytest.mark.parametrize(
    ("text", "pci"),
    [
        ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU\n", "0000:02:00.0"),
        ("Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n", "0000:03:00.0"),
        ("No devices were found\n", None),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n", None),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it runs.\n", None),
    ],
)  # fmt: skip
def test_messages_instead_of_a_state(text: str, pci: str | None) -> None:
    assert gpu_state.looks_like(text.encode())
    (row,) = read(text)
    assert row["pci"] == pci and row["error"] and row["error"] in text and row["index"] is None and row["line"] == 1


def test_the_list_and_what_is_missing_in_it() -> None:
    text = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-513536b6-7d19-9063-b049-1e69664bb298)\n"
        "Unable to determine the device handle for gpu 0000:0B:00.0: Unknown Error\n"
    )
    assert gpu_state.looks_like(text.encode())
    first, second = read(text)
    assert (first["index"], first["model"], first["error"]) == (0, "NVIDIA A100-SXM4-80GB", None)
    assert (second["pci"], second["line"]) == ("0000:0b:00.0", 2)


def test_amd_in_both_forms() -> None:
    rocm = {
        "card0": {"Device Name": "AMD Instinct MI300X", "GUID": "1", "Unique ID": "0xabc", "PCI Bus": "0000:C1:00.0",
                  "Temperature (Sensor junction) (C)": "45.0", "VRAM Total Memory (B)": str(192 << 30)},
        "card1": {"Device Name": "AMD Instinct MI300X"},
        "system": {"Driver version": "6.10.5"},
    }  # fmt: skip
    text = json.dumps(rocm)
    assert gpu_state.looks_like(text.encode())
    rows = read(text)
    assert [(row["index"], row["model"], row["driver"]) for row in rows] == [
        (0, "AMD Instinct MI300X", "6.10.5"),
        (1, "AMD Instinct MI300X", "6.10.5"),
    ]
    assert (rows[0]["pci"], rows[0]["temperature_c"], rows[0]["memory_total_mib"]) == ("0000:c1:00.0", 45.0, 196608.0)
    amd = [{"gpu": 3, "asic": {"market_name": "MI300X"}, "bus": {"bdf": "0000:c1:00.0"},
            "temperature": {"hotspot": {"value": 50, "unit": "C"}}, "ecc": {"total_uncorrectable_count": 2}}]  # fmt: skip
    assert gpu_state.looks_like(json.dumps(amd).encode())
    (row,) = read(json.dumps(amd))
    assert (row["index"], row["model"], row["pci"], row["temperature_c"], row["ecc_volatile_uncorrected"]) == (
        3, "MI300X", "0000:c1:00.0", 50.0, 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        TABLE + "step 1 loss 2.0\n" * 20,
        "step 1 loss 2.0\nNo devices were found\n",
        "RuntimeError: No CUDA GPUs are available\n",
        "lr, loss, step\n0.1, 2.0, 1\n",
        "index, name, serial\n0, a.png, 7\n",
        '{"step": 1, "loss": 2.0}\n',
        '[{"gpu": "a", "loss": 1}]',
        "<?xml version='1.0'?><html></html>",
        "[rank0]: GPU is lost. Reboot\nTraceback\n  File\nmore\n",
    ],
)
def test_other_files_are_not_claimed(text: str) -> None:
    assert not gpu_state.looks_like(text.encode())


PIECES = st.sampled_from(
    [xml(hopper()), QUERY, TABLE, "<gpu>", "</gpu>", "GPU 00000000:42:00.0", " : ", "card0", "[{", "ERR!"]
)


@given(st.lists(st.one_of(st.binary(max_size=40), PIECES.map(str.encode)), max_size=6), st.integers(0, 400))
def test_any_bytes_give_rows_or_nothing(parts: list[bytes], cut: int) -> None:
    data = b"\n".join(parts)[cut:]
    gpu_state.looks_like(data)
    for row in read(data):
        assert row["path"] == "smi" and (row["index"] is None or isinstance(row["index"], int))


@pytest.mark.parametrize("filler", ("a", " ", ".", ": ", "| 1 ", "GPU 1: ", "A=1 ", "a==", "a .... "))
def test_a_long_line_costs_little(filler: str) -> None:
    start = time.process_time()
    for head in (QUERY, TABLE, "", "index, uuid, temperature.gpu\n"):
        text = head + filler * (200_000 // len(filler)) + "x\n"
        read(text)
        gpu_state.looks_like(text.encode()[:65536])
    assert time.process_time() - start < 2
