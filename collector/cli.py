"""Commands that gather evidence. Bodies are thin: parse, call, render; heavy imports stand inside them."""

from __future__ import annotations

import click


@click.group()
def collector() -> None:
    """Gather evidence (commands are added to the root command `firstfault`)."""
