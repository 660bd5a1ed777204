"""Tables of documents and summaries: files of rows, and published sets that are read one row after the other.

All of them are read here, by one rule. The columns of documents and summaries of a published set must hold texts, or
lists of texts, or the set is refused when it is opened. A list of sentences, which a cell of CSV holds as JSON, is
joined to a document; a list of summaries is a target of several references, as `references_of` reads it. A row in which
one of the two is missing, null, no text, or empty once it is made one line is no example, and is left out. A command
that writes a data directory lists such rows with the reason in dropped.jsonl; training and scoring count them in the
log.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError
from utils.app.errors import RunError
from utils.app.progress import progress
from utils.data.parallel_text import SIDES, Pairs, one_line, read_pairs
from utils.data.places import HUB, TABLES, fields_of, is_streamed, split_tables, suffix_of, value_in
from utils.data.published import digest_of_files, find_files_of, load_from_hub, opening, parquet_rows, reason_of
from utils.data.rows import ABSENT, READERS, SURROGATE, NumberedRows, check_names
from utils.data.splits import EVERY, Choice, MissingSplit
from utils.data.table_options import BY_ENDING, TableOptions
from utils.text.lines import list_in, read_lines, references_of

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)
# --source_field and --target_field; the first alone where only documents are read.
Fields = tuple[str | None] | tuple[str | None, str | None]


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: tells a person which row it is.
        source, target: its texts, one line each.
        fault: why it is no example; None where it is one.
        columns: of the texts.
    """

    name: str
    source: str = ""
    target: str = ""
    fault: str | None = None
    columns: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def is_blank(self) -> bool:
        """True where a text is null or blank."""
        return self.fault is not None and (self.fault.startswith("empty ") or self.fault.endswith(" is null"))

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any], fields: Sequence[str]) -> Row:
        """Make a row of the values of a table's columns, by the rule at the top of this module."""
        texts = []
        for side, field in zip(SIDES, fields, strict=False):
            if (value := value_in(values, field, ABSENT)) is ABSENT:
                return cls(name, fault=f"no field {field}")
            parts = list_in(value, where=f"{name}: ") if isinstance(value, str) else None
            if side == "source" and parts is not None:
                value = parts
            if isinstance(value, list) and all(isinstance(part, str) for part in value):
                parts = [part for part in map(one_line, value) if part]
                value = json.dumps(parts, ensure_ascii=False) if parts and side == "target" else " ".join(parts)
            if not isinstance(value, str):
                return cls(name, fault=f"{field} is {'null' if value is None else 'no text'}")
            if SURROGATE.search(value):
                return cls(name, fault="unpaired surrogate")
            texts.append(one_line(value))
            if not texts[-1]:
                return cls(name, fault=f"empty {side}")
        try:
            references_of(texts[-1])
        except InputError:
            return cls(name, fault="target is a list of no texts")
        return cls(name, *texts, columns=tuple(fields))


@dataclass(frozen=True)
class Table:
    """One split of a published set, opened, of which no row is read yet.

    Attributes:
        dataset: a `datasets.IterableDataset`.
        fields: the names of its columns of documents and, unless only those are read, of summaries.
        name: its place; on the Hub with the commit that was found.
        digest: stands for the content of its files; "" where the commit does.
    """

    dataset: datasets.IterableDataset
    fields: tuple[str, ...]
    name: str
    digest: str = ""

    @property
    def identity(self) -> dict[str, Any]:
        """Plain values for a checkpoint, which a run that resumes must find again.

        The number of files is part of it, since the order of training depends on it.
        """
        files = self.dataset.num_shards
        return {"data": self.name, "fields": list(self.fields), "files": files, "digest": self.digest}

    def rows(self) -> Iterator[Row]:
        """Read all rows, each named by this table and its number.

        Raises:
            RunError: the data cannot be read any further.
        """
        for row in TableReader(self).rows():
            yield replace(row, name=f"{self.name}:{row.name}")


