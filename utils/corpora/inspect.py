"""Counts and lengths of a data directory, a table or shards: `python -m utils.corpora.inspect FOLDER`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.inspect")

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bart.errors import InputError
from bart.modeling.modeling_bart import BartModel
from utils.app.cli import option, parse_dataclass, part
from utils.app.formatting import plain_table
from utils.app.progress import progress, start_log
from utils.data.columns import LABELS, TAGS, TableOptions
from utils.data.places import is_table, split_tables
from utils.data.rows import rows_of, whole
from utils.data.shard_format import MANIFEST, SPECIAL
from utils.data.shards import Manifest, read_shards
from utils.data.splits import SPLITS
from utils.data.tables import SIDES, pair_paths, paired
from utils.models.loading import vocabulary_at
from utils.text.lines import references_of

QUANTILES = (5, 50, 90, 99, 100)  # percent
HEAD = [f"{percent} %" for percent in QUANTILES]
_AT_ONCE = 512  # rows
_SHOWN = 100  # labels


@dataclass(frozen=True)
class InspectOptions:
    data_dir: Path = option(
        positional=True,
        help="folder with {train,val,test}.{source,target}, with tables of these splits or with shards; or a table",
    )
    tokenizer: str = option("facebook/bart-large", metavar="NAME", help="folder of a vocabulary, or Hub name")
    max_source_length: tuple[int, ...] = option(
        (1024,), least=3, metavar="N", help="lengths in tokens; prints the share of the texts that each would cut"
    )
    max_target_length: tuple[int, ...] = option(
        (142,), least=3, metavar="N", help="lengths in tokens; prints the share of the targets that each would cut"
    )
    tables: TableOptions = part(TableOptions)


def quantiles(lengths: Sequence[int]) -> list[str]:
    return [f"{value:,.0f}" for value in np.percentile(lengths, QUANTILES)]


def splits_of(options: InspectOptions) -> Iterator[tuple[str, Iterable[Mapping[str, Any]]]]:
    """Yield the name and the rows of each split."""
    folder = options.data_dir
    for split, path in ({folder.stem: folder} if is_table(str(folder)) else split_tables(folder)).items():
        yield split, (record.values for record in whole(rows_of(path, options.tables)))
    for split in SPLITS:
        if any((folder / f"{split}.{side}").exists() for side in SIDES):
            pairs = paired(*pair_paths(folder, split))
            yield split, ({"source": source, "target": references_of(target)[0]} for source, target in pairs)


def describe(options: InspectOptions) -> str:
    """Lengths in tokens of all columns of texts, and the counts of labels and tags."""
    tokenizer = vocabulary_at(BartModel, options.tokenizer)
    table, labels = [], []
    for split, rows in splits_of(options):
        lengths, counts = defaultdict[str, list[int]](list), defaultdict[str, Counter[str]](Counter)
        shown = iter(progress(f"reading {split}", None, "rows", rows))
        while batch := list(islice(shown, _AT_ONCE)):
            for column in dict.fromkeys(name for row in batch for name in row):
                values = [value for row in batch if (value := row.get(column)) is not None]
                lists = [value if isinstance(value, list) else [value] for value in values]
                if column in (*LABELS, *TAGS):
                    counts[column].update(str(label) for each in lists for label in each)
                elif all(isinstance(text, str) for each in lists for text in each):
                    lengths[column] += map(len, tokenizer([" ".join(each) for each in lists])["input_ids"])
        for column, of_column in lengths.items():
            limits = options.max_target_length if column == "target" else options.max_source_length
            cut = (f"{np.mean(np.array(of_column) > limit):.1%} at {limit:,}" for limit in limits)
            table.append([f"{split}, {column}", f"{len(of_column):,}", *quantiles(of_column), ", ".join(cut)])
        for column, counter in counts.items():
            listed = ", ".join(f"{label} {count:,}" for label, count in counter.most_common(_SHOWN))
            labels.append(f"{split}, {column}: {listed}{', ...' * (len(counter) > _SHOWN)}")
    if not table:
        raise InputError(f"{options.data_dir}: no files of lines or tables with texts, and no shards")
    note = f"Tokens of {options.tokenizer}, special ones included."
    return "\n".join([plain_table(table, ["length in tokens", "texts", *HEAD, "cut"], words=1), note, *labels])


def describe_shards(folder: Path) -> str:
    """Counts of the manifest, and lengths in the first file of each bin, since any file is a random part of its bin."""
    manifest = Manifest.read(folder)
    table = []
    for split, shards in manifest.splits.items():
        for longest in sorted({shard.bin for shard in shards}):
            of_bin = [shard for shard in shards if shard.bin == longest]
            rows = list(read_shards(folder, of_bin[:1]))
            lengths = quantiles([len(row.ids) + SPECIAL[manifest.task] for row in rows])
            sentences = f"{np.mean([len(row.sentences) for row in rows]):.1f}"
            examples = f"{sum(shard.examples for shard in of_bin):,}"
            table.append([split, f"{longest}", f"{len(of_bin)}", examples, *lengths, sentences])
    shown = plain_table(table, ["split", "bin", "files", "examples", *HEAD, "sentences"], words=1)
    kept = f"{folder}: {manifest.values['documents']['kept']:,} documents"
    note = "Lengths are tokens, special ones included; sentences, or segments, are those of an example, on average."
    return f"{kept}\n{shown}\n{note}"


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(InspectOptions, argv, "Print counts and lengths of a data directory, a table or shards.")
    start_log()
    if not options.data_dir.exists():
        raise InputError(f"{options.data_dir}: no such file or directory")
    is_shards = (options.data_dir / MANIFEST).is_file()
    print(describe_shards(options.data_dir) if is_shards else describe(options))
