"""The one door to the Kubernetes API: plain JSON in and out over the official client's connection and credentials.

The official client reads kubeconfig (exec plugins, client certificates) and the service account, renews tokens and
holds the connection pool. Its model classes are not used: a pod as JSON costs a tenth of their time and memory, and a
field that a newer server adds is simply there. Every request has a time limit and is counted.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
PAGE = 500
"""Objects of one page of a list: keeps the server's and our own memory flat."""
_TRIES = 4
_LINE = 64 << 20
"""Longest line of a watch that is believed: one object, at most 1.5 MB in etcd."""


class KubeError(Exception):
    """The API server answered no, or did not answer.

    KubeError > Refused (401, 403), NotFound (404), Gone (410), Conflict (409), Unavailable (429, 5xx, no answer).
    """

    def __init__(self, status: int, message: str) -> None:
        """`status`: HTTP status, 0 if there was no answer."""
        super().__init__(f"{status}: {message}" if status else message)
        self.status, self.message = status, message


class Refused(KubeError):
    """Not allowed: 401 or 403."""


class NotFound(KubeError):
    """404: the object, its container or the whole kind is not there."""


class Gone(KubeError):
    """410: the resource version is too old to watch from."""


class Conflict(KubeError):
    """409: somebody else wrote first, or it exists already."""


class Unavailable(KubeError):
    """429, 5xx or no answer: worth another try."""


_BY_STATUS: dict[int, type[KubeError]] = {401: Refused, 403: Refused, 404: NotFound, 409: Conflict, 410: Gone}


def error_of(status: int, body: bytes) -> KubeError:
    """The exception for an HTTP answer; the body is a Status object or plain text."""
    message = body[:2000].decode("utf-8", "replace").strip()
    try:
        message = str(json.loads(body).get("message") or message)
    except (ValueError, AttributeError):
        pass
    kind = _BY_STATUS.get(status, Unavailable if status in (0, 408, 429) or status >= 500 else KubeError)
    return kind(status, message)


