"""What a data directory holds: `python -m utils.data.inspect FOLDER` prints what to know before training.

Counts, lengths in tokens, what given maximum lengths cut off, repeated examples and those that several splits share,
ROUGE of baselines that need no training, and examples.
"""

from __future__ import annotations

import hashlib
import random
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.cli import ArgumentParser, run_main, unwritable
from utils.data.line_files import SIDES, SPLITS, iter_lines, pair_paths, paired
from utils.evaluation.oracle import oracle
from utils.evaluation.report.charts import BINS, Chart, Series, draw
from utils.evaluation.results import write_json
from utils.evaluation.rouge import ROUGE_MODES, ROUGE_TYPES, rouge
from utils.evaluation.show import lead, rouge_table
from utils.evaluation.text_statistics import mean, text_statistics, words
from utils.progress import Progress, start_log

DEFAULT_TOKENIZER = "facebook/bart-large"
PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99)
OPENING = 80  # characters by which near-duplicates are told
LEADS = (1, 3)
WIDTH = 100
_SHOWN = 600  # characters of an example's text
_CHUNK = 1000  # pairs tokenised at once
_MB = 10**6
_NEAR = 2.5  # limits up to so many times the 99.5th percentile are drawn
_GAP = re.compile(r"[\W_]+")
_SHARED = {
    "source": "same source",
    "target": "same target",
    "opening": f"sources with the same first {OPENING} characters*",
}


@dataclass
class Split:
    """What is kept of a split's N examples.

    Attributes:
        lengths: side -> tokens of each text, `<s>` and `</s>` included, (N,).
        digests: source, target, pair and opening -> 8 bytes that stand for each text, (N,) uint64. Two of 1e6 different
            texts have the same ones with odds of 1 to 4e7.
    """

    lengths: dict[str, np.ndarray]
    digests: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.lengths["source"])

    def repeated(self, what: str) -> int:
        """Examples that repeat an earlier one of the split."""
        return len(self) - len(np.unique(self.digests[what]))


