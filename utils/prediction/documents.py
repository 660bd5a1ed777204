"""Text that commands read from a file or standard input, and lines that they write to a file or standard output."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bart.errors import InputError
from utils.app.output_files import write_whole
from utils.data.columns import KNOWN_FIELDS, LABELS, PAIRS, TAGS, TEXTS, WORDS
from utils.data.places import TABLES
from utils.text.lines import check_is_text, decoded_lines

OTHERS = ("id", "idx", "index", "context", "answers")  # columns that often stand beside those of texts
TERMINAL_LINE = 4095  # bytes of a line that a terminal on Linux passes on; it drops the rest


def read_documents(has_one_a_line: bool, file: str | None = None, blank: bool = False) -> list[str]:
    """Read a file, or standard input, as one document or as one a line; lines end at "\\n" alone.

    Raises:
        InputError: no such file, bytes that are not UTF-8, a blank document, or a line so long that a terminal has cut
            it.
    """
    name = file or "standard input"
    check_is_text(name)
    is_typed = file is None and sys.stdin.isatty()
    if is_typed:
        expected = "documents, one a line" if has_one_a_line else "a document"
        print(f"Type or paste {expected}; Enter and then Ctrl-D end it.", file=sys.stderr)
    try:
        data = sys.stdin.buffer.read() if file is None else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from None
    longest = max(map(len, data.split(b"\n"))) if is_typed else 0
    if longest >= TERMINAL_LINE:
        raise InputError(
            f"{name}: a line of {longest} bytes, and a terminal drops what is beyond {TERMINAL_LINE}; allowed: "
            "shorter lines, or a file (< FILE)"
        )
    if not data.strip():
        raise InputError(f"{name}: blank; a text is expected")
    lines = list(decoded_lines(io.BytesIO(data), name, blank=blank or not has_one_a_line))
    return lines if has_one_a_line else ["\n".join(lines)]


def check_no_header(lines: Sequence[str], name: str, columns: Sequence[str]) -> None:
    """Raise InputError where lines of texts are those of a table: the first one names columns.

    Args:
        columns: those that training read, where they are known.
    """
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


def write_lines(texts: Iterable[str], file: str | None) -> None:
    """Write each text as one line to a file, which is there whole or not at all, or to standard output."""
    lines = "".join(" ".join(text.split("\n")) + "\n" for text in texts)
    if file is None:
        print(lines, end="")
    else:
        write_whole(Path(file), lines)
