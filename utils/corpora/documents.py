"""Documents of raw text: files of several kinds, here or in object stores, in pieces that any process can read alone.

A text file holds documents with empty lines between them, a paragraph a line. A line of a JSON Lines file, or a row of
a Parquet file, holds one document in a field: empty lines stand between its paragraphs, as in books, whose lines are
short; where there are none, each line is a paragraph. White space within a paragraph counts as one space.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
import xxhash
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from pyarrow import parquet

from bart.errors import InputError, brief
from bart.files import as_named
from utils.app.stores import in_store
from utils.data.options import TEXT_FILES

PIECE = 1 << 24  # bytes of a piece of a file
PACKED_PIECES = 16  # of a packed file at most
BLOCK = 1 << 22  # bytes that a store is asked for at once
OPENING = 1 << 13  # bytes that are read in the time in which a file is opened
NOT_UTF8, NOT_JSON, NEAR_EMPTY = "not UTF-8", "not JSON", "near-empty"
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n", re.ASCII)  # as that which ends a document of a text file
Item = TypeVar("Item")
_ROWS = 64  # of a Parquet file that are in memory at once: they may be books


class Piece(NamedTuple):
    """The documents of a file that begin in a range of its bytes, or in row groups there; of a whole file or a part."""

    place: str  # a path, or a URL of an object store
    start: int
    end: int  # of a packed file, both count unpacked bytes, once it is `measured`
    held_out: bool = False  # for validation

    @property
    def size(self) -> int:
        return self.end - self.start


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


def in_tasks(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Gather pieces into tasks that take about as long as one that is not the last of its file."""
    return [*gathered(pieces, lambda piece: piece.size + OPENING, PIECE)]


def find_files(option: str, places: Sequence[str]) -> list[Piece]:
    """Find the files that an option names, and those of a known kind in the folders that it names; sorted by path."""
    files: dict[str, int] = {}
    for place in places:
        path = as_named(place)
        if not in_store(place) and not path.exists():
            raise InputError(f"--{option} {place}: no such file or folder")
        try:
            if in_store(place):
                inner = _sizes_in_store(place)
            else:
                found = _files_in(path, set()) if path.is_dir() else [path]
                inner = {str(file): file.stat().st_size for file in found}
        except Exception as error:  # OSError, or whatever the client of a store raises
            raise InputError(f"--{option} {place}: cannot be read ({brief(error)})") from None
        if not inner:
            raise InputError(f"--{option} {place}: no file there ends in {', '.join(TEXT_FILES)}")
        if not all(map(_kind_of, inner)):
            raise InputError(f"--{option} {place}: not a known kind of file; allowed: {', '.join(TEXT_FILES)}, folders")
        files |= inner
    return [Piece(place, 0, size) for place, size in sorted(files.items())]


def _sizes_in_store(url: str) -> dict[str, int]:
    store, root = url_to_fs(url)
    return {
        store.unstrip_protocol(name): facts["size"]
        for name, facts in store.find(root, detail=True).items()
        if name == root or (_kind_of(name) and "/." not in name[len(root) :])
    }


def _files_in(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """The files of a known kind in a folder and in those below it that are not `seen` nor hidden, also behind links."""
    seen.add(folder.resolve())
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_symlink(), path)):
        if path.name.startswith("."):
            continue
        if path.is_dir() and path.resolve() not in seen:
            yield from _files_in(path, seen)
        elif _kind_of(path.name) and not path.is_dir():
            yield path


def _kind_of(name: str) -> str | None:
    return next((kind for kind in TEXT_FILES if name.lower().endswith(kind)), None)


def is_packed(place: str) -> bool:
    return place.lower().endswith(".gz")


@contextmanager
def reading(place: str) -> Iterator[BinaryIO]:
    """Open a file, here or in an object store, and unpack it; InputError where it cannot be read."""
    try:
        store, path = url_to_fs(place) if "://" in place else (LocalFileSystem(), place)
        with store.open(path, block_size=BLOCK, compression="infer") as file:
            yield file
    except (OSError, EOFError, ImportError, zlib.error, pa.ArrowException) as error:
        raise InputError(f"{place}: cannot be read ({brief(error)})") from None


def measured(file: Piece) -> tuple[Piece, str]:
    """The file with its size, of a packed one that of its text, and a digest of that."""
    digest = xxhash.xxh3_128()
    with reading(file.place) as opened:
        while block := opened.read(BLOCK):
            digest.update(block)
        return file._replace(end=opened.tell()), digest.hexdigest()


def pieces_of(file: Piece) -> list[Piece]:
    """Cut a measured file into pieces of PIECE bytes; a packed one into few: each is read from the beginning on."""
    size = max(PIECE, file.size // PACKED_PIECES) if is_packed(file.place) else PIECE
    return [file._replace(start=start, end=min(start + size, file.end)) for start in range(0, file.end, size)]


def read_documents(piece: Piece, text_field: str) -> Iterator[Document]:
    """Read the documents of a piece, one at a time."""
    kind = _kind_of(piece.place)
    with reading(piece.place) as file:
        if kind == ".parquet":
            yield from (_document(text, text_field) for text in _rows(file, piece, text_field))
            return
        lines = _lines(file, piece, kind)
        if kind.startswith(".jsonl"):
            yield from (_from_json(line, text_field) for line in lines if line.strip())
            return
        for is_text, group in groupby(lines, lambda line: bool(line.strip())):
            if is_text:
                yield _document(b"".join(group), text_field)


def _lines(file: BinaryIO, piece: Piece, kind: str) -> BytesIO:
    """The lines of the documents that begin in a piece. They are read forwards, since packed files go back slowly."""
    _begun(file, piece.start, kind)
    begin = file.tell()
    inner = file.read(max(0, piece.end - begin))
    return BytesIO(inner + _begun(file, piece.end, kind)[max(0, begin - piece.end) :])


def _begun(file: BinaryIO, place: int, kind: str) -> bytes:
    """The rest of what has begun before `place`: read up to an empty line or, in a JSON Lines file, of one line."""
    lines = []
    if place:
        file.seek(place)
        lines.append(file.readline())
        while kind.startswith(".txt") and (line := file.readline()).strip():
            lines.append(line)
    return b"".join(lines)


def _rows(file: BinaryIO, piece: Piece, text_field: str) -> Iterator[bytes | None]:
    table = parquet.ParquetFile(file)
    kinds = {field.name: field.type for field in table.schema_arrow}
    if text_field not in kinds:
        raise InputError(f"--text_field is {text_field!r}; {piece.place} has the fields {', '.join(kinds)}")
    if not (pa.types.is_string(kinds[text_field]) or pa.types.is_large_string(kinds[text_field])):
        raise InputError(f"{piece.place}: the field {text_field!r} holds {kinds[text_field]}; texts are expected")
    starts = [table.metadata.row_group(group).column(0).data_page_offset for group in range(table.num_row_groups)]
    groups = [group for group, start in enumerate(starts) if piece.start <= start < piece.end]
    for batch in table.iter_batches(_ROWS, row_groups=groups, columns=[text_field]):
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
