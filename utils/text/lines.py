"""Text files of one example a line, UTF-8, whose lines end at "\\n" alone."""

from __future__ import annotations

import ast
import gzip
import io
import json
import re
import tokenize
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from bart.errors import InputError
from bart.files import PathName


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

    A list is in JSON, or as Python or numpy prints it, which is what pandas writes to CSV files. One of numbers is a
    text.

    Args:
        where: begins an error.

    Raises:
        InputError: the list has no text, or something that is none.
    """
    values = list_in(line)
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


def list_in(text: str, of_numbers: bool = False) -> list[object] | None:
    """The list that a text is, in JSON or as Python or numpy prints it; None of other texts.

    Args:
        of_numbers: take a list of numbers for a list too, and not for a text.
    """
    values = _parsed(text.strip())
    are_numbers = bool(values) and all(isinstance(value, (int, float)) for value in values)
    return None if are_numbers and not of_numbers else values


def joined(parts: Iterable[object], separator: str) -> str:
    """A list as one text: its parts between separators or, where one of them holds the separator, in JSON."""
    texts = ["" if part is None else str(part) for part in parts]
    if any(separator in text for text in texts):
        return json.dumps(texts, ensure_ascii=False)
    return separator.join(texts)


def _parsed(line: str) -> list[object] | None:
    if line.startswith("[") and line.endswith("]"):
        with suppress(ValueError, RecursionError):
            return json.loads(line)
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
            if re.fullmatch(r"\[[-0-9\s]+\]", line):  # numpy prints no commas
                return [int(number) for number in line[1:-1].split()]
            tokens = list(tokenize.generate_tokens(io.StringIO(line).readline))[1:]  # behind the bracket
            texts = [token.string for token in tokens if token.type == tokenize.STRING]
            rest = "".join(token.string for token in tokens if token.type != tokenize.STRING)
            if texts and not rest.strip(",] \n") and rest.count("]") == 1:
                return [ast.literal_eval(text) for text in texts]
            values = ast.literal_eval(line)
            if repr(values) == line:
                return values
    return None
