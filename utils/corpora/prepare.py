"""A data directory from your own examples: `python -m utils.corpora.prepare --input FILE ... --output FOLDER`.

Examples that come without splits are split by `utils.data.splits`.
"""

from __future__ import annotations

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import hashlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.progress import progress, start_log
from utils.corpora.data_directory import PROVENANCE, making
from utils.data.line_files import SPLITS
from utils.data.places import is_table
from utils.data.records import inputs_of
from utils.data.splits import DEFAULT_RATIO, DEFAULT_SEED, ratios_of, split_of
from utils.data.tables import Fields
from utils.data.token_cache import alone, cache_folder
from utils.runs.outputs import file_digest

logger = logging.getLogger("utils.corpora.prepare")


@dataclass(frozen=True)
class Options:
    """What to make a data directory of, and how."""

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
    seed: int = option(DEFAULT_SEED, help="seed of the split")


def prepare(options: Options) -> None:
    """Make a data directory.

    Raises:
        InputError: an input is missing or malformed, a split would be empty, or something is in the way.
    """
    shares = ratios_of(options.split_ratio or DEFAULT_RATIO)
    fields = options.source_field, options.target_field
    inputs = inputs_of(options.input, fields, keep_splits=options.split_ratio is None)
    facts = {"inputs": [each.name for each in inputs], "fields": fields, "seed": options.seed}
    split_ratio = None if inputs[0].split else dict(zip(SPLITS, shares, strict=True))
    with making(options.output, facts | {"split_ratio": split_ratio}) as data:
        for each in inputs:
            logger.info("reading %s", each.name)
            for row in progress("reading", None, "rows", each.rows()):
                split = each.split
                if split is None and row.fault is None:
                    split = split_of(row.source, shares, options.seed)
                data.add(split, row)


def prepared(data_dir: str, fields: Fields, cache_dir: str | None = None) -> str:
    """The data directory of a file of examples, which is made by `prepare` once; any other --data_dir as it is.

    It lies where token ids are kept. Its name tells of which content and columns it was made; those of other content
    are removed.

    Raises:
        InputError: as `prepare` does, or the folder cannot be written.
    """
    if not is_table(data_dir):
        return data_dir
    file = Path(data_dir)
    if not file.is_file():
        raise InputError(f"--data_dir {file}: no such file")
    cache, content = cache_folder(file.parent, cache_dir), f"{file.name}-{file_digest(file)[:16]}"
    folder = cache / f"{content}-{hashlib.blake2b(repr(fields).encode(), digest_size=4).hexdigest()}"
    with alone(cache):  # of several processes, one makes it
        if not (folder / PROVENANCE).is_file():
            for made in cache.glob(f"{escape(file.name)}-*/{PROVENANCE}"):
                if not made.parent.name.startswith(content):
                    shutil.rmtree(made.parent)
            try:
                prepare(Options((str(file),), folder, *fields))
            except InputError as error:
                raise InputError(str(error).replace(str(folder), f"--data_dir {file}")) from None
    return str(folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `prepare`."""
    options = parse_dataclass(
        Options,
        argv,
        "Make a data directory, {train,val,test}.{source,target}, of tables, text files or a Hub dataset.",
    )
    start_log()
    prepare(options)


if __name__ == "__main__":
    run_main(main)
