"""The contents of a data directory or of a directory of shards: `python -m utils.corpora.inspect FOLDER`.

It prints counts, lengths in tokens, the share that given maximum lengths cut off, examples that repeat others or are in
several splits, ROUGE of baselines that need no training, and examples. For shards see `inspect_shards`.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.inspect")

import dataclasses
import random
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from bart.errors import InputError
from bart.files import write_json
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.charts import Chart, draw, histograms
from utils.app.cli import option, parse_dataclass
from utils.app.output_files import check_output
from utils.app.progress import progress, start_log
from utils.app.tables import plain_table
from utils.corpora.data_directory import PAIR_FILES
from utils.corpora.inspect_shards import describe_shards, inspect_shards
from utils.data.parallel_text import SIDES, pair_paths, paired
from utils.data.shard_format import MANIFEST
from utils.data.splits import SPLITS
from utils.data.tokenized import tokenise
from utils.metrics.baselines import leads, oracle
from utils.metrics.options import TOKENIZER_HELP, RougeOptions
from utils.metrics.rouge import rouge, rouge_table
from utils.metrics.rouge_pairs import ROUGE_MODES, ROUGE_TOKENIZERS
from utils.text.lines import iter_lines, references_of

PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99)
EXAMPLES, SEED = 5, 42  # how many examples are shown; the seed of all that is drawn at random
WIDTH = 100
_UNCUT = 1 << 30  # tokens
_SHOWN = 600  # characters of an example's text
_NEAR = 2.5  # a chart shows limits up to so many times the 99.5th percentile
_REPEATED = ("source", "target", "source and target")
Lengths = dict[str, dict[str, np.ndarray]]  # split -> side -> (N,) tokens of each text, `<s>` and `</s>` included


@dataclass(frozen=True)
class InspectOptions:
    """The command line."""

    data_dir: Path = option(
        positional=True, help="folder with {train,val,test}.{source,target}, or some splits, or shards"
    )
    tokenizer: str = option("facebook/bart-large", metavar="NAME", help="folder of a vocabulary, or Hub name")
    max_source_length: tuple[int, ...] = option(
        (1024,), least=3, metavar="N", help="lengths in tokens; the share of the sources that each would cut is printed"
    )
    max_target_length: tuple[int, ...] = option(
        (142,), least=3, metavar="N", help="lengths in tokens; the share of the targets that each would cut is printed"
    )
    rouge_examples: int = option(
        1000, least=1, metavar="N", help="score baselines on at most N examples of the test split, drawn at random"
    )
    rouge_tokenizer: str = option(ROUGE_TOKENIZERS[0], choices=ROUGE_TOKENIZERS, help=TOKENIZER_HELP)
    json: Path | None = option(None, metavar="FILE", help="write all figures there as JSON")
    picture: Path | None = option(None, metavar="FILE", help="draw the distributions of lengths there, as PNG")

    def __post_init__(self) -> None:
        for name in ("json", "picture"):
            check_output(name, getattr(self, name), *(self.data_dir / file for file in PAIR_FILES))


def length_facts(lengths: np.ndarray, limits: Sequence[int]) -> dict[str, Any]:
    """The mean, least and greatest length, percentiles, and the number of texts that each limit would cut."""
    return {
        "mean": float(lengths.mean()),
        "min": int(lengths.min()),
        "percentiles": {str(p): float(np.percentile(lengths, p)) for p in PERCENTILES},
        "max": int(lengths.max()),
        "over": {str(limit): int((lengths > limit).sum()) for limit in limits},
    }


def repeats_in(hashes: np.ndarray, earlier: np.ndarray) -> dict[str, int]:
    """Count the examples of a split that repeat some of an earlier split or, where both are the same, of that split.

    Args:
        hashes, earlier: (N, 3) and (M, 3), a column for each name of _REPEATED.
    """
    columns = zip(_REPEATED, hashes.T, earlier.T, strict=True)
    if hashes is earlier:
        return {name: len(column) - len(np.unique(column)) for name, column, _ in columns}
    return {name: int(np.isin(column, column_before).sum()) for name, column, column_before in columns}


def drawn(folder: Path, split: str, size: int, count: int) -> list[tuple[int, str, str]]:
    """Draw at most `count` of the `size` examples of a split, as (line from 1, source, target), in order."""
    chosen = set(random.Random(SEED).sample(range(size), min(count, size)))
    pairs = islice(paired(*pair_paths(folder, split)), max(chosen) + 1)
    return [(index + 1, *pair) for index, pair in enumerate(pairs) if index in chosen]


def baselines(pairs: Sequence[tuple[str, str]], tokenizer: str) -> dict[str, dict[str, float]]:
    """Score summaries that need no training, by ROUGE F in percent: name -> mean of each type."""
    summaries_of = leads([source for source, _ in pairs])
    shown = progress("oracle", len(pairs), "examples", pairs)
    summaries_of["oracle: best sentences, greedily"] = [oracle(*pair, tokenizer) for pair in shown]
    targets = [target for _, target in pairs]
    options = RougeOptions(rouge_tokenizer=tokenizer)
    options.warn_of_scripts(targets)
    return {name: rouge(summaries, targets, options.rule()) for name, summaries in summaries_of.items()}


def inspect(
    folder: Path,
    tokenizer: BartTokenizer,
    limits: Mapping[str, Sequence[int]],
    rouge_examples: int = 1000,
    rouge_tokenizer: str = ROUGE_TOKENIZERS[0],
) -> tuple[dict[str, Any], Lengths]:
    """Gather the facts that `describe` prints, and the lengths of all texts.

    Args:
        limits: side -> maximum lengths in tokens.
        rouge_examples: score the baselines on at most so many examples, of the test split where there is one.
        rouge_tokenizer: one of ROUGE_TOKENIZERS.

    Raises:
        InputError: no split is there, or one is malformed.
    """
    splits = [split for split in SPLITS if any((folder / f"{split}.{side}").exists() for side in SIDES)]
    if not splits:
        raise InputError(
            f"data directory {folder}: none of {{{','.join(SPLITS)}}}.{{{','.join(SIDES)}}} is there; "
            "utils.corpora.prepare makes them of tables"
        )
    hashes: dict[str, np.ndarray] = {}  # split -> (N, 3), a column for each name of _REPEATED
    lengths: Lengths = {}
    for split in splits:
        pairs = progress(f"reading {split}", None, "examples", paired(*pair_paths(folder, split)))
        hashes[split] = np.array([(hash(source), hash(target), hash((source, target))) for source, target in pairs])
        lengths[split] = {}
        for side in SIDES:
            lines = iter_lines(folder / f"{split}.{side}")
            texts = (references_of(line)[0] for line in lines) if side == "target" else lines
            batches = tokenise(texts, len(hashes[split]), tokenizer, _UNCUT)
            lengths[split][side] = np.concatenate([pc.list_value_length(batch["ids"]).to_numpy() for batch in batches])
    sizes = {split: len(rows) for split, rows in hashes.items()}
    first, last = splits[0], splits[-1]
    scored = drawn(folder, last, sizes[last], rouge_examples)
    facts: dict[str, Any] = {
        "data_dir": str(folder),
        "splits": {
            split: {
                "examples": sizes[split],
                **{side: length_facts(lengths[split][side], limits[side]) for side in SIDES},
            }
            for split in splits
        },
        "repeats": [
            {"examples_of": later, "in": earlier} | repeats_in(hashes[later], hashes[earlier])
            for earlier, later in combinations_with_replacement(splits, 2)
        ],
        "sample": {"split": last, "examples": len(scored), "rouge_mode": ROUGE_MODES[0]},
        "rouge": baselines([(source, target) for _, source, target in scored], rouge_tokenizer),
        "examples": [
            {"split": first, "line": line, "source": source, "target": target}
            for line, source, target in drawn(folder, first, sizes[first], EXAMPLES)
        ],
    }
    return facts, lengths


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.1f} %)" if count else "0"


def _shortened(name: str, text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN].rsplit(' ', 1)[0]} ... ({len(text):,} characters)"
    return textwrap.fill(f"{name:<8}{text}", WIDTH, subsequent_indent=" " * 8)


def describe(facts: Mapping[str, Any], vocabulary: str) -> str:
    """Write the facts of `inspect` for people, in lines of at most WIDTH characters.

    Args:
        vocabulary: the name of the vocabulary.
    """
    splits, sample = facts["splits"], facts["sample"]
    sizes = {name: split["examples"] for name, split in splits.items()}
    lengths, cuts = [], []
    for side in SIDES:
        for name, split in splits.items():
            row = split[side]
            middle = [f"{value:,.0f}" for value in row["percentiles"].values()]
            lengths.append([f"{side}, {name}", f"{row['mean']:,.1f}", f"{row['min']:,}", *middle, f"{row['max']:,}"])
        for limit in splits[sample["split"]][side]["over"]:
            shares = (_share(splits[name][side]["over"][limit], size) for name, size in sizes.items())
            cuts.append([f"{side}s at {int(limit):,}", *shares])
    repeated = [
        [name, *(_share(counts[name], sizes[counts["examples_of"]]) for counts in facts["repeats"])]
        for name in _REPEATED
    ]
    pairs = [(counts["examples_of"], counts["in"]) for counts in facts["repeats"]]
    between = [f"in {earlier}" if later == earlier else f"{later} in {earlier}" for later, earlier in pairs]
    parts = [
        f"{facts['data_dir']}: {', '.join(f'{size:,} {name}' for name, size in sizes.items())} examples",
        plain_table([["length in tokens", "mean", "min", *(f"{p} %" for p in PERCENTILES), "max"], *lengths], words=1)
        + f"\nTokens of {vocabulary}, <s> and </s> included.",
        plain_table([["texts that a maximum length cuts", *splits], *cuts], words=1),
        plain_table([["repeats", *between], *repeated], words=1),
        f"ROUGE F in percent ({sample['rouge_mode']}) without training, on {sample['examples']:,} of "
        f"{sizes[sample['split']]:,} {sample['split']} examples\n"
        + rouge_table(facts["rouge"], list(next(iter(facts["rouge"].values())))),
    ]
    for number, example in enumerate(facts["examples"], 1):
        texts = [_shortened(side, example[side]) for side in SIDES]
        parts.append("\n".join([f"Example {number}, {example['split']}, line {example['line']:,}", *texts]))
    return "\n\n".join(parts)


def length_chart(lengths: Lengths, side: str, limits: Sequence[int]) -> Chart:
    """Draw the distributions of the lengths of a side, in percent of each split, so that splits of any size compare."""
    # A few very long texts, or a limit that none comes near, would press all others into one bar.
    most = max(int(np.percentile(sides[side], 99.5)) for sides in lengths.values())
    series = histograms({split: np.minimum(sides[side], most) for split, sides in lengths.items()})
    for each in series:
        each.y = (100 * np.array(each.y) / len(lengths[each.name][side])).tolist()
    marks = [(f"{limit:,}", float(limit)) for limit in limits if limit <= _NEAR * most]
    title, label = f"{side.capitalize()} lengths", f"tokens (longer texts count as {most:,})"
    return Chart(f"{side}_length", title, label, "% of the split", series, from_zero=True, marks=marks)


def main(argv: Sequence[str] | None = None) -> None:
    text = "Print what a data directory holds: lengths, repeats, overlap of splits, baselines, examples."
    options = parse_dataclass(InspectOptions, argv, text)
    start_log()
    if (options.data_dir / MANIFEST).is_file():
        _show_shards(options)
        return
    tokenizer = BartTokenizer.from_pretrained(options.tokenizer)
    limits = {"source": options.max_source_length, "target": options.max_target_length}
    facts, lengths = inspect(options.data_dir, tokenizer, limits, options.rouge_examples, options.rouge_tokenizer)
    if options.json is not None:
        write_json(options.json, {"tokenizer": options.tokenizer, **facts})
    if options.picture is not None:
        draw(options.picture, *(length_chart(lengths, side, limits[side]) for side in SIDES))
    print(describe(facts, options.tokenizer))


def _show_shards(options: InspectOptions) -> None:
    for field in dataclasses.fields(InspectOptions):
        if field.name not in ("data_dir", "json") and getattr(options, field.name) != field.default:
            raise InputError(f"--{field.name}: is of use with data directories, not with shards")
    shards = inspect_shards(options.data_dir)
    if options.json is not None:
        write_json(options.json, shards)
    print(describe_shards(shards))
