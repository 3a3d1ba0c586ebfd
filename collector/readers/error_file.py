"""torchelastic error files: the exception of one rank, as its `@record` wrapper wrote it.

The form is that of torch.distributed.elastic.multiprocessing.errors.error_handler: `{"message": {"message": "Type:
text", "extraInfo": {"py_callstack": "...", "timestamp": "1796089566", ...}}}`; a launcher may add `errorCode`. The rank
is not in it: only the folder tells (`attempt_0/<local rank>/error.json`). Times are whole seconds.
"""

from __future__ import annotations

import json
import re
from typing import Any

from collector.model import Artifact

MAX_BYTES = 16 << 20
_HEAD = re.compile(
    rb'\s*\{\s*"message"\s*:\s*(?:\{(?=(?s:.)*"(?:extraInfo|timestamp|errorCode)")|"(?=(?s:.)*"extraInfo"))'
)
_TYPE = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>(?s:.*)))?$")


def looks_like(head: bytes) -> bool:
    """True for an error file (`head` is the first 64 KiB)."""
    return _HEAD.match(head) is not None


def read(artifact: Artifact) -> list[dict[str, Any]]:
    """One row, or none if the content is damaged: rank, local_rank, attempt, node (of the origin), path, `type` and
    `message` of the exception, `traceback` (list of lines), `at` (UTC microseconds, whole seconds; None if unknown),
    `error_code`. Never raises on content.
    """
    try:
        with artifact.open() as stream:
            whole = json.loads(stream.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    inner = whole.get("message") if isinstance(whole, dict) else None
    body = inner if isinstance(inner, dict) else whole if isinstance(whole, dict) else {}
    said = body.get("message")
    if not isinstance(said, str):
        return []
    extra = body.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    named = _TYPE.match(said)
    origin = artifact.origin
    return [
        {
            "rank": origin.rank,
            "local_rank": origin.local_rank,
            "attempt": origin.attempt,
            "node": origin.node,
            "path": artifact.path,
            "type": named["type"] if named else None,
            "message": (named["text"] or "") if named else said,
            "traceback": stack.splitlines() if isinstance(stack, str) else [],
            "at": _at(extra.get("timestamp", body.get("timestamp"))),
            "error_code": _integer(body.get("errorCode", whole.get("errorCode"))),
        }
    ]


def _at(stamp: object) -> int | None:
    try:
        seconds = float(str(stamp))
    except ValueError:
        return None
    return int(seconds * 1_000_000) if 0 < seconds < 1e11 else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
