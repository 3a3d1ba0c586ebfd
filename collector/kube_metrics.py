"""What the controller tells Prometheus and the kubelet: a text page of numbers, alive, ready.

The exposition format is a few lines of text (Prometheus text format 0.0.4), so that no library is needed for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from collector.kube_reflect import WATCH_SECONDS
from collector.watch import Controller

SILENT = WATCH_SECONDS + 90.0
"""Seconds without a word from the API server after which the controller is not well: a watch ends earlier by itself."""


def _sample(name: str, value: float, **labels: str) -> str:
    escaped = (f'{k}="{v}"' for k, v in ((k, _escaped(v)) for k, v in labels.items()))
    inside = ",".join(escaped)
    return f"firstfault_{name}{{{inside}}} {value:g}" if inside else f"firstfault_{name} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


_HELP = {
    "leader": ("gauge", "1 while this replica acts."),
    "incidents_total": ("counter", "Incidents by what became of them."),
    "incidents_open": ("gauge", "Incidents whose job has not ended yet."),
    "incidents_closing": ("gauge", "Incidents that closed and whose evidence or verdict is under way."),
    "verdicts_total": ("counter", "Verdicts by status and cause."),
    "log_bytes_total": ("counter", "Bytes of container logs received."),
    "log_streams": ("gauge", "Container logs that are being read."),
    "parts_total": ("counter", "Parts carried to the store, by outcome."),
    "parts_waiting": ("gauge", "Parts on local disk that the store does not have yet."),
    "pods_watched": ("gauge", "Pods in view."),
    "watch_silent_seconds": ("gauge", "Seconds since the API server last sent anything."),
    "pod_lists_total": ("counter", "Times that all pods were listed."),
    "api_requests_total": ("counter", "Requests to the API server by method, resource and status (0: no answer)."),
}
"""Metric -> type and help."""


def exposition(controller: Controller | None) -> str:
    """The page for Prometheus. `controller`: None on a replica that waits for the lease."""
    lines: list[str] = []
    for name, samples in _samples(controller):
        kind, text = _HELP[name]
        lines += [f"# HELP firstfault_{name} {text}", f"# TYPE firstfault_{name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _samples(controller: Controller | None) -> Iterator[tuple[str, list[str]]]:
    yield "leader", [_sample("leader", 0 if controller is None else 1)]
    if controller is None:
        return
    counts = sorted((controller.counts + controller.closer.counts).items())
    yield "incidents_total", [_sample("incidents_total", n, event=event) for event, n in counts]
    yield "incidents_open", [_sample("incidents_open", len(controller.incidents))]
    yield "incidents_closing", [_sample("incidents_closing", len(controller.closer.waiting))]
    verdicts = sorted(controller.closer.verdicts.items())
    yield "verdicts_total", [_sample("verdicts_total", n, status=s, cause=c) for (s, c), n in verdicts]
    yield "log_bytes_total", [_sample("log_bytes_total", controller.readers.bytes)]
    yield "log_streams", [_sample("log_streams", controller.readers.busy)]
    shipped = sorted(controller.shipper.shipped.items())
    yield "parts_total", [_sample("parts_total", n, outcome=outcome) for outcome, n in shipped]
    yield "parts_waiting", [_sample("parts_waiting", sum(controller.shipper.waiting().values()))]
    watches = controller.reflectors
    yield "pods_watched", [_sample("pods_watched", sum(len(each.views) for each in watches))]
    yield "watch_silent_seconds", [_sample("watch_silent_seconds", _silent(controller))]
    yield "pod_lists_total", [_sample("pod_lists_total", sum(each.lists for each in watches))]
    requests = sorted(controller.api.requests.copy().items())
    yield (
        "api_requests_total",
        [_sample("api_requests_total", n, method=m, resource=r, code=str(code)) for (m, r, code), n in requests],
    )


def _silent(controller: Controller) -> float:
    return max((time.monotonic() - each.heard for each in controller.reflectors if each.heard), default=0.0)


def problem(controller: Controller | None) -> str | None:
    """Why the controller is not ready, None if it is. A replica that waits for the lease is ready."""
    if controller is None:
        return None
    if not controller.synced:
        return f"the pods were not listed yet: {controller.reflectors[0].trouble or 'in progress'}"
    if _silent(controller) > SILENT:
        return f"the API server is silent for {_silent(controller):.0f} s: {controller.reflectors[0].trouble}"
    return None


class Page:
    """HTTP server for /metrics, /healthz (the process works) and /readyz (it sees the cluster)."""

    def __init__(self, address: str, port: int, controller: Callable[[], Controller | None]) -> None:
        """`controller`: the one that leads, None while it waits. Raises OSError if the port is taken."""

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                code, body = _answer(self.path.partition("?")[0], controller())
                data = body.encode()
                self.send_response(code)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer((address, port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _answer(path: str, controller: Controller | None) -> tuple[int, str]:
    if path == "/metrics":
        return 200, exposition(controller)
    if path == "/healthz":
        dead = controller is not None and not controller.alive
        return (500, "a thread of the controller has ended\n") if dead else (200, "ok\n")
    if path == "/readyz":
        why = problem(controller)
        return (503, f"{why}\n") if why else (200, "ok\n")
    return 404, "not here\n"
