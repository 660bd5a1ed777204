"""How fast training data are tokenised, opened and handed to training, on made-up articles of CNN-DM's lengths.

    python scripts/benchmark_data.py --tokenizer facebook/bart-large --output data.json

- Tokenising: what training does when it first sees a file, beside `datasets.map` over transformers' fast tokenizer, in
  one process and in as many as there are cores; the same articles, in turns, medians. All write an Arrow file.
- Opening: a process opens the set that was tokenised before, as training does when it starts.
- Loading: batches of length-grouped examples, padded, as tensors; by the number of loader processes.

Articles have as many words as CNN-DM's; the words are those of the sample corpus.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import datasets
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.cli import option, parse_dataclass, run_main
from utils.corpora.made_up import write_made_up_articles
from utils.data.batches import Batches
from utils.data.order import RunOrder, TrainOrder
from utils.data.pairs import TokenPairs, collate_pairs
from utils.data.token_cache import check_pairs
from utils.errors import RunError
from utils.files import check_output, write_json
from utils.lines import iter_lines
from utils.machine import environment, process_memory_gb
from utils.measuring import in_turns, table

LENGTHS = {"source": 1024, "target": 142}
# Words of an article and of a summary: the mean of CNN-DM's training set, and a log-normal's spread.
WORDS = {"source": (781, 0.5), "target": (56, 0.4)}
OURS = "ours"


@dataclass(frozen=True)
class Arguments:
    tokenizer: str = option("facebook/bart-large", help="vocabulary: a Hub name or directory")
    examples: int = option(287_113, least=1, help="training examples of the set that is opened and loaded")
    compare: int = option(8_000, least=1, help="articles that are tokenised by ours and by the peers")
    rounds: int = option(3, least=1, help="turns of tokenising and opening; medians are shown")
    batch_size: int = option(40, least=1, help="examples of a batch")
    batches: int = option(1500, least=1, help="batches loaded, at most an epoch")
    output: str | None = option(None, help="JSON file for the results")

    def __post_init__(self) -> None:
        check_output("output", self.output)


def tokenise(mode: str, args: Arguments, folder: Path) -> dict[str, Any]:
    """Seconds for the articles to compare, and the ids of some.

    Args:
        mode: OURS, or one that ends in the number of processes of datasets.map.
    """
    with TemporaryDirectory(dir=folder) as written:
        if mode == OURS:
            ours = BartTokenizer.from_pretrained(folder / "tokenizer")
            file, _ = check_pairs(folder, "train", args.compare, written)
            began = time.perf_counter()
            ids = file.tokenized(ours, LENGTHS["source"])
            seconds = time.perf_counter() - began
            return {"seconds": seconds, "ids": [ids[number].tolist() for number in range(min(200, args.compare))]}
        datasets.disable_progress_bars()
        theirs = AutoTokenizer.from_pretrained(folder / "tokenizer")
        cut = {"max_length": LENGTHS["source"], "truncation": True}
        lines = list(islice(iter_lines(folder / "train.source"), args.compare))
        texts, processes = datasets.Dataset.from_dict({"text": lines}), int(mode.split()[-1])
        began = time.perf_counter()
        found = texts.map(
            lambda batch: {"ids": theirs(batch["text"], **cut)["input_ids"]},
            batched=True, remove_columns=["text"], load_from_cache_file=False,
            num_proc=processes if processes > 1 else None, cache_file_name=f"{written}/map.arrow",
        )  # fmt: skip
        return {"seconds": time.perf_counter() - began, "ids": found[:200]["ids"]}


def opened(tokenizer: BartTokenizer, folder: Path) -> TokenPairs:
    """The set as training opens it."""
    files = zip(check_pairs(folder, "train"), LENGTHS.values(), strict=True)
    return TokenPairs(*(file.tokenized(tokenizer, longest) for file, longest in files))


def measure_opening(_: str, folder: Path) -> dict[str, Any]:
    """Seconds to open the set, and this process's peak memory before and after."""
    tokenizer = BartTokenizer.from_pretrained(folder / "tokenizer")
    before, began = process_memory_gb(), time.perf_counter()
    examples = len(opened(tokenizer, folder))
    seconds = time.perf_counter() - began
    return {"examples": examples, "seconds": seconds, "peak_gb": process_memory_gb(), "peak_gb_before": before}


