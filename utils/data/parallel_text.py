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
from utils.data.table_options import InputOptions
from utils.text.lines import check_blank, check_counts, check_is_text, iter_lines, iter_references

SIDES = ("source", "target")
Pairs = tuple[list[str], list[str] | None]  # sources and, unless they are only to be predicted, targets, line by line


def paired(source: PathName, target: PathName, blank: bool = False) -> Iterator[tuple[str, str]]:
    """Read the lines of two files side by side, which may be blank where `blank` is true.

    Raises:
        InputError: a file is missing or malformed, or has more lines than the other, or a target is a list of no texts.
    """
    sources, targets = iter_lines(source, blank), iter_references(target, blank)
    for number, (text, summary) in enumerate(zip_longest(sources, targets), 1):
        if text is None or summary is None:
            # The longer file is read to its end, so that the message has both counts.
            longer = number + sum(1 for _ in (targets if text is None else sources))
            counts = (number - 1, longer) if text is None else (longer, number - 1)
            check_counts((source, target), *counts)
        yield text, summary


def filled_pairs(paths: tuple[Path, Path], options: InputOptions) -> Iterator[tuple[int, tuple[str, str]]]:
    """The pairs of lines of two files by their numbers from 0; the log counts blank ones that are to be left out.

    Raises:
        InputError: as of `paired`, or all are blank.
    """
    blank, number = [], 0
    for number, pair in enumerate(paired(*paths, options.skip_blank), 1):
        if all(map(str.strip, pair)):
            yield number - 1, pair
        else:
            blank.append(f"{paths[0]}, line {number}")
    check_blank("", blank, number, skip=len(blank) < number)


def pair_paths(data_dir: PathName, split: str) -> tuple[Path, Path]:
    """The paths of a split's sources and targets.

    Raises:
        InputError: the directory or a file is missing; if both files are, a MissingSplit.
    """
    folder = Path(data_dir)
    if not folder.is_dir():
        check_is_text(folder)
        raise InputError(f"data directory {folder}: no such directory")
    source, target = (folder / f"{split}.{side}" for side in SIDES)
    if missing := [file for file in (source, target) if not file.is_file()]:
        holds = f"a data directory holds {{{','.join(SPLITS)}}}.{{source,target}}, or a table of each split"
        text = f"{missing[0]}: no such file; {holds}"
        if (folder / "dataset_dict.json").is_file():
            text = f"{folder} is a folder of save_to_disk; allowed: Parquet, as to_parquet of its splits writes it"
        raise (MissingSplit if len(missing) == 2 else InputError)(text)
    return source, target


def read_pairs(data_dir: PathName, split: str, choice: Choice = EVERY) -> Pairs:
    """Read a split's sources and targets, of the examples that are chosen.

    Raises:
        InputError: as `pair_paths` and `paired` do, for lines that are not chosen as well.
    """
    pairs = (pair for _, pair in filled_pairs(pair_paths(data_dir, split), choice.tables))
    sources, targets = zip(*choice.of(pairs, itemgetter(0)), strict=True)
    return list(sources), list(targets)


def one_line(text: str) -> str:
    """Make one line of a text.

    A line break becomes a space, together with the white space around it. White space and byte order marks at the ends
    of the text go. All else stays, such as U+2028 or several spaces within a line.
    """
    text = text.strip().strip("\ufeff").strip()
    if "\n" not in text and "\r" not in text:
        return text
    return " ".join(filter(None, map(str.strip, re.split(r"[\n\r]", text))))
