"""The lake as DuckDB tables: read-only, and without any way from SQL to a file, a network or a setting.

DuckDB never gets the address of the lake. Each table is an Arrow dataset over exactly the files of a snapshot, which
Arrow reads (columns and partitions that a query does not need stay where they are); the connection itself has external
access switched off and its configuration locked, because the text of a query may come from anywhere. Credentials are
unknown to it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from analyzers import snapshot, sql
from collector.lake import LAKE_TABLES
from collector.store import Store, StoreRefused, StoreUnavailable

_ATTEMPTS = 6
_MEMORY = "2GB"
PARAMETERS = ("since", "until", "cluster")
"""The vocabulary of `$name` in queries; a null says "all"."""
_T = TypeVar("_T")


class QueryError(Exception):
    """A query that cannot be run: the message is DuckDB's or ours, for a person."""


class Result(NamedTuple):
    """Rows of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def connect(store: Store, tables: Iterable[str] | None = None) -> Any:
    """A DuckDB connection with a view for each table of the lake (and those of queries/views), over one snapshot.

    Each view has the columns of `collector.tables` and `date` (YYYY-MM-DD of the incident, the partition). Files are
    read while a query runs, so a long-lived connection may meet a file that an analysis has replaced: `read` repeats
    then. Raises StoreError.
    """
    return _connect(store, snapshot.take(store, _wanted(tables)), _wanted(tables))


def read(store: Store, work: Callable[[Any], _T], tables: Iterable[str] | None = None) -> _T:
    """`work(connection)` over a consistent snapshot; repeated with a new one if files were replaced meanwhile.

    Raises StoreError, and what `work` raises.
    """
    wanted = _wanted(tables)
    for _ in range(_ATTEMPTS):
        taken = snapshot.take(store, wanted)
        connection = _connect(store, taken, wanted)
        try:
            return work(connection)
        except Exception:
            if snapshot.take(store, wanted).same_files(taken):
                raise
        finally:
            connection.close()
    raise StoreUnavailable("the lake changes faster than the query can read it; try again")


def query(store: Store, text: str, parameters: Mapping[str, Any] | None = None) -> Result:
    """Run one SELECT (or EXPLAIN) over the lake. Raises QueryError for bad SQL, StoreError for a bad store.

    `parameters`: values of PARAMETERS; those that the query does not name are left out, absent ones are null.
    """
    import duckdb

    probe = sql.connect()
    try:
        needed = tables_named(probe, text)
    finally:
        probe.close()

    def run(connection: Any) -> Result:
        return execute(connection, text, parameters)

    try:
        return read(store, run, needed)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error


def execute(connection: Any, text: str, parameters: Mapping[str, Any] | None = None) -> Result:
    """One read-only statement on a connection of `connect`. Raises QueryError and duckdb.Error."""
    statement = _single(connection, text)
    names = set(statement.named_parameters)
    unknown = names - set(PARAMETERS)
    if unknown:
        raise QueryError(f"unknown parameter(s) {sorted(unknown)}; known: {', '.join('$' + p for p in PARAMETERS)}")
    given = parameters or {}
    cursor = connection.execute(statement, {name: given.get(name) for name in names} or None)
    return Result([column[0] for column in cursor.description], cursor.fetchall())


def tables_named(connection: Any, text: str) -> set[str]:
    """Tables of the lake that a query needs, also through views. Raises QueryError for what cannot be parsed."""
    import duckdb

    _single(connection, text)
    try:
        named = {str(name).lower() for name in connection.get_table_names(text)}
        for view, definition in sql.load("views"):
            if view in named:
                named |= {str(name).lower() for name in connection.get_table_names(_select_of(definition))}
    except duckdb.Error:
        return set(LAKE_TABLES)  # DESCRIBE, SHOW and the like: whatever there is
    return named & set(LAKE_TABLES) or set(LAKE_TABLES)


def _single(connection: Any, text: str) -> Any:
    import duckdb

    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    if len(statements) != 1:
        raise QueryError(f"expected one statement, found {len(statements)}")
    if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        kind = str(statements[0].type).rpartition(".")[2]
        raise QueryError(f"{kind} is not allowed: the lake is read-only, expected a SELECT")
    return statements[0]


def _wanted(tables: Iterable[str] | None) -> Sequence[str]:
    if tables is None:
        return LAKE_TABLES
    asked = set(tables)
    return [table for table in LAKE_TABLES if table in asked]


def _connect(store: Store, taken: snapshot.Snapshot, wanted: Sequence[str]) -> Any:
    """The connection over a snapshot. Everything that needs permissions happens before they are given up."""
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET temp_directory = ''; SET memory_limit = '{_MEMORY}'; SET threads = 2")
        connection.execute("SET enable_external_access = false; SET python_enable_replacements = false")
        for table in wanted:
            _table(connection, store, taken, table)
        present = set(wanted)
        for name, definition in sql.load("views"):
            if {str(n).lower() for n in connection.get_table_names(_select_of(definition))} <= present:
                connection.execute(f'CREATE VIEW "{name}" AS {_select_of(definition)}')
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def _select_of(text: str) -> str:
    """The statement of a .sql file without its trailing semicolon; comments may stay."""
    return text.rstrip().removesuffix(";")


def _table(connection: Any, store: Store, taken: snapshot.Snapshot, table: str) -> None:
    """Register the datasets of one table and the view over them."""
    from collector.tables import SCHEMAS

    schema = _with(SCHEMAS[table], "date")
    columns = ", ".join(f'"{name}"' for name in schema.names)
    unit = _unit(table)
    files = [(file.object.key, {"date": file.date}) for file in taken.files[table]]
    days = [(day.key, {"date": day.date, "_day": day.version}) for day in taken.days[table]]
    branches = []
    if files or not days:
        connection.register(f"{table}__files", _dataset(store, schema, files))
        branches.append(f'SELECT {columns} FROM "{table}__files"')
    if days:
        connection.register(f"{table}__days", _dataset(store, _with(schema, unit, "_day"), days))
        branch = f'SELECT {columns} FROM "{table}__days" AS d'
        if taken.superseded[table]:
            connection.register(f"{table}__superseded", _pairs(taken.superseded[table]))
            branch += (
                f' WHERE NOT EXISTS (SELECT 1 FROM "{table}__superseded" AS s'
                f' WHERE s._day = d._day AND s.unit = d."{unit}")'
            )
        branches.append(branch)
    connection.execute(f'CREATE VIEW "{table}" AS {" UNION ALL ".join(branches)}')


def _unit(table: str) -> str:
    """The column of a day file that says of which unit a row is."""
    return "_unit" if table in snapshot.OWN_UNITS else "incident"


def _with(schema: Any, *names: str) -> Any:
    import pyarrow as pa

    for name in names:
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def _pairs(pairs: Iterable[tuple[str, str]]) -> Any:
    import pyarrow as pa

    listed = sorted(pairs)
    return pa.table({"_day": [day for day, _ in listed], "unit": [unit for _, unit in listed]})


def _dataset(store: Store, schema: Any, files: Sequence[tuple[str, Mapping[str, str]]]) -> Any:
    """(key, values of partition columns) of files as an Arrow dataset of exactly that schema.

    Columns that a file lacks are null, those that `schema` lacks are not read.
    """
    import pyarrow.dataset as ds

    if not files:
        return schema.empty_table()
    try:
        filesystem, root = store.filesystem()
    except OSError as error:
        raise StoreRefused(f"{store.uri}: {error}") from error
    return ds.FileSystemDataset.from_paths(
        [f"{root}/{key}" for key, _ in files],
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=filesystem,
        partitions=[
            functools.reduce(operator.and_, (ds.field(name) == value for name, value in values.items()))
            for _, values in files
        ],
    )
