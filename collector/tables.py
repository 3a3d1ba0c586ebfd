"""THE DATA MODEL: one pyarrow schema per table, every field documented.

The documentation of a field is stored in the schema's metadata (`doc`), so that it travels in the Parquet files. Times
are UTC microseconds (`timestamp[us, tz=UTC]`); an event's time is the interval [at_lo, at_hi], both null where nothing
tells the time. Additions are new nullable fields; SCHEMA_VERSION rises when a reader of old files must know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1

_TIME = pa.timestamp("us", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": _TIME,
    "bytes": pa.binary(),
    "ints": pa.list_(pa.int64()),
    "strs": pa.list_(pa.string()),
}

_INCIDENT = ("incident", "str", "Incident the row belongs to.")
_WHEN = (
    ("at_lo", "time", "Earliest possible time of the event; null if unknown."),
    ("at_hi", "time", "Latest possible time of the event; null if unknown."),
)
_WHERE = (
    ("path", "str", "File the row was read from, relative to the collected root."),
    ("line", "int", "1-based line number in the (decompressed) file; null for files without lines."),
    ("offset", "int", "Byte offset of the line in the (decompressed) file."),
)
_WHO = (
    ("node", "str", "Host name of the node, as the evidence spells it."),
    ("rank", "int", "Global rank."),
)

_FIELDS: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "log_lines": (
        "Raw zone: lines printed by ranks and launchers, cleaned and masked.",
        (
            _INCIDENT,
            ("attempt", "int", "Launcher restart count, 0-based; null if the evidence does not tell."),
            ("path", "str", "File, relative to the collected root."),
            ("line", "int", "1-based line number."),
            ("offset", "int", "Byte offset of the line."),
            ("part", "int", "0, or the index of a piece of a line that was overwritten with carriage returns."),
            ("node", "str", "Host name."),
            ("rank", "int", "Global rank."),
            ("local_rank", "int", "Rank within the node."),
            ("pid", "int", "Process id stated by the line or its prefix."),
            ("stream", "str", "stdout | stderr | console."),
            ("issuer", "str", "rank | launcher | scheduler | driver | unknown."),
            *_WHEN,
            ("text", "str", "The line without prefixes, colours and overwritten progress."),
        ),
    ),
    "artifacts": (
        "Raw zone: small raw files as they were.",
        (
            _INCIDENT,
            ("kind", "str", "collector.model.ArtifactKind."),
            ("path", "str", "Name, relative to the collected root."),
            *_WHO,
            ("attempt", "int", "Launcher restart count."),
            ("taken_at", "time", "When the collector read it."),
            ("content", "bytes", "The masked bytes."),
        ),
    ),
    "ledger": (
        "One row per piece of evidence that was looked for.",
        (
            _INCIDENT,
            ("source", "str", "Source or reader that looked."),
            ("path", "str", "Where it looked."),
            ("kind", "str", "collector.model.ArtifactKind, if known."),
            *_WHO,
            ("attempt", "int", "Launcher restart count."),
            ("outcome", "str", "collected | empty | refused | timed_out | truncated | unreachable | not_configured."),
            ("bytes_seen", "int", "Bytes available."),
            ("bytes_kept", "int", "Bytes kept."),
            ("dropped_from", "int", "Offset of the first dropped byte."),
            ("dropped_to", "int", "Offset after the last dropped byte."),
            ("detail", "str", "Why, in words."),
        ),
    ),
    "incidents": (
        "One row per failed (or examined) run.",
        (
            _INCIDENT,
            ("scheduler", "str", "local | slurm | kubernetes."),
            ("cluster", "str", "Cluster name."),
            ("job", "str", "Job id in the scheduler."),
            ("name", "str", "Job name."),
            ("user", "str", "Owner (may be pseudonymised)."),
            ("state", "str", "Final state as the scheduler spells it."),
            ("exit_code", "int", "Exit code of the job or launcher."),
            ("world_size", "int", "Number of ranks."),
            ("nodes", "strs", "Nodes of the job."),
            ("gpus", "int", "GPUs allocated."),
            ("attempts", "int", "Launcher attempts seen."),
            ("started", "time", "Start of the run."),
            ("ended", "time", "End of the run."),
            ("frameworks", "strs", "Frameworks seen in the evidence."),
        ),
    ),
    "ranks": (
        "One row per rank and attempt: identity, progress and end.",
        (
            _INCIDENT,
            ("attempt", "int", "Launcher restart count, 0-based."),
            *_WHO,
            ("local_rank", "int", "Rank within the node."),
            ("pid", "int", "Process id of the rank."),
            ("device", "str", "GPU: PCI address, UUID or index, as known."),
            ("first_line_at", "time", "Time of its first timed line."),
            ("last_line_at", "time", "Time of its last timed line."),
            ("last_path", "str", "File of its last line."),
            ("last_line", "int", "Line number of its last line."),
            ("last_text", "str", "Its last line."),
            ("lines", "int", "Lines attributed to the rank."),
            ("step", "int", "Last progress counter (step or iteration)."),
            ("step_at", "time", "Time of that progress line."),
            ("exit_code", "int", "Exit code, if stated."),
            ("signal", "int", "Signal number that ended it, if stated."),
            ("exited_at", "time", "Time of its end, if stated."),
            ("finished", "bool", "True if it printed that it ended well."),
        ),
    ),
    "kernel_events": (
        "Kernel, driver and hardware events of a node.",
        (
            _INCIDENT,
            *_WHO,
            *_WHEN,
            *_WHERE,
            (
                "event",
                "str",
                "xid | sxid | oom_kill | mce | aer | nvlink | link | hung_task | io | fs | segfault | ...",
            ),
            ("code", "int", "Xid or other number."),
            ("device", "str", "PCI address, interface or block device."),
            ("pid", "int", "Process named by the event."),
            ("process", "str", "Process name."),
            ("text", "str", "The line."),
        ),
    ),
    "scheduler_events": (
        "What the scheduler or launcher states about jobs, steps, tasks and pods.",
        (
            _INCIDENT,
            *_WHO,
            *_WHEN,
            *_WHERE,
            ("event", "str", "exit | signal | cancelled | time_limit | node_fail | oom | preempted | evicted | ..."),
            ("code", "int", "Exit code."),
            ("signal", "int", "Signal."),
            ("local_rank", "int", "Local rank or task, if named."),
            ("pid", "int", "Process id, if named."),
            ("attempt", "int", "Launcher restart count."),
            ("text", "str", "The line."),
        ),
    ),
    "gpus": (
        "GPU state of a node at collection.",
        (
            _INCIDENT,
            *_WHO,
            ("taken_at", "time", "When the state was read."),
            *_WHERE,
            ("index", "int", "GPU index on the node."),
            ("uuid", "str", "GPU UUID."),
            ("serial", "str", "Board serial."),
            ("pci", "str", "PCI bus address."),
            ("model", "str", "Product name."),
            ("driver", "str", "Driver version."),
            ("ecc_volatile_uncorrected", "int", "Uncorrected ECC errors since reset."),
            ("ecc_aggregate_uncorrected", "int", "Uncorrected ECC errors over its life."),
            ("remap_pending", "bool", "Row remapping waits for a reset."),
            ("remap_failure", "bool", "Row remapping failed: replace."),
            ("retired_pages", "int", "Retired pages."),
            ("throttle", "strs", "Active clock-throttle reasons."),
            ("power_w", "float", "Power draw, watt."),
            ("temperature_c", "float", "GPU temperature, degree Celsius."),
            ("memory_used_mib", "float", "Memory in use, MiB."),
            ("memory_total_mib", "float", "Memory size, MiB."),
            ("error", "str", "What nvidia-smi said instead of a value ('ERR!', 'GPU is lost')."),
        ),
    ),
    "environment": (
        "Versions and settings as name and value.",
        (
            _INCIDENT,
            *_WHO,
            ("name", "str", "Such as torch, nccl, driver, package:deepspeed, env:NCCL_DEBUG."),
            ("value", "str", "Value as printed."),
            ("source", "str", "collect_env | ds_report | pip | env | log."),
            *_WHERE,
        ),
    ),
    "stack_frames": (
        "Stacks of threads of ranks; one row per frame.",
        (
            _INCIDENT,
            *_WHO,
            ("pid", "int", "Process id."),
            ("dump", "int", "0-based number of the dump of that rank, in time."),
            ("taken_at", "time", "When the dump was taken, if known."),
            ("thread", "str", "Thread name or id."),
            ("state", "str", "active | idle | gil | unknown."),
            ("depth", "int", "0 = innermost frame."),
            ("function", "str", "Qualified function name."),
            ("file", "str", "Source file as printed."),
            ("lineno", "int", "Line in the source file."),
            ("native", "bool", "True for a native frame."),
            *_WHERE,
        ),
    ),
    "collectives": (
        "Flight-recorder entries and the log's own collective counters.",
        (
            _INCIDENT,
            *_WHO,
            ("pg", "str", "Process group id."),
            ("pg_desc", "str", "Process group description."),
            ("pg_ranks", "ints", "Global ranks of the group, if known."),
            ("seq", "int", "Collective sequence id within the group."),
            ("op", "str", "Operation, such as nccl:all_reduce."),
            ("is_p2p", "bool", "True for send and receive."),
            ("state", "str", "scheduled | started | completed."),
            ("sizes", "str", "Input and output sizes as JSON."),
            ("dtypes", "str", "Input and output types as JSON."),
            ("at_lo", "time", "Time created."),
            ("at_hi", "time", "Time created (same) or last known time."),
            ("last_enqueued", "int", "pg_status: last enqueued sequence id."),
            ("last_started", "int", "pg_status: last started."),
            ("last_completed", "int", "pg_status: last completed."),
            ("frames", "strs", "Innermost user frames, 'function (file:line)'."),
            *_WHERE,
        ),
    ),
    "checkpoints": (
        "Checkpoints and whether they are safe to resume from.",
        (
            _INCIDENT,
            ("path", "str", "Folder or file."),
            ("format", "str", "torch | safetensors | dcp | deepspeed | hf-sharded | megatron | unknown."),
            ("step", "int", "Training step, from metadata or name."),
            ("saved_at", "time", "Latest modification time of its files."),
            ("bytes", "int", "Total size."),
            ("shards_expected", "int", "Shards that must be there; null if the format does not tell."),
            ("shards_found", "int", "Shards that are there."),
            ("status", "str", "complete | partial | corrupt | unknown."),
            ("why", "str", "The file and fact that decide the status."),
            ("latest", "bool", "True if a tracker file (latest, latest_checkpointed_iteration.txt) points to it."),
        ),
    ),
    "allocations": (
        "Exposure: who held which nodes and GPUs when, successes too.",
        (
            ("job", "str", "Job id."),
            ("cluster", "str", "Cluster."),
            ("user", "str", "Owner (may be pseudonymised)."),
            ("state", "str", "Final state."),
            ("node", "str", "One node of the job."),
            ("gpus", "int", "GPUs held on that node."),
            ("started", "time", "Start."),
            ("ended", "time", "End."),
        ),
    ),
    "observations": (
        "Derived: what a detector saw. The one shape every detector emits.",
        (
            _INCIDENT,
            ("id", "int", "Number within the incident."),
            ("detector", "str", "Detector that emitted it."),
            ("signature", "str", "Signature id, or the detector's own id such as silence/rank-stopped."),
            ("role", "str", "initiating | cascade | confirmation | teardown | wrapper | context."),
            ("cause", "str", "Cause class, closed list of DESIGN section 4."),
            ("scope", "str", "rank | node | launcher | job."),
            ("strength", "int", "How much it says about its cause: 3 decisive, 2 strong, 1 a hint."),
            ("attempt", "int", "Launcher restart count."),
            *_WHO,
            ("device", "str", "GPU, interface or block device."),
            ("accuses_rank", "int", "Rank that the text blames, if another than the one that prints it."),
            ("accuses_node", "str", "Node that the text blames."),
            ("entity", "str", "Affected thing, such as a checkpoint path or a port."),
            *_WHEN,
            ("seq", "int", "Order of reading within its file: places events without time."),
            ("issuer", "str", "rank | launcher | scheduler | kernel | driver | collector."),
            ("source", "str", "Table or artifact kind that it was read from."),
            *_WHERE,
            ("text", "str", "The line or statement."),
            ("title", "str", "One sentence for a person."),
            ("detail", "str", "JSON of captures and of what else the detector wants to say."),
        ),
    ),
    "verdicts": (
        "Derived: one row per incident and analysis.",
        (
            _INCIDENT,
            ("date", "str", "YYYY-MM-DD of the failure."),
            ("status", "str", "established | supported | suspected | undetermined | no_failure."),
            ("signature", "str", "Signature id."),
            ("cause", "str", "Cause class."),
            ("title", "str", "One sentence."),
            ("scope", "str", "rank | node | launcher | job."),
            ("ranks", "ints", "All initiating ranks."),
            ("nodes", "strs", "Their nodes."),
            *_WHEN,
            ("why", "str", "One sentence."),
            ("path", "str", "File of the first cited line."),
            ("line", "int", "Its line number."),
            ("text", "str", "Its text."),
            ("resume_from", "str", "Checkpoint to resume from."),
            ("resume_step", "int", "Its step."),
            ("ledger_expected", "int", "Pieces of evidence expected."),
            ("ledger_collected", "int", "Pieces of evidence collected."),
            ("signature_set", "str", "Hash of the signature set used."),
            ("analyzed_at", "time", "When the analysis ran."),
            ("version", "str", "firstfault version."),
        ),
    ),
    "candidates": (
        "Derived: competing hypotheses of an incident.",
        (
            _INCIDENT,
            ("place", "int", "1 = best."),
            ("rank", "int", "Rank accused; null for none."),
            ("node", "str", "Node accused."),
            ("signature", "str", "Signature id."),
            ("cause", "str", "Cause class."),
            ("score", "float", "0 to 1, comparable within the incident only."),
            ("reasons", "strs", "What speaks for (+) and against (-) it."),
            *_WHERE,
            ("text", "str", "Its line."),
        ),
    ),
}


def _schema(table: str) -> pa.Schema:
    doc, fields = _FIELDS[table]
    columns = [pa.field(name, _TYPES[kind], metadata={"doc": text}) for name, kind, text in fields]
    return pa.schema(columns, metadata={"doc": doc, "schema_version": str(SCHEMA_VERSION)})


SCHEMAS: dict[str, pa.Schema] = {table: _schema(table) for table in _FIELDS}


def describe(table: str) -> list[tuple[str, str, str]]:
    """(name, type, documentation) of each field of `table`. Raises KeyError for an unknown table."""
    return [(f.name, str(f.type), (f.metadata or {}).get(b"doc", b"").decode()) for f in SCHEMAS[table]]


def to_arrow(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows (dicts; missing fields are null; times as integer UTC microseconds) as an Arrow table of `table`'s schema.

    Raises KeyError for an unknown table and ValueError for a field the table does not have.
    """
    schema = SCHEMAS[table]
    listed = list(rows)
    known = set(schema.names)
    for row in listed:
        unknown = row.keys() - known
        if unknown:
            raise ValueError(f"table {table!r} has no field {sorted(unknown)}")
    columns = [pa.array([row.get(f.name) for row in listed], type=f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)
