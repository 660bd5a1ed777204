"""What a data directory holds: `python -m utils.corpora.inspect FOLDER` prints what to know before training.

Counts, lengths in tokens, what given maximum lengths cut off, examples that repeat others or are in several splits,
ROUGE of baselines that need no training, and examples.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.charts import BINS, Chart, Series, draw
from utils.cli import option, parse_dataclass, run_main
from utils.corpora.repeats import OPENING, Repeats
from utils.data.line_files import SIDES, SPLITS, iter_pairs
from utils.data.tokenized import tokenise
from utils.errors import unwritable
from utils.files import write_json
from utils.lines import iter_lines
from utils.metrics.baselines import lead, oracle
from utils.metrics.rouge import ROUGE_MODES, ROUGE_TYPES, rouge, rouge_table
from utils.metrics.text_statistics import mean, text_statistics, words
from utils.progress import Progress, start_log

DEFAULT_TOKENIZER = "facebook/bart-large"
PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99)
LEADS = (1, 3)
WIDTH = 100
_UNCUT = 1 << 30  # tokens
_SHOWN = 600  # characters of an example's text
_NEAR = 2.5  # a chart shows limits up to so many times the 99.5th percentile
_ORACLE = "oracle: best sentences, greedily"
_REPEATED = {"source": "source", "target": "target", "pair": "source and target"}
_SHARED = {
    "source": "same source",
    "target": "same target",
    "opening": f"sources with the same first {OPENING} characters*",
}
_STATISTICS = {
    "words": "words",
    "compression": "times shorter",
    "novel1": "% of distinct words new",
    "novel2": "% of distinct 2-grams new",
}
Lengths = dict[str, dict[str, np.ndarray]]  # split -> side -> (N,) tokens of each text, `<s>` and `</s>` included


@dataclass(frozen=True)
class Options:
    """The command line."""

    data_dir: Path = option(positional=True, help="folder with {train,val,test}.{source,target}, or some splits")
    tokenizer: str | None = option(
        None, metavar="NAME", help=f"folder of a vocabulary, or Hub name (default: {DEFAULT_TOKENIZER})"
    )
    max_source_length: tuple[int, ...] = option(
        (1024,), least=3, metavar="N", help="lengths in tokens; says what share of the sources each would cut"
    )
    max_target_length: tuple[int, ...] = option(
        (142,), least=3, metavar="N", help="lengths in tokens; says what share of the targets each would cut"
    )
    rouge_examples: int = option(
        1000, least=1, metavar="N", help="score baselines on at most N examples of the test split, drawn at random"
    )
    examples: int = option(5, least=0, metavar="N", help="examples to show")
    seed: int = option(42, help="seed of what is drawn")
    json: Path | None = option(None, metavar="FILE", help="write all figures there as JSON")
    picture: Path | None = option(None, metavar="FILE", help="draw the distributions of lengths there, as PNG")

    def __post_init__(self) -> None:
        """Refuse files whose folder is missing."""
        for name in ("json", "picture"):
            if (path := getattr(self, name)) is not None and not path.parent.is_dir():
                raise InputError(f"--{name} {path}: no such directory as {path.parent}")

    @property
    def limits(self) -> dict[str, list[int]]:
        """Side -> maximum lengths."""
        return {"source": sorted({*self.max_source_length}), "target": sorted({*self.max_target_length})}


def splits_in(folder: Path) -> list[str]:
    """The splits that a data directory has.

    Raises:
        InputError: it has none, or only half of one.
    """
    if not folder.is_dir():
        raise InputError(f"data directory {folder}: no such directory")
    found = [split for split in SPLITS if any((folder / f"{split}.{side}").exists() for side in SIDES)]
    if not found:
        raise InputError(f"data directory {folder}: none of {{{','.join(SPLITS)}}}.{{{','.join(SIDES)}}} is there")
    for split in found:
        for side in SIDES:
            if not (file := folder / f"{split}.{side}").is_file():
                raise InputError(f"{file}: no such file, though the split's other file is there")
    return found


def length_facts(lengths: np.ndarray, limits: Sequence[int]) -> dict[str, Any]:
    """Mean, least and greatest length, percentiles, and how many texts each limit would cut."""
    over = {limit: int((lengths > limit).sum()) for limit in limits}
    return {
        "tokens": int(lengths.sum()),
        "mean": float(lengths.mean()),
        "min": int(lengths.min()),
        "percentiles": {str(p): float(np.percentile(lengths, p)) for p in PERCENTILES},
        "max": int(lengths.max()),
        "over": {str(k): {"examples": count, "percent": 100 * count / len(lengths)} for k, count in over.items()},
    }


def drawn(folder: Path, split: str, size: int, count: int, seed: int) -> list[tuple[int, str, str]]:
    """At most `count` of the `size` examples of a split, drawn at random, as (line from 1, source, target) in order."""
    chosen = set(random.Random(seed).sample(range(size), min(count, size)))
    pairs = islice(iter_pairs(folder, split), max(chosen, default=-1) + 1)
    return [(index + 1, *pair) for index, pair in enumerate(pairs) if index in chosen]


def baselines(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """ROUGE F in percent of summaries that need no training: name -> mean of each type."""
    sources, targets = (list(texts) for texts in zip(*pairs, strict=True))
    count = max(1, round(sum(len(target.split()) for target in targets) / len(targets)))
    texts = {f"first {count} words (mean of targets)": [" ".join(source.split()[:count]) for source in sources]}
    texts |= {f"first {n} sentence{'s' * (n > 1)}": [lead(source, n) for source in sources] for n in LEADS}
    progress = Progress("oracle", len(pairs), "examples")
    texts[_ORACLE] = []
    for source, target in pairs:
        texts[_ORACLE].append(oracle(source, target))
        progress.advance()
    return {name: rouge(summaries, targets) for name, summaries in texts.items()}


def inspect(
    folder: Path,
    tokenizer: BartTokenizer,
    limits: Mapping[str, Sequence[int]],
    seed: int = 42,
    rouge_examples: int = 1000,
    examples: int = 5,
) -> tuple[dict[str, Any], Lengths]:
    """Everything that `describe` prints, and the lengths of all texts.

    Args:
        limits: side -> maximum lengths in tokens.
        rouge_examples: score the baselines on at most so many examples, of the test split where there is one.
        examples: how many examples of the first split to show.

    Raises:
        InputError: no split is there, or one is malformed.
    """
    splits = splits_in(folder)
    repeats = Repeats(*{**_REPEATED, **_SHARED})
    sizes = dict.fromkeys(splits, 0)
    lengths: Lengths = {}
    for split in splits:
        for pair in iter_pairs(folder, split):
            repeats.add(split, *pair)
            sizes[split] += 1
        lengths[split] = {}
        for side in SIDES:
            chunks = tokenise(iter_lines(folder / f"{split}.{side}"), sizes[split], tokenizer, _UNCUT)
            lengths[split][side] = np.concatenate([counts for _, counts in chunks])
    first, last = splits[0], splits[-1]
    pairs = [(source, target) for _, source, target in drawn(folder, last, sizes[last], rouge_examples, seed)]
    statistics = [text_statistics(words(source), words(target)) for source, target in pairs]
    facts: dict[str, Any] = {
        "data_dir": str(folder),
        "vocab_size": len(tokenizer),
        "splits": {
            split: {
                "examples": sizes[split],
                **{side: length_facts(lengths[split][side], limits[side]) for side in SIDES},
                "repeated": {what: repeats.within(split, what) for what in _REPEATED},
            }
            for split in splits
        },
        "overlap": [
            {"examples_of": later, "in": earlier} | {what: repeats.shared(later, earlier, what) for what in _SHARED}
            for earlier, later in combinations(splits, 2)
        ],
        "sample": {"split": last, "examples": len(pairs), "seed": seed, "rouge_mode": ROUGE_MODES[0]},
        "rouge": baselines(pairs),
        "copying": {name: mean(row[name] for row in statistics) for name in statistics[0]},
        "examples": [
            {"split": first, "line": line, "source": source, "target": target}
            for line, source, target in drawn(folder, first, sizes[first], examples, seed)
        ],
    }
    return facts, lengths


def _table(*rows: Sequence[str]) -> str:
    align = ("left", *["right"] * (len(rows[0]) - 1))
    return tabulate(rows, tablefmt="plain", colalign=align, disable_numparse=True)


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.1f} %)" if count else "0"


def _shortened(name: str, text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN].rsplit(' ', 1)[0]} ... ({len(text):,} characters)"
    return textwrap.fill(f"{name:<8}{text}", WIDTH, subsequent_indent=" " * 8)


def describe(facts: Mapping[str, Any], vocabulary: str) -> str:
    """What `inspect` found, for people, in lines of at most WIDTH characters.

    Args:
        vocabulary: the name of the vocabulary.
    """
    splits, sample = facts["splits"], facts["sample"]
    sizes = {name: split["examples"] for name, split in splits.items()}
    missing = [split for split in SPLITS if split not in splits]
    lengths = [
        [f"{side}, {name}", f"{row['mean']:,.1f}", f"{row['min']:,}"]
        + [f"{value:,.0f}" for value in row["percentiles"].values()]
        + [f"{row['max']:,}"]
        for side in SIDES
        for name, row in ((name, split[side]) for name, split in splits.items())
    ]
    cut = [
        [f"{side}s at {int(limit):,}"]
        + [_share(splits[name][side]["over"][limit]["examples"], size) for name, size in sizes.items()]
        for side in SIDES
        for limit in splits[sample["split"]][side]["over"]
    ]
    repeated = [
        [label, *(_share(splits[name]["repeated"][what], size) for name, size in sizes.items())]
        for what, label in _REPEATED.items()
    ]
    parts = [
        f"{facts['data_dir']}: {', '.join(f'{size:,} {name}' for name, size in sizes.items())} examples"
        + f"; no {' and no '.join(missing)} split" * bool(missing),
        _table(["length in tokens", "mean", "min", *(f"{p} %" for p in PERCENTILES), "max"], *lengths)
        + f"\nTokens of {vocabulary} ({facts['vocab_size']:,} of them), <s> and </s> included.",
        _table(["texts that a maximum length cuts", *splits], *cut),
        _table(["repeats of an earlier one in the split", *splits], *repeated),
    ]
    if facts["overlap"]:
        shared = [
            [label, *(_share(row[what], sizes[row["examples_of"]]) for row in facts["overlap"])]
            for what, label in _SHARED.items()
        ]
        head = ["examples in two splits", *(f"{row['examples_of']} in {row['in']}" for row in facts["overlap"])]
        note = "* letters and digits; case, punctuation and spacing make no difference"
        parts.append(f"{_table(head, *shared)}\n{note}")
    total = sizes[sample["split"]]
    if sample["examples"] == total:
        scored = f"all {total:,} {sample['split']} examples"
    else:
        scored = f"{sample['examples']:,} of {total:,} {sample['split']} examples (seed {sample['seed']})"
    copied = [(facts["copying"][name], label) for name, label in _STATISTICS.items()]
    novelty = ", ".join(f"no {label}" if value is None else f"{value:.1f} {label}" for value, label in copied)
    parts += [
        textwrap.fill(f"ROUGE F in percent ({sample['rouge_mode']}) without training, on {scored}", WIDTH)
        + "\n"
        + rouge_table(facts["rouge"], ROUGE_TYPES[sample["rouge_mode"]]),
        textwrap.fill(f"Targets of these against their sources: {novelty}", WIDTH),
    ]
    for number, example in enumerate(facts["examples"], 1):
        texts = [_shortened(side, example[side]) for side in SIDES]
        parts.append("\n".join([f"Example {number}, {example['split']}, line {example['line']:,}", *texts]))
    return "\n\n".join(parts)


def length_chart(lengths: Lengths, side: str, limits: Sequence[int]) -> Chart:
    """Distributions of the lengths of a side, in percent of each split, so that splits of any size compare."""
    values = {split: sides[side] for split, sides in lengths.items()}
    # A few very long texts, or a limit that none comes near, would press all others into one bar.
    most = max(int(np.percentile(each, 99.5)) for each in values.values())
    near = [limit for limit in limits if limit <= _NEAR * most]
    far = [limit for limit in limits if limit > _NEAR * most]
    least = min(int(each.min()) for each in values.values())
    width = max(1, -(-(most - least + 1) // BINS))
    edges = np.arange(least, max([most, *near]) + width + 1, width)
    series = [
        Series(split, edges.tolist(), (100 * np.histogram(each, edges)[0] / len(each)).tolist())
        for split, each in values.items()
    ]
    longer = sum(int((each > edges[-1]).sum()) for each in values.values())
    label = "tokens" + f" ({longer:,} texts of more than {edges[-1]:,} are not shown)" * (longer > 0)
    title = f"{side.capitalize()} lengths" + (f", nearly all far below {far[0]:,}" if far else "")
    marks = [(f"{limit:,}", float(limit)) for limit in near]
    return Chart(f"{side}_length", title, label, "% of the split", series, True, marks)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `inspect`.

    Raises:
        InputError: data or vocabulary are missing or malformed, or a file cannot be written.
    """
    options = parse_dataclass(
        Options,
        argv,
        "Print what a data directory holds: lengths, repeats, overlap of splits, baselines, examples.",
        "python -m utils.corpora.inspect",
    )
    start_log()
    vocabulary = options.tokenizer or DEFAULT_TOKENIZER
    try:
        tokenizer = BartTokenizer.from_pretrained(vocabulary)
    except InputError as error:
        hint = "" if options.tokenizer else "; --tokenizer takes the folder of a vocabulary"
        raise InputError(f"{error}{hint}") from None
    limits = options.limits
    facts, lengths = inspect(
        options.data_dir, tokenizer, limits, options.seed, options.rouge_examples, options.examples
    )
    path = options.json
    try:
        if path is not None:
            write_json(path, {"tokenizer": vocabulary, **facts})
        path = options.picture
        if path is not None:
            draw(path, *(length_chart(lengths, side, limits[side]) for side in SIDES))
    except OSError as error:
        raise unwritable(str(path), error) from None
    print(describe(facts, vocabulary))


if __name__ == "__main__":
    run_main(main)
