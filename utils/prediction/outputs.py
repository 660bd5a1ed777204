"""Predictions beside the rows that they are of: as lines, or as a table; written piece by piece, whole in the end."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bart.files import replacing
from utils.app.unfinished import Unfinished
from utils.data.columns import Record
from utils.prediction.inputs import BREAKS, PARQUET, RowsToPredict
from utils.text.lines import joined

DELIMITED = (".csv", ".tsv")
OUTPUTS = (*DELIMITED, ".jsonl", PARQUET)  # tables that are written
Rows = Iterable[tuple[Record, Mapping[str, Any]]]  # each with the cells that its prediction adds


@dataclass(frozen=True)
class Format:
    """The form of an output."""

    suffix: str  # one of OUTPUTS, or "" for lines of predictions alone
    separator: str  # between the parts of a prediction that is a list; see `joined`

    def texts(self, rows: Rows, columns: Sequence[str]) -> Iterator[str]:
        """The parts of a text file, one for each row; `columns` are those without their predictions."""
        if self.suffix in DELIMITED:
            yield from self._delimited(rows, columns)
        elif self.suffix:
            yield from (_json({**record.values, **added}) + "\n" for record, added in rows)
        else:
            yield from (" ".join(str(self._joined(added["prediction"])).split("\n")) + "\n" for _, added in rows)

    def _delimited(self, rows: Rows, columns: Sequence[str]) -> Iterator[str]:
        for number, (record, added) in enumerate(rows):
            if not number:
                names = [*columns, *(name for name in added if name not in columns)]
                yield self._row(names)
            values = {**record.values, **{name: self._joined(value) for name, value in added.items()}}
            yield self._row([values.get(name) for name in names])

    def _row(self, values: Iterable[Any]) -> str:
        """A line of .csv, or one of .tsv, in which blanks stand for the tabs and line breaks of predictions."""
        cells = map(_cell, values)
        if self.suffix == ".tsv":
            return "\t".join(BREAKS.sub(" ", cell) for cell in cells) + "\n"
        file = io.StringIO()
        csv.writer(file).writerow(cells)  # which quotes "\r" for its own ends of lines alone
        return file.getvalue().removesuffix("\r\n") + "\n"

    def _joined(self, value: Any) -> Any:
        if value is None:  # of a blank text
            return ""
        return joined(value, self.separator) if isinstance(value, (list, tuple)) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _json(value) if isinstance(value, (list, dict)) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def write_file(output: Path, form: Format, source: RowsToPredict, work: Unfinished) -> None:
    """Write an output, whole or not at all, from its rows and the parts of their predictions in `work`."""
    with replacing(output) as temporary:
        if form.suffix == PARQUET:
            _write_parquet(temporary, source, work)
        else:
            rows = zip(source.records(), chain.from_iterable(work.values()), strict=True)
            with temporary.open("w", encoding="utf-8", newline="") as file:
                file.writelines(form.texts(rows, source.columns))


def _write_parquet(path: Path, source: RowsToPredict, work: Unfinished) -> None:
    """The table that was read, with its types, and the columns of the predictions."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schemas = [pa.Table.from_pylist(part).schema for part in work.values()]
    types = pa.unify_schemas(schemas, promote_options="permissive")
    schema = pa.unify_schemas([next(source.parquet()).schema, types])
    cells = chain.from_iterable(work.values())
    with ParquetWriter(path, schema) as writer:
        for table in source.parquet():
            added = pa.Table.from_pylist([*islice(cells, len(table))], types)
            for field in types:
                table = table.append_column(field, added[field.name])
            writer.write_table(table)
