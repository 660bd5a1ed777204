"""Line files: `{train,val,test}.{source,target}`, one example a line, UTF-8."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from bart.errors import InputError
from bart.files import replacing

SPLITS = ("train", "val", "test")
SIDES = ("source", "target")
Pairs = tuple[list[str], list[str]]  # sources and targets, line by line
_LINE_BREAKS = re.compile(r"[^\S\n\r]*[\n\r]\s*")


def decoded_lines(file: Iterable[bytes], path: str | os.PathLike[str], blank: bool = False) -> Iterator[str]:
    """Lines of an open file, one at a time, by the rules of `iter_lines`; the errors call it `path`."""
    number = 0
    for number, data in enumerate(file, 1):
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
        # What a byte order mark alone leaves is no line, and an empty file has none.
        if not line:
            number = 0
            continue
        line = line.removesuffix("\n").removesuffix("\r")
        if not (blank or line.strip()):
            raise InputError(f"{path}, line {number}: blank line; every line must hold an example")
        yield line
    if not number:
        raise InputError(f"{path}: the file is empty; one example a line is expected")


def iter_lines(path: str | os.PathLike[str], blank: bool = False) -> Iterator[str]:
    """One example a line, as they are read.

    Lines end at "\\n" only: an article may hold U+2028, a form feed or any other mark that `str.splitlines` cuts at.
    A "\\r" before the "\\n" belongs to the line's end. The last line may lack its "\\n".

    Args:
        blank: lines may be blank, as what a system generated may be.

    Raises:
        InputError: the file is missing or empty, a line is blank that must not be, or bytes are not UTF-8; it names
            file and line.
    """
    try:
        with Path(path).open("rb") as file:
            yield from decoded_lines(file, path, blank)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def read_lines(path: str | os.PathLike[str], blank: bool = False) -> list[str]:
    """All that `iter_lines` gives."""
    return list(iter_lines(path, blank))


def paired(
    source: str | os.PathLike[str], target: str | os.PathLike[str], sources: Iterator[str], targets: Iterator[str]
) -> Iterator[tuple[str, str]]:
    """Lines of two files side by side.

    Raises:
        InputError: one file, called `source` and `target`, has more lines than the other.
    """
    for number, (line, other) in enumerate(zip_longest(sources, targets), 1):
        if line is None or other is None:
            longer = number + sum(1 for _ in (sources if other is None else targets))
            counts = (longer, number - 1) if other is None else (number - 1, longer)
            check_counts((source, target), *counts)
        yield line, other


def pair_paths(data_dir: str | os.PathLike[str], split: str) -> tuple[Path, Path]:
    """A split's files of sources and targets.

    Raises:
        InputError: the directory or a file is missing.
    """
    folder = Path(data_dir)
    if not folder.is_dir():
        raise InputError(f"data directory {folder}: no such directory")
    source, target = (folder / f"{split}.{side}" for side in SIDES)
    for file in (source, target):
        if not file.is_file():
            raise InputError(f"{file}: no such file; a data directory holds {{{','.join(SPLITS)}}}.{{source,target}}")
    return source, target


def check_counts(paths: tuple[str | os.PathLike[str], str | os.PathLike[str]], sources: int, targets: int) -> None:
    """Raise InputError where a split's files have not equally many lines."""
    if sources != targets:
        raise InputError(f"{paths[0]} has {sources} lines, {paths[1]} has {targets}; they must be equally many")


def read_pairs(data_dir: str | os.PathLike[str], split: str, limit: int = -1) -> Pairs:
    """Read a split's sources and targets, the first `limit` of them where limit is not negative.

    Raises:
        InputError: the directory or a file is missing or malformed, or the counts differ.
    """
    paths = pair_paths(data_dir, split)
    sources, targets = map(read_lines, paths)
    check_counts(paths, len(sources), len(targets))
    return (sources, targets) if limit < 0 else (sources[:limit], targets[:limit])


def one_line(text: str) -> str:
    """A text as one line of a line file.

    Each line break, with the white space around it, becomes a space; white space and byte order marks at the ends go.
    All else stays, such as U+2028 or several spaces within a line.
    """
    text = text.strip().strip("\ufeff").strip()
    # The pattern tries every space of a text; most texts have no line break.
    return _LINE_BREAKS.sub(" ", text) if "\n" in text or "\r" in text else text


class PairWriter:
    """Adds examples to a split's files, and keeps a list of those that cannot be examples.

    Made by `writing_pairs`.

    Attributes:
        count: examples written so far.
        dropped: those that were not: {"split", "example" (what was given as its name), "reason"}.
    """

    def __init__(self, split: str, source: BinaryIO, target: BinaryIO) -> None:
        self.split = split
        self.count = 0
        self.dropped: list[dict[str, str]] = []
        self._files = {"source": source, "target": target}

    def add(self, source: str, target: str, name: str) -> bool:
        """Write a pair, its texts made one line each, unless a side is empty or no Unicode text.

        Args:
            name: by which a person finds the example where it came from.

        Returns:
            Whether it was written.
        """
        lines = {}
        for side, text in (("source", source), ("target", target)):
            try:
                lines[side] = one_line(text).encode()
            except UnicodeEncodeError:
                return self.drop(name, f"unpaired surrogate in the {side}")
            if not lines[side]:
                return self.drop(name, f"empty {side}")
        for side, line in lines.items():
            self._files[side].write(line + b"\n")
        self.count += 1
        return True

    def drop(self, name: str, reason: str) -> bool:
        """List an example that is left out."""
        self.dropped.append({"split": self.split, "example": name, "reason": reason})
        return False


@contextmanager
def writing_pairs(folder: str | os.PathLike[str], split: str) -> Iterator[PairWriter]:
    """Yields what writes `split.source` and `split.target`, which are in place, whole, only once all went well.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as renamed:
        paths = [renamed.enter_context(replacing(folder / f"{split}.{side}")) for side in SIDES]
        with paths[0].open("wb") as source, paths[1].open("wb") as target:
            yield PairWriter(split, source, target)
