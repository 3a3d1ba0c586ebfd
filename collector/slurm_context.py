"""What every step of a Slurm drain shares: configuration, store, Slurm's tools, masking; and what a step can answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from collector.collect import Masking
from collector.config import Config, pseudonym_key
from collector.lake import safe_name
from collector.pseudonyms import Pseudonymiser
from collector.slurm_ask import Tools
from collector.slurm_decide import Decision
from collector.slurm_ticket import JobEnd
from collector.store import Store, open_store


@dataclass(frozen=True, slots=True)
class Done:
    """The ticket is finished; `what` is for the log."""

    what: str


@dataclass(frozen=True, slots=True)
class Later:
    """Nothing failed, but somebody else has to speak first: look again in `seconds`."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """The ticket can never be finished."""

    why: str


Answer = Done | Later | Fatal


@dataclass(slots=True)
class Context:
    """Made once per drain."""

    config: Config
    store: Store
    clock: Callable[[], float] = time.time
    names: Pseudonymiser | None = None
    _tools: dict[str | None, Tools] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config) -> Context:
        """Opens the store (nothing is contacted yet). Raises ConfigError, StoreRefused."""
        key = pseudonym_key(config)
        store = open_store(config.store.uri, options=config.store.options)
        return cls(config, store, names=Pseudonymiser(key) if key else None)

    def tools_for(self, end: JobEnd | None = None) -> Tools:
        """Slurm's commands with the configuration that the hook or ours names."""
        slurm = self.config.slurm
        conf = slurm.conf or (end.conf if end is not None else None)
        return self._tools.setdefault(conf, Tools(slurm.bin, conf, pyslurm=slurm.pyslurm))

    def cluster(self, end: JobEnd) -> str:
        """Name of the cluster, safe for keys."""
        return safe_name(self.config.cluster or end.cluster or "cluster")

    def masking(self, *, done: bool = False) -> Masking:
        """What is masked; `done` where the content was masked when it was copied."""
        return Masking(self.config.redaction.on, done, self.names)

    def host(self, name: str) -> str:
        """A host name as it may be written."""
        return self.names.host(name) if self.names is not None else name

    def user(self, name: str | None) -> str | None:
        """A user name as it may be written."""
        return self.names.user(name) if self.names is not None and name else name

    def text(self, text: str | None) -> str | None:
        """A free text as it may be written."""
        if text is None:
            return None
        if self.config.redaction.on:
            from collector.redact import redact

            text = redact(text)[0]
        return self.names.text(text) if self.names is not None else text

    def origin(self, host: str) -> str:
        """The name under which a node reports."""
        return safe_name(f"node-{self.host(host)}")

    def remember(self, decision: Decision) -> None:
        """Tell the pseudonymiser all names of the job, so that it finds them in texts."""
        if self.names is not None:
            for node in decision.nodes:
                self.names.host(node)
            if decision.user:
                self.names.user(decision.user)
