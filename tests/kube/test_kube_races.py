"""Deletion, death and outage at bad moments: nothing that could still be read is lost, nothing is doubled, the ledger
names the rest."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from typing import Any

import pytest

from collector.kube_api import path_of
from collector.kube_finalizer import FINALIZER, release_all
from collector.kube_lease import Lease
from collector.kube_pods import view
from collector.kube_reflect import Reflector
from collector.store import StoreUnavailable

LINES = [f"line {number} of the log" for number in range(2000)]


def _whole_or_named(site: Any, incident: str) -> str:
    """Either all lines are there, once, or the ledger says that the log was gone."""
    texts = site.texts(incident)
    outcomes = {row["outcome"] for row in site.rows("ledger", incident) if row["path"].startswith("pods/")}
    if texts == LINES:
        return "whole"
    assert texts == [] and outcomes & {"unreachable", "truncated"}, (len(texts), outcomes)
    return "named"


@pytest.mark.parametrize("delay", [0.0, 0.1, None])
def test_job_and_pods_are_deleted_right_after_the_failure(space: Any, site: Any, delay: float | None) -> None:
    controller = site.controller()
    space.job("brief", 1)
    (pod,) = space.pods("brief")
    space.log(pod, "\n".join(LINES))
    space.runs(pod)
    space.until(lambda: any(p.phase == "Running" for p in controller.reflectors[0].views.values()), "the pod is seen")
    space.fails(pod)
    if delay is None:
        space.until(lambda: controller.readers.bytes, "the log is read")
    else:
        time.sleep(delay)  # the race itself: the object of a pod that has ended goes at once, and its log with it
    space.delete(path_of("batch/v1", "jobs", space.name, "brief"), propagationPolicy="Background")
    (incident,) = site.finished(controller)
    assert _whole_or_named(site, incident) == "whole" or delay is not None
    assert any("Exit Code: 1" in text for text in site.texts(incident, "kubernetes/"))


def test_a_kubelet_that_never_ends_a_followed_log(space: Any, site: Any) -> None:
    space.job("endless", 2, backoffLimit=8)
    controller = site.controller(end_seconds=0.5)
    first, second = space.pods("endless")
    for pod in (first, second):
        space.log(pod, "\n".join(LINES))
        space.runs(pod)
    space.fails(first)
    space.until(lambda: controller.readers.busy, "the peer is followed")
    space.fails(second, endless=True)
    space.until(lambda: not controller.readers.busy, "the stream is cut")
    space.delete(path_of("batch/v1", "jobs", space.name, "endless"), propagationPolicy="Background")
    (incident,) = site.finished(controller)
    rows = [row for row in site.rows("log_lines", incident) if f"pods/{second['metadata']['name']}/" in row["path"]]
    assert [row["text"] for row in rows] == LINES


def test_a_store_that_is_down_loses_nothing(space: Any, site: Any) -> None:
    space.job("patient", 1)
    (pod,) = space.pods("patient")
    space.log(pod, "\n".join(LINES))
    down = threading.Event()
    down.set()
    real = site.store.put

    def put(key: str, data: Any) -> None:
        if down.is_set():
            raise StoreUnavailable("the store is away")
        real(key, data)

    site.store.put = put
    controller = site.controller()
    space.fails(pod)
    space.until(lambda: controller.shipper.shipped["retried"], "the store was asked")
    space.delete(path_of("batch/v1", "jobs", space.name, "patient"), propagationPolicy="Background")
    space.until(lambda: not space.pods("patient"), "the pods are gone")
    assert not site.incidents()
    down.clear()
    (incident,) = site.finished(controller)
    assert site.texts(incident) == LINES


def test_a_controller_that_is_killed_at_any_moment_is_followed_by_one_that_goes_on(space: Any, site: Any) -> None:
    names = [f"job-{number}" for number in range(6)]
    for name in names:
        space.job(name, 1)
    pods = {name: space.pods(name)[0] for name in names}
    for pod in pods.values():
        space.log(pod, "\n".join(LINES))
        space.runs(pod)
    moments = random.Random(4)
    for name in names:
        process = site.process("--no-analyze")
        space.fails(pods[name])
        time.sleep(moments.uniform(0.0, 1.5))  # the moment itself
        process.kill()
        process.wait(30)
    last = site.controller()
    space.until(lambda: len(set(site.analysed)) >= len(names) and not last.closer.waiting, lambda: f"{site.analysed}")
    assert len(site.incidents()) == len(names), "one incident for each job, and none twice"
    for incident in site.incidents():
        assert site.texts(incident) == LINES


def _abandon(controller: Any) -> None:
    """What a kill does: no thread gets to finish its work."""
    controller._halt.set()
    for reflector in controller.reflectors:
        reflector.stop()
    controller.readers._halt = True
    controller.readers.stop()
    controller.shipper.stop()
    controller.api.close()


def test_the_api_server_dies_and_comes_back(cluster: Any, space: Any, site: Any) -> None:
    space.job("outage", 2)
    controller = site.controller()
    first, second = space.pods("outage")
    for pod in (first, second):
        space.log(pod, "\n".join(LINES))
        space.runs(pod)
    space.until(lambda: controller.synced, "synced")
    cluster.kill("apiserver")
    space.until(lambda: controller.reflectors[0].trouble, "the controller notices")
    cluster.run("apiserver")
    cluster.wait_ready()
    space.fails(first)
    (incident,) = site.finished(controller)
    places = [(row["path"], row["line"]) for row in site.rows("log_lines", incident) if row["path"].startswith("pods/")]
    assert len(places) == len(set(places)), "no line twice"
    by_pod = [
        row["text"] for row in site.rows("log_lines", incident) if f"pods/{first['metadata']['name']}/" in row["path"]
    ]
    assert by_pod == LINES


def test_a_frozen_etcd_delays_and_loses_nothing(cluster: Any, space: Any, site: Any) -> None:
    space.job("frozen", 1)
    (pod,) = space.pods("frozen")
    space.log(pod, "\n".join(LINES))
    space.runs(pod)
    controller = site.controller()
    space.until(lambda: controller.synced, "synced")
    cluster.kill("etcd", signal.SIGSTOP)
    try:
        failing = threading.Thread(target=lambda: _until_it_works(lambda: space.fails(pod)))
        failing.start()
        time.sleep(2.0)  # the outage itself
    finally:
        cluster.kill("etcd", signal.SIGCONT)
    failing.join(60)
    (incident,) = site.finished(controller)
    assert site.texts(incident) == LINES


def _until_it_works(work: Any) -> None:
    for _ in range(100):
        with contextlib.suppress(Exception):
            work()
            return
        time.sleep(0.2)


def test_a_watch_that_is_too_old_is_listed_again_and_what_vanished_is_told(cluster: Any, space: Any) -> None:
    space.job("old", 1)
    (pod,) = space.pods("old")
    told: list[tuple[str, str]] = []
    reflector = Reflector(
        cluster.api(),
        path_of("v1", "pods", space.name),
        view,
        lambda kind, item, before: told.append((kind, before.name if before else "")),
    )
    ghost = view({"metadata": {"uid": "ghost", "name": "ghost", "namespace": space.name}})
    reflector.views["ghost"] = ghost  # known from before, and gone meanwhile
    reflector._version = "1"
    reflector.start()
    space.until(lambda: reflector.synced.is_set(), lambda: str(reflector.trouble))
    space.until(lambda: ("DELETED", "ghost") in told, "the pod that vanished is told")
    assert pod["metadata"]["uid"] in reflector.views
    reflector.stop()


def test_two_replicas_never_lead_at_once(cluster: Any, space: Any) -> None:
    leases = [Lease(cluster.api(), space.name, "leader", name, duration=6.0, retry=0.2) for name in ("a", "b")]
    assert leases[0].acquire()
    lost = threading.Event()
    leases[0].keep(lost.set)
    waiting = threading.Thread(target=leases[1].acquire, daemon=True)
    waiting.start()
    waiting.join(7.0)
    assert not leases[1].leading, "a lease that is renewed is not taken"
    leases[0]._halt.set()  # the holder dies without a word
    space.until(lambda: leases[1].leading, "the other takes over")
    assert not leases[0]._try(), "and the first may not come back"
    leases[1].stop()
    assert leases[0]._try(), "a lease that was given up is free at once"


def test_a_finalizer_holds_a_pod_until_its_log_is_safe(space: Any, site: Any) -> None:
    space.job("held", 1)
    controller = site.controller(finalizer=True, finalizer_seconds=30.0)
    (pod,) = space.pods("held")
    path = path_of("v1", "pods", space.name, pod["metadata"]["name"])
    space.until(lambda: FINALIZER in space.api.get(path)["metadata"].get("finalizers", []), "the pod is held")
    space.log(pod, "\n".join(LINES))
    space.hold(pod)
    space.runs(pod)
    space.fails(pod)
    space.delete(path_of("batch/v1", "jobs", space.name, "held"), propagationPolicy="Background")
    space.hold(pod, False)
    (incident,) = site.finished(controller)
    assert site.texts(incident) == LINES
    space.until(lambda: not space.pods("held"), "the pod is let go")


def test_finalizers_are_all_removed_before_an_uninstallation(space: Any, site: Any) -> None:
    space.job("left", 2)
    controller = site.controller(finalizer=True)
    space.until(lambda: all(FINALIZER in pod["metadata"].get("finalizers", []) for pod in space.pods("left")), "held")
    _abandon(controller)
    assert release_all(space.api, [space.name]) == 0
    assert not any(FINALIZER in pod["metadata"].get("finalizers", []) for pod in space.pods("left"))
