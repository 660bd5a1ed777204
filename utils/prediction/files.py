"""Documents, rows of tables and lines that are read; predictions that are written, as lines or beside their rows."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from glob import glob
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from bart.errors import InputError
from bart.files import replacing
from utils.app.output_files import file_digest
from utils.app.progress import progress
from utils.app.unfinished import Unfinished
from utils.data.columns import KNOWN_FIELDS, TEXTS, WORDS, Record, blank_among, check_blank, names_in
from utils.data.places import TABLES, opening, suffix_of
from utils.text.lines import BlankText, check_is_text, decoded_lines, iter_lines, joined

if TYPE_CHECKING:
    import pyarrow as pa

    from utils.tasks.task import Task

AT_ONCE = 1024  # rows in memory
PARQUET = ".parquet"
OUTPUTS = (".csv", ".tsv", ".jsonl", PARQUET)  # tables that are written
BREAKS = re.compile(r"[\t\r\n]")  # a cell of .tsv has none
TERMINAL_LINE = 4095  # bytes of a line that a terminal on Linux passes on; it drops the rest


def read_documents(has_one_a_line: bool, file: str | None = None, blank: bool = False, hint: str = "") -> list[str]:
    """Read a file, or standard input, as one document or as one a line; lines end at "\\n" alone."""
    name = file or "standard input"
    check_is_text(name)
    is_typed = file is None and sys.stdin.isatty()
    if is_typed:
        expected = "documents, one a line" if has_one_a_line else "a document"
        print(f"{hint}Type or paste {expected}; Enter and then Ctrl-D end it.", file=sys.stderr)
    try:
        data = sys.stdin.buffer.read() if file is None else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from None
    longest = max(map(len, data.split(b"\n"))) if is_typed else 0
    if longest >= TERMINAL_LINE:
        cut = f"a line of {longest} bytes, and a terminal drops what is beyond {TERMINAL_LINE}"
        raise InputError(f"{name}: {cut}; allowed: shorter lines, or a file (< FILE)")
    if not data.strip():
        raise InputError(f"{name}: blank; a text is expected")
    lines = list(decoded_lines(io.BytesIO(data), name, blank=blank or not has_one_a_line))
    return lines if has_one_a_line else ["\n".join(lines)]


def check_no_header(lines: Sequence[str], name: str, columns: Sequence[str]) -> None:
    """Raise InputError where lines of texts are those of a table: the first names columns, as that of training."""
    names = {column.strip('" ').lower() for column in re.split("[,;\t]", lines[0])}
    are_words = len(names) > 1 and all(re.fullmatch(r"[\w.-]+", column) for column in names)
    of_texts = {*TEXTS, *WORDS, *(source for source, _ in KNOWN_FIELDS), *map(str.lower, columns[:1])}
    if lines[0].startswith("__label__"):
        raise InputError(f"{name}: the first line begins with fastText's __label__; allowed: lines of texts alone")
    if are_words and names & of_texts:
        raise InputError(
            f"{name}: the first line, {lines[0][:80]!r}, is the header of a table; allowed: a file "
            f"{', '.join(TABLES)} by its name, or lines of texts alone"
        )


def files_of(places: Sequence[str], suffixes: Collection[str]) -> list[Path]:
    """The files that paths and patterns name, and those of the suffixes in folders; InputError unless of one kind.

    Those of a pattern or folder are in the order of their names. Names that begin with "." or "_" are no data of a
    folder, as for Spark.
    """
    files: list[Path] = []
    for place in places:
        path = Path(place).expanduser()
        found = [path] if path.exists() else sorted(map(Path, glob(str(path), recursive=True)))
        if path.is_dir():
            found = sorted(each for each in path.iterdir() if each.name[0] not in "._" and suffix_of(each) in suffixes)
        if not (found := [each for each in found if not each.is_dir()]):
            raise InputError(f"{place}: no such file; allowed: {', '.join(suffixes)}, or a folder of them")
        files += found
    kinds = {suffix_of(file): str(file) for file in files}
    if len(kinds) > 1:
        raise InputError(f"{' and '.join(islice(kinds.values(), 2))} are of two kinds; allowed: files of one kind")
    return files


class RowsToPredict:
    """The rows or lines to predict. Files are read anew each time, so that memory does not grow with them.

    The first time is when this is made, so that what is wrong in the last row is said before the first is predicted.

    The task reads tables; a line is a text or a JSON object. `suffix` is that of the output. `shard` is (i, n): of all
    rows, which are checked, only those of the i-th of n blocks are given, counted from 0.
    """

    def __init__(
        self, paths: Sequence[Path], is_table: bool, task: Task, suffix: str, skip_blank: bool, shard: tuple[int, int]
    ) -> None:
        self.paths, self.is_table, self.task, self.suffix, self.block = paths, is_table, task, suffix, (0, sys.maxsize)
        others = f" and {len(paths) - 1} other files" if paths[1:] else ""
        self.name = f"{paths[0]}{others}" if paths else "standard input"
        self.lines = [] if paths else read_documents(has_one_a_line=True, blank=True)
        if suffix == PARQUET and not self.is_parquet:
            raise InputError(f"--output ends in .parquet and {self.name} does not; allowed: .csv, .tsv, .jsonl")
        choose = task.columns_in if is_table else task.typed_columns
        self.rows, self.columns, self.chosen = 0, [], ()  # chosen columns are read, of all that the rows have
        self.blank: dict[str, BlankText] = {}  # by the names of rows that are not predicted
        self.filled: Record | None = None  # the first that is
        rows = iter(progress("reading", None, "rows", self.records()))
        while records := list(islice(rows, AT_ONCE)):
            self.columns = list(dict.fromkeys([*self.columns, *names_in(records)]))
            self.chosen = self.chosen or choose(self.columns)
            self.blank |= blank_among(records, lambda record: task.given([record], self.chosen))
            self.filled = self.filled or next((each for each in records if each.name not in self.blank), None)
            self.rows += len(records)
            if suffix == ".tsv":
                _check_has_no_breaks(records)
        if not self.rows:
            raise InputError(f"{self.name}: has no rows")
        check_blank(self.blank, self.rows, skip_blank)
        if {*choose(self.columns)} != {*self.chosen}:
            first, later = ", ".join(self.chosen), ", ".join(choose(self.columns))
            raise InputError(f"{self.name}: its first rows have {first}, later ones {later}; allowed: one kind")
        (i, n), total = shard, self.rows
        if n > total:
            raise InputError(f"--shard is {i}/{n}; {self.name}: has {total} rows; allowed: at most {total} shards")
        self.block = total * i // n, total * (i + 1) // n
        self.rows = self.block[1] - self.block[0]
        schema = next(self.parquet()).schema if self.is_parquet else ()
        bytes_in = [field.name for field in schema if "binary" in str(field.type)]
        if bytes_in and suffix not in ("", PARQUET):
            raise InputError(f"{self.name}: {bytes_in[0]} holds bytes; allowed: an --output FILE.parquet")

    @property
    def is_parquet(self) -> bool:
        return self.is_table and suffix_of(self.paths[0]) == PARQUET

    @property
    def digest(self) -> str:
        text = "\n".join(map(file_digest, self.paths) if self.paths else self.lines)
        return xxhash.xxh3_128_hexdigest(text.encode())

    def parquet(self) -> Iterator[pa.Table]:
        """The rows of Parquet files, at most AT_ONCE of them at a time, with types that fit all files."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile, read_schema

        number = 0
        with opening(self.name):
            schema = pa.unify_schemas(map(read_schema, self.paths), promote_options="permissive")
            for batch in chain.from_iterable(ParquetFile(path).iter_batches(AT_ONCE) for path in self.paths):
                begin, end = (min(max(row - number, 0), len(batch)) for row in self.block)
                number += len(batch)
                if begin < end:
                    tables = [schema.empty_table(), pa.Table.from_batches([batch[begin:end]])]
                    yield pa.concat_tables(tables, promote_options="permissive")

    def records(self) -> Iterator[Record]:
        """The rows or lines, each named by its file and line."""
        read = self.task.records if self.is_table else self._lines
        return islice(chain.from_iterable(map(read, self.paths or [None])), *self.block)

    def _lines(self, path: Path | None) -> Iterator[Record]:
        name = str(path or self.name)
        for number, line in enumerate(self.lines if path is None else iter_lines(path, blank=True), 1):
            if number == 1:
                check_no_header([line], name, self.task.columns)
            where = f"{name}, line {number}"
            try:
                yield Record(where, json.loads(line) if line.lstrip().startswith("{") else {"text": line})
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not JSON ({error}); a text must not begin with {{") from None


def _check_has_no_breaks(records: Iterable[Record]) -> None:
    """Raise InputError where a text holds a tab or a line break, since .tsv has no quotes."""
    for name, values in records:
        if column := next((each for each in values if BREAKS.search(f"{each}{values[each]}")), None):
            raise InputError(
                f"{name}: {column} holds a tab or a line break, which .tsv cannot; allowed: an --output FILE.csv"
            )


def texts(source: RowsToPredict, rows: Iterable[tuple[Record, Mapping[str, Any]]]) -> Iterator[str]:
    """The lines of an output of text: a header of .csv and .tsv, and each row with the cells that predictions add."""
    names: list[str] = []
    for record, added in rows:
        cells = {  # the parts of a list are joined as the task has it
            name: joined(value, source.task.separator) if isinstance(value, (list, tuple)) else value
            for name, value in added.items()
        }
        if not source.suffix:
            yield " ".join(_cell(cells["prediction"]).split("\n")) + "\n"
        elif source.suffix == ".jsonl":
            yield _json({**record.values, **added}) + "\n"
        else:
            if not names:
                names = [*source.columns, *(name for name in cells if name not in source.columns)]
                yield _row(source.suffix, names)
            values = {**record.values, **cells}
            yield _row(source.suffix, [values.get(name) for name in names])


def _row(suffix: str, values: Iterable[Any]) -> str:
    """A line of .csv, or one of .tsv, in which blanks stand for the tabs and line breaks of predictions."""
    cells = map(_cell, values)
    if suffix == ".tsv":
        return "\t".join(BREAKS.sub(" ", cell) for cell in cells) + "\n"
    file = io.StringIO()
    csv.writer(file).writerow(cells)  # which quotes "\r" for its own ends of lines alone
    return file.getvalue().removesuffix("\r\n") + "\n"


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
