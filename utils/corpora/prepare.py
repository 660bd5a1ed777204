"""A data directory from your own examples: `python -m utils.corpora.prepare --input FILE ... --output FOLDER`.

Examples that come without splits are split by `utils.data.splits`.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.prepare")

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import NamedTuple

from bart.errors import InputError
from bart.files import PathName
from utils.app.cli import option, parse_dataclass, part
from utils.app.output_files import file_digest
from utils.app.progress import progress, start_log
from utils.corpora.data_directory import COLUMNS, PROVENANCE, making
from utils.data.columns import Fields, Record
from utils.data.parallel_text import SIDES, paired
from utils.data.places import HUB, HUB_NAME, TABLES, is_published, is_table, split_tables, suffix_of
from utils.data.published import load_from_hub, opening, parquet_files
from utils.data.rows import READERS, rows_of, rows_of_files, rows_of_set
from utils.data.splits import DEFAULT_RATIO, DEFAULT_SEED, SPLITS, MissingSplit, ratios_of, split_of
from utils.data.table_options import BY_ENDING, TableOptions
from utils.data.tables import Row, pairs_in
from utils.data.token_cache import alone, cache_folder, mark_as_used, remove_unused
from utils.text.lines import check_is_text

logger = logging.getLogger("utils.corpora.prepare")


@dataclass(frozen=True)
class PrepareOptions:
    """The command line."""

    input: tuple[str, ...] = option(
        metavar="FILE",
        help=".jsonl, .csv, .tsv or .parquet files, pairs of text files (a.source b.target), all but Parquet also as "
        ".gz; or a Hub dataset, name[:configuration][@revision]",
    )
    output: Path = option(metavar="FOLDER", help="folder that is new or empty")
    source_field: str | None = option(None, metavar="NAME", help="column of the documents (default: as published sets)")
    target_field: str | None = option(None, metavar="NAME", help="column of the summaries (default: as published sets)")
    split_ratio: str | None = option(
        None,
        metavar="A,B,C",
        help=f"shares of train, val and test, by a hash of seed and source (default: {DEFAULT_RATIO}, but a dataset's "
        "own train, validation and test splits stay)",
    )
    seed: int | None = option(None, help=f"seed of the split; by default {DEFAULT_SEED}")
    tables: TableOptions = part(TableOptions)


def prepare(options: PrepareOptions) -> None:
    """Make a data directory.

    Raises:
        InputError: an input is missing or malformed, a split would be empty, the folder holds something, or the
            splits are kept and --seed is given.
    """
    shares = ratios_of(options.split_ratio or DEFAULT_RATIO)
    seed = DEFAULT_SEED if options.seed is None else options.seed
    fields = options.source_field, options.target_field
    inputs = inputs_of(options.input, fields, options.split_ratio is None, options.tables)
    if inputs[0].split and options.seed is not None:
        raise InputError(f"--seed {seed}: {options.input[0]} is split already; --split_ratio splits it anew")
    facts = {"inputs": [each.name for each in inputs], "fields": fields, "seed": seed}
    split_ratio = None if inputs[0].split else dict(zip(SPLITS, shares, strict=True))
    splits = [each.split for each in inputs] if split_ratio is None else [s for s in SPLITS if split_ratio[s]]
    with making(options.output, facts | {"split_ratio": split_ratio}, splits) as data:
        for each in inputs:
            logger.info("reading %s", each.name)
            for row in progress("reading", None, "rows", each.rows):
                split = each.split
                if split is None and row.fault is None:
                    split = split_of(row.source, shares, seed)
                data.add(split, row)
                data.facts |= dict(zip(COLUMNS, row.columns, strict=False))  # none of a row that is no example


def prepared(data_dir: str, fields: Fields, cache_dir: str | None = None, options: TableOptions = BY_ENDING) -> str:
    """Make a data directory of a file of examples or a published set, once; return any other --data_dir as it is.

    A directory with a table for each split is such files. The directory lies where token ids are kept. Its name holds
    digests of the content and of the columns; directories of other content are removed unless a process uses them.

    Returns:
        The path of the directory.

    Raises:
        InputError: as `prepare` does, or the folder cannot be written.
    """
    file, tables = Path(data_dir), [*split_tables(data_dir).values()]
    name, place = file.name, file if tables else file.parent
    if is_published(data_dir):
        contents, name = _content_of(data_dir), re.sub(r"[^\w.-]+", "-", name)
        if data_dir.startswith(HUB) or not place.is_dir():
            place = file  # which is no folder here
    elif tables or is_table(data_dir):
        if not (tables or file.is_file()):
            raise InputError(f"--data_dir {file}: no such file")
        # Names tell the splits.
        contents = "".join(f"{path.name} {file_digest(path)} " for path in tables or [file])
    else:
        return data_dir
    cache = cache_folder(place, cache_dir)
    content = f"{name}-{hashlib.blake2b(contents.encode(), digest_size=8).hexdigest()}"
    folder = cache / f"{content}-{hashlib.blake2b(repr((fields, options)).encode(), digest_size=4).hexdigest()}"
    with alone(cache):  # of several processes, one makes it
        if not (folder / PROVENANCE).is_file():
            try:
                prepare(PrepareOptions((data_dir,), folder, *fields, tables=options))
            except InputError as error:
                raise InputError(str(error).replace(str(folder), f"--data_dir {data_dir}")) from None
        made = (path.parent for path in cache.glob(f"{escape(name)}-*/{PROVENANCE}"))
        mark_as_used(folder)
        remove_unused(path for path in made if not path.name.startswith(content))
    return str(folder)


def _content_of(data_dir: str) -> str:
    """What tells the content of a published set: its commit on the Hub, or digests of its files."""
    with opening(f"--data_dir {data_dir}"):
        if data_dir.startswith(HUB):
            return load_from_hub(data_dir.removeprefix(HUB))[1]
        splits = _parquet_splits(data_dir).items()
        return repr([(split, [file_digest(path) for path in files.values()]) for split, files in splits])


def _parquet_splits(pattern: str) -> dict[str, dict[str, Path]]:
    """The splits of a set of Parquet files that can be found, each with its files by name."""
    splits, missing = {}, []
    for split in SPLITS:
        try:
            splits[split] = parquet_files(pattern, split)
        except MissingSplit as error:
            missing.append(error)
    if not splits:
        raise missing[0]
    return splits


class Input(NamedTuple):
    """Rows, and where they come from.

    Attributes:
        split: the split that the input is; None where it is yet to be split.
        name: that of its file or files, or of its set with the commit that was found.
        rows: reads the rows when they are taken, once.
    """

    split: str | None
    name: str
    rows: Iterator[Row]


def inputs_of(
    names: Sequence[str], fields: Fields, keep_splits: bool, options: TableOptions = BY_ENDING
) -> list[Input]:
    """Open the inputs of these names.

    Args:
        names: files of one kind, text files in pairs; or the name of one set of the Hub, or a `--data_dir`.
        fields: the columns of documents and summaries; None for those that published sets have.
        keep_splits: keep the splits of a set that has two of ours.

    Raises:
        InputError: something is missing or of another kind. What is malformed in a file raises it when that is read.
    """
    paths = [Path(name).expanduser() for name in names]
    if len(names) == 1:
        [name], [path] = names, paths
        if tables := split_tables(path):
            splits = tables.items()
            return [
                _input(split if keep_splits else None, path, rows_of(path, options), fields) for split, path in splits
            ]
        if name.startswith(HUB):
            return _set_inputs(name.removeprefix(HUB), fields, keep_splits, fewest=1)
        if is_published(name):
            splits = _parquet_splits(name).items()
            return [_input(split, name, rows_of_files(files), fields) for split, files in splits]
        if suffix_of(path) not in TABLES and not path.exists() and HUB_NAME.fullmatch(name):
            return _set_inputs(name, fields, keep_splits)
    for path in paths:
        if not path.is_file():
            raise InputError(f"--input {path}: no such file")
        check_is_text(path)
    kinds = {suffix_of(path) if suffix_of(path) in TABLES else "text" for path in paths}
    if len(kinds) > 1:
        raise InputError(f"--input takes files of one kind, got {' and '.join(sorted(kinds))}")
    if kinds == {"text"}:
        return _text_inputs(paths, fields)
    return [_input(None, path, rows_of(path, options), fields) for path in paths]


def _input(split: str | None, name: PathName, records: Iterator[Record], fields: Fields) -> Input:
    return Input(split, str(name), pairs_in(records, fields, str(name)))


def _text_inputs(paths: Sequence[Path], fields: Fields) -> list[Input]:
    if any(field is not None for field in fields):
        raise InputError(f"--source_field and --target_field are of tables; {paths[0]} is a text file, without fields")
    if len(paths) % 2:
        raise InputError(
            f"--input {' '.join(map(str, paths))}: text files come in pairs, a.source b.target; tables end in "
            f"{', '.join(READERS)}, or in these and .gz, or in .parquet"
        )
    inputs = []
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        if suffix_of(source) == ".target" or suffix_of(target) == ".source":
            raise InputError(f"--input {source} {target}: of each pair the source comes first, then its target")
        inputs.append(_input(None, f"{source} {target}", _text_rows(source, target), SIDES))
    return inputs


def _text_rows(source: Path, target: Path) -> Iterator[Record]:
    for number, pair in enumerate(paired(source, target), 1):
        yield Record(f"{source}:{number}", dict(zip(SIDES, pair, strict=True)))


def _set_inputs(name: str, fields: Fields, keep_splits: bool, fewest: int = 2) -> list[Input]:
    """The splits of a set on the Hub, which are kept where it has the fewest of ours that make it so."""
    with opening(f"--input {name}: no such file here, and as a set of the Hub it"):
        splits, commit = load_from_hub(name)
    known = [split for split in SPLITS if split in splits]
    kept = keep_splits and len(known) >= fewest
    if keep_splits and not kept and len(splits) > 1:
        raise InputError(
            f"--input {name} has the splits {', '.join(splits)}, not two of {', '.join(SPLITS)}: give --split_ratio to "
            "split all its examples anew"
        )
    if kept and (unused := splits.keys() - set(SPLITS)):
        logger.warning("%s: not used are the splits %s", name, ", ".join(sorted(unused)))
    chosen = {f"{commit}/{split}": split for split in (known if kept else splits)}
    return [
        _input(split if kept else None, name, rows_of_set(splits[split], name), fields)
        for name, split in chosen.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    text = "Make a data directory, {train,val,test}.{source,target}, of tables, text files or a Hub dataset."
    options = parse_dataclass(PrepareOptions, argv, text)
    start_log()
    prepare(options)
