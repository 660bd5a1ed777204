"""Predictions beside the rows that they are of: as lines, or as a table; written piece by piece, whole in the end."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bart.errors import InputError
from bart.files import replacing
from utils.app.errors import unwritable
from utils.data.columns import Record
from utils.prediction.inputs import AT_ONCE, PARQUET, Source, batches, becoming_parquet, schema_of, table_of
from utils.runs.outputs import difference
from utils.text.lines import joined

DELIMITERS = {".csv": ",", ".tsv": "\t"}
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # begins a cell that spreadsheets run
Rows = Iterable[tuple[Record, Mapping[str, Any]]]  # each with the cells that its prediction adds


@dataclass(frozen=True)
class Format:
    """The form of an output.

    Attributes:
        suffix: one of `TABLES`; "" for lines of predictions alone.
        separator: stands between the parts of a prediction that is a list, in a line or a cell; see `joined`.
        for_spreadsheets: put an apostrophe before texts in cells that a spreadsheet would run.
    """

    suffix: str
    separator: str
    for_spreadsheets: bool = False

    def texts(self, rows: Rows, columns: Sequence[str]) -> Iterator[str]:
        """The parts of a text file, one for each row.

        Args:
            columns: those of the rows without their predictions.
        """
        if self.suffix in DELIMITERS:
            yield from self._delimited(rows, columns)
        elif self.suffix == ".json":
            for number, (record, added) in enumerate(rows):
                yield (",\n" if number else "[\n") + _json({**record.values, **added})
            yield "\n]\n"
        elif self.suffix:
            yield from (_json({**record.values, **added}) + "\n" for record, added in rows)
        else:
            yield from (" ".join(str(self._joined(added["prediction"])).split("\n")) + "\n" for _, added in rows)

    def _delimited(self, rows: Rows, columns: Sequence[str]) -> Iterator[str]:
        lines: list[str] = []
        file, delimiter = SimpleNamespace(write=lines.append), DELIMITERS[self.suffix]
        writer = csv.writer(file, delimiter=delimiter)
        # Of a TSV whose header has no quotes nobody knows whether those of its rows are text (see utils.data.rows).
        head = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL) if self.suffix == ".tsv" else writer
        for number, (record, added) in enumerate(rows):
            if not number:
                names = [*columns, *(name for name in added if name not in columns)]
                head.writerow(map(self._safe, names))
            values = {**record.values, **{name: self._joined(value) for name, value in added.items()}}
            writer.writerow([self._safe(values.get(name)) for name in names])
            yield "".join(line.removesuffix("\r\n") + "\n" for line in lines)
            lines.clear()

    def _joined(self, value: Any) -> Any:
        if value is None:  # of a blank text
            return ""
        return joined(value, self.separator) if isinstance(value, (list, tuple)) else value

    def _safe(self, value: Any) -> str:
        """A value as a cell."""
        if value is None or isinstance(value, str):
            text = value or ""
        else:
            text = _json(value) if isinstance(value, (list, dict)) else str(value)
        is_run = self.for_spreadsheets and text.startswith(FORMULA) and not isinstance(value, (int, float))
        return f"'{text}" if is_run else text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class Partial:
    """The predictions so far of an output that is not whole yet, in a file `<name>.partial` beside it.

    Its first line says what run it is of; each further one holds the cells that predictions add to some rows. A line
    that was broken off is dropped.

    Raises:
        InputError: the file is of another run.

    Attributes:
        rows: that were predicted so far.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path, self.identity, self.rows = path, json.loads(json.dumps(identity)), 0
        if not path.exists():
            return
        lines = self._lines()
        end, stored = next(lines, (0, None))
        problem = difference(stored, self.identity) if isinstance(stored, dict) else "its first line cannot be read"
        if problem:
            raise InputError(
                f"{path} holds predictions of another run ({problem}): go on with that one, name another --output, or "
                "remove the file"
            )
        for end, cells in lines:  # noqa: B007 (the end is that of the last one)
            self.rows += len(cells)
        os.truncate(path, end)

    def _lines(self) -> Iterator[tuple[int, Any]]:
        """The values of the lines that are whole, each with the byte where it ends."""
        end = 0
        with self.path.open("rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    return
                end += len(line)
                if line.endswith(b"\n"):
                    yield end, value

    def add(self, cells: Sequence[Mapping[str, Any]]) -> None:
        """Note what predictions add to the next rows."""
        lines = [cells] if self.rows else [self.identity, cells]
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
        except OSError as error:
            raise unwritable(str(self.path), error) from None
        self.rows += len(cells)

    def cells(self) -> Iterator[dict[str, Any]]:
        """The cells that predictions add to all rows, in their order."""
        return chain.from_iterable(cells for _, cells in islice(self._lines(), 1, None))


def write_file(output: Path, form: Format, source: Source, partial: Partial) -> None:
    """Write an output, whole or not at all, from its rows and their predictions in `partial`, which is then removed."""
    with replacing(output) as temporary:
        if form.suffix == PARQUET:
            _write_parquet(temporary, source, partial)
        else:
            rows = zip(source.records(), partial.cells(), strict=True)
            unpacked = gzip.open if output.suffix.lower() == ".gz" else open
            with unpacked(temporary, "wt", encoding="utf-8", newline="") as file:
                file.writelines(form.texts(rows, source.columns))
    partial.path.unlink()


def _write_parquet(path: Path, source: Source, partial: Partial) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    added, cells = pa.schema([]), partial.cells()
    for part in batches(partial.cells(), AT_ONCE):
        added = schema_of([added, part], source.name)
    schema = pa.unify_schemas([source.schema, added], promote_options="permissive")
    with becoming_parquet(source.name), ParquetWriter(path, schema) as writer:
        if source.is_parquet:
            for table in source.parquet():
                columns = table_of(list(islice(cells, len(table))), added)
                for field in added:
                    table = table.append_column(field, columns[field.name])
                writer.write_table(table)
        else:
            for part in batches(zip(source.records(), cells, strict=True), AT_ONCE):
                writer.write_table(table_of([{**record.values, **more} for record, more in part], schema))
