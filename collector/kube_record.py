"""What the controller must remember over restarts: per job its attempts, and which incidents are open.

It lives in the store beside the evidence (`control/kubernetes/<cluster>/`), because a replica that takes over on
another node has nothing else; only the leader writes, and every object is written whole, so that the last word wins. A
copy lies on local disk for the time when the store does not answer.
"""

from __future__ import annotations

import json
import time
from typing import Any

from collector.kube_incident import Incident, incident_id
from collector.kube_jobs import JobRef, kind_of
from collector.lake import safe_name
from collector.spool import Spool
from collector.store import Store, StoreError, StoreMissing


class Records:
    """Attempts of jobs and the list of open incidents."""

    def __init__(self, store: Store, spool: Spool, cluster: str) -> None:
        self._store, self._spool = store, spool
        self._root = f"control/kubernetes/{safe_name(cluster)}"
        self._cluster = cluster
        self._cache: dict[str, dict[str, Any]] = {}

    def load(self, uid: str) -> dict[str, Any] | None:
        """The record of a job: {"attempts": [{"attempt", "id", "closed", "handled", ...}]}; None if nobody can say."""
        if uid in self._cache:
            return self._cache[uid]
        try:
            found = json.loads(self._store.get(f"{self._root}/jobs/{safe_name(uid)}.json"))
        except StoreMissing:
            found = self._local(uid) or {"attempts": []}
        except (StoreError, ValueError):
            return self._local(uid)
        self._remember(uid, found)
        return found  # type: ignore[no-any-return]

    def fresh_copy(self, uid: str) -> dict[str, Any]:
        """The record as it stands in the store now, written by another process. Raises StoreError."""
        self._cache.pop(uid, None)
        try:
            found: dict[str, Any] = json.loads(self._store.get(f"{self._root}/jobs/{safe_name(uid)}.json"))
        except (StoreMissing, ValueError):
            found = {"attempts": []}
        self._remember(uid, found)
        return found

    def _local(self, uid: str) -> dict[str, Any] | None:
        try:
            return json.loads(self._spool.marked(f"job-{safe_name(uid)}") or "null")  # type: ignore[no-any-return]
        except ValueError:
            return None

    def _remember(self, uid: str, record: dict[str, Any]) -> None:
        if len(self._cache) > 5000:
            self._cache.clear()
        self._cache[uid] = record

    def next_attempt(self, job: JobRef, counted: int | None) -> int:
        """Number of the attempt that now failed: what the operator counts, or one more than the last.

        Where neither store nor disk can say what was before, the second in which it happened: such a number repeats no
        earlier one, and no part of an earlier attempt is overwritten.
        """
        record = self.load(job.uid)
        if record is None:
            return int(time.time())
        last = max((int(row["attempt"]) for row in record["attempts"]), default=-1)
        return max(last + 1, counted or 0)

    def closed(self, uid: str) -> bool:
        """True if the job has an attempt that is closed, and none that is open."""
        rows = (self.load(uid) or {"attempts": []})["attempts"]
        return bool(rows) and all(row.get("closed") for row in rows)

    def handled(self, uid: str) -> set[tuple[str, str, int]]:
        """Runs that belong to closed attempts of a job."""
        record = self.load(uid) or {"attempts": []}
        return {
            (str(key[0]), str(key[1]), int(key[2]))
            for row in record["attempts"]
            if row.get("closed")
            for key in row.get("handled", [])
        }

    def save(self, incident: Incident) -> bool:
        """Write an incident down; False if the store did not take it (the local copy has it then)."""
        record = self.load(incident.job.uid) or {"attempts": []}
        row = {
            "attempt": incident.attempt, "id": incident.id, "opened": incident.opened, "closed": incident.closed,
            "first": incident.first, "handled": incident.handled() if incident.closed else [],
            "verdict": incident.verdict,
            "job": {
                "kind": incident.job.kind.kind, "apiVersion": incident.job.api_version,
                "namespace": incident.job.namespace, "name": incident.job.name, "uid": incident.job.uid,
            },
        }  # fmt: skip
        record["attempts"] = [r for r in record["attempts"] if r["attempt"] != incident.attempt] + [row]
        self._remember(incident.job.uid, record)
        body = json.dumps(record).encode()
        mark = f"{self._root}/open/{incident.id}.json"
        try:
            self._spool.mark(f"job-{safe_name(incident.job.uid)}", body.decode())
        except OSError:
            pass
        try:
            if incident.verdict is None:
                self._store.put(mark, json.dumps(row).encode())
            self._store.put(f"{self._root}/jobs/{safe_name(incident.job.uid)}.json", body)
            if incident.verdict is not None:
                self._store.delete(mark)
        except StoreError:
            return False
        return True

    def unfinished(self) -> list[Incident]:
        """Incidents that were open, or had no verdict yet, when the last controller ended. Raises StoreError."""
        found = []
        for item in self._store.list(f"{self._root}/open/"):
            try:
                row = json.loads(self._store.get(item.key))
                kind = kind_of(row["job"]["apiVersion"], row["job"]["kind"])
                if kind is None:
                    continue
                told = row["job"]
                job = JobRef(kind, told["apiVersion"], told["namespace"], told["name"], told["uid"])
                incident = Incident(job, int(row["attempt"]), row["id"], float(row["opened"]), row.get("first", ""))
                incident.closed, incident.resumed = row.get("closed"), True
                found.append(incident)
            except (StoreMissing, ValueError, KeyError, TypeError):
                continue
        return found

    def fresh(self, job: JobRef, counted: int | None, now: float, first: str) -> Incident:
        """A new incident of a job; the one that an earlier controller opened for it and could not close, if any."""
        for row in (self.load(job.uid) or {"attempts": []})["attempts"]:
            if not row.get("closed"):
                incident = Incident(job, int(row["attempt"]), row["id"], float(row["opened"]), row.get("first", first))
                incident.quiet_since, incident.resumed = now, True
                return incident
        attempt = self.next_attempt(job, counted)
        return Incident(job, attempt, incident_id(self._cluster, job, attempt), now, first, quiet_since=now)
