"""Documents of raw text: files of several kinds, cut into pieces that any process can read alone.

A text file holds documents with empty lines between them, a paragraph a line. A line of a JSON Lines file, or a row of
a Parquet file, holds one document in a field: empty lines stand between its paragraphs, as in books, whose lines are
short; where there are none, each line is a paragraph. White space within a paragraph counts as one space.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import parquet

from bart.errors import InputError, brief
from bart.files import as_named
from utils.data.options import TEXT_FILES

PIECE = 1 << 24  # bytes of a file that are a piece, at least
NOT_UTF8, NOT_JSON, NEAR_EMPTY = "not UTF-8", "not JSON", "near-empty"
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
Item = TypeVar("Item")
_ROWS = 64  # of a Parquet file that are in memory at once: they may be books


class Piece(NamedTuple):
    """A part of a file, of bytes or of a Parquet file's row groups, that begins and ends between two documents."""

    path: str
    start: int
    end: int
    held_out: bool = False  # for validation


class Document(NamedTuple):
    """The paragraphs that are not empty, with single spaces; or the reason why a text cannot be read."""

    paragraphs: list[str]
    fault: str | None = None

    @property
    def text(self) -> str:
        return " ".join(self.paragraphs)


def gathered(items: Iterable[Item], size_of: Callable[[Item], int], least: int) -> Iterator[list[Item]]:
    """Gather items into lists, each of which ends as soon as it has the least size."""
    group, size = [], 0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= least:
            yield group
            group, size = [], 0
    if group:
        yield group


def find_files(option: str, places: Sequence[str]) -> list[Path]:
    """Find the files that an option names, and those of a known kind in the folders that it names; sorted by path."""
    files: set[Path] = set()
    for place in places:
        path = as_named(place)
        if not path.exists():
            raise InputError(f"--{option} {place}: no such file or folder")
        try:
            inner = {*_files_in(path, set())} if path.is_dir() else {path}
            for file in inner:
                file.open("rb").close()
        except OSError as error:
            raise InputError(f"--{option} {place}: cannot be read ({brief(error)})") from None
        if not inner:
            raise InputError(f"--{option} {place}: no file in this folder ends in {', '.join(TEXT_FILES)}")
        if not all(map(_kind_of, inner)):
            raise InputError(f"--{option} {place}: not a known kind of file; allowed: {', '.join(TEXT_FILES)}, folders")
        files |= inner
    return sorted(files)


def _files_in(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """The files of a known kind in a folder and in those below it that are not `seen` nor hidden, also behind links."""
    seen.add(folder.resolve())
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_symlink(), path)):
        if path.name.startswith("."):
            continue
        if path.is_dir() and path.resolve() not in seen:
            yield from _files_in(path, seen)
        elif _kind_of(path) and not path.is_dir():
            yield path


def _kind_of(path: Path) -> str | None:
    return next((kind for kind in TEXT_FILES if path.name.lower().endswith(kind)), None)


def pieces_of(path: Path, text_field: str, held_out: bool = False) -> list[Piece]:
    """Cut a file into pieces of about PIECE bytes, the same in every process."""
    kind = _kind_of(path)
    try:
        if kind == ".parquet":
            cuts = _groups(path, text_field)
        elif kind in (".txt", ".jsonl"):
            cuts = _cuts(path, kind)
        else:
            cuts = [0, path.stat().st_size]
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({brief(error)})") from None
    return [Piece(str(path), *cut, held_out) for cut in pairwise(cuts)]


def _cuts(path: Path, kind: str) -> list[int]:
    """The ends of pieces: bytes behind an empty line or, in a JSON Lines file, behind a line."""
    cuts, size = [0], path.stat().st_size
    with path.open("rb") as file:
        while cuts[-1] + PIECE < size:
            file.seek(cuts[-1] + PIECE)
            file.readline()
            while kind == ".txt" and file.readline().strip():
                pass
            cuts.append(file.tell())
    return cuts if cuts[-1] == size else [*cuts, size]


def _groups(path: Path, text_field: str) -> list[int]:
    """The ends of pieces of a Parquet file: numbers of row groups."""
    with parquet.ParquetFile(path) as file:
        kinds = {field.name: field.type for field in file.schema_arrow}
        if text_field not in kinds:
            raise InputError(f"--text_field is {text_field!r}; {path} has the fields {', '.join(kinds)}")
        if not (pa.types.is_string(kinds[text_field]) or pa.types.is_large_string(kinds[text_field])):
            raise InputError(f"{path}: the field {text_field!r} holds {kinds[text_field]}; texts are expected")
        sizes = [file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)]
        return [0, *accumulate(map(len, gathered(sizes, int, PIECE)))]


def read_documents(piece: Piece, text_field: str) -> Iterator[Document]:
    """Read the documents of a piece, one at a time."""
    path = Path(piece.path)
    kind = _kind_of(path)
    try:
        if kind == ".parquet":
            yield from (_document(text, text_field) for text in _rows(piece, text_field))
            return
        with gzip.open(path) if kind.endswith(".gz") else path.open("rb") as file:
            lines = file if kind.endswith(".gz") else _lines(file, piece)
            if kind.startswith(".jsonl"):
                yield from (_from_json(line, text_field) for line in lines if line.strip())
                return
            for is_text, group in groupby(lines, lambda line: bool(line.strip())):
                if is_text:
                    yield _document(b"".join(group), text_field)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({brief(error)})") from None


def _lines(file: BinaryIO, piece: Piece) -> Iterator[bytes]:
    file.seek(piece.start)
    left = piece.end - piece.start
    while left > 0 and (line := file.readline()):
        left -= len(line)
        yield line


def _rows(piece: Piece, text_field: str) -> Iterator[bytes | None]:
    with parquet.ParquetFile(piece.path) as file:
        groups = range(piece.start, piece.end)
        for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[text_field]):
            # As bytes, so that one faulty text is not the fault of all.
            yield from batch.column(0).cast(pa.large_binary()).to_pylist()


def _from_json(line: bytes, text_field: str) -> Document:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Document([], NOT_UTF8)
    except (ValueError, RecursionError):
        return Document([], NOT_JSON)
    return _document(value.get(text_field) if isinstance(value, dict) else None, text_field)


def _document(text: object, text_field: str) -> Document:
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        if not isinstance(text, str):
            return Document([], f"no text in the field {text_field}")
        text.encode()  # JSON can hold halves of characters
    except UnicodeError:
        return Document([], NOT_UTF8)
    parts = _EMPTY_LINE.split(text.strip())
    paragraphs = [" ".join(words) for part in (parts if parts[1:] else text.split("\n")) if (words := part.split())]
    return Document(paragraphs, None if paragraphs else NEAR_EMPTY)
