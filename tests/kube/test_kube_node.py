"""The node agent: all segments of a log, in order and whole; what the controller reported is not reported again."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from collector.kube_incident import incident_id
from collector.kube_node import NodeAgent
from collector.kube_settings import Settings
from collector.lake import write_raw
from collector.model import Artifact, Budget, LedgerEntry, Outcome, RunRef
from collector.sources.node_agent import NodeState, kernel_log, lines, segments
from collector.spool import Spool
from collector.store import open_store

FOLDER = "ns_train-0_3d1f"


def _write(folder: Path, name: str, texts: list[str], packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = "".join(f"2026-12-01T00:00:00.{n:09d}Z stderr {text}\n" for n, text in enumerate(texts)).encode()
    (folder / name).write_bytes(gzip.compress(data) if packed else data)


def test_segments_come_in_time_and_a_half_compressed_one_only_once(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / "main"
    _write(folder, "0.log", ["F newest"])
    _write(folder, "0.log.20261201-000200.gz", ["F second"], packed=True)
    _write(folder, "0.log.20261201-000100", ["F first"])
    _write(folder, "0.log.20261201-000100.gz", ["F fir"], packed=True)
    _write(folder, "1.log", ["F another run"])
    problems: list[str] = []
    text = b"".join(lines(tmp_path, segments(tmp_path, FOLDER, "main", 0), problems)).decode()
    assert [line.split(" ", 1)[1] for line in text.splitlines()] == ["first", "second", "newest"]
    assert not problems


def test_partial_lines_are_joined_also_over_a_rotation_and_secrets_are_masked(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / "main"
    _write(folder, "0.log.20261201-000100", ["P one ", "P long "])
    _write(folder, "0.log", ["F line", "F token=ghp_0123456789abcdefghijklmnopqrstuvwxyzAB"])
    text = b"".join(lines(tmp_path, segments(tmp_path, FOLDER, "main", 0), [])).decode()
    first, second = text.splitlines()
    assert first == "2026-12-01T00:00:00.000000000Z one long line"
    assert "ghp_" not in second


def test_a_link_in_a_log_folder_leads_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    folder = tmp_path / "pods" / FOLDER / "main"
    folder.mkdir(parents=True)
    (folder / "0.log").symlink_to(secret)
    problems: list[str] = []
    assert b"".join(lines(tmp_path / "pods", segments(tmp_path / "pods", FOLDER, "main", 0), problems)) == b""
    assert len(problems) == 1


def test_the_kernel_log_has_wall_clock_times(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(path, os.O_WRONLY)
    os.write(writing, b"3,1,2000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n")
    text = kernel_log(path, now=1_800_000_010.0, uptime=10.0)
    assert text == b"2027-01-15T08:00:02,000000+00:00 NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    os.close(reading)
    os.close(writing)


def test_what_a_node_cannot_give_is_said(tmp_path: Path) -> None:
    state = NodeState("gpu-a", tmp_path / "none", nvidia_smi=str(tmp_path / "no-program"))
    found = list(state.collect(RunRef("i"), Budget()))
    assert all(isinstance(each, LedgerEntry) and each.outcome is Outcome.UNREACHABLE for each in found)
    program = tmp_path / "smi"
    program.write_text("#!/bin/sh\necho '==============NVSMI LOG=============='\n")
    program.chmod(0o755)
    (smi,) = [each for each in NodeState("gpu-a", tmp_path / "none", str(program)).collect(RunRef("i"), Budget())
              if isinstance(each, Artifact)]  # fmt: skip
    assert b"NVSMI" in smi.open().read()


@pytest.mark.parametrize("reported", [False, True], ids=["the controller is lost", "the controller reported"])
def test_a_failed_pod_of_the_node(cluster: Any, space: Any, tmp_path: Path, reported: bool) -> None:
    store = open_store(str(tmp_path / "store"))
    made = space.job("node", 1)
    (pod,) = space.pods("node")
    meta = pod["metadata"]
    pods = tmp_path / "pods"
    folder = pods / f"{space.name}_{meta['name']}_{meta['uid']}" / "main"
    _write(folder, "0.log.20261201-000100", ["F step 1"])
    _write(folder, "0.log", ["F KeyError: 'labels'"])
    agent = NodeAgent(
        cluster.api(), store, Spool(tmp_path / "spool"), Settings(cluster="c1"), pod["spec"]["nodeName"], pods,
        state=NodeState(pod["spec"]["nodeName"], tmp_path / "none"), patience=1.0,
    )  # fmt: skip
    from collector.kube_incident import Part
    from collector.kube_jobs import JobRef, kind_of
    from collector.kube_pods import view

    kind = kind_of("batch/v1", "Job")
    assert kind is not None
    incident = incident_id("c1", JobRef(kind, "batch/v1", space.name, "node", made["metadata"]["uid"]), 0)
    space.fails(pod)
    (pod,) = space.pods("node")
    if reported:
        row = {"source": "kube_pod", "path": "x", "outcome": "collected"}
        write_raw(store, "ledger", incident, Part(view(pod), view(pod).runs[0]).origin, [row])
    agent.start()
    space.until(lambda: agent.counts["reported"] and not agent.shipper.pending(incident), lambda: str(agent.trouble))
    agent.stop()
    from collector.lake import read_raw

    texts = [row["text"] for row in read_raw(store, "log_lines", incident).to_pylist()]
    assert texts == (["step 1"] if reported else ["step 1", "KeyError: 'labels'"])
    sources = {row["source"] for row in read_raw(store, "ledger", incident).to_pylist()}
    assert "node_agent" in sources
