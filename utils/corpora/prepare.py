"""A data directory from your own examples: `python -m utils.corpora.prepare --input FILE ... --output FOLDER`.

Examples that come without splits are split by a hash of (seed, source). So the split of an example depends on neither
the order of the input nor the rest of it, equal sources come into one split, and examples that are added later move no
old one. The sizes of the splits are near the ratios, not exactly theirs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.cli import option, parse_dataclass, run_main
from utils.corpora.data_directory import (
    DATA_FILES,
    DROPPED,
    PROVENANCE,
    building_in,
    put_in_place,
    size_and_digest,
    write_dropped,
    write_provenance,
)
from utils.corpora.records import Input, inputs_of
from utils.corpora.repeats import Repeats
from utils.data.line_files import SPLITS, writing_pairs
from utils.errors import unwritable
from utils.progress import Progress, start_log

DEFAULT_RATIO = "0.9,0.05,0.05"


@dataclass(frozen=True)
class Options:
    """What to make a data directory of, and how."""

    input: tuple[str, ...] = option(
        metavar="FILE",
        help=".jsonl, .csv, .tsv or .parquet files, pairs of text files (a.source b.target), all but Parquet also as "
        ".gz; or a Hub dataset, name[:configuration][@revision], or a folder that is a copy of one",
    )
    output: Path = option(metavar="FOLDER", help="folder, made if need be")
    source_field: str | None = option(None, metavar="NAME", help="column of the documents (default: as published sets)")
    target_field: str | None = option(None, metavar="NAME", help="column of the summaries (default: as published sets)")
    split_ratio: str | None = option(
        None,
        metavar="A,B,C",
        help=f"shares of train, val and test, by a hash of seed and source (default: {DEFAULT_RATIO}, but a dataset's "
        "own train, validation and test splits stay)",
    )
    seed: int = option(42, help="seed of the split")
    limit: int | None = option(None, least=1, metavar="N", help="take the first N rows only, of each split that stays")
    overwrite: bool = option(False, help="replace the data that the folder holds")


def ratios_of(text: str) -> list[float]:
    """Shares of train, val and test.

    Raises:
        InputError: they are not three numbers above 0 whose sum is 1.
    """
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != len(SPLITS) or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"--split_ratio {text}: three numbers above 0 are expected, the shares of train, val and test, whose sum "
            f"is 1, such as {DEFAULT_RATIO}"
        )
    return shares


def split_of(source: str, shares: Sequence[float], seed: int) -> str:
    """The split of an example, by a hash of its source."""
    digest = hashlib.blake2b(f"{seed}\n{source}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    end = 0.0
    for split, share in zip(SPLITS, shares, strict=True):
        end += share
        if place < end:
            return split
    return SPLITS[-1]


def prepare(options: Options) -> dict[str, Any]:
    """Make a data directory.

    Returns:
        The counts of provenance.json.

    Raises:
        InputError: an input is missing or malformed, a split would be empty, or the folder holds data that may not be
            overwritten. The files in the folder stay as they were.
    """
    output = options.output
    shares = ratios_of(options.split_ratio or DEFAULT_RATIO)
    there = [name for name in (*DATA_FILES, PROVENANCE) if (output / name).exists()]
    if there and not options.overwrite:
        raise InputError(f"--output {output}: it holds {there[0]} already; give --overwrite to replace its data")
    inputs = inputs_of(options.input, (options.source_field, options.target_field), options.split_ratio is None)
    origins = [
        origin | size_and_digest(Path(origin["file"])) if "file" in origin else origin
        for each in inputs
        for origin in each.origin
    ]
    kept = all(each.split for each in inputs)
    split = "as published" if kept else {"ratio": dict(zip(SPLITS, shares, strict=True)), "seed": options.seed}
    try:
        with building_in(output) as building:
            counts = _write_splits(building, inputs, shares, options)
            facts = {"inputs": origins, "split": split, "limit": options.limit, "counts": counts}
            write_provenance(building, facts)
            put_in_place(building, output)
    except OSError as error:
        raise unwritable(f"--output {output}", error) from None
    return counts


def _write_splits(folder: Path, inputs: Sequence[Input], shares: Sequence[float], options: Options) -> dict[str, Any]:
    """Write the line files and the list of what was dropped; returns the counts of provenance.json."""
    repeats = Repeats("source", "pair")
    dropped: list[dict[str, str | None]] = []
    rows = 0
    progress = Progress("reading", sum(each.size for each in inputs), inputs[0].unit)
    with ExitStack() as stack:
        writers = {split: stack.enter_context(writing_pairs(folder, split)) for split in SPLITS}
        # The limit is one for each split that stays, and one for all that is yet to be split.
        left: dict[str | None, int | None] = {each.split: options.limit for each in inputs}
        before = 0
        for each in inputs:
            for row, read in islice(each.rows(), left[each.split]):
                rows += 1
                if (room := left[each.split]) is not None:
                    left[each.split] = room - 1
                if row.fault is not None:
                    dropped.append({"split": each.split, "example": row.name, "reason": row.fault})
                else:
                    split = each.split or split_of(row.source, shares, options.seed)
                    if writers[split].add(row.source, row.target, row.name):
                        repeats.add(split, row.source, row.target)
                progress.reach(before + read)
            before += each.size
        progress.reach(progress.total)
    dropped += [entry for writer in writers.values() for entry in writer.dropped]
    reasons = Counter(entry["reason"] for entry in dropped)
    if empty := [split for split in SPLITS if not writers[split].count]:
        told = "".join(f", {count:,} dropped: {reason}" for reason, count in reasons.most_common())
        raise InputError(f"--input has too few examples: none for {' and '.join(empty)} ({rows:,} rows{told})")
    write_dropped(folder, dropped)
    return {
        "rows": rows,
        "examples": {split: writers[split].count for split in SPLITS},
        "dropped": dict(reasons.most_common()),
        "repeated": {
            split: {"sources": repeats.within(split, "source"), "pairs": repeats.within(split, "pair")}
            for split in SPLITS
        },
        "sources_in_two_splits": {
            f"{one} and {other}": repeats.shared(other, one, "source") for one, other in combinations(SPLITS, 2)
        },
    }


def summary_of(folder: Path, counts: Mapping[str, Any]) -> str:
    """The counts, for people."""
    number = sum(counts["dropped"].values())
    repeated = [
        f"{split} {count['sources']:,}" + f" ({count['pairs']:,} with their target)" * (count["sources"] > 0)
        for split, count in counts["repeated"].items()
    ]
    shared = [f"{splits} {count:,}" for splits, count in counts["sources_in_two_splits"].items()]
    lines = [
        f"{folder}: {', '.join(f'{count:,} {split}' for split, count in counts['examples'].items())} examples of "
        f"{counts['rows']:,} rows",
        f"  dropped                 {number:,}" + f", listed in {folder / DROPPED}" * (number > 0),
        *(f"    {count:>10,}  {reason}" for reason, count in counts["dropped"].items()),
        f"  repeated in a split     {', '.join(repeated)}",
        f"  in more than one split  {', '.join(shared)}",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `prepare`."""
    options = parse_dataclass(
        Options,
        argv,
        "Make a data directory, {train,val,test}.{source,target}, of tables, text files or a Hub dataset.",
        "python -m utils.corpora.prepare",
    )
    start_log()
    counts = prepare(options)
    print(summary_of(options.output, counts))


if __name__ == "__main__":
    run_main(main)
