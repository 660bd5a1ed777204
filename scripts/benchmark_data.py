"""How fast training data are tokenised, opened and handed to training, on made-up articles of CNN-DM's lengths.

    python scripts/benchmark_data.py --tokenizer facebook/bart-large --output data.json

- Tokenising: what training does on first sight of a file, beside `datasets.map` over transformers' fast tokenizer, in
  one process and in as many as there are cores; the same articles, in turns, medians. All write an Arrow file.
- Opening: a process of its own opens the set that was tokenised before, as training does when it starts.
- Loading: batches of length-grouped examples, padded, as tensors; by the number of loader processes.

Articles hold the words of the sample corpus in its sentences, so their number of words is CNN-DM's, not what they say.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utils.cli import check_output, option, parse_dataclass, run_main
from utils.data.line_files import iter_lines
from utils.data.made_up import write_made_up_articles
from utils.data.token_cache import check_pairs
from utils.training.environment import ROOT, processor

SOURCE_LENGTH, TARGET_LENGTH = 1024, 142
# Words of an article and of a summary: the mean of CNN-DM's training set, and a log-normal's spread.
WORDS = {"source": (781, 0.5), "target": (56, 0.4)}
OPEN = """
import json, sys, time
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.dataset import PairDataset
from utils.data.token_cache import check_pairs
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
tokenizer = BartTokenizer.from_pretrained(sys.argv[2])
before, began = peak(), time.perf_counter()
source, target = check_pairs(sys.argv[1], "train")
data = PairDataset(source.tokenized(tokenizer, int(sys.argv[3])), target.tokenized(tokenizer, int(sys.argv[4])))
opened = time.perf_counter() - began
print(json.dumps({"examples": len(data), "seconds": opened, "peak_mb": peak(), "peak_mb_before": before}))
"""


@dataclass(frozen=True)
class Arguments:
    tokenizer: str = option("facebook/bart-large", help="vocabulary: a Hub name or directory")
    examples: int = option(287_113, least=1, help="training examples of the set that is opened and loaded")
    compare: int = option(8_000, least=1, help="articles that are tokenised by ours and by the peers")
    rounds: int = option(3, least=1, help="turns of the tokenising; medians are shown")
    batch_size: int = option(40, least=1, help="examples of a batch")
    batches: int = option(1500, least=1, help="batches loaded, at most an epoch")
    output: str | None = option(None, help="JSON file for the results")

    def __post_init__(self) -> None:
        check_output(self.output)


def tokenising(args: Arguments, folder: Path) -> dict[str, Any]:
    """Articles per second of ours and of the peers."""
    import datasets
    from transformers import AutoTokenizer

    from bart.tokenization.tokenization_bart import BartTokenizer

    datasets.disable_progress_bars()
    lines = list(islice(iter_lines(folder / "train.source"), args.compare))
    texts = datasets.Dataset.from_dict({"text": lines})
    ours = BartTokenizer.from_pretrained(args.tokenizer)
    ours.save_pretrained(folder / "tokenizer")
    theirs = AutoTokenizer.from_pretrained(folder / "tokenizer")
    (file, _), cores = check_pairs(folder, "train", args.compare), os.cpu_count() or 1

    def peer(processes: int) -> Any:
        return texts.map(
            lambda batch: {"ids": theirs(batch["text"], max_length=SOURCE_LENGTH, truncation=True)["input_ids"]},
            batched=True, remove_columns=["text"], load_from_cache_file=False,
            num_proc=processes if processes > 1 else None, cache_file_name=str(folder / "map.arrow"),
        )  # fmt: skip

    seconds: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for mode, work in (
            ("ours", lambda: file.tokenized(ours, SOURCE_LENGTH)),
            ("datasets.map, 1 process", lambda: peer(1)),
            (f"datasets.map, {cores} processes", lambda: peer(cores)),
        ):
            os.environ["TOKENIZERS_PARALLELISM"] = "true"  # datasets leaves it off where it started processes
            began = time.perf_counter()
            result = work()
            seconds.setdefault(mode, []).append(time.perf_counter() - began)
            if mode == "ours":
                made = result
                for path in file.cache.glob("*.arrow"):
                    path.unlink()
            elif any(made[i].tolist() != row for i, row in enumerate(result[:200]["ids"])):
                raise AssertionError("ours and transformers' ids differ")
    return {mode: args.compare / statistics.median(times) for mode, times in seconds.items()}


def opening(args: Arguments, folder: Path) -> dict[str, Any]:
    """Seconds and memory of a process that opens the set, when it was tokenised already."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    command = [sys.executable, "-c", OPEN, folder, args.tokenizer, str(SOURCE_LENGTH), str(TARGET_LENGTH)]
    runs = [
        json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        for _ in range(1 + args.rounds)
    ]
    first, *others = runs
    median = sorted(others, key=lambda run: run["seconds"])[len(others) // 2]
    return {"first_seconds": first["seconds"], **median}


def loading(args: Arguments, folder: Path) -> dict[str, Any]:
    """Examples per second by the number of loader processes, and the share of padding."""
    from bart.tokenization.tokenization_bart import BartTokenizer
    from utils.arguments import parse_train_arguments
    from utils.data.datamodule import SummarizationDataModule

    rates: dict[str, float] = {}
    padding: dict[str, float] = {}
    for workers in (0, 1, 2):
        argv = ["--data_dir", str(folder), "--num_workers", str(workers), "--train_batch_size", str(args.batch_size)]
        argv += ["--sortish_sampler", "--max_source_length", str(SOURCE_LENGTH), "--do_train"]
        files = check_pairs(folder, "train")
        data = SummarizationDataModule(
            parse_train_arguments(argv), BartTokenizer.from_pretrained(args.tokenizer), {"train": files, "val": files}
        )
        lengths = {"input_ids": data.train_set.sources.lengths, "labels": data.train_set.targets.lengths}
        examples, held, real = 0, dict.fromkeys(lengths, 0), dict.fromkeys(lengths, 0)
        began = time.perf_counter()
        for number, batch in enumerate(data.train_dataloader(), 1):
            examples += len(batch["index"])
            for side, values in lengths.items():
                held[side] += batch[side].numel()
                real[side] += int(values[batch["index"].numpy()].sum())
            if number == args.batches:
                break
        rates[f"{workers} loader processes"] = examples / (time.perf_counter() - began)
        padding = {"source": 1 - real["input_ids"] / held["input_ids"], "target": 1 - real["labels"] / held["labels"]}
        padding["both"] = 1 - sum(real.values()) / sum(held.values())
    return {"examples_per_second": rates, "padding": padding, "mean_tokens": float(lengths["input_ids"].mean())}


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(Arguments, argv, "Measure how fast training data are tokenised, opened and loaded.")
    with TemporaryDirectory(prefix="benchmark_data_") as temporary:
        folder = Path(temporary)
        write_made_up_articles(folder, "train", max(args.examples, args.compare), WORDS)
        report: dict[str, Any] = {"processor": processor(), "cores": os.cpu_count(), "arguments": vars(args)}
        report["tokenising"] = tokenising(args, folder)
        for mode, rate in report["tokenising"].items():
            print(f"tokenising  {mode:28}{rate:8.0f} articles/s{rate / report['tokenising']['ours']:8.2f} of ours")
        report["opening"] = opening(args, folder)
        print("opening     {examples} examples: {seconds:.2f} s (first {first_seconds:.0f} s), peak "
              "{peak_mb:.0f} MB, before {peak_mb_before:.0f} MB".format(**report["opening"]))  # fmt: skip
        report["loading"] = loading(args, folder)
        for mode, rate in report["loading"]["examples_per_second"].items():
            print(f"loading     {mode:28}{rate:8.0f} examples/s")
        print("padding     " + ", ".join(f"{side} {share:.1%}" for side, share in report["loading"]["padding"].items()))
    if args.output is not None:
        Path(args.output).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    run_main(main)
