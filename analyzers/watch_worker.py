"""Analyses incidents in a process of its own, for `firstfault watch`: what it needs in memory ends with it.

    standard input: {"uri": ..., "options": {...}, "incidents": [...]}; standard output: one JSON line per incident

The controller must survive an analysis that is too large or hangs, and has to stay small while nothing fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SECONDS_EACH, SECONDS_BASE = 60.0, 240.0


def analyse(
    incidents: Sequence[str], uri: str, options: Mapping[str, Any], *, memory: int | None = None
) -> dict[str, dict[str, Any]]:
    """Incident -> diagnosis (DESIGN section 4) of those that could be analysed, by a worker process.

    `memory`: bytes of data the worker may allocate. Raises RuntimeError if the worker failed before the first answer.
    """
    asked = {"uri": uri, "options": dict(options), "incidents": list(incidents), "memory": memory}
    command = [sys.executable, "-I", "-m", "analyzers.watch_worker"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked).encode(), capture_output=True, check=False,
            timeout=SECONDS_BASE + SECONDS_EACH * len(incidents),
        )  # fmt: skip
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, errors, code = error.stdout or b"", b"it took too long", -1
    answers: dict[str, dict[str, Any]] = {}
    for line in output.splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # cut off in the middle
            continue
        if row.get("answer") is not None:
            answers[row["incident"]] = row["answer"]
    if not answers and code != 0:
        raise RuntimeError(f"the analysis ended with {code}: {errors.decode('utf-8', 'replace').strip()[-500:]}")
    return answers


def main() -> None:
    """The worker."""
    from analyzers.lakehouse import analyze_many, dumps
    from collector.store import open_store

    asked = json.load(sys.stdin)
    if asked.get("memory"):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (asked["memory"], asked["memory"]))
    store = open_store(asked["uri"], options=asked["options"])
    for result in analyze_many(store, asked["incidents"]):
        answer = None if result.answer is None else json.loads(dumps(result.answer))
        print(json.dumps({"incident": result.incident, "answer": answer, "error": result.error}), flush=True)


if __name__ == "__main__":
    main()