def opening(text: str) -> str:
    """The first OPENING characters of a text, its letters and digits case-folded, all else one space."""
    # Ten times as many hold enough letters; what has none at all is compared as a whole.
    return _GAP.sub(" ", text[: 10 * OPENING].casefold()).strip()[:OPENING] or text


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def iter_pairs(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    """A split's sources and targets, one pair at a time.

    Raises:
        InputError: as `read_pairs` does.
    """
    source, target = pair_paths(folder, split)
    return paired(source, target, iter_lines(source), iter_lines(target))


def measured(folder: Path, split: str, tokenizer: BartTokenizer) -> Split:
    """Read a split once, line by line.

    Raises:
        InputError: as `read_pairs` does.
    """
    lengths: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    digests: dict[str, list[int]] = {what: [] for what in ("source", "target", "pair", "opening")}
    size = sum((folder / f"{split}.{side}").stat().st_size for side in SIDES)
    progress = Progress(f"tokenising {split}", -(-size // _MB), "MB")
    pairs = iter_pairs(folder, split)
    read = 0
    while chunk := list(islice(pairs, _CHUNK)):
        for side, texts in zip(SIDES, zip(*chunk, strict=True), strict=True):
            lengths[side].append(np.array([len(ids) for ids in tokenizer(texts)["input_ids"]]))
            digests[side] += map(_digest, texts)
            read += sum(len(text.encode()) + 1 for text in texts)
        digests["pair"] += [_digest("\n".join(pair)) for pair in chunk]
        digests["opening"] += [_digest(opening(source)) for source, _ in chunk]
        progress.reach(read // _MB)
    progress.reach(progress.total)
    return Split(
        {side: np.concatenate(parts) for side, parts in lengths.items()},
        {what: np.array(values, dtype=np.uint64) for what, values in digests.items()},
    )


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


def overlaps(splits: Mapping[str, Split]) -> list[dict[str, Any]]:
    """For each two splits, how many examples of the later one have a text that the earlier one has."""
    return [
        {"examples_of": later, "in": earlier}
        | {what: int(np.isin(splits[later].digests[what], splits[earlier].digests[what]).sum()) for what in _SHARED}
        for earlier, later in combinations(splits, 2)
    ]


def drawn(folder: Path, split: str, size: int, count: int, seed: int) -> list[tuple[int, str, str]]:
    """At most `count` of a split's `size` examples, drawn at random, as (line from 1, source, target) in file order."""
    chosen = set(random.Random(seed).sample(range(size), min(count, size)))
    last = max(chosen, default=-1)
    pairs = islice(iter_pairs(folder, split), last + 1)
    return [(index + 1, *pair) for index, pair in enumerate(pairs) if index in chosen]


def baselines(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """ROUGE F in percent of what needs no training: name -> mean of each type."""
    sources, targets = (list(texts) for texts in zip(*pairs, strict=True))
    count = max(1, round(sum(len(target.split()) for target in targets) / len(targets)))
    texts = {f"first {count} words (mean of targets)": [" ".join(source.split()[:count]) for source in sources]}
    texts |= {f"first {n} sentence{'s' * (n > 1)}": [lead(source, n) for source in sources] for n in LEADS}
    progress = Progress("oracle", len(pairs), "examples")
    texts["oracle: best sentences, greedily"] = []
    for source, target in pairs:
        texts["oracle: best sentences, greedily"].append(oracle(source, target))
        progress.advance()
    return {name: rouge(summaries, targets) for name, summaries in texts.items()}


def copying(pairs: Sequence[tuple[str, str]]) -> dict[str, float | None]:
    """Means of `text_statistics` of the targets."""
    rows = [text_statistics(words(source), words(target)) for source, target in pairs]
    return {name: mean(row[name] for row in rows) for name in rows[0]}


def length_chart(splits: Mapping[str, Split], side: str, limits: Sequence[int]) -> Chart:
    """Distributions of a side's lengths, in percent of each split, so that splits of any size compare."""
    lengths = {name: split.lengths[side] for name, split in splits.items()}
    # A few very long texts, or a limit that none comes near, would press all others into one bar.
    most = max(int(np.percentile(values, 99.5)) for values in lengths.values())
    near = [limit for limit in limits if limit <= _NEAR * most]
    far = [limit for limit in limits if limit > _NEAR * most]
    least = min(int(values.min()) for values in lengths.values())
    width = max(1, -(-(most - least + 1) // BINS))
    edges = np.arange(least, max([most, *near]) + width + 1, width)
    series = [
        Series(name, edges.tolist(), (100 * np.histogram(values, edges)[0] / len(values)).tolist())
        for name, values in lengths.items()
    ]
    longer = sum(int((values > edges[-1]).sum()) for values in lengths.values())
    label = "tokens" + f" ({longer:,} texts of more than {edges[-1]:,} are not shown)" * (longer > 0)
    title = f"{side.capitalize()} lengths" + (f", nearly all far below {far[0]:,}" if far else "")
    marks = [(f"{limit:,}", float(limit)) for limit in near]
    return Chart(f"{side}_length", title, label, "% of the split", series, "histogram", True, marks)


def inspect(
    folder: Path,
    tokenizer: BartTokenizer,
    limits: Mapping[str, Sequence[int]],
    seed: int = 42,
    rouge_examples: int = 1000,
    examples: int = 5,
) -> tuple[dict[str, Any], dict[str, Split]]:
    """Everything that `describe` prints, and what pictures are drawn of.

    Args:
        limits: side -> maximum lengths in tokens.
        rouge_examples: score the baselines on at most so many examples, of the test split where there is one.
        examples: how many to show, of the first split.

    Raises:
        InputError: no split is there, or one is malformed.
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
    splits = {split: measured(folder, split, tokenizer) for split in found}
    scored = found[-1]
    pairs = [(source, target) for _, source, target in drawn(folder, scored, len(splits[scored]), rouge_examples, seed)]
    facts: dict[str, Any] = {
        "data_dir": str(folder),
        "vocab_size": len(tokenizer),
        "splits": {
            name: {
                "examples": len(split),
                **{side: length_facts(split.lengths[side], limits[side]) for side in SIDES},
                "repeated": {what: split.repeated(what) for what in (*SIDES, "pair")},
            }
            for name, split in splits.items()
        },
        "overlap": overlaps(splits),
        "sample": {"split": scored, "examples": len(pairs), "seed": seed, "rouge_mode": ROUGE_MODES[0]},
        "rouge": baselines(pairs),
        "copying": copying(pairs),
        "examples": [
            {"split": found[0], "line": line, "source": source, "target": target}
            for line, source, target in drawn(folder, found[0], len(splits[found[0]]), examples, seed)
        ],
    }
    return facts, splits


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        row[0].ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in (head, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.1f} %)" if count else "0"


def _shortened(name: str, text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN].rsplit(' ', 1)[0]} ... ({len(text):,} characters)"
    return textwrap.fill(f"{name:<8}{text}", WIDTH, subsequent_indent=" " * 8)


def describe(facts: Mapping[str, Any], vocabulary: str) -> str:
    """What `inspect` found, for people, at most WIDTH columns wide.

    Args:
        vocabulary: what it is called.
    """
    splits = facts["splits"]
    counts = ", ".join(f"{split['examples']:,} {name}" for name, split in splits.items())
    missing = [split for split in SPLITS if split not in splits]
    rows = [(name, side, split[side]) for side in SIDES for name, split in splits.items()]
    lengths = _table(
        ["length in tokens", "mean", "min", *(f"{p} %" for p in PERCENTILES), "max"],
        [
            [f"{side}, {name}", f"{row['mean']:,.1f}", f"{row['min']:,}"]
            + [f"{value:,.0f}" for value in row["percentiles"].values()]
            + [f"{row['max']:,}"]
            for name, side, row in rows
        ],
    )
    cut = _table(
        ["texts that a maximum length cuts", *splits],
        [
            [f"{side}s at {int(limit):,}"]
            + [_share(s[side]["over"][limit]["examples"], s["examples"]) for s in splits.values()]
            for side in SIDES
            for limit in next(iter(splits.values()))[side]["over"]
        ],
    )
    repeated = _table(
        ["repeats of an earlier one in the split", *splits],
        [
            [label, *(_share(s["repeated"][what], s["examples"]) for s in splits.values())]
            for what, label in (("source", "source"), ("target", "target"), ("pair", "source and target"))
        ],
    )
    parts = [
        f"{facts['data_dir']}: {counts} examples" + f"; no {' and no '.join(missing)} split" * bool(missing),
        f"{lengths}\nTokens of {vocabulary} ({facts['vocab_size']:,} of them), <s> and </s> included.",
        cut,
        repeated,
    ]
    if facts["overlap"]:
        shared = _table(
            ["examples in two splits", *(f"{row['examples_of']} in {row['in']}" for row in facts["overlap"])],
            [
                [label, *(_share(row[what], splits[row["examples_of"]]["examples"]) for row in facts["overlap"])]
                for what, label in _SHARED.items()
            ],
        )
        parts.append(f"{shared}\n* letters and digits; case, punctuation and spacing make no difference")
    sample, copied = facts["sample"], facts["copying"]
    total = splits[sample["split"]]["examples"]
    if sample["examples"] == total:
        scored = f"all {total:,} {sample['split']} examples"
    else:
        scored = f"{sample['examples']:,} of {total:,} {sample['split']} examples (seed {sample['seed']})"
    scores = f"ROUGE F in percent ({sample['rouge_mode']}) without training, on {scored}"
    novelty = "Targets of these against their sources: " + ", ".join(
        f"{copied[name]:.1f} {label}" if copied[name] is not None else f"no {label}"
        for name, label in (
            ("words", "words"),
            ("compression", "times shorter"),
            ("novel1", "% of distinct words new"),
            ("novel2", "% of distinct 2-grams new"),
        )
    )
    parts += [
        textwrap.fill(scores, WIDTH) + "\n" + rouge_table(facts["rouge"], ROUGE_TYPES[sample["rouge_mode"]]),
        textwrap.fill(novelty, WIDTH),
        *(
            "\n".join(
                [
                    f"Example {number}, {example['split']}, line {example['line']:,}",
                    *(_shortened(side, example[side]) for side in SIDES),
                ]
            )
            for number, example in enumerate(facts["examples"], 1)
        ),
    ]
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `inspect`.

    Raises:
        InputError: data or vocabulary are missing or malformed, an option is out of range, or a file cannot be written.
    """
    parser = ArgumentParser(
        prog="python -m utils.data.inspect",
        description="Print what a data directory holds: lengths, repeats, overlap of splits, baselines, examples.",
    )
    parser.add_argument("data_dir", type=Path, help="folder with {train,val,test}.{source,target}, or some splits")
    parser.add_argument(
        "--tokenizer", metavar="NAME", help=f"folder of a vocabulary, or Hub name (default: {DEFAULT_TOKENIZER})"
    )
    for side, length in (("source", 1024), ("target", 142)):
        parser.add_argument(
            f"--max_{side}_length",
            type=int,
            nargs="+",
            default=[length],
            metavar="N",
            help=f"lengths in tokens; says what share of the {side}s each would cut (default: {length})",
        )
    parser.add_argument(
        "--rouge_examples",
        type=int,
        default=1000,
        metavar="N",
        help="score baselines on at most N examples of the test split, drawn at random (default: %(default)s)",
    )
    parser.add_argument("--examples", type=int, default=5, metavar="N", help="examples to show (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="seed of what is drawn (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the distributions of lengths there, as PNG")
    args = parser.parse_args(argv)
    limits = {side: sorted({*getattr(args, f"max_{side}_length")}) for side in SIDES}
    for side in SIDES:
        if limits[side][0] < 3:
            raise InputError(
                f"--max_{side}_length {limits[side][0]}: a number from 3 is expected, as <s> and </s> count"
            )
    for name, least in (("rouge_examples", 1), ("examples", 0)):
        if getattr(args, name) < least:
            raise InputError(f"--{name} {getattr(args, name)}: a number from {least} is expected")
    for name in ("json", "picture"):
        if (path := getattr(args, name)) is not None and not path.parent.is_dir():
            raise InputError(f"--{name} {path}: no such directory as {path.parent}")
    start_log()
    vocabulary = args.tokenizer or DEFAULT_TOKENIZER
    try:
        tokenizer = BartTokenizer.from_pretrained(vocabulary)
    except InputError as error:
        hint = "" if args.tokenizer else "; --tokenizer takes the folder of a vocabulary"
        raise InputError(f"{error}{hint}") from None
    facts, splits = inspect(args.data_dir, tokenizer, limits, args.seed, args.rouge_examples, args.examples)
    for path, write in (
        (args.json, lambda path: write_json(path, {"tokenizer": vocabulary, **facts})),
        (args.picture, lambda path: draw(path, *(length_chart(splits, side, limits[side]) for side in SIDES))),
    ):
        if path is not None:
            try:
                write(path)
            except OSError as error:
                raise unwritable(str(path), error) from None
    print(describe(facts, vocabulary))


if __name__ == "__main__":
    run_main(main)
