"""Parallel text: the files `{train,val,test}.{source,target}` of a data directory, one example a line, UTF-8."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path

from bart.errors import InputError
from bart.files import PathName
from utils.data.splits import EVERY, SPLITS, Choice, MissingSplit
from utils.text.lines import check_counts, check_is_text, iter_lines, references_of

SIDES = ("source", "target")
Pairs = tuple[list[str], list[str] | None]  # sources and, unless they are only to be predicted, targets, line by line


def paired(source: PathName, target: PathName) -> Iterator[tuple[str, str]]:
    """Read the lines of two files side by side; targets that are lists are checked."""
    sources, targets = iter_lines(source), iter_lines(target)
    for number, (text, summary) in enumerate(zip_longest(sources, targets), 1):
        if text is None or summary is None:
            # The longer file is read to its end, so that the message has both counts.
            longer = number + sum(1 for _ in (targets if text is None else sources))
            counts = (number - 1, longer) if text is None else (longer, number - 1)
            check_counts((source, target), *counts)
        references_of(summary, f"{target}, line {number}: ")
        yield text, summary


def pair_paths(data_dir: PathName, split: str) -> tuple[Path, Path]:
    """The paths of a split's sources and targets."""
    folder = Path(data_dir)
    if not folder.is_dir():
        check_is_text(folder)
        raise InputError(f"data directory {folder}: no such directory")
    source, target = (folder / f"{split}.{side}" for side in SIDES)
    if missing := [file for file in (source, target) if not file.is_file()]:
        holds = f"a data directory holds {{{','.join(SPLITS)}}}.{{source,target}}, or a table of each split"
        raise (MissingSplit if len(missing) == 2 else InputError)(f"{missing[0]}: no such file; {holds}")
    return source, target


def read_pairs(data_dir: PathName, split: str, choice: Choice = EVERY) -> Pairs:
    """Read a split's sources and targets, of the examples that are chosen."""
    sources, targets = zip(*choice.of(paired(*pair_paths(data_dir, split)), itemgetter(0)), strict=True)
    return list(sources), list(targets)


def one_line(text: str) -> str:
    """Make one line of a text: a line break becomes a space, with the white space around it; all else stays within."""
    text = text.strip().strip("\ufeff").strip()
    if "\n" not in text and "\r" not in text:
        return text
    return " ".join(filter(None, map(str.strip, re.split(r"[\n\r]", text))))
