"""Text files of one example a line, UTF-8, whose lines end at "\\n" alone."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from bart.errors import InputError
from bart.files import PathName

# A list of texts as Python prints it, or as numpy does without commas; in what pandas may put around it.
_PRINTED = re.compile(
    r"""(?:array\()?\[(?:\s*(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None|nan)[,\s]*)+\](?:(?:, dtype=\w+)?\))?""",
    re.DOTALL,
)


def decoded_lines(file: Iterable[bytes], path: PathName, blank: bool = False, ends: bool = False) -> Iterator[str]:
    """Yield the lines of an open file by the rules of `iter_lines`; errors call the file `path`."""
    number = 0
    for number, data in enumerate(file, 1):
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
        # A file that holds only a byte order mark has no line.
        if not line:
            number = 0
            continue
        if not (blank or line.strip()):
            raise InputError(f"{path}, line {number}: blank line; every line must hold an example")
        yield line if ends else line.removesuffix("\n").removesuffix("\r")
    if not number:
        raise InputError(f"{path}: the file is empty; one example a line is expected")


def iter_lines(path: PathName, blank: bool = False, ends: bool = False) -> Iterator[str]:
    """Yield a file's lines as they are read, unpacked where its name ends in .gz.

    A line ends at "\\n" only: an article may hold U+2028, a form feed or any other mark that `str.splitlines` cuts at.
    A "\\r" before the "\\n" belongs to the line's end. The last line may lack its "\\n".

    Args:
        blank: allow blank lines, since a model may generate nothing.
        ends: keep what ends the lines, which may be a part of a cell.

    Raises:
        InputError: the file is missing, damaged or empty, a line is blank that must not be, or bytes are not UTF-8; the
            message names file and line.
    """
    unpacked = gzip.open if Path(path).suffix.lower() == ".gz" else open
    try:
        with unpacked(path, "rb") as file:
            yield from decoded_lines(file, path, blank, ends)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def read_lines(path: PathName, blank: bool = False) -> list[str]:
    """Read all lines of a file, by the rules of `iter_lines`."""
    return list(iter_lines(path, blank))


def check_counts(paths: tuple[PathName, PathName], first: int, second: int) -> None:
    """Raise InputError where two files differ in their number of lines."""
    if first != second:
        raise InputError(f"{paths[0]} has {first} lines, {paths[1]} has {second}; they must be equally many")


def references_of(line: str, where: str = "") -> list[str]:
    """The reference texts that a line of targets stands for: those of a list of texts, otherwise the line itself.

    A list is in JSON. One of numbers is a text.

    Args:
        where: begins an error.

    Raises:
        InputError: the list has no text, or something that is none.
    """
    values = list_in(line, where=where)
    if values is None:
        return [line]
    texts = [" ".join(value.split()) for value in values if isinstance(value, str)]
    if len(texts) < len(values) or not any(texts):
        raise InputError(
            f"{where}the target {line[:60]!r} is a list; allowed: a text, or a list of texts as references"
        )
    return [text for text in texts if text]


def reference_texts(lines: Iterable[str]) -> Iterator[str]:
    """All reference texts of lines of targets."""
    return chain.from_iterable(map(references_of, lines))


def iter_references(path: PathName) -> Iterator[str]:
    """Yield the lines of a file of targets, whose lists are checked.

    Raises:
        InputError: as of `iter_lines` and `references_of`; the message names the line.
    """
    for number, line in enumerate(iter_lines(path), 1):
        references_of(line, f"{path}, line {number}: ")
        yield line


def list_in(text: str, of_numbers: bool = False, where: str = "") -> list[object] | None:
    """The list that a text is in JSON; None of other texts.

    Args:
        of_numbers: take a list of numbers for a list too, and not for a text.
        where: begins an error.

    Raises:
        InputError: it is a list as Python, numpy or pandas prints it, in which no rule tells one text from two.
    """
    text, values = text.strip(), None
    if text.startswith("[") and text.endswith("]"):
        with suppress(ValueError, RecursionError):
            values = json.loads(text)
    if values is None and (_PRINTED.fullmatch(text) or (of_numbers and re.fullmatch(r"\[[-+.\d\s]+\]", text))):
        raise InputError(
            f"{where}{text[:60]!r} is a list as Python or numpy prints it; allowed: a list in JSON, such as "
            '["a", "b"], which .jsonl and .parquet files hold'
        )
    are_numbers = bool(values) and all(isinstance(value, (int, float)) for value in values)
    return None if are_numbers and not of_numbers else values


def joined(parts: Iterable[object], separator: str) -> str:
    """A list as one text: its parts between separators or, where one of them holds the separator, in JSON."""
    texts = ["" if part is None else str(part) for part in parts]
    if any(separator in text for text in texts):
        return json.dumps(texts, ensure_ascii=False)
    return separator.join(texts)
