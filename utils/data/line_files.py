"""Line files: `{train,val,test}.{source,target}`, one example a line, UTF-8."""

from __future__ import annotations

import os
from pathlib import Path

from bart.errors import InputError

SPLITS = ("train", "val", "test")
Pairs = tuple[list[str], list[str]]  # sources and targets, line by line


def read_lines(path: str | os.PathLike[str], blank: bool = False) -> list[str]:
    """Read one example a line.

    Lines end at "\\n" only: an article may hold U+2028, a form feed or any other mark that `str.splitlines` cuts at.
    A "\\r" before the "\\n" belongs to the line's end. The last line may lack its "\\n".

    Args:
        blank: lines may be blank, as what a system generated may be.

    Raises:
        InputError: the file is missing or empty, a line is blank that must not be, or bytes are not UTF-8; it names
            file and line.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x})") from None
    if not text:
        raise InputError(f"{path}: the file is empty; one example a line is expected")
    lines = text.removesuffix("\n").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    for number, line in enumerate(lines, 1):
        if not (blank or line.strip()):
            raise InputError(f"{path}, line {number}: blank line; every line must hold an example")
    return lines


def read_pairs(data_dir: str | os.PathLike[str], split: str, limit: int = -1) -> Pairs:
    """Read a split's sources and targets, the first `limit` of them where limit is not negative.

    Raises:
        InputError: the directory or a file is missing, or the counts differ.
    """
    folder = Path(data_dir)
    if not folder.is_dir():
        raise InputError(f"data directory {folder}: no such directory")
    files = [folder / f"{split}.{side}" for side in ("source", "target")]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file; a data directory holds {{{','.join(SPLITS)}}}.{{source,target}}")
    sources, targets = (read_lines(file) for file in files)
    if len(sources) != len(targets):
        raise InputError(
            f"{files[0]} has {len(sources)} lines, {files[1]} has {len(targets)}; they must be equally many"
        )
    return (sources, targets) if limit < 0 else (sources[:limit], targets[:limit])
