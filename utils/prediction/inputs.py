"""The rows of a table, or lines of a file or of standard input, that are to be predicted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import xxhash

from bart.errors import InputError
from utils.app.output_files import file_digest
from utils.app.progress import progress
from utils.data.columns import Record, blank_among, check_blank, names_in
from utils.data.places import suffix_of
from utils.data.published import opening
from utils.prediction.documents import check_no_header, read_documents
from utils.tasks.task import Task
from utils.text.lines import BlankText, iter_lines

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")
AT_ONCE = 1024  # rows in memory
PARQUET = ".parquet"
BREAKS = re.compile(r"[\t\r\n]")  # a cell of .tsv has none


class RowsToPredict:
    """The rows or lines to predict. A file is read anew each time, so that memory does not grow with it.

    The first time is when this is made, so that what is wrong in the last row is said before the first is predicted.

    Args:
        file: its path; None for standard input, which is read whole.
        is_table: true for a table, or another file that the task reads; false for lines, each of which is a text or a
            JSON object.
        task: reads the rows.
        suffix: of the output that they are to become a part of, one of `TABLES` or "".
        skip_blank: leave out rows with a blank text.

    Attributes:
        rows: how many there are.
        blank: names of rows with a blank text, which are not predicted.
        columns: all that the rows have.
        chosen: those that the task reads.
        schema: the types of the columns, where they come from a Parquet file or are to become one.

    Raises:
        InputError: it is missing, malformed or empty; a row is nothing that the task can read, or other columns are to
            be read of some rows; the output cannot hold its columns.
    """

    def __init__(self, file: str | None, is_table: bool, task: Task, suffix: str, skip_blank: bool = False) -> None:
        self.path = None if file is None else Path(file).expanduser()
        self.is_table, self.task = is_table, task
        self.name = file or "standard input"
        self.lines = read_documents(has_one_a_line=True, blank=True) if file is None else []
        choose = task.columns_in if is_table else task.typed_columns
        self.rows, self.columns, self.chosen = 0, [], ()
        self.blank: dict[str, BlankText] = {}
        self.schema: pa.Schema | None = None
        for records in batches(progress("reading", None, "rows", self.records()), AT_ONCE):
            self.columns = list(dict.fromkeys([*self.columns, *names_in(records)]))
            self.chosen = self.chosen or choose(self.columns)
            self.blank |= blank_among(records, lambda record: task.given([record], self.chosen))
            self.rows += len(records)
            if suffix == ".tsv":
                check_has_no_breaks(records)
            if suffix == PARQUET and not self.is_parquet:
                rows = [record.values for record in records]
                self.schema = schema_of([rows] if self.schema is None else [self.schema, rows], self.name)
        if not self.rows:
            raise InputError(f"{self.name}: has no rows")
        check_blank(self.blank, self.rows, skip_blank)
        if self.is_parquet:
            self.schema = next(self.parquet()).schema
        if {*choose(self.columns)} != {*self.chosen}:
            first, later = ", ".join(self.chosen), ", ".join(choose(self.columns))
            raise InputError(f"{self.name}: its first rows have {first}, later ones {later}; allowed: one kind")
        bytes_in = [field.name for field in self.schema or () if "binary" in str(field.type)]
        if bytes_in and suffix not in ("", PARQUET):
            raise InputError(f"{self.name}: {bytes_in[0]} holds bytes; allowed: an --output FILE.parquet")

    @property
    def is_parquet(self) -> bool:
        return self.path is not None and self.is_table and suffix_of(self.path) == PARQUET

    @property
    def digest(self) -> str:
        """A digest of the content."""
        text = "\n".join(self.lines)
        return xxhash.xxh3_128_hexdigest(text.encode()) if self.path is None else file_digest(self.path)

    def parquet(self) -> Iterator[pa.Table]:
        """The rows of a Parquet file, AT_ONCE of them at a time, with the types that it has."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        with opening(self.name), ParquetFile(self.path) as file:
            for batch in file.iter_batches(AT_ONCE):
                yield pa.Table.from_batches([batch])

    def records(self) -> Iterator[Record]:
        """The rows or lines, each named by its file and line.

        Raises:
            InputError: the file is missing or malformed.
        """
        if self.is_table:
            yield from self.task.records(self.path)
            return
        for number, line in enumerate(self.lines if self.path is None else iter_lines(self.path, blank=True), 1):
            if number == 1:
                check_no_header([line], self.name, self.task.columns)
            yield _typed(f"{self.name}, line {number}", line)


def check_has_no_breaks(records: Iterable[Record]) -> None:
    """Raise InputError where a text holds a tab or a line break, since .tsv has no quotes."""
    for name, values in records:
        if column := next((each for each in values if BREAKS.search(f"{each}{values[each]}")), None):
            raise InputError(
                f"{name}: {column} holds a tab or a line break, which .tsv cannot; allowed: an --output FILE.csv"
            )


def schema_of(parts: Sequence[pa.Schema | Sequence[dict[str, Any]]], name: str) -> pa.Schema:
    """The types of columns that hold the values of all parts, which are rows, or the schema of earlier ones.

    Raises:
        InputError: there are none that Parquet knows; the message calls the rows `name`.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    with becoming_parquet(name):
        schemas = [part if isinstance(part, pa.Schema) else table_of(part).schema for part in parts]
        schema = pa.unify_schemas(schemas, promote_options="permissive")
        ParquetWriter(pa.BufferOutputStream(), schema).close()
    return schema


@contextmanager
def becoming_parquet(name: str) -> Iterator[None]:
    """Raise InputError, which calls the rows `name`, where Parquet has no type for their values."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OverflowError) as error:
        raise InputError(f"{name}: cannot become a Parquet file ({error}); --output may name a .jsonl file") from None


def table_of(rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None) -> pa.Table:
    """A table of rows, in which null stands for columns that a row does not have."""
    import pyarrow as pa

    every = dict.fromkeys(name for row in rows for name in row)  # pyarrow takes the names of the first row
    return pa.Table.from_pylist([{**every, **row} for row in rows], schema)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of items one after the other, of this size but for the last one."""
    items = iter(items)
    while part := list(islice(items, size)):
        yield part


def _typed(name: str, line: str) -> Record:
    """A line as a record: what begins like a JSON object as such, all else as a text."""
    try:
        return Record(name, json.loads(line) if line.lstrip().startswith("{") else {"text": line})
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not JSON ({error}); a text must not begin with {{") from None
