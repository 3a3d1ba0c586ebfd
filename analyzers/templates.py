"""Log templates: what a line says, without its numbers and names. Mined with drain3.

Used to find what only one rank printed, or what a failing run printed that a known-good run never did. Templates decide
what is novel; they are never shown as truth, the lines themselves are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

_MASKS = (
    (r"\b\d{4}-\d\d-\d\d[T_ ]\d\d:\d\d:\d\d\S*", "TIME"),
    (r"0x[0-9a-fA-F]+", "HEX"),
    (r"/[\w./+-]+", "PATH"),
    (r"[-+]?\b\d[\d.,:e+-]*", "NUM"),
    (r"\b[0-9a-f]{8,}\b", "HEX"),
)


class Templates:
    """Groups lines by template. Feed first what is normal, then ask what is new."""

    def __init__(self) -> None:
        logging.getLogger("drain3").setLevel(logging.ERROR)
        from drain3 import TemplateMiner
        from drain3.masking import MaskingInstruction
        from drain3.template_miner_config import TemplateMinerConfig

        config = TemplateMinerConfig()
        config.drain_sim_th = 0.5
        config.drain_max_clusters = 20_000
        config.masking_instructions = [MaskingInstruction(pattern, name) for pattern, name in _MASKS]
        config.profiling_enabled = False
        self._miner: Any = TemplateMiner(config=config)

    def add(self, text: str) -> int:
        """The number of the template of `text`, learning it if it is new."""
        return int(self._miner.add_log_message(text[:400])["cluster_id"])

    def learn(self, texts: Iterable[str]) -> set[int]:
        """The numbers of the templates of `texts`."""
        return {self.add(text) for text in texts if text.strip()}
