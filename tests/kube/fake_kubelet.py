"""Fake nodes with GPUs: registers them, keeps them Ready, serves log files to the API server, removes deleted pods.

usage: fake_kubelet.py STATE LOGS PORT NODE...
logs: LOGS/<namespace>_<pod>_<uid>/<container>/<restart>.log, in the format of the container runtime interface
"""

from __future__ import annotations

import re
import shutil
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from collector.kube_api import Api, Conflict, KubeError, NotFound, path_of

STATE, LOGS, PORT, NODES = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
FOLLOW_SECONDS = 60.0


def log_file(namespace: str, pod: str, container: str, previous: bool) -> Path | None:
    files = sorted(LOGS.glob(f"{namespace}_{pod}_*/{container}/*.log"), key=lambda path: int(path.stem))
    index = len(files) - (2 if previous else 1)
    return files[index] if files and index >= 0 else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        url = urlparse(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        match = re.fullmatch(r"/containerLogs/([^/]+)/([^/]+)/([^/]+)", url.path)
        if not match:
            return self.answer(404, b"404 page not found\n")
        path = log_file(match[1], match[2], match[3], asked.get("previous") == "true")
        if path is None:
            return self.answer(400, f'container "{match[3]}" in pod "{match[2]}" is waiting to start\n'.encode())
        if path.with_suffix(".excuse").exists():
            return self.answer(200, path.with_suffix(".excuse").read_bytes())
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send(path, asked)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _send(self, path: Path, asked: dict[str, str]) -> None:
        end = time.monotonic() + FOLLOW_SECONDS
        pending: list[bytes] = []
        with path.open("rb") as file:
            while True:
                line = file.readline()
                if line.endswith(b"\n"):
                    stamp, _, _, text = (line.rstrip(b"\n").split(b" ", 3) + [b""] * 3)[:4]
                    pending.append((stamp + b" " if asked.get("timestamps") == "true" else b"") + text + b"\n")
                    if len(pending) < 2000:
                        continue
                if pending:
                    data = b"".join(pending)
                    pending.clear()
                    self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")
                    self.wfile.flush()
                    continue
                gone = path.with_suffix(".done").exists() or not path.exists()
                if asked.get("follow") != "true" or gone or time.monotonic() > end:
                    return
                time.sleep(0.05)


def remove(api: Api, pod: dict[str, Any]) -> None:
    """What a kubelet does for a pod that is deleted: end its containers, remove their logs, then the object."""
    meta, status = pod["metadata"], pod.get("status", {})
    path = path_of("v1", "pods", meta["namespace"], meta["name"])
    hold = LOGS / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / "hold"
    if hold.exists():
        return
    if status.get("phase") == "Running":
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ended = {"terminated": {"exitCode": 137, "reason": "Error", "startedAt": now, "finishedAt": now}}
        states = [
            {"name": c["name"], "image": c["image"], "imageID": "", "ready": False, "restartCount": 0, "state": ended}
            for c in pod["spec"]["containers"]
        ]
        body = {"status": {"phase": "Failed", "containerStatuses": states}}
        api.json("PATCH", f"{path}/status", None, body, content_type="application/strategic-merge-patch+json")
    shutil.rmtree(LOGS / f"{meta['namespace']}_{meta['name']}_{meta['uid']}", ignore_errors=True)
    api.json("DELETE", path, None, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})


def reap(api: Api) -> None:
    while True:
        try:
            for _, pod in api.list(path_of("v1", "pods"), resourceVersion="0", limit=None):
                if pod and pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName") in NODES:
                    try:
                        remove(api, pod)
                    except (NotFound, Conflict):
                        pass
        except KubeError as error:
            print("reaper", error, flush=True)
        time.sleep(0.3)


def register(api: Api) -> None:
    for name in NODES:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        try:
            api.json("POST", path_of("v1", "nodes"), None, {"metadata": {"name": name, "labels": labels}})
        except Conflict:
            pass
        room = {"cpu": "64", "memory": "512Gi", "pods": "500", "nvidia.com/gpu": "400"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "capacity": room, "allocatable": room,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}}, "conditions": [ready],
        }  # fmt: skip
        path = path_of("v1", "nodes", None, name) + "/status"
        api.json("PATCH", path, None, {"status": status}, content_type="application/strategic-merge-patch+json")


def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(STATE / "pki/node.crt", STATE / "pki/node.key")
    context.load_verify_locations(STATE / "pki/ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    api = Api.connect(STATE / "admin.kubeconfig")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=reap, args=(api,), daemon=True).start()
    while True:
        try:
            register(api)
        except KubeError as error:
            print("register", error, flush=True)
        time.sleep(10)


main()
