"""Finds the data folders (`signatures/`) that travel with the code.

In a wheel they lie inside the package (`collector/_data`); in a checkout they stand beside the packages. The choice is
made once here so that no other module does path arithmetic on data.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_PACKAGED = Path(__file__).parent / "_data"
_CHECKOUT = Path(__file__).parent.parent


def data_dir(name: str) -> Path:
    """The folder of data called `name` (such as "signatures").

    Raises FileNotFoundError if neither an installed nor a checked-out copy exists.
    """
    for candidate in (_PACKAGED / name, _CHECKOUT / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"the data folder {name!r} is missing: reinstall firstfault")


@cache
def lookup(name: str) -> Any:
    """The parsed lookup table `signatures/_lookup/<name>.yaml`, such as the Xid or exit-code table."""
    import yaml

    path = data_dir("signatures") / "_lookup" / f"{name}.yaml"
    return yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
