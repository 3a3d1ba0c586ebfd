"""A real API server with etcd, controller-manager and scheduler on loopback, and fake GPU nodes that serve real logs.

The binaries are built once per machine by `build.sh` beside this file (about ten minutes) from Debian's own sources.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from collector.kube_api import Api, Conflict, KubeError, NotFound, path_of
from collector.kube_settings import Settings
from collector.lake import read_raw
from collector.spool import Spool
from collector.store import open_store
from collector.watch import Controller

HERE = Path(__file__).parent
_CACHE = Path("/var/cache") if os.getuid() == 0 else Path.home() / ".cache"
BIN = Path(os.environ.get("FIRSTFAULT_KUBE_BIN") or _CACHE / "firstfault" / "kube-1.20.2")
NODES = ("gpu-a", "gpu-b", "gpu-c")


def until(test: Callable[[], Any], what: str | Callable[[], str] = "", seconds: float = 60.0) -> Any:
    """Wait for a condition with a generous deadline."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = test()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")


def _die_with_us() -> None:
    """In the child: let the kernel end it when this process is killed (PR_SET_PDEATHSIG), so that nothing is left."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """The control plane, its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pki = folder, folder / "pki"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        self.port, self.etcd, self.peer, self.kcm, self.sched, self.kubelet = _free_ports(6)
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self.pki.mkdir()

    # --- certificates -------------------------------------------------------------------------------------------------

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.pki, check=True, capture_output=True)

    def _certificate(self, name: str, subject: str, usage: str, names: str = "") -> None:
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
        self._openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        text = f"basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage={usage}\n{names}\n"
        (self.pki / f"{name}.ext").write_text(text)
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "3",
            "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )  # fmt: skip

    def _credentials(self) -> None:
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
        self._openssl("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=test", "-days", "3", "-out", "ca.crt")
        names = "subjectAltName=DNS:localhost,DNS:kubernetes,IP:127.0.0.1,IP:10.0.0.1"
        self._certificate("apiserver", "/CN=kube-apiserver", "serverAuth", names)
        self._certificate("admin", "/O=system:masters/CN=admin", "clientAuth")
        self._certificate("to-kubelet", "/O=system:masters/CN=to-kubelet", "clientAuth")
        self._certificate("kcm", "/CN=system:kube-controller-manager", "clientAuth")
        self._certificate("sched", "/CN=system:kube-scheduler", "clientAuth")
        self._certificate("node", "/O=system:nodes/CN=system:node:fake", "clientAuth,serverAuth", names)
        self._openssl("genrsa", "-out", "sa.key", "2048")
        for user in ("admin", "kcm", "sched"):
            self.kubeconfig(user, f"client-certificate: {self.pki}/{user}.crt, client-key: {self.pki}/{user}.key")

    def kubeconfig(self, user: str, credentials: str) -> Path:
        """A kubeconfig file for a user with these credentials (flow YAML)."""
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(
            f"apiVersion: v1\nkind: Config\n"
            f'clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{self.port}", '
            f"certificate-authority: {self.pki}/ca.crt}}}}]\n"
            f"users: [{{name: u, user: {{{credentials}}}}}]\n"
            f"contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        )
        return path

    # --- processes ----------------------------------------------------------------------------------------------------

    def run(self, name: str, *command: str) -> None:
        """Start (or start again) a component in the background."""
        if command:
            self.commands[name] = list(command)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.commands[name], cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=_die_with_us,
            )  # fmt: skip

    def tail(self, name: str) -> str:
        """The end of a component's log, for messages."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")[-2000:]

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a component; SIGKILL and SIGTERM wait for its end."""
        process = self.processes[name]
        process.send_signal(how)
        if how in (signal.SIGKILL, signal.SIGTERM):
            process.wait(30)

    def start(self) -> None:
        """All of it; returns when the API is ready and the nodes are there."""
        self._credentials()
        url = f"http://127.0.0.1:{self.etcd}"
        peers = f"http://127.0.0.1:{self.peer}"
        self.run(
            "etcd", str(BIN / "etcd"), f"--data-dir={self.folder}/etcd", "--name=e", f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}", f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=e={peers}", "--unsafe-no-fsync",
        )  # fmt: skip
        self.run(
            "apiserver", str(BIN / "kube-apiserver"), f"--etcd-servers={url}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={self.port}", "--tls-cert-file=pki/apiserver.crt",
            "--tls-private-key-file=pki/apiserver.key", "--client-ca-file=pki/ca.crt",
            "--service-account-key-file=pki/sa.key", "--service-account-signing-key-file=pki/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", "--kubelet-client-certificate=pki/to-kubelet.crt",
            "--kubelet-client-key=pki/to-kubelet.key", "--kubelet-certificate-authority=pki/ca.crt",
            "--kubelet-preferred-address-types=InternalIP", "--endpoint-reconciler-type=none",
            f"--cert-dir={self.folder}/pki", "--watch-cache=true",
        )  # fmt: skip
        self.wait_ready()
        for name, port, more in (
            ("kcm", self.kcm, ("--use-service-account-credentials=true", "--root-ca-file=pki/ca.crt",
             "--service-account-private-key-file=pki/sa.key", "--kube-api-qps=200", "--kube-api-burst=300",
             "--node-monitor-grace-period=600s")),
            ("sched", self.sched, ()),
        ):  # fmt: skip
            binary = {"kcm": "kube-controller-manager", "sched": "kube-scheduler"}[name]
            config = f"{self.folder}/{name}.kubeconfig"
            self.run(
                name, str(BIN / binary), f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1", f"--secure-port={port}",
                f"--cert-dir={self.folder}/pki", "--leader-elect=false", "--port=0", *more,
            )  # fmt: skip
        self.run(
            "kubelet", sys.executable, str(HERE / "fake_kubelet.py"), str(self.folder), str(self.logs),
            str(self.kubelet), *NODES,
        )  # fmt: skip
        api = self.api()
        until(
            lambda: self._there(api, path_of("v1", "serviceaccounts", "default", "default")),
            lambda: self.tail("kcm"),
            100,
        )
        until(lambda: len(list(api.list(path_of("v1", "nodes")))) >= len(NODES), lambda: self.tail("kubelet"), 100)

    @staticmethod
    def _there(api: Api, path: str) -> bool:
        try:
            return bool(api.get(path))
        except KubeError:
            return False

    def wait_ready(self) -> None:
        """Until the API server says it is ready."""

        def ready() -> bool:
            assert self.processes["apiserver"].poll() is None, self.tail("apiserver")
            try:
                api = self.api()
                api.request("GET", "/readyz").release_conn()
            except KubeError:
                return False
            return True

        until(ready, "readyz", 120)

    def stop(self) -> None:
        """Stop what was started, by process id."""
        for name in ("kubelet", "sched", "kcm", "apiserver", "etcd"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)

    # --- use ----------------------------------------------------------------------------------------------------------

    def api(self, user: str = "admin") -> Api:
        """A connection."""
        return Api.connect(self.folder / f"{user}.kubeconfig")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not (BIN / "kube-apiserver").exists():
        pytest.skip(f"no Kubernetes binaries in {BIN}: run tests/kube/build.sh")
    made = Cluster(tmp_path_factory.mktemp("kube"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def stamp(shift: float = 0.0) -> str:
    """Now, as the API writes times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + shift))


def ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    """A terminated state."""
    return {"exitCode": code, "reason": reason, "startedAt": stamp(-5), "finishedAt": stamp(), **more}


class Space:
    """A namespace of its own for one test, and what a kubelet and users would do in it."""

    until = staticmethod(until)
    ended = staticmethod(ended)

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.api = cluster, name, cluster.api()

    def job(self, name: str, pods: int = 1, **more: Any) -> dict[str, Any]:
        """A batch Job whose pods ask for one GPU each; waits until its pods have nodes."""
        container = {
            "name": "main", "image": "registry.example/train:1", "command": ["python", "train.py"],
            "env": [{"name": "WORLD_SIZE", "value": str(pods)}, {"name": "WANDB_API_KEY", "value": "hunter2hunter2"}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }  # fmt: skip
        template = {"spec": {"restartPolicy": more.pop("restart", "Never"), "containers": [container]}}
        spec = {"backoffLimit": 0, "parallelism": pods, "completions": pods, "template": template, **more}
        body = {"metadata": {"name": name}, "spec": spec}
        made: dict[str, Any] = self.api.json("POST", path_of("batch/v1", "jobs", self.name), None, body)
        until(lambda: len([p for p in self.pods(name) if p["spec"].get("nodeName")]) >= pods, f"pods of {name}")
        return made

    def pods(self, job: str) -> list[dict[str, Any]]:
        """Pods of a Job, by name."""
        listed = self.api.list(path_of("v1", "pods", self.name), labelSelector=f"job-name={job}")
        return sorted((pod for _, pod in listed if pod), key=lambda pod: str(pod["metadata"]["name"]))

    def log(self, pod: dict[str, Any], text: str, number: int = 0) -> Path:
        """Put a container's log in place, each line stamped as the container runtime does."""
        meta, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
        folder = self.cluster.logs / f"{self.name}_{meta['name']}_{meta['uid']}" / container
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"2026-12-01T00:{i // 60 % 60:02d}:{i % 60:02d}.{i % 1000:03d}000001Z stdout F {line}"
            for i, line in enumerate(text.splitlines())
        ]
        path = folder / f"{number}.log"
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        return path

    def hold(self, pod: dict[str, Any], held: bool = True) -> None:
        """The grace period of a pod that is deleted: it stays until it is let go."""
        folder = self.cluster.logs / f"{self.name}_{pod['metadata']['name']}_{pod['metadata']['uid']}"
        folder.mkdir(parents=True, exist_ok=True)
        if held:
            (folder / "hold").touch()
        else:
            (folder / "hold").unlink()

    def status(self, pod: dict[str, Any], phase: str, state: dict[str, Any], **more: Any) -> None:
        """Set a pod's status as its kubelet would. `more`: restarts, last (state), endless, status fields."""
        container = {
            "name": pod["spec"]["containers"][0]["name"], "image": "registry.example/train:1", "imageID": "",
            "ready": False,
            "restartCount": more.pop("restarts", 0), "state": state, "lastState": more.pop("last", {}),
        }  # fmt: skip
        if "terminated" in state and not more.pop("endless", False):  # the kubelet ends the streams of its log
            folder = self.cluster.logs / f"{self.name}_{pod['metadata']['name']}_{pod['metadata']['uid']}"
            if (folder / container["name"]).exists():
                (folder / container["name"] / f"{container['restartCount']}.done").touch()
        body = {"status": {"phase": phase, "containerStatuses": [container], **more}}
        path = path_of("v1", "pods", self.name, pod["metadata"]["name"]) + "/status"
        self.api.json("PATCH", path, None, body, content_type="application/strategic-merge-patch+json")

    def runs(self, pod: dict[str, Any]) -> None:
        """The container runs."""
        self.status(pod, "Running", {"running": {"startedAt": stamp()}}, startTime=stamp())

    def fails(self, pod: dict[str, Any], code: int = 1, reason: str = "Error", **more: Any) -> None:
        """The container ended with a failure."""
        self.status(pod, more.pop("phase", "Failed"), {"terminated": ended(code, reason)}, **more)

    def delete(self, path: str, **body: Any) -> None:
        """Delete an object; gone is fine."""
        try:
            self.api.json("DELETE", path, None, {"apiVersion": "v1", "kind": "DeleteOptions", **body})
        except NotFound:
            pass


@pytest.fixture
def space(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Space]:
    name = f"t{abs(hash((request.node.nodeid, time.time_ns()))) % 10**9}"
    api = cluster.api()
    api.json("POST", path_of("v1", "namespaces"), None, {"metadata": {"name": name}})
    until(lambda: Cluster._there(api, path_of("v1", "serviceaccounts", name, "default")), "serviceaccount")
    made = Space(cluster, name)
    yield made
    for path in (path_of("batch/v1", "jobs", name), path_of("v1", "pods", name)):
        made.delete(path, propagationPolicy="Background", gracePeriodSeconds=0)
    for folder in cluster.logs.glob(f"{name}_*"):
        shutil.rmtree(folder, ignore_errors=True)


class Site:
    """A controller for one namespace, with a store in a folder."""

    def __init__(self, space: Space, folder: Path) -> None:
        self.space, self.folder = space, folder
        self.store = open_store(str(folder / "store"))
        self.verdict: Any = None
        self.analysed: list[str] = []
        self.running: list[Controller] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def analyse(self, incidents: Sequence[str]) -> dict[str, Any]:
        """Stands in for the analysis: verdicts that name their incident."""
        self.analysed += incidents
        return {
            incident: {
                "verdict": {
                    "status": "supported", "cause": "user_code", "title": f"verdict of {incident}", "ranks": [1],
                    "nodes": ["gpu-a"],
                }
            }
            for incident in incidents
        }  # fmt: skip

    def controller(self, api: Api | None = None, **settings: Any) -> Controller:
        """Start one."""
        wanted = {
            "cluster": "c1", "namespaces": (self.space.name,), "settle_seconds": 2.0, "drain_seconds": 5.0,
            "poll_seconds": 0.3, **settings,
        }  # fmt: skip
        made = Controller(
            api or self.space.cluster.api(), self.store, Spool(self.folder / "spool"), Settings(**wanted),
            analyse=self.analyse,
        )  # fmt: skip
        made.start()
        self.running.append(made)
        return made

    def process(self, *options: str, user: str = "admin", name: str = "c1") -> subprocess.Popen[bytes]:
        """`firstfault watch` as a process of its own, watching already; its output goes to `watch.log`."""
        command = [
            str(Path(sys.executable).with_name("firstfault")), "watch", "--kubeconfig",
            str(self.space.cluster.folder / f"{user}.kubeconfig"), "--store", str(self.folder / "store"), "--spool",
            str(self.folder / "spool"), "--cluster", name, "--namespace", self.space.name, "--listen", "127.0.0.1:0",
            "--settle", "2", *options,
        ]  # fmt: skip
        log = self.folder / "watch.log"
        before = log.read_text().count('"watching"') if log.exists() else 0
        with log.open("ab") as file:
            made = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        self.processes.append(made)
        until(lambda: log.read_text().count('"watching"') > before, lambda: log.read_text()[-1000:])
        return made

    def rows(self, table: str, incident: str) -> list[dict[str, Any]]:
        """Rows of a raw table of an incident."""
        found: list[dict[str, Any]] = read_raw(self.store, table, incident).to_pylist()
        return found

    def texts(self, incident: str, part: str = "pods/") -> list[str]:
        """Lines of logs of an incident."""
        return [str(row["text"]) for row in self.rows("log_lines", incident) if str(row["path"]).startswith(part)]

    def incidents(self) -> list[str]:
        """Ids of the incidents of which something is in the store."""
        return sorted({item.key.split("/")[2].removeprefix("incident=") for item in self.store.list("raw/ledger/")})

    def finished(self, controller: Controller, count: int = 1) -> list[str]:
        """Wait until so many incidents are analysed; their ids."""
        until(
            lambda: controller.closer.counts["finished"] >= count,
            lambda: f"{count}: {controller.counts} {controller.trouble} {controller.closer.trouble}",
        )
        return self.analysed


@pytest.fixture
def site(space: Space, tmp_path: Path) -> Iterator[Site]:
    made = Site(space, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait(30)
    for controller in made.running:
        controller.stop()
        controller.api.close()


class PyTorchJobs:
    """The kind PyTorchJob, without its operator: tests play it."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def install(self) -> None:
        """The custom resource definition, as the operator's chart installs it."""
        schema = {
            "type": "object",
            "properties": {
                part: {"type": "object", "x-kubernetes-preserve-unknown-fields": True} for part in ("spec", "status")
            },
        }
        version = {
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema},
        }  # fmt: skip
        names = {"kind": "PyTorchJob", "plural": "pytorchjobs", "singular": "pytorchjob"}
        spec = {"group": "kubeflow.org", "scope": "Namespaced", "names": names, "versions": [version]}
        body = {"metadata": {"name": "pytorchjobs.kubeflow.org"}, "spec": spec}
        try:
            self.api.json("POST", path_of("apiextensions.k8s.io/v1", "customresourcedefinitions"), None, body)
        except Conflict:
            pass
        until(lambda: Cluster._there(self.api, path_of("kubeflow.org/v1", "pytorchjobs")), "the kind is served")

    def create(self, space: Space, name: str, pods: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """A job and the pods that its operator would make."""
        replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": pods - 1}}
        body = {
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
            "spec": {"pytorchReplicaSpecs": replicas},
        }  # fmt: skip
        job = self.api.json("POST", path_of("kubeflow.org/v1", "pytorchjobs", space.name), None, body)
        owner = {
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": name, "uid": job["metadata"]["uid"],
            "controller": True,
        }  # fmt: skip
        made = []
        for rank in range(pods):
            container = {
                "name": "pytorch", "image": "registry.example/train:1",
                "env": [{"name": "RANK", "value": str(rank)}, {"name": "WORLD_SIZE", "value": str(pods)}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }  # fmt: skip
            pod = {
                "metadata": {
                    "name": f"{name}-master-0" if rank == 0 else f"{name}-worker-{rank - 1}", "ownerReferences": [owner]
                },
                "spec": {"restartPolicy": "Never", "containers": [container]},
            }  # fmt: skip
            made.append(self.api.json("POST", path_of("v1", "pods", space.name), None, pod))
        paths = [path_of("v1", "pods", space.name, pod["metadata"]["name"]) for pod in made]
        until(lambda: all(self.api.get(path)["spec"].get("nodeName") for path in paths), "the pods have nodes")
        return job, [self.api.get(path) for path in paths]

    def condition(self, space: Space, name: str, kind: str, reason: str) -> None:
        """What the operator writes into the job's status."""
        path = path_of("kubeflow.org/v1", "pytorchjobs", space.name, name) + "/status"
        self.api.patch(path, {"status": {"conditions": [{"type": kind, "status": "True", "reason": reason}]}})


@pytest.fixture
def pytorchjob(cluster: Cluster) -> PyTorchJobs:
    return PyTorchJobs(cluster.api())
