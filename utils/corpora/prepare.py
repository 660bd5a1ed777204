"""A data directory from your own examples: `python -m utils.corpora.prepare --input FILE ... --output FOLDER`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.prepare")

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass, part
from utils.app.output_files import file_digest
from utils.app.progress import progress, start_log
from utils.corpora.data_directory import COLUMNS, PROVENANCE, write_data_directory
from utils.data import places
from utils.data.columns import BY_ENDING, Fields, Record, TableOptions
from utils.data.rows import published_rows, rows_of
from utils.data.splits import DEFAULT_RATIO, DEFAULT_SEED, SPLITS, MissingSplit, ratios_of, split_of
from utils.data.tables import Row, pairs_in
from utils.data.token_cache import cache_folder, made_once
from utils.text.lines import check_is_text

logger = logging.getLogger("utils.corpora.prepare")


@dataclass(frozen=True)
class PrepareOptions:
    input: tuple[str, ...] = option(
        metavar="FILE",
        help=".jsonl, .json, .csv, .tsv or .parquet files, all but Parquet also as .gz; or a Hub dataset, "
        "name[:configuration][@revision]",
    )
    output: Path = option(metavar="FOLDER", help="new or empty folder for the data")
    source_field: str | None = option(None, metavar="NAME", help="column of the documents (default: a usual name)")
    target_field: str | None = option(None, metavar="NAME", help="column of the summaries (default: a usual name)")
    split_ratio: str | None = option(
        None,
        metavar="A,B,C",
        help=f"shares of train, val and test; a hash of seed and source chooses (default: {DEFAULT_RATIO}, but a set "
        "keeps its own splits)",
    )
    seed: int | None = option(None, help=f"seed of the split; by default {DEFAULT_SEED}")
    tables: TableOptions = part(TableOptions)


def prepare(options: PrepareOptions) -> None:
    """Make a data directory."""
    shares = ratios_of(options.split_ratio or DEFAULT_RATIO)
    seed = DEFAULT_SEED if options.seed is None else options.seed
    inputs = list(inputs_of(options))
    is_split = inputs[0][0] is not None
    if is_split and options.seed is not None:
        raise InputError(f"--seed {seed}: {options.input[0]} is split already; --split_ratio splits it anew")
    split_ratio = None if is_split else dict(zip(SPLITS, shares, strict=True))
    splits = [split for split, *_ in inputs] if is_split else [split for split in SPLITS if split_ratio[split]]
    fields = options.source_field, options.target_field
    facts = {"inputs": [name for _, name, _ in inputs], "fields": fields, "seed": seed, "split_ratio": split_ratio}

    def rows() -> Iterator[tuple[str | None, Row]]:
        for own_split, name, records in inputs:
            logger.info("reading %s", name)
            for row in progress("reading", None, "rows", pairs_in(records, fields, name)):
                yield split_of(row.source, shares, seed) if own_split is None and row.fault is None else own_split, row
                facts.update(zip(COLUMNS, row.columns, strict=False))  # none of a row that is no example

    write_data_directory(options.output, facts, rows(), splits)


def prepared(data_dir: str, fields: Fields, cache_dir: str | None = None, options: TableOptions = BY_ENDING) -> str:
    """Make a data directory of tables or a published set, once, where token ids are kept; return others as they are."""
    path, tables, is_set = Path(data_dir), places.split_tables(data_dir), places.is_published(data_dir)
    if not (tables or is_set or places.is_table(data_dir)):
        return data_dir
    is_on_hub = data_dir.startswith(places.HUB)
    with places.opening(f"--data_dir {data_dir}"):
        if is_on_hub:
            contents = places.load_from_hub(data_dir.removeprefix(places.HUB))[1]
        else:
            of_splits = _files_of(data_dir).items()
            contents = [(split, file.name, file_digest(file)) for split, files in of_splits for file in files]
    name = re.sub(r"[^\w.-]+", "-", path.name) if is_set else path.name
    place = path.parent if not (tables or is_on_hub) and path.parent.is_dir() else path

    def make(folder: Path) -> None:
        try:
            prepare(PrepareOptions((data_dir,), folder, *fields, tables=options))
        except InputError as error:
            raise InputError(str(error).replace(str(folder), f"--data_dir {data_dir}")) from None

    return str(made_once(cache_folder(place, cache_dir), name, (contents, fields, options), PROVENANCE, make))


def _files_of(name: str) -> dict[str | None, list[Path]]:
    """The files of each split: of a folder of tables, or of a set of Parquet files; None is the split of one table."""
    if not places.is_published(name):
        path = Path(name).expanduser()
        return {split: [table] for split, table in places.split_tables(path).items()} or {None: [path]}
    splits = {}
    for split in SPLITS:
        with suppress(MissingSplit):
            splits[split] = [*places.parquet_files(name, split).values()]
    return splits or places.parquet_files(name, SPLITS[0])  # which raises MissingSplit


def inputs_of(options: PrepareOptions) -> Iterator[tuple[str | None, str, Iterator[Record]]]:
    """The split of each input, None where it is yet to be split; its name and its rows."""
    keeps_splits, is_alone = options.split_ratio is None, len(options.input) == 1
    for name in options.input:
        path, is_named = Path(name).expanduser(), name.startswith(places.HUB)
        is_absent = places.suffix_of(path) not in places.TABLES and not path.exists()
        if is_alone and (is_named or (is_absent and places.HUB_NAME.fullmatch(name))):
            yield from _of_set(name.removeprefix(places.HUB), keeps_splits, fewest=1 if is_named else 2)
            return
        for split, files in (_files_of(name) if is_alone else {None: [path]}).items():
            if split is None and not path.is_file():
                raise InputError(f"--input {path}: no such file")
            if split is None and places.suffix_of(path) not in places.TABLES:
                check_is_text(path)
                raise InputError(f"--input {path}: not a table; allowed: {', '.join(places.TABLES)}")
            is_set = places.is_published(name)
            records = published_rows(name, split) if is_set else rows_of(files[0], options.tables)
            yield split if keeps_splits else None, name if is_set else str(files[0]), records


def _of_set(name: str, keeps_splits: bool, fewest: int) -> Iterator[tuple[str | None, str, Iterator[Record]]]:
    """The splits of a set on the Hub, which are kept where at least the fewest of ours are among them."""
    with places.opening(f"--input {name}: no such file here, and as a set of the Hub it"):
        splits, commit = places.load_from_hub(name)
    known = [split for split in SPLITS if split in splits]
    kept = keeps_splits and len(known) >= fewest
    if keeps_splits and not kept and len(splits) > 1:
        raise InputError(f"--input {name} has the splits {', '.join(splits)}: --split_ratio splits all its rows anew")
    if kept and (unused := splits.keys() - set(SPLITS)):
        logger.warning("%s: not used are the splits %s", name, ", ".join(sorted(unused)))
    for split in known if kept else splits:
        yield split if kept else None, f"{commit}/{split}", published_rows(f"{places.HUB}{name}", split)


def main(argv: Sequence[str] | None = None) -> None:
    text = "Make a data directory, {train,val,test}.{source,target}, of tables or a Hub dataset."
    options = parse_dataclass(PrepareOptions, argv, text)
    start_log()
    prepare(options)
