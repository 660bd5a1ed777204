"""Data directories of published sets: `python -m utils.corpora.get_data [folder] [cnn_dm] [xsum] [sample]`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.get_data")

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.app.progress import progress, start_log
from utils.corpora.data_directory import is_made, write_data_directory
from utils.corpora.sample_corpus import write_sample_corpus
from utils.data.columns import Record
from utils.data.places import load_from_hub, opening
from utils.data.splits import SPLITS
from utils.data.tables import Row, pairs_in

# Examples of train, val and test, as published; and the places of the sets on the Hub.
PUBLISHED_SIZES = {"cnn_dm": (287_113, 13_368, 11_490), "xsum": (204_045, 11_332, 11_334)}
# XSum is a program there; the branch has the Parquet files that the Hub made of it.
ON_HUB = {"cnn_dm": "abisee/cnn_dailymail:3.0.0", "xsum": "EdinburghNLP/xsum@refs/convert/parquet"}
SETS = (*PUBLISHED_SIZES, "sample")


@dataclass(frozen=True)
class GetDataOptions:
    folder_and_sets: tuple[str, ...] = option(
        (), positional=True, help="a folder (default: data), and any of cnn_dm, xsum, sample (default: cnn_dm and xsum)"
    )
    allow_other_sizes: bool = option(False, help="take a set even if its sizes are not the published ones")

    @cached_property
    def folder(self) -> Path:
        folders = [word for word in self.folder_and_sets if word not in SETS]
        alike = [word for word in folders if get_close_matches(word.lower(), SETS) and "/" not in word]
        for word in [word for word in alike if not Path(word).is_dir()] or folders[1:]:
            raise InputError(f"{word!r} is no set; allowed: {', '.join(SETS)}, and one folder, such as ./{word}")
        return Path(*folders or ["data"]).expanduser()

    @cached_property
    def sets(self) -> list[str]:
        named = [word for word in self.folder_and_sets if word in SETS]
        return list(dict.fromkeys(named)) or list(PUBLISHED_SIZES)


def get_set(name: str, options: GetDataOptions) -> None:
    """Make a set, unless it is there as the options want it."""
    folder = options.folder / name
    if name == "sample":
        write_sample_corpus(folder)
        return
    facts: dict[str, Any] = {"set": name}
    if not is_made(folder, facts):
        facts["allow_other_sizes"] = options.allow_other_sizes
        write_data_directory(folder, facts, _rows_of(name, facts))


def _rows_of(name: str, facts: dict[str, Any]) -> Iterator[tuple[str, Row]]:
    """The rows of a set on the Hub, with their splits; the facts get the commit."""
    with opening(f"{ON_HUB[name]} on the Hub"):
        splits, facts["from"] = load_from_hub(ON_HUB[name])
    for split, published in zip(SPLITS, PUBLISHED_SIZES[name], strict=True):
        if split not in splits:
            raise InputError(f"{name} on the Hub: no {split} split; there are {', '.join(splits)}")
        if (count := len(splits[split])) != published and not facts["allow_other_sizes"]:
            raise InputError(
                f"{name} {split}: {count} rows on the Hub, not {published} as published; --allow_other_sizes takes it"
            )
    for split in SPLITS:
        records = (Record(str(number), values) for number, values in enumerate(splits[split], 1))
        rows = pairs_in(records, (None, None), f"{name} {split}")
        yield from ((split, row) for row in progress(f"{name} {split}", len(splits[split]), "rows", rows))


def main(argv: Sequence[str] | None = None) -> None:
    text = "Write CNN-DM, XSum and the sample corpus to FOLDER/SET/{train,val,test}.{source,target}."
    options = parse_dataclass(GetDataOptions, argv, text)
    start_log()
    for name in options.sets:
        get_set(name, options)
