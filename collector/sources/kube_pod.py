"""The log of one run of one container, by the API, through to disk: masked on the way, never held in memory.

A container that still runs is followed to its end, because a pod that is deleted takes its log with it and an open
stream is the only thing that outlives the object. What the kubelet answers instead of a log (404, 400, an excuse with
status 200) is a ledger row and never becomes a line.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from collector.data import lookup
from collector.kube_api import Api, KubeError, NotFound, Refused, Unavailable, path_of
from collector.kube_pods import Pod, Run
from collector.model import Artifact, ArtifactKind, Budget, LedgerEntry, Origin, Outcome, RunRef
from collector.redact import redact_blocks

_BLOCK = 1 << 16
_IDLE = 3600.0
"""A followed log may be silent for long: a rank that waits in a collective prints nothing."""
_EXCUSE = 4096
"""An excuse of the kubelet is one short line."""


class Capped:
    """A file that keeps the head and the tail of what is written to it, each half of `cap` at most."""

    def __init__(self, path: Path, cap: int) -> None:
        """`path`: where the content lies after `close`; `cap` in bytes."""
        self.path, self._half, self._segment = path, max(cap // 2, 1), max(cap // 4, 1)
        self._head: BinaryIO = path.open("wb")
        self._older: BinaryIO | None = None
        self._newer: BinaryIO | None = None
        self.seen = 0
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Append."""
        self.seen += len(data)
        room = self._half - self._head.tell()
        if room > 0:
            self._head.write(data[:room])
            data = data[room:]
        while data:
            if self._newer is None or self._newer.tell() >= self._segment:
                if self._older is not None:
                    self._dropped += self._older.tell()
                    self._older.close()
                self._older, self._newer = self._newer, tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115
            room = self._segment - self._newer.tell()
            self._newer.write(data[:room])
            data = data[room:]

    def close(self) -> tuple[int, int] | None:
        """Put the pieces together; the byte range that was dropped, if any."""
        gap = (self._half, self._half + self._dropped) if self._dropped else None
        for piece in (self._older, self._newer):
            if piece is not None:
                if gap is not None and piece is self._older:
                    self._head.write(b"\n")
                piece.seek(0)
                while block := piece.read(1 << 20):
                    self._head.write(block)
                piece.close()
        self._head.close()
        return gap


class PodLog:
    """Source over one run of one container."""

    name = "kube_pod"

    def __init__(
        self, api: Api, pod: Pod, run: Run, origin: Origin, path: Path, *, cap: int = 1 << 30, follow: bool = False
    ) -> None:
        """`path`: where the masked log is kept; `cap`: bytes of it; `follow`: stay until the container ends."""
        self._api, self._pod, self._run, self._origin = api, pod, run, origin
        self._path, self._cap, self._follow = path, cap, follow
        self.complete = False
        """True once the log was read to its end."""
        self.again = False
        """True if it is worth asking again: the API or the kubelet did not answer."""
        self.bytes = 0
        """Bytes received."""
        self._stopped = False
        self._response: Any = None

    def stop(self) -> None:
        """End a stream from another thread; what came so far is kept as a log whose stream broke."""
        import contextlib
        import socket

        self._stopped = True
        response = self._response
        connection = getattr(getattr(response, "_connection", None), "sock", None) or getattr(response, "_sock", None)
        if connection is not None:
            # shutdown wakes a reader that waits for bytes; close alone would not
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def shown(self) -> str:
        """The name under which the log is cited."""
        return f"pods/{self._pod.name}/{self._run.container}/{self._run.number}.log"

    def collect(self, run: RunRef, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        """At most one artifact, whose file stays at `path`, and ledger rows for what is missing of it."""
        try:
            yield from self._fetch(budget)
        except NotFound as error:
            yield self._row(Outcome.UNREACHABLE, f"its log is gone: {error.message}")
        except Refused as error:
            yield self._row(Outcome.REFUSED, error.message)
        except Unavailable as error:
            self.again = not self._stopped
            yield self._row(Outcome.UNREACHABLE, error.message)
        except KubeError as error:  # 400: the container never started
            yield self._row(Outcome.EMPTY, error.message)
        except OSError as error:
            self.again = True
            yield self._row(Outcome.REFUSED, f"no room to keep it: {error}")

    def _fetch(self, budget: Budget) -> Iterator[Artifact | LedgerEntry]:
        path = path_of("v1", "pods", self._pod.namespace, self._pod.name) + "/log"
        query = {
            "container": self._run.container,
            "timestamps": "true",
            "previous": "true" if self._run.previous else None,
            "follow": "true" if self._follow else None,
        }
        stored = Capped(self._path, self._cap)
        broken: str | None = None
        try:
            for block in redact_blocks(self._stream(path, query, budget)):
                stored.write(block)
            self.complete = True
        except Unavailable as error:
            if not stored.seen:
                raise
            broken, self.again = error.message, not self._stopped
        finally:
            gap = stored.close()
        if (excuse := self._excuse(stored.seen)) is not None:
            self.complete = False
            yield self._row(Outcome.UNREACHABLE, f"the kubelet has no log: {excuse}")
            return
        yield Artifact(
            ArtifactKind.RANK_LOG, self.shown, self._origin, self._path.stat().st_size, lambda: self._path.open("rb"),
            time.time(),
        )  # fmt: skip
        if gap is not None:
            yield self._row(Outcome.TRUNCATED, "larger than the cap of a log", gap)
        if broken is not None:
            yield self._row(Outcome.TRUNCATED, f"the stream broke: {broken}", (stored.seen, -1))

    def _stream(self, path: str, query: dict[str, str | None], budget: Budget) -> Iterator[bytes]:
        import urllib3

        deadline = time.monotonic() + budget.seconds
        self._response = response = self._api.request("GET", path, query, read=_IDLE, accept="*/*")
        try:
            for block in response.stream(_BLOCK, decode_content=True):
                self.bytes += len(block)
                yield block
                if time.monotonic() > deadline:
                    raise Unavailable(0, f"{budget.seconds:g} s were over")
            if self._stopped:
                raise Unavailable(0, "the incident closed while the container still ran")
            response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(0, str(error)) from error
        finally:
            response.close()

    def _excuse(self, size: int) -> str | None:
        """The kubelet's sentence in place of a log, if that is all there is."""
        if not 0 < size < _EXCUSE:
            return None
        text = self._path.read_bytes().decode("utf-8", "replace").strip()
        excused = "\n" not in text and text.startswith(tuple(lookup("job_kinds")["no_log"]))
        return text if excused else None

    def _row(self, outcome: Outcome, detail: str, gap: tuple[int, int] | None = None) -> LedgerEntry:
        start, end = gap or (None, None)
        return LedgerEntry(
            self.name, self.shown, outcome, self._origin, ArtifactKind.RANK_LOG, self.bytes, 0, start,
            None if end is not None and end < 0 else end, detail,
        )  # fmt: skip