class Api:
    """Requests to one API server. Thread-safe."""

    def __init__(self, client: Any) -> None:
        """`client`: a `kubernetes.client.ApiClient`."""
        self._client = client
        self._pool = client.rest_client.pool_manager
        self.host: str = client.configuration.host.rstrip("/")
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """(method, resource, status) -> number of requests."""
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, kubeconfig: Path | None = None, context: str | None = None, connections: int = 96) -> Api:
        """By kubeconfig if one is named or the usual one exists, else by the pod's service account.

        Raises KubeError if neither is there or the kubeconfig cannot be used.
        """
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise KubeError(0, "the Kubernetes client is missing: install firstfault[k8s]") from error
        settings = client.Configuration()
        settings.connection_pool_maxsize = connections
        try:
            if kubeconfig is None and Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists():
                in_cluster: Any = config.load_incluster_config
                in_cluster(client_configuration=settings)
            else:
                by_file: Any = config.load_kube_config
                name = str(kubeconfig) if kubeconfig else None
                by_file(config_file=name, context=context, client_configuration=settings)
        except (config.ConfigException, OSError, KeyError, TypeError) as error:
            raise KubeError(0, f"no usable credentials for a cluster: {error}") from error
        return cls(client.ApiClient(settings))

    def request(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None, *,
        content_type: str = "application/json", read: float = READ_SECONDS, accept: str = "application/json",
    ) -> Any:  # fmt: skip
        """One request; the urllib3 response with its body unread. Raises KubeError for anything but 2xx."""
        import urllib3

        headers = {"Accept": accept, "User-Agent": "firstfault"}
        # asked for every time: a token of an exec plugin or of the service account is renewed by this call
        bearer = self._client.configuration.auth_settings().get("BearerToken")
        if bearer:
            headers[bearer["key"]] = bearer["value"]
        if body is not None:
            headers["Content-Type"] = content_type
            body = json.dumps(body).encode()
        wanted = {key: value for key, value in (query or {}).items() if value is not None}
        url = f"{self.host}{path}" + (f"?{urlencode(wanted)}" if wanted else "")
        status = 0
        try:
            response = self._pool.request(
                method, url, body=body, headers=headers, preload_content=False, retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read),
            )  # fmt: skip
            status = response.status
            if 200 <= status < 300:
                return response
            data = response.read(1 << 16)
            response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(0, f"{method} {path}: {error}") from error
        finally:
            with self._lock:
                self.requests[method, resource_of(path), status] += 1
        failure = error_of(status, data)
        failure.retry_after = response.headers.get("Retry-After")  # type: ignore[attr-defined]
        raise failure

    def json(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None,
        tries: int | None = None, **how: Any,
    ) -> Any:  # fmt: skip
        """One request and its JSON answer; GET is tried again while the server is overloaded or away."""
        import urllib3

        tries = tries or (_TRIES if method == "GET" else 1)
        for attempt in range(tries):
            try:
                response = self.request(method, path, query, body, **how)
                data = response.read()
                response.release_conn()
                return json.loads(data)
            except Unavailable as error:
                last: KubeError = error
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                last = Unavailable(0, f"{method} {path}: {error}")
            if attempt + 1 < tries:
                time.sleep(_pause(last, attempt))
        raise last

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """One object."""
        found: dict[str, Any] = self.json("GET", path, query)
        return found

    def list(self, path: str, **query: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """(resource version of the list, object) page by page; an empty object stands for an empty list.

        Raises Gone if the list took so long that its next page expired: begin again then.
        """
        cursor = None
        while True:
            page = self.json("GET", path, {"limit": PAGE, "continue": cursor, **query})
            meta = page.get("metadata", {})
            kind, version = str(page.get("kind", "")).removesuffix("List"), page.get("apiVersion")
            items = page.get("items") or []
            for item in items:
                item.setdefault("kind", kind)
                item.setdefault("apiVersion", version)
                yield meta.get("resourceVersion", ""), item
            cursor = meta.get("continue")
            if not cursor:
                if not items:
                    yield meta.get("resourceVersion", ""), {}
                return

    def watch(self, path: str, version: str, seconds: int, **query: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object) from `version` on, until the server ends it after `seconds`.

        A server that goes silent without closing the connection (a lost route) is noticed by the read limit. Raises
        Gone if `version` is too old, KubeError for whatever else ends it.
        """
        import urllib3

        asked = {"watch": "true", "resourceVersion": version, "timeoutSeconds": seconds, "allowWatchBookmarks": "true"}
        response = self.request("GET", path, {**asked, **query}, read=seconds + 15.0)
        held = b""
        try:
            for chunk in response.stream(1 << 16, decode_content=True):
                held += chunk
                *lines, held = held.split(b"\n")
                if len(held) > _LINE:
                    raise Unavailable(0, "a watch sent a line without an end")
                for line in lines:
                    if line.strip():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise error_of(
                                int(event["object"].get("code") or 500), json.dumps(event["object"]).encode()
                            )
                        yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError) as error:
            raise Unavailable(0, f"the watch of {path} broke: {error}") from error
        finally:
            response.close()

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        """JSON merge patch (RFC 7386)."""
        found: dict[str, Any] = self.json("PATCH", path, None, body, content_type="application/merge-patch+json")
        return found

    def close(self) -> None:
        """Close all connections; running streams end with an error."""
        self._pool.clear()


def _pause(error: KubeError, attempt: int) -> float:
    try:
        return min(float(getattr(error, "retry_after", None) or 0.2 * 4**attempt), 30.0)
    except ValueError:
        return 1.0


def resource_of(path: str) -> str:
    """`pods/log` for /api/v1/namespaces/x/pods/y/log: what a request was about, without names."""
    parts = [part for part in path.split("/") if part]
    parts = parts[2:] if parts[:1] == ["api"] else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return parts[0] + (f"/{parts[2]}" if len(parts) > 2 else "") if parts else "root"


def path_of(api_version: str, plural: str, namespace: str | None = None, name: str | None = None) -> str:
    """The path of a collection or object: `v1`, `batch/v1`, ..."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    place = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{place}/{plural}" + (f"/{quote(name, safe='')}" if name else "")