def open_split(place: str, split: str, fields: Fields = (None, None)) -> Table:
    """Find a split of a set that is streamed, and its columns.

    Args:
        place: one of `PLACES`.
        split: train, val or test.

    Raises:
        InputError: there is no such place or split, or it cannot be reached; a column is missing or holds no texts.
    """
    with opening(f"the {split} split of {place}"):
        if not place.startswith(HUB):
            return open_files(find_files_of(place, split), place, fields)
        splits, name = load_from_hub(place.removeprefix(HUB), streaming=True)
        if split in splits:
            return open_dataset(splits[split], f"{HUB}{name}", fields)
    raise MissingSplit(f"{place}: no {split} split; there are {', '.join(splits)}")


def open_dataset(
    dataset: datasets.IterableDataset, name: str, fields: Fields = (None, None), digest: str = ""
) -> Table:
    """Find the columns of a dataset.

    Args:
        name, digest: see `Table`.

    Raises:
        InputError: a column is missing or holds no texts.
    """
    from datasets import Value

    features = dataset.features or {column: Value("string") for column in next(iter(dataset), {})}
    columns = _text_fields(_with_inner(features), fields, name)
    outer = {column if column in features else column.partition(".")[0] for column in columns}
    return Table(dataset.select_columns(sorted(outer)), columns, name, digest)


def _with_inner(features: Mapping[str, Any]) -> Mapping[str, Any]:
    """The kinds of columns, and of the values of objects by names such as translation.en."""
    from datasets import Features

    return {**Features(features).flatten(), **features}


def _text_fields(features: Mapping[str, Any], fields: Fields, where: str) -> tuple[str, ...]:
    from datasets import Value

    columns = fields_of(features.keys(), fields, where)
    for column in columns:
        kind = getattr(features[column], "feature", features[column])  # of a list's values
        if not (isinstance(kind, Value) and "string" in kind.dtype):
            raise InputError(f"{where}: the field {column!r} holds {kind}; texts are expected")
    return columns


def open_files(files: Sequence[str], name: str, fields: Fields = (None, None)) -> Table:
    """Open Parquet files, named by absolute paths or URLs, as one table.

    Raises:
        InputError: a column is missing or holds no texts.
        Exception: a file is missing, or is no Parquet file (see `opening`).
    """
    from datasets import Features
    from pyarrow.parquet import read_schema

    first: Mapping[str, Any] = {}
    for file in files:
        if "://" not in file:
            # `datasets` would turn numbers into texts where only the first file holds texts.
            schema = read_schema(file)
            check_names(file, schema.names)
            features = _with_inner(Features.from_arrow_schema(schema))
            fields = _text_fields(features, fields, file)
            first = first or features
            for column in fields:
                if hasattr(features[column], "feature") != hasattr(first[column], "feature"):
                    raise InputError(
                        f"{file}: the field {column!r} holds {features[column]}, and in {files[0]} {first[column]}; "
                        "all lists or all texts are expected"
                    )
    return open_dataset(parquet_rows(files), name, fields, digest_of_files(files))


class TableReader:
    """Reads a table row by row, from any position on.

    Args:
        order: the order of the table's files, by number; by default as they are.
        position: the `position()` of another reader with this order; by default the beginning.

    Attributes:
        count: examples read so far.
        left_out: rows read so far that are no examples.
    """

    def __init__(self, table: Table, order: Sequence[int] | None = None, position: dict[str, Any] | None = None):
        self.table = table
        self.order = range(table.dataset.num_shards) if order is None else order
        position = position or {"count": 0, "left_out": 0, "file": 0, "state": None}
        self.count, self.left_out = position["count"], position["left_out"]
        self._file, self._state = position["file"], position["state"]
        self._dataset: datasets.IterableDataset | None = None

    def position(self) -> dict[str, Any]:
        """The place of the next row, as plain values for a checkpoint."""
        state = self._state if self._dataset is None else self._dataset.state_dict()
        return {"count": self.count, "left_out": self.left_out, "file": self._file, "state": state}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Read the examples, as (source, target). Rows that are no examples are left out.

        Raises:
            RunError: the data cannot be read any further.
        """
        with closing(self.rows()) as rows:
            for row in rows:
                if row.fault is None:
                    yield row.source, row.target

    def rows(self) -> Iterator[Row]:
        """Read all rows. A row's name is its number in this order, from 1.

        Raises:
            RunError: the data cannot be read any further.
        """
        for file in range(self._file, len(self.order)):
            self._file = file
            self._dataset = self.table.dataset.shard(num_shards=len(self.order), index=self.order[file])
            if self._state is not None:
                self._dataset.load_state_dict(self._state)
                self._state = None
            with closing(iter(self._dataset)) as rows:
                while (values := self._next(rows)) is not None:
                    row = Row.of(str(self.count + self.left_out + 1), values, self.table.fields)
                    if row.fault is None:
                        self.count += 1
                    else:
                        self.left_out += 1
                    yield row

    def _next(self, rows: Iterator[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The next row of a file, which is opened for its first one; None at the end."""
        try:
            return next(rows, None)
        except Exception as error:  # whatever the file system, the Hub's client or the format's reader raises
            raise RunError(
                f"{self.table.name}: cannot be read after {self.count + self.left_out} examples ({reason_of(error)})"
            ) from error


