"""A data directory from your own examples: `python -m utils.data.prepare --input FILE ... --output FOLDER`.

Examples that come without splits are split by a hash of (seed, source): an example's split depends on neither the order
of the input nor the rest of it, equal sources fall into one split, and examples added later move no old one. The sizes
are therefore near the ratios, not exactly theirs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.cli import ArgumentParser, run_main, unwritable
from utils.data.line_files import SPLITS, PairWriter, one_line, writing_pairs
from utils.data.provenance import DROPPED, PAIR_FILES, PROVENANCE, size_and_digest, write_dropped
from utils.data.records import Input, inputs_of
from utils.evaluation.results import write_json
from utils.progress import Progress, start_log

DEFAULT_RATIO = "0.9,0.05,0.05"


def ratios_of(text: str) -> list[float]:
    """Shares of train, val and test.

    Raises:
        InputError: not three numbers above 0 whose sum is 1.
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
    place = int.from_bytes(_digest(f"{seed}\n{source}")[:8], "big") / 2**64
    end = 0.0
    for split, share in zip(SPLITS, shares, strict=True):
        end += share
        if place < end:
            return split
    return SPLITS[-1]


def _digest(text: str) -> bytes:
    """16 bytes that stand for a text: equal for different ones with odds of 1 to 1e20 among 1e9 texts."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Seen:
    """Counts examples that repeat others.

    Attributes:
        repeated: (split, "sources" or "pairs") -> examples whose source, or source and target, a split had before.
    """

    def __init__(self) -> None:
        self.repeated: Counter[tuple[str, str]] = Counter()
        self._pairs: dict[str, set[bytes]] = {split: set() for split in SPLITS}
        self._splits: dict[bytes, int] = {}  # digest of a source -> splits that hold it, one bit each

    def add(self, split: str, source: str, target: str) -> None:
        bit = 1 << SPLITS.index(split)
        digest = _digest(source)
        splits = self._splits.get(digest, 0)
        self.repeated[split, "sources"] += bool(splits & bit)
        self._splits[digest] = splits | bit
        pair = _digest(f"{source}\n{target}")
        self.repeated[split, "pairs"] += pair in self._pairs[split]
        self._pairs[split].add(pair)

    def shared(self) -> dict[str, int]:
        """Pair of splits -> number of different sources that both hold."""
        held = Counter(self._splits.values())
        bits = {split: 1 << i for i, split in enumerate(SPLITS)}
        return {
            f"{a} and {b}": sum(n for splits, n in held.items() if splits & bits[a] and splits & bits[b])
            for a, b in combinations(SPLITS, 2)
        }


def _write_splits(
    folder: Path, inputs: Sequence[Input], unit: str, shares: Sequence[float], seed: int, limit: int | None
) -> tuple[dict[str, Any], list[dict[str, str | None]]]:
    """Write the six files; returns the counts of provenance.json, and what was dropped."""
    seen = _Seen()
    dropped: list[dict[str, str | None]] = []
    rows = 0
    total = sum(each.size for each in inputs)
    scale = 10**6 if unit == "MB" else 1
    progress = Progress("reading", -(-total // scale), unit, shown=True)
    before = 0  # sizes of the inputs that are read
    with ExitStack() as stack:
        writers = {split: stack.enter_context(writing_pairs(folder, split)) for split in SPLITS}
        # The limit is one for each split that is kept, and one for all that is yet to be split.
        left: dict[str | None, int | None] = {each.split: limit for each in inputs}
        for each in inputs:
            for record in islice(each.records(), left[each.split]):
                rows += 1
                if (room := left[each.split]) is not None:
                    left[each.split] = room - 1
                if record.fault is not None:
                    dropped.append({"split": each.split, "example": record.name, "reason": record.fault})
                else:
                    # What is written, so that line breaks do not make equal examples differ.
                    source, target = one_line(record.source), one_line(record.target)
                    split = each.split or split_of(source, shares, seed)
                    if writers[split].add(source, target, record.name):
                        seen.add(split, source, target)
                progress.reach((before + record.read) // scale)
            before += each.size
        progress.reach(progress.total)
        counts = _counts(writers, dropped, seen, rows)
        if empty := [split for split in SPLITS if not writers[split].count]:
            reasons = "".join(f", {count:,} dropped: {reason}" for reason, count in counts["dropped"].items())
            raise InputError(f"--input has too few examples: none for {' and '.join(empty)} ({rows:,} rows{reasons})")
        # What it says is not so while some of the new files are in place.
        (folder / PROVENANCE).unlink(missing_ok=True)
    return counts, dropped + [entry for writer in writers.values() for entry in writer.dropped]


def _counts(
    writers: dict[str, PairWriter], dropped: list[dict[str, str | None]], seen: _Seen, rows: int
) -> dict[str, Any]:
    reasons = Counter(entry["reason"] for entry in dropped)
    reasons.update(entry["reason"] for writer in writers.values() for entry in writer.dropped)
    return {
        "rows": rows,
        "examples": {split: writers[split].count for split in SPLITS},
        "dropped": dict(reasons.most_common()),
        "repeated": {split: {of: seen.repeated[split, of] for of in ("sources", "pairs")} for split in SPLITS},
        "sources_in_two_splits": seen.shared(),
    }


def summary_of(folder: Path, counts: dict[str, Any]) -> str:
    """What `main` prints."""
    examples = counts["examples"]
    number = sum(counts["dropped"].values())
    repeated = [
        f"{split} {count['sources']:,}" + f" ({count['pairs']:,} with their target)" * (count["sources"] > 0)
        for split, count in counts["repeated"].items()
    ]
    shared = [f"{splits} {count:,}" for splits, count in counts["sources_in_two_splits"].items()]
    lines = [
        f"{folder}: {', '.join(f'{count:,} {split}' for split, count in examples.items())} examples of "
        f"{counts['rows']:,} rows",
        f"  dropped                 {number:,}" + f", listed in {folder / DROPPED}" * (number > 0),
        *(f"    {count:>10,}  {reason}" for reason, count in counts["dropped"].items()),
        f"  repeated in a split     {', '.join(repeated)}",
        f"  in more than one split  {', '.join(shared)}",
    ]
    return "\n".join(lines)


def prepare(
    names: Sequence[str],
    output: Path,
    source_field: str | None,
    target_field: str | None,
    split_ratio: str | None,
    seed: int,
    limit: int | None,
    overwrite: bool,
) -> dict[str, Any]:
    """Make a data directory; arguments are the options of `main`.

    Returns:
        The counts of provenance.json.

    Raises:
        InputError: an input is missing or malformed, a split would be empty, or the folder holds a data directory that
            may not be overwritten. The folder's files are left as they were.
    """
    shares = ratios_of(split_ratio or DEFAULT_RATIO)
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: a number from 1 is expected")
    ours = [*PAIR_FILES, PROVENANCE, DROPPED]
    if not overwrite and (there := [name for name in ours if (output / name).exists()]):
        raise InputError(f"--output {output}: it holds {there[0]} already; give --overwrite to replace its data")
    kind, inputs = inputs_of(names, source_field, target_field, keep_splits=split_ratio is None)
    origins = [
        origin | size_and_digest(Path(origin["file"])) if "file" in origin else origin
        for each in inputs
        for origin in each.origin
    ]
    unit = "rows" if kind == "dataset" else "MB"
    kept = all(each.split for each in inputs)
    provenance = {
        "inputs": origins,
        "split": "as published" if kept else {"ratio": dict(zip(SPLITS, shares, strict=True)), "seed": seed},
        "limit": limit,
    }
    try:
        counts, dropped = _write_splits(output, inputs, unit, shares, seed, limit)
        write_dropped(output, dropped)
        write_json(output / PROVENANCE, provenance | {"counts": counts})
    except OSError as error:
        raise unwritable(f"--output {output}", error) from None
    return counts


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `prepare`.

    Raises:
        InputError: as `prepare` does.
    """
    parser = ArgumentParser(
        prog="python -m utils.data.prepare",
        description="Make a data directory, {train,val,test}.{source,target}, of tables, text files or a Hub dataset.",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help=".jsonl, .csv, .tsv or .parquet files, pairs of text files (a.source b.target), all but Parquet also as "
        ".gz; or a Hub dataset, name[:configuration][@revision], or a folder that is a copy of one",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder, made if need be")
    parser.add_argument("--source_field", metavar="NAME", help="column of the documents (default: as published sets)")
    parser.add_argument("--target_field", metavar="NAME", help="column of the summaries (default: as published sets)")
    parser.add_argument(
        "--split_ratio",
        metavar="A,B,C",
        help=f"shares of train, val and test, by a hash of seed and source (default: {DEFAULT_RATIO}, but a dataset's "
        "own train, validation and test splits stay)",
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of the split (default: %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="take the first N rows only, of each split that stays")
    parser.add_argument("--overwrite", action="store_true", help="replace the data that the folder holds")
    args = parser.parse_args(argv)
    start_log()
    counts = prepare(
        args.input,
        args.output,
        args.source_field,
        args.target_field,
        args.split_ratio,
        args.seed,
        args.limit,
        args.overwrite,
    )
    print(summary_of(args.output, counts))


if __name__ == "__main__":
    run_main(main)
