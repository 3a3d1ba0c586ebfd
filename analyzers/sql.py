"""Loads queries/ and runs them: the only door to DuckDB besides the ranking.

Queries are plain .sql files; this module finds them in the wheel or the checkout and gives a connection that can
neither read files nor reach the network, because rows come from logs of other people.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_PACKAGED = Path(__file__).parent / "_data" / "queries"
_CHECKOUT = Path(__file__).parent.parent / "queries"


def queries_dir() -> Path:
    """The folder of queries. Raises FileNotFoundError if the installation lacks it."""
    for candidate in (_PACKAGED, _CHECKOUT):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError("the data folder 'queries' is missing: reinstall firstfault")


@cache
def load(group: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of each query of a group (a subfolder of queries/), in order of name."""
    folder = queries_dir() / group
    return tuple((path.stem, path.read_text("utf-8")) for path in sorted(folder.glob("*.sql")))


def connect() -> Any:
    """An in-memory DuckDB connection without access to files or network."""
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("SET enable_external_access = false; SET threads = 2")
    return connection