def open_rows(path: Path, fields: Fields, options: TableOptions = BY_ENDING) -> Iterator[Row]:
    """Open one file of rows. A row is named by the line where it ends or, of a Parquet file, by its number.

    Args:
        fields: the columns; of JSON Lines and CSV, the first row decides on those that are not named.

    Raises:
        InputError: a column is missing or holds no texts. What is malformed in a text file raises it when that is read.
        Exception: a Parquet file is missing, or is none (see `opening`).
    """
    if suffix_of(path) in READERS:
        return _text_rows(READERS[suffix_of(path)](path, options), path, fields)
    return open_files([str(path.absolute())], str(path), fields).rows()


def _text_rows(rows: NumberedRows, path: Path, fields: Fields) -> Iterator[Row]:
    columns = None
    for number, values in rows:
        columns = columns or fields_of(values.keys(), fields, str(path))
        present = {name: value for name, value in values.items() if value is not ABSENT}
        yield Row.of(f"{path}:{number}", present, columns)


def read_split(data_dir: str, split: str, choice: Choice = EVERY, fields: Fields = (None, None)) -> Pairs:
    """Read a split into memory, of a data directory or of a published set: the examples that are chosen.

    Raises:
        InputError: the data are missing or malformed.
        RunError: the connection to where they are is lost.
    """
    if not is_streamed(data_dir):
        return read_pairs(data_dir, split, choice)
    reader = TableReader(open_split(data_dir, split, fields))
    with closing(iter(reader)) as examples:
        pairs = choice.of(progress(f"reading {split}", None, "examples", examples), itemgetter(0))
    if not pairs:
        raise InputError(f"{data_dir}: the {split} split has no examples")
    if reader.left_out:
        logger.info("%s: %d rows of the %s split are no examples and are left out", data_dir, reader.left_out, split)
    sources, targets = zip(*pairs, strict=True)
    return list(sources), list(targets)


def read_sources(data_dir: str, split: str, choice: Choice = EVERY, source_field: str | None = None) -> list[str]:
    """Read documents without summaries, those that are chosen.

    Args:
        data_dir: a directory with `<split>.source`, or with a table of each split; a file of one document a line, or a
            table, all of which is read; or a published set, whose rows that are no examples are left out and counted in
            the log.

    Raises:
        InputError: they are missing or malformed; in a table, a row has no document.
    """
    if is_streamed(data_dir):
        return read_split(data_dir, split, choice, (source_field,))[0]
    path = Path(data_dir).expanduser()
    path = split_tables(path).get(split, path)
    if path.is_dir():
        path /= f"{split}.source"
        if not path.exists():
            raise MissingSplit(f"{path}: no such file")
    if suffix_of(path) not in TABLES:
        return choice.of(read_lines(path), str)
    with opening(str(path)):
        rows: Iterable[Row] = open_rows(path, (source_field,), choice.tables)
    sources = []
    for row in rows:
        if row.fault is not None:
            raise InputError(f"{row.name}: {row.fault}; a document is expected in every row")
        sources.append(row.source)
    if not sources:
        raise InputError(f"{data_dir}: has no rows")
    return choice.of(sources, str)
