"""How the Kubernetes entrance behaves: one frozen record, filled by command-line options or environment variables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """All knobs; every default is meant for production."""

    cluster: str = "default"
    """Name of the cluster in incident ids."""
    namespaces: tuple[str, ...] = ()
    """Watch only these; empty for all."""
    excluded: tuple[str, ...] = ("kube-system", "kube-public", "kube-node-lease")
    """Never look at these."""
    opt_in: bool = False
    """Only namespaces, jobs or pods with the label firstfault.dev/collect=true."""
    readers: int = 16
    """Logs read at once."""
    per_node: int = 4
    """Logs read at once from one kubelet."""
    followers: int = 64
    """Logs of running containers followed at once; beyond it they are read when they end."""
    end_seconds: float = 15.0
    """A followed log whose container ended so long ago is cut and read again: some kubelets never end the stream."""
    log_bytes: int = 256 << 20
    """Bytes kept of one log: its head and its tail."""
    log_seconds: float = 600.0
    """Longest time one log may take."""
    settle_seconds: float = 30.0
    """A job that runs again this long after its last failure has restarted: its incident closes."""
    drain_seconds: float = 60.0
    """How long pods of an ended job may go on printing before the incident closes anyway."""
    open_seconds: float = 7200.0
    """Longest life of an incident whose job neither ends nor recovers."""
    pending_seconds: float = 1800.0
    """A pod of a running job that finds no node for so long is a failure."""
    max_age_seconds: float = 86400.0
    """Failures older than this when they are first seen are left alone."""
    poll_seconds: float = 2.0
    """First pause between two looks at the job object of an open incident; grows to ten times that."""
    lease_seconds: float = 15.0
    finalizer: bool = False
    """Hold pods of jobs by a finalizer until their logs are safe."""
    finalizer_seconds: float = 120.0
    """Longest time a finalizer holds a pod that is being deleted."""
    annotate: bool = True
    """Write the verdict into an annotation of the job object."""
    events: bool = True
    """Write the verdict as an Event on the job object."""
