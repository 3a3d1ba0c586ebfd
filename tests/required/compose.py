"""Writes the folders of the required verdicts: `python tests/required/compose.py`. Each function is one failure.

Every failure has a twin that must not accuse: the same alarming evidence, but old, on another node, or beside a cause
that is proven. `expect.yaml` in each folder says what must be said; tests/analyzers/test_required_verdicts.py asks.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import yaml
from building import Run
from registry import CASES

HERE = Path(__file__).resolve().parent
for _module in ("gpu_cases", "host_cases", "site_cases"):
    import_module(_module)


def main() -> None:
    """Write all folders anew."""
    for name, (compose, layout) in CASES.items():
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        run = Run(folder / "run", **layout)
        expect = {"says": " ".join((compose.__doc__ or "").split()) or None, **compose(run)}
        run.write()
        expect = {key: value for key, value in expect.items() if value is not None}
        (folder / "expect.yaml").write_text(yaml.safe_dump(expect, sort_keys=False, width=110), encoding="utf-8")


if __name__ == "__main__":
    main()
