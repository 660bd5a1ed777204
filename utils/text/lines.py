"""Text files of one example a line, UTF-8, whose lines end at "\\n" alone."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from bart.errors import InputError
from bart.files import PathName

# Endings of files that hold no text, and bytes that others begin with.
WORKBOOKS = (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers")
NO_TEXT = (*WORKBOOKS, ".docx", ".doc", ".odt", ".rtf", ".pptx", ".pdf", ".zip", ".tar", ".tgz", ".7z", ".bz2", ".xz")
NO_TEXT += (".npy", ".npz", ".arrow", ".feather", ".orc", ".avro", ".pkl", ".pickle", ".joblib", ".h5", ".hdf5", ".db")
NO_TEXT += (".sqlite", ".sqlite3", ".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".zst")
UTF_16, NUL = "UTF-16", "a NUL byte in its first line"
MARKS = {b"PK\x03\x04": "a zip archive, as .xlsx and .docx are", b"%PDF-": "a PDF", b"{\\rtf": "rich text"}
MARKS |= {b"\xff\xfe": UTF_16, b"\xfe\xff": UTF_16, b"\x1f\x8b": "gzip data; their name must end in .gz"}
# A list of texts as Python prints it, or as numpy does without commas; in what pandas may put around it.
_PRINTED = re.compile(
    r"""(?:array\()?\[\s*(?:(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None|nan)[,\s]*)+\](?:(?:, dtype=\w+)?\))?""",
    re.DOTALL,
)


class BlankText(InputError):
    """A text is blank."""


def named(blank: Sequence[object], total: int) -> str:
    """The count of texts that are blank, and the names of the first five."""
    return f"{len(blank):,} of {total:,} are blank: {', '.join(map(str, blank[:5]))}{' ...' * (len(blank) > 5)}"


def check_is_text(path: PathName) -> None:
    """The ending of a file may not say that it holds no text."""
    if (suffix := Path(path).suffix.lower()) in NO_TEXT:
        hint = "; save the workbook as CSV" if suffix in WORKBOOKS else ""
        raise InputError(f"{path}: files that end in {suffix} hold no text; allowed: UTF-8 text{hint}")


def decoded_lines(
    file: Iterable[bytes], path: PathName, blank: bool = False, ends: bool = False, is_table: bool = False
) -> Iterator[str]:
    """Yield the lines of an open file by the rules of `iter_lines`; errors call the file `path`."""
    number = 0
    for number, data in enumerate(file, 1):
        marks = (kind for mark, kind in MARKS.items() if data.startswith(mark))
        if number == 1 and (kind := next(marks, NUL if b"\0" in data else None)):
            hint = ", or --encoding utf-16" * (is_table and kind in (NUL, UTF_16))
            raise InputError(f"{path}: holds {kind}; allowed: UTF-8 text{hint}")
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            hint = ", as Windows-1252 is not: --encoding cp1252 reads that" * is_table
            raise InputError(
                f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x}){hint}"
            ) from None
        # A file that holds only a byte order mark has no line.
        if not line:
            number = 0
            continue
        if not (blank or line.strip()):
            rest = [(later, not data.strip()) for later, data in enumerate(file, number + 1)]
            count = named([number, *(later for later, is_blank in rest if is_blank)], number + len(rest))
            raise InputError(f"{path}, line {number}: blank line; every line must hold an example ({count})")
        yield line if ends else line.removesuffix("\n").removesuffix("\r")
    if not number:
        raise InputError(f"{path}: the file is empty; one example a line is expected")


def iter_lines(path: PathName, blank: bool = False, ends: bool = False, encoding: str | None = None) -> Iterator[str]:
    """Yield a file's lines as they are read, unpacked where its name ends in .gz.

    A line ends at "\\n" or "\\r\\n" only: an article may hold U+2028 or other marks that `str.splitlines` cuts at.
    Lines may be `blank`, and keep their `ends`, if these may be a part of a cell; `encoding` is that of a table.
    """
    check_is_text(path)
    unpacked = gzip.open if Path(path).suffix.lower() == ".gz" else open
    try:
        with unpacked(path, "rb") as file:
            lines: Iterable[bytes] = file
            if encoding not in (None, "utf-8"):
                lines = map(str.encode, io.TextIOWrapper(file, encoding, newline="\n"))
            yield from decoded_lines(lines, path, blank, ends, is_table=encoding is not None)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeError as error:
        raise InputError(f"{path}: not in the --encoding {encoding} ({error})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def check_counts(paths: tuple[PathName, PathName], first: int, second: int) -> None:
    """Two files must have equally many lines."""
    if first != second:
        raise InputError(f"{paths[0]} has {first} lines, {paths[1]} has {second}; they must be equally many")


def references_of(line: str, where: str = "", line_break: str = " ") -> list[str]:
    """The reference texts of a line of targets: those of a list in JSON, otherwise the line itself."""
    values = list_in(line, where=where)
    if values is None:
        return [line]
    lines_of = [value.split("\n") for value in values if isinstance(value, str)]
    texts = [line_break.join(filter(None, (" ".join(part.split()) for part in lines))) for lines in lines_of]
    if len(texts) < len(values) or not any(texts):
        raise InputError(f"{where}the target {line[:60]!r} is a list; allowed: a text, or a list of texts")
    return [text for text in texts if text]


def reference_texts(lines: Iterable[str]) -> Iterator[str]:
    """All reference texts of lines of targets."""
    return chain.from_iterable(map(references_of, lines))


def list_in(text: str, of_numbers: bool = False, where: str = "") -> list[object] | None:
    """The list that a text is in JSON; None of other texts, and of a list of numbers unless these are wanted.

    A list as Python, numpy or pandas prints it is refused: no rule tells one text of it from two.
    """
    text, values = text.strip(), None
    if text.startswith("[") and text.endswith("]"):
        with suppress(ValueError, RecursionError):
            values = json.loads(text)
    if values is None and (_PRINTED.fullmatch(text) or (of_numbers and re.fullmatch(r"\[[-+.\d\s]+\]", text))):
        raise InputError(f"{where}{text[:60]!r} is a list as Python prints it; allowed: JSON, as .jsonl files hold it")
    are_numbers = bool(values) and all(isinstance(value, (int, float)) for value in values)
    return None if are_numbers and not of_numbers else values


def check_no_list(text: object, where: str) -> None:
    """Raise InputError where a text is a list: a cell of a table is not read as one."""
    if isinstance(text, str) and list_in(text, where=where) is not None:
        raise InputError(f"{where}{text[:60]!r} is a list in a text; allowed: a list in .jsonl or .parquet, or a text")


def joined(parts: Iterable[object], separator: str) -> str:
    """A list as one text: its parts between separators or, where one of them holds the separator, in JSON."""
    texts = ["" if part is None else str(part) for part in parts]
    if any(separator in text for text in texts):
        return json.dumps(texts, ensure_ascii=False)
    return separator.join(texts)
