"""Documents to summarise, and rows of a table or lines to predict, of a file or of standard input."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from bart.errors import InputError
from utils.app.output_files import file_digest
from utils.app.progress import progress
from utils.data.columns import (
    KNOWN_FIELDS,
    LABELS,
    PAIRS,
    TAGS,
    TEXTS,
    WORDS,
    Record,
    blank_among,
    check_blank,
    names_in,
)
from utils.data.places import TABLES, opening, suffix_of
from utils.text.lines import BlankText, check_is_text, decoded_lines, iter_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from utils.tasks.task import Task

AT_ONCE = 1024  # rows in memory
PARQUET = ".parquet"
BREAKS = re.compile(r"[\t\r\n]")  # a cell of .tsv has none
OTHERS = ("id", "idx", "index", "context", "answers")  # columns that often stand beside those of texts
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
    of_texts = {*TEXTS, *WORDS, *(source for source, _ in KNOWN_FIELDS)}
    usual = names & {*of_texts, *PAIRS, *LABELS, *TAGS, *(target for _, target in KNOWN_FIELDS), *OTHERS}
    is_trained = columns and columns[0].lower() in names
    if lines[0].startswith("__label__"):
        raise InputError(f"{name}: the first line begins with fastText's __label__; allowed: lines of texts alone")
    if are_words and (is_trained or (names & of_texts and len(usual) > 1)):
        raise InputError(
            f"{name}: the first line, {lines[0][:80]!r}, is the header of a table; allowed: a file "
            f"{', '.join(TABLES)} by its name, or lines of texts alone"
        )


class RowsToPredict:
    """The rows or lines to predict. A file is read anew each time, so that memory does not grow with it.

    The first time is when this is made, so that what is wrong in the last row is said before the first is predicted.

    The task reads a table; a line is a text or a JSON object. `suffix` is that of the output.
    """

    def __init__(self, file: str | None, is_table: bool, task: Task, suffix: str, skip_blank: bool = False) -> None:
        self.path = None if file is None else Path(file).expanduser()
        self.is_table, self.task = is_table, task
        self.name = file or "standard input"
        self.lines = read_documents(has_one_a_line=True, blank=True) if file is None else []
        if suffix == PARQUET and not self.is_parquet:
            raise InputError(f"--output ends in .parquet and {self.name} does not; allowed: .csv, .tsv, .jsonl")
        choose = task.columns_in if is_table else task.typed_columns
        self.rows, self.columns, self.chosen = 0, [], ()  # chosen columns are read, of all that the rows have
        self.blank: dict[str, BlankText] = {}  # by the names of rows that are not predicted
        rows = iter(progress("reading", None, "rows", self.records()))
        while records := list(islice(rows, AT_ONCE)):
            self.columns = list(dict.fromkeys([*self.columns, *names_in(records)]))
            self.chosen = self.chosen or choose(self.columns)
            self.blank |= blank_among(records, lambda record: task.given([record], self.chosen))
            self.rows += len(records)
            if suffix == ".tsv":
                _check_has_no_breaks(records)
        if not self.rows:
            raise InputError(f"{self.name}: has no rows")
        check_blank(self.blank, self.rows, skip_blank)
        if {*choose(self.columns)} != {*self.chosen}:
            first, later = ", ".join(self.chosen), ", ".join(choose(self.columns))
            raise InputError(f"{self.name}: its first rows have {first}, later ones {later}; allowed: one kind")
        schema = next(self.parquet()).schema if self.is_parquet else ()
        bytes_in = [field.name for field in schema if "binary" in str(field.type)]
        if bytes_in and suffix not in ("", PARQUET):
            raise InputError(f"{self.name}: {bytes_in[0]} holds bytes; allowed: an --output FILE.parquet")

    @property
    def is_parquet(self) -> bool:
        return self.path is not None and self.is_table and suffix_of(self.path) == PARQUET

    @property
    def digest(self) -> str:
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
        """The rows or lines, each named by its file and line."""
        if self.is_table:
            yield from self.task.records(self.path)
            return
        for number, line in enumerate(self.lines if self.path is None else iter_lines(self.path, blank=True), 1):
            if number == 1:
                check_no_header([line], self.name, self.task.columns)
            where = f"{self.name}, line {number}"
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
