"""`firstfault watch`: the controller in a cluster. Options may come from the environment (FIRSTFAULT_WATCH_*).

Standard output is one JSON object per line, for the cluster's own log collection. Exit status: 0 after SIGTERM, 1 if
the lease was lost or the controller could not start, 2 usage.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click


def say(event: str, **what: Any) -> None:
    """One line of the log."""
    row = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **what}
    print(json.dumps(row, default=str), flush=True)


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="firstfault.toml (store, redaction, cluster).")
@click.option("--store", "uri", help="Where evidence goes, in place of the configuration's store.uri.")
@click.option("--cluster", help="Name of this cluster in incident ids.")
@click.option("--spool", type=click.Path(path_type=Path), default=Path("/var/lib/firstfault/spool"), show_default=True)
@click.option("--kubeconfig", type=click.Path(exists=True, path_type=Path), help="Default: the pod's service account.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--namespace", "namespaces", multiple=True, help="Watch only these namespaces.")
@click.option("--exclude", "excluded", multiple=True, help="Never look at these namespaces.")
@click.option("--opt-in", is_flag=True, help="Only what has the label firstfault.dev/collect=true.")
@click.option("--finalizer", is_flag=True, help="Hold pods of jobs until their logs are safe.")
@click.option("--annotate/--no-annotate", default=True, help="Write the verdict into an annotation of the job.")
@click.option("--events/--no-events", default=True, help="Write the verdict as an Event of the job.")
@click.option("--analyze/--no-analyze", "analysing", default=True, help="Make verdicts here, or elsewhere.")
@click.option("--analysis-bytes", type=int, default=0, help="Memory that an analysis may take; 0 for no limit.")
@click.option("--followers", type=click.IntRange(0, 1000), default=64, show_default=True)
@click.option("--readers", type=click.IntRange(1, 256), default=16, show_default=True)
@click.option("--log-bytes", type=int, default=256 << 20, show_default=True, help="Bytes kept of one log.")
@click.option("--settle", type=float, default=30.0, show_default=True, help="Seconds until a restart counts as one.")
@click.option("--lease-namespace", help="Namespace of the Lease; without it this replica acts alone.")
@click.option("--lease-name", default="firstfault-controller", show_default=True)
@click.option("--listen", default="0.0.0.0:8080", show_default=True, help="Address of /metrics, /healthz, /readyz.")
def watch(config: Path | None, uri: str | None, cluster: str | None, spool: Path, listen: str, **options: Any) -> None:
    """Watch a Kubernetes cluster and take the evidence of failed jobs before it is deleted."""
    from collector.config import ConfigError, load
    from collector.kube_api import KubeError
    from collector.spool import SpoolError
    from collector.store import StoreError

    try:
        loaded = load(config)
        serve(loaded, uri or loaded.store.uri, cluster or loaded.cluster or "default", spool, listen, options)
    except (ConfigError, KubeError, SpoolError, StoreError, OSError) as error:
        say("cannot start", error=str(error))
        sys.exit(1)


def serve(config: Any, uri: str, cluster: str, spool: Path, listen: str, options: dict[str, Any]) -> None:
    """Run until SIGTERM, SIGINT or the loss of the lease. Raises what cannot be mended by waiting."""
    from collector.config import pseudonym_key
    from collector.kube_api import Api
    from collector.kube_lease import Lease
    from collector.kube_metrics import Page
    from collector.kube_settings import Settings
    from collector.pseudonyms import Pseudonymiser
    from collector.spool import Spool
    from collector.store import open_store
    from collector.watch import Controller

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    api = Api.connect(options["kubeconfig"], options["context"])
    settings = Settings(
        cluster=cluster, namespaces=options["namespaces"], opt_in=options["opt_in"], finalizer=options["finalizer"],
        excluded=options["excluded"] or Settings().excluded, annotate=options["annotate"], events=options["events"],
        followers=options["followers"], readers=options["readers"], log_bytes=options["log_bytes"],
        settle_seconds=options["settle"],
    )  # fmt: skip
    acting: list[Controller] = []
    address, _, port = listen.rpartition(":")
    page = Page(address, int(port), lambda: acting[0] if acting else None)
    say("listening", port=page.port)
    lease = None
    if options["lease_namespace"]:
        identity = f"{socket.gethostname()}_{os.getpid()}"
        lease = Lease(api, options["lease_namespace"], options["lease_name"], identity, duration=settings.lease_seconds)
        if not _lead(lease, stop):
            return
    key = pseudonym_key(config)
    store = open_store(uri, options=config.store.options)
    analyse = None
    if options["analysing"]:
        from analyzers.watch_worker import analyse as run

        memory = options["analysis_bytes"] or None

        def analyse(incidents: Any) -> Any:
            return run(incidents, uri, config.store.options, memory=memory)

    controller = Controller(
        api, store, Spool(spool), settings, analyse=analyse, names=Pseudonymiser(key) if key else None
    )  # fmt: skip
    acting.append(controller)
    controller.start()
    say("watching", cluster=cluster, store=store.uri, namespaces=list(settings.namespaces) or "all")
    _talk(controller, stop)
    controller.stop()
    if lease is not None:
        lease.stop()
    say("stopped")


def _lead(lease: Any, stop: threading.Event) -> bool:
    """Wait for the lease; False if told to stop before. A replica that loses it later ends at once."""

    def give_up() -> None:
        stop.wait()
        lease.stop()

    def lost() -> None:
        say("lease lost")
        os._exit(1)  # nothing may be written any more, by no thread

    threading.Thread(target=give_up, daemon=True).start()
    if not lease.acquire():
        return False
    say("leading", identity=lease.identity)
    lease.keep(lost)
    return True


def _talk(controller: Any, stop: threading.Event) -> None:
    """Say what changed, until told to stop."""
    before: dict[str, Any] = {}
    while not stop.wait(1.0):
        now: dict[str, Any] = {"counts": dict(controller.counts + controller.closer.counts)}
        now["trouble"] = controller.trouble or controller.closer.trouble or controller.shipper.trouble
        now["watch"] = next((each.trouble for each in controller.reflectors if each.trouble), None)
        if now != before:
            say("state", **now)
            before = now


@click.command("release-pods")
@click.option("--kubeconfig", type=click.Path(exists=True, path_type=Path), help="Default: the pod's service account.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--namespace", "namespaces", multiple=True, help="Only these namespaces.")
def release_pods(kubeconfig: Path | None, context: str | None, namespaces: tuple[str, ...]) -> None:
    """Take the finalizer of `watch --finalizer` off all pods: before firstfault is uninstalled."""
    from collector.kube_api import Api, KubeError
    from collector.kube_finalizer import release_all

    try:
        left = release_all(Api.connect(kubeconfig, context), namespaces or (None,))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    if left:
        raise click.ClickException(f"{left} pods still have the finalizer")


@click.command("node-agent")
@click.option("--config", type=click.Path(path_type=Path), help="firstfault.toml (store, redaction, cluster).")
@click.option("--store", "uri", help="Where evidence goes, in place of the configuration's store.uri.")
@click.option("--cluster", help="Name of this cluster in incident ids.")
@click.option("--spool", type=click.Path(path_type=Path), default=Path("/var/lib/firstfault/spool"), show_default=True)
@click.option("--kubeconfig", type=click.Path(exists=True, path_type=Path), help="Default: the pod's service account.")
@click.option("--node", required=True, help="Name of this node in the cluster.")
@click.option("--pods", type=click.Path(path_type=Path), default=Path("/var/log/pods"), show_default=True)
@click.option("--nvidia-smi", help="Program to ask for the GPU state; without it none is taken.")
@click.option("--patience", type=float, default=120.0, show_default=True, help="Seconds that the controller has first.")
@click.option("--listen", default="0.0.0.0:8080", show_default=True, help="Address of /metrics and /healthz.")
def node_agent(
    config: Path | None, uri: str | None, cluster: str | None, spool: Path, listen: str, **given: Any
) -> None:
    """Keep the logs of failed pods of this node, its kernel log and GPU state."""
    from collector.config import ConfigError, load, pseudonym_key
    from collector.kube_api import Api, KubeError
    from collector.kube_metrics import Page
    from collector.kube_node import NodeAgent
    from collector.kube_settings import Settings
    from collector.pseudonyms import Pseudonymiser
    from collector.sources.node_agent import NodeState
    from collector.spool import Spool, SpoolError
    from collector.store import StoreError, open_store

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        loaded = load(config)
        key = pseudonym_key(loaded)
        agent = NodeAgent(
            Api.connect(given["kubeconfig"]), open_store(uri or loaded.store.uri, options=loaded.store.options),
            Spool(spool), Settings(cluster=cluster or loaded.cluster or "default"), given["node"], given["pods"],
            state=NodeState(given["node"], nvidia_smi=given["nvidia_smi"]), patience=given["patience"],
            names=Pseudonymiser(key) if key else None,
        )  # fmt: skip
        address, _, port = listen.rpartition(":")
        page = Page(address, int(port), lambda: None)
    except (ConfigError, KubeError, SpoolError, StoreError, OSError) as error:
        say("cannot start", error=str(error))
        sys.exit(1)
    agent.start()
    say("watching", node=given["node"], port=page.port)
    before: dict[str, Any] = {}
    while not stop.wait(1.0):
        now = {
            "counts": dict(agent.counts),
            "trouble": agent.trouble or agent.shipper.trouble or agent.reflector.trouble,
        }
        if now != before:
            say("state", **now)
            before = now
    agent.stop()
    say("stopped")
