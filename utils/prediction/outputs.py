"""Predictions beside the rows that they are of: as lines, or as a table; written piece by piece, whole in the end."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
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


def texts(source: RowsToPredict, rows: Rows) -> Iterator[str]:
    """The parts of the output as a text file, one for each row."""
    if source.suffix in DELIMITED:
        yield from _delimited(source, rows)
    elif source.suffix:
        yield from (_json({**record.values, **added}) + "\n" for record, added in rows)
    else:
        cells = (_cell(_joined(source, added["prediction"])) for _, added in rows)
        yield from (" ".join(cell.split("\n")) + "\n" for cell in cells)


def _delimited(source: RowsToPredict, rows: Rows) -> Iterator[str]:
    for number, (record, added) in enumerate(rows):
        if not number:
            names = [*source.columns, *(name for name in added if name not in source.columns)]
            yield _row(source, names)
        values = {**record.values, **{name: _joined(source, value) for name, value in added.items()}}
        yield _row(source, [values.get(name) for name in names])


def _row(source: RowsToPredict, values: Iterable[Any]) -> str:
    """A line of .csv, or one of .tsv, in which blanks stand for the tabs and line breaks of predictions."""
    cells = map(_cell, values)
    if source.suffix == ".tsv":
        return "\t".join(BREAKS.sub(" ", cell) for cell in cells) + "\n"
    file = io.StringIO()
    csv.writer(file).writerow(cells)  # which quotes "\r" for its own ends of lines alone
    return file.getvalue().removesuffix("\r\n") + "\n"


def _joined(source: RowsToPredict, value: Any) -> Any:
    """A prediction with its parts, if it is a list, between the task's separators (see `joined`)."""
    return joined(value, source.task.separator) if isinstance(value, (list, tuple)) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _json(value) if isinstance(value, (list, dict)) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def write_file(output: Path, source: RowsToPredict, work: Unfinished) -> None:
    """Write an output, whole or not at all, from its rows and the parts of their predictions in `work`."""
    with replacing(output) as temporary:
        if source.suffix == PARQUET:
            _write_parquet(temporary, source, work)
        else:
            rows = zip(source.records(), chain.from_iterable(work.values()), strict=True)
            with temporary.open("w", encoding="utf-8", newline="") as file:
                file.writelines(texts(source, rows))


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
            writer.write_table(pa.Table.from_arrays([*table.columns, *added.columns], schema=schema))
