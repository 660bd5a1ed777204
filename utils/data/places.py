"""The forms of `--data_dir`, and the usual names of columns. Options are checked against them without torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from difflib import get_close_matches
from pathlib import Path
from typing import Any

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
# Documents and summaries as published sets name their columns.
KNOWN_FIELDS = (
    ("article", "highlights"),
    ("document", "summary"),
    ("source", "target"),
    ("dialogue", "summary"),
    ("article", "summary"),
    ("article", "abstract"),
    ("text", "summary"),
)
# Of classification: texts, the second ones of pairs, classes. Of tagging: lists of words, and of their tags.
TEXTS = ("text", "sentence", "sentence1", "premise", "question1", "question")
PAIRS = ("sentence2", "hypothesis", "question2", "text2", "pair")
LABELS = ("label", "labels", "class")
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "labels")


def is_published(data_dir: str) -> bool:
    """Return true if `--data_dir` has the form of a published set, which a URL may be."""
    return data_dir.startswith(HUB) or SPLIT in data_dir


def is_streamed(data_dir: str) -> bool:
    """Return true if `--data_dir` names a published set that is streamed.

    Raises:
        InputError: no name follows `hub:`.
    """
    if data_dir.startswith(HUB) and not HUB_NAME.fullmatch(data_dir.removeprefix(HUB)):
        raise InputError(f"{data_dir!r} names no set on the Hub; allowed: {PLACES}")
    return is_published(data_dir)


def is_table(data_dir: str) -> bool:
    """Return true if `--data_dir` names one file of examples, which are yet to be split."""
    return not is_streamed(data_dir) and suffix_of(Path(data_dir)) in TABLES and not Path(data_dir).is_dir()


def split_tables(data_dir: str | Path) -> dict[str, Path]:
    """The table of each split in a directory; empty if that has line files, or no table, or is no directory."""
    folder = Path(data_dir)
    if not folder.is_dir() or any(folder.glob("*.source")):
        return {}
    return {split: table for split in SPLITS if (table := table_in(folder, split)) is not None}


def table_in(folder: Path, split: str, suffixes: Sequence[str] = TABLES) -> Path | None:
    """The table of a split in a directory, such as train.jsonl, or None; other suffixes find other files.

    Raises:
        InputError: there are several.
    """
    tables = [folder / f"{name}{suffix}" for name in SPLIT_NAMES.get(split, (split,)) for suffix in suffixes]
    present = [table for table in (*tables, *(Path(f"{table}.gz") for table in tables)) if table.is_file()]
    check_one(folder, split, present)
    return next(iter(present), None)


def check_one(folder: Path, split: str, files: Sequence[Path]) -> None:
    """Raise InputError where several files of a directory hold the same split."""
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise InputError(f"{folder}: {names} are {'both' if len(files) == 2 else 'all'} {split}; allowed: one of them")


def check_not_saved(folder: Path) -> None:
    """Raise InputError for a folder of arrow files that `save_to_disk` of `datasets` wrote."""
    if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        raise InputError(
            f"{folder} is a folder of save_to_disk; allowed: Parquet, as to_parquet of each split writes it"
        )


def suffix_of(path: Path) -> str:
    """The suffix in lower case and without `.gz`: `.jsonl` of `news.JSONL.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def check_fields(data_dir: str | None, **fields: str | None) -> None:
    """Raise InputError where columns are named for a data directory, which has none."""
    for name, value in fields.items():
        place = data_dir or ""
        if value is not None and not (is_streamed(place) or is_table(place) or (place and split_tables(place))):
            raise InputError(
                f"--{name} is {value}, a column of a table; the data directory is {data_dir}, and line files have no "
                f"columns (allowed: a file {', '.join(TABLES)}; {PLACES})"
            )


def hint_at(name: str, columns: Collection[str]) -> str:
    """The end of an error about a column that is missing: a similar name, or "" where none is similar."""
    near = get_close_matches(name, columns, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def value_in(values: Mapping[str, Any], column: str, default: Any = None) -> Any:
    """The value of a column; translation.en of no such column is the value en of an object in the column translation.

    A column whose own name has the dot goes before.
    """
    outer, dot, inner = column.partition(".")
    if column in values or not dot or not isinstance(values.get(outer), Mapping):
        return values.get(column, default)
    return value_in(values[outer], inner, default)


class FromTraining(str):
    """The name of a column that training read: the model tells it, and no option gave it."""


def fields_of(columns: Set[str], fields: Sequence[str | None], where: str) -> tuple[str, ...]:
    """Choose the columns of documents and, unless only documents are read, of summaries.

    Args:
        columns: all that there are.
        fields: --source_field and, where summaries are read, --target_field; None takes a usual name of published
            sets, and so does a usual name that training read where there is no such column.
        where: names the owner of the columns, for the error.

    Raises:
        InputError: a column that is named is missing; or none is named, and no usual one is there.
    """
    options = ("--source_field", "--target_field")[: len(fields)]
    has = f"{where} has the fields {', '.join(sorted(columns))}"
    usual = [{*names} for names in zip(*KNOWN_FIELDS, strict=True)]
    inner = [(field.partition(".")[0], field) for field in fields if field]
    objects = {outer for outer, _ in inner if not any(name.startswith(f"{outer}.") for name in columns)} & columns
    columns = columns | {field for outer, field in inner if outer in objects}  # of others all inner names are there
    fields = tuple(
        None if isinstance(field, FromTraining) and field in known - columns else field
        for field, known in zip(fields, usual, strict=False)
    )
    for option, field in zip(options, fields, strict=True):
        if isinstance(field, FromTraining) and field not in columns:
            raise InputError(f"{has}, and not {field!r}, which training read; name one of them with {option}")
        if field is not None and field not in columns:
            raise InputError(f"{option} is {field!r}; {has}{hint_at(field, columns)}")
    sources = sorted(usual[0] & columns)
    if len(sources) > 1 and fields == (None,):
        raise InputError(f"{has}: name that of documents by --source_field; {' and '.join(sources)} may both be meant")
    for known in KNOWN_FIELDS:
        chosen = tuple(name if field is None else field for field, name in zip(fields, known, strict=False))
        if columns >= {*chosen} and len({*chosen}) == len(chosen):
            return chosen
    if None not in fields:
        raise InputError(f"--source_field and --target_field are both {fields[0]!r}; allowed: two different columns")
    sides = "documents and summaries" if len(fields) == 2 else "documents"
    raise InputError(f"{has}: name those of {sides} by {' and '.join(options)}")
