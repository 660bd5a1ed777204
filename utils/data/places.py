"""The forms of `--data_dir`. Options are checked against them without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bart.errors import InputError
from utils.data.splits import SPLIT_NAMES, SPLITS

SPLIT = "{split}"
PLACES = f"hub:NAME[:CONFIG][@REVISION], or a path or URL of Parquet files that contains {SPLIT}"
HUB = "hub:"
TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # files of examples; all but the last also as .gz
CONLL = (".conll", ".conllu", ".txt", ".bio", ".iob", ".iob2")  # files of a word a line
HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(:(?P<config>[^\s:@]+))?(@(?P<revision>\S+))?")
KINDS = (
    f"directory with {{train,val,test}}.{{source,target}}, or with a table of each split, a file {', '.join(TABLES)}, "
    f"which is split as utils.corpora.prepare does it, or {PLACES}"
)


def is_published(data_dir: str) -> bool:
    """Return true if `--data_dir` has the form of a published set, which a URL may be."""
    return data_dir.startswith(HUB) or SPLIT in data_dir


def is_table(data_dir: str) -> bool:
    """Return true if `--data_dir` names one file of examples, which are yet to be split."""
    return not is_published(data_dir) and suffix_of(Path(data_dir)) in TABLES and not Path(data_dir).is_dir()


def split_tables(data_dir: str | Path) -> dict[str, Path]:
    """The table of each split in a directory; empty if that has line files, or no table, or is no directory."""
    folder = Path(data_dir)
    if not folder.is_dir() or any(folder.glob("*.source")):
        return {}
    return {split: table for split in SPLITS if (table := table_in(folder, split)) is not None}


def table_in(folder: Path, split: str, suffixes: Sequence[str] = TABLES) -> Path | None:
    """The table of a split in a directory, such as train.jsonl, or None; other suffixes find other files."""
    tables = [folder / f"{name}{suffix}" for name in SPLIT_NAMES.get(split, (split,)) for suffix in suffixes]
    present = [table for table in (*tables, *(Path(f"{table}.gz") for table in tables)) if table.is_file()]
    check_one(folder, split, present)
    return next(iter(present), None)


def check_one(folder: Path, split: str, files: Sequence[Path]) -> None:
    """Raise InputError where several files of a directory hold the same split."""
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise InputError(f"{folder}: {names} are {'both' if len(files) == 2 else 'all'} {split}; allowed: one of them")


def suffix_of(path: Path) -> str:
    """The suffix in lower case and without `.gz`: `.jsonl` of `news.JSONL.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def check_fields(data_dir: str | None, **fields: str | None) -> None:
    """Raise InputError where columns are named for a data directory, which has none."""
    for name, value in fields.items():
        place = data_dir or ""
        if value is not None and not (is_published(place) or is_table(place) or (place and split_tables(place))):
            raise InputError(
                f"--{name} is {value}, a column of a table; the data directory is {data_dir}, and line files have no "
                f"columns (allowed: a file {', '.join(TABLES)}; {PLACES})"
            )