def load(mode: str, args: Arguments, folder: Path) -> dict[str, Any]:
    """Examples per second, and the share of padding.

    Args:
        mode: ends in the number of loader processes.
    """
    tokenizer = BartTokenizer.from_pretrained(folder / "tokenizer")
    examples = opened(tokenizer, folder)
    order = TrainOrder(examples.lengths, args.batch_size, seed=42)
    loader = DataLoader(
        Batches(examples, partial(collate_pairs, pad_token_id=tokenizer.pad_token_id)),
        batch_sampler=RunOrder(order, min(args.batches, order.steps)),
        collate_fn=list,
        num_workers=int(mode.split()[-1]),
    )
    held, numbers = {"input_ids": 0, "labels": 0}, []
    began = time.perf_counter()
    for [batch] in loader:
        numbers += batch.index
        for side in held:
            held[side] += batch.inputs[side].numel()
    seconds = time.perf_counter() - began
    real = examples.lengths[numbers].sum(axis=0).tolist()
    counts = {"source": (real[0], held["input_ids"]), "target": (real[1], held["labels"])}
    counts["both"] = (sum(real), sum(held.values()))
    padding = {side: 1 - tokens / places for side, (tokens, places) in counts.items()}
    return {"mean_tokens": real[0] / len(numbers), "padding": padding, "rate": len(numbers) / seconds}


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(Arguments, argv, str(__doc__), prog="benchmark_data.py")
    peers = dict.fromkeys(f"datasets.map, processes: {count}" for count in (1, os.cpu_count()))
    with TemporaryDirectory(prefix="benchmark_data_") as temporary:
        folder = Path(temporary)
        write_made_up_articles(folder, "train", max(args.examples, args.compare), WORDS)
        BartTokenizer.from_pretrained(args.tokenizer).save_pretrained(folder / "tokenizer")
        tokenised = in_turns([OURS, *peers], args.rounds, tokenise, args, folder)
        [(first, *openings)] = in_turns(["opening"], 1 + args.rounds, measure_opening, folder).values()
        loaded = in_turns([f"loader processes: {count}" for count in (0, 1, 2)], 1, load, args, folder)
    expected = tokenised[OURS][0]["ids"]
    if any(run["ids"] != expected for runs in tokenised.values() for run in runs):
        raise RunError("ours and transformers' ids differ")
    seconds = {mode: statistics.median(run["seconds"] for run in runs) for mode, runs in tokenised.items()}
    rows: list[dict[str, Any]] = [
        {"what": "tokenising", "mode": mode, "rate": args.compare / taken, "share": seconds[OURS] / taken}
        for mode, taken in seconds.items()
    ]
    rows += [{"what": "loading", "mode": mode, **run} for mode, [run] in loaded.items()]
    print(table(rows, {"what": "", "mode": "", "rate": "examples/s", "share": "x ours"}))
    opening = sorted(openings, key=lambda run: run["seconds"])[len(openings) // 2]
    opening["first_seconds"] = first["seconds"]
    print(
        "opening {examples} examples: {seconds:.2f} s (first {first_seconds:.0f} s), peak {peak_gb:.3f} GB, before "
        "{peak_gb_before:.3f} GB".format(**opening)
    )
    print("padding: " + ", ".join(f"{side} {share:.1%}" for side, share in rows[-1]["padding"].items()))
    if args.output is not None:
        report = {"machine": environment(0, "datasets"), "arguments": asdict(args), "rates": rows, "opening": opening}
        write_json(Path(args.output), report)


if __name__ == "__main__":
    run_main(main)
