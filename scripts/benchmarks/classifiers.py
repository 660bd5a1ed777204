"""Fine-tuning for classes or tags beside transformers' Trainer: the same weights, examples and hyperparameters.

    python scripts/benchmarks/classifiers.py --data_dir banking77 --label_field category --val_ratio 0.02 \\
        --model_name_or_path WEIGHTS --steps 1800 --learning_rate 4e-4 --output results.json
    python scripts/benchmarks/classifiers.py --task tagging --data_dir wnut17 --model_name_or_path WEIGHTS --steps 600

- ours: finetune.py;
- transformers: its Trainer, AutoModelForSequenceClassification or AutoModelForTokenClassification, torch's fused AdamW.

Both begin with the same weights, the head's random ones too, and take our batches in our order. AdamW's rate rises for
a tenth of the steps and falls linearly to 0. Dropout is the config's. The last weights count: none are chosen by
validation. What differs is the random state of dropout and, on CPUs, that ours computes no padding.

finetune.py scores the weights of both: accuracy, or the F1 of entities. Every run is a process of its own. The first
steps warm up; the rate is that of all others, loading and logging included.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.classifiers")

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from scripts.benchmarks import measuring
from scripts.benchmarks.training import OURS, TRANSFORMERS, timed_steps, train_by_trainer, train_ours
from utils.app.cli import option, parse_dataclass
from utils.app.machine import environment
from utils.data.batches import Batch, Batches
from utils.data.order import RunOrder, TrainOrder
from utils.models.loading import LoadedModel
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.tasks.head import HeadTask

MODES = (OURS, TRANSFORMERS)
LOG_EVERY = 10  # steps; as many warm up
COLUMNS = {
    "mode": "mode",
    "listed": "scores",
    "mean": "mean",
    "standard_error": "standard error",
    "rate": "steps/s",
    "speed_up": "speed-up",
    "peak_memory_gb": "peak GB",
}
# Options of finetune.py.
SHARED = ("task", "data_dir", "label_field", "val_ratio", "max_source_length", "train_batch_size", "learning_rate")


@dataclass(frozen=True, kw_only=True)
class ClassifierArguments(measuring.BenchmarkOptions):
    task: str = option("classification", choices=("classification", "tagging"), help="what is trained")
    data_dir: str = option(help="directory with a table, or a file with a word a line, of each split")
    label_field: str | None = option(None, help="column of the classes; by default label, labels, class")
    val_ratio: float | None = option(None, help="share of the training examples to leave out, if there is no split val")
    type_path: str = option("test", choices=("val", "test"), help="split that is scored")
    model_name_or_path: str = option(help="folder of the weights")
    max_source_length: int = option(128, least=8, help="tokens of a text that are read")
    steps: int = option(1000, least=2 * LOG_EVERY, help=f"optimizer steps; the first {LOG_EVERY} are not timed")
    train_batch_size: int = option(32, least=1, help="examples of a step, of like length")
    learning_rate: float = option(3e-4, above=0, help="peak")
    precision: str = option("fp32", choices=("fp32", "tf32", "bf16"), help="of both in training")
    seed: int = option(1, least=0, help="of the first round: head, order, dropout; other rounds have the next ones")
    modes: tuple[str, ...] = option(MODES, choices=MODES, help="what is run, in this order; the last has speed-up 1")


def recipe(args: ClassifierArguments, weights: str | Path) -> list[str]:
    """The command line of finetune.py in training, but for --output_dir."""
    options = {
        **{name: value for name in SHARED if (value := getattr(args, name)) is not None},
        "model_name_or_path": weights,
        "seed": args.seed,
        "gpus": int(args.device == "cuda"),
        "max_steps": args.steps,
        "warmup_steps": args.steps // 10,
        "weight_decay": 0.01,
        "num_workers": 0,
        "eval_batch_size": 64,
        "val_check_interval": 2 * args.steps * args.train_batch_size,  # which leaves the end alone
        "log_every_n_steps": LOG_EVERY,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return [*words, "--do_train", "--sortish_sampler", *[f"--{args.precision}"] * (args.precision != "fp32")]


def begin(args: ClassifierArguments, weights: str | Path) -> tuple[HeadTask, Any, LoadedModel[Any]]:
    """Task, training examples and model as finetune.py makes them."""
    parsed = parse_finetune_arguments(recipe(args, weights))
    task = parsed.make_task()
    raw = task.read("train")
    torch.manual_seed(args.seed)
    return task, raw, task.initial_model(parsed.model, task.learn({"train": raw}))


def prepare(args: ClassifierArguments, folder: Path) -> int:
    """Write the weights that both begin with; return the number of training examples."""
    _, raw, loaded = begin(args, args.model_name_or_path)
    loaded.model.save_pretrained(folder / "start", loaded.tokenizer)
    return len(raw)


def train(mode: str, args: ClassifierArguments, folder: Path) -> dict[str, Any]:
    """Train in one of MODES: the score, steps per second, peak memory, and the mean loss of every LOG_EVERY steps."""
    with timed_steps(args.device) as figures:
        if mode == OURS:
            losses = train_ours(recipe(args, folder / "start"), folder / mode)
        else:
            losses = train_transformers(args, folder, folder / mode)
    rate, peak = figures(args.steps - LOG_EVERY)
    return {"rate": rate, "peak_memory_gb": peak, "losses": losses, "score": score(args, folder, mode)}


def train_transformers(args: ClassifierArguments, folder: Path, output: Path) -> list[float]:
    """Train by transformers' Trainer; write output/export as ours does, and return the losses."""
    import transformers

    task, raw, loaded = begin(args, folder / "start")
    examples, kind = task.encode(raw, "train", loaded), "Token" if args.task == "tagging" else "Sequence"
    model = getattr(transformers, f"AutoModelFor{kind}Classification").from_pretrained(folder / "start")
    loader = DataLoader(
        Batches(examples, partial(task.collate, tokenizer=loaded.tokenizer)),
        batch_sampler=RunOrder(TrainOrder(examples.lengths, args.train_batch_size, args.seed), args.steps),
        collate_fn=inputs_of_trainer,
        pin_memory=args.device == "cuda",
    )
    losses = train_by_trainer(
        args,
        model,
        loader,
        output,
        per_device_train_batch_size=args.train_batch_size,
        max_steps=args.steps,
        learning_rate=args.learning_rate,
        warmup_steps=args.steps // 10,
        weight_decay=0.01,
        max_grad_norm=1.0,
        seed=args.seed,
        logging_steps=LOG_EVERY,
    )
    model.save_pretrained(output / "export")
    return losses


def inputs_of_trainer(step: list[Batch]) -> dict[str, Tensor]:
    """The one micro-batch of a step, as the network takes it."""
    [batch] = step
    return {name: values for name, values in batch.inputs.items() if isinstance(values, Tensor)}


def score(args: ClassifierArguments, folder: Path, mode: str) -> float:
    """The score of the weights that a mode has learned, in percent."""
    from finetune import main as finetune

    words = ["--do_predict", "--task", args.task, "--data_dir", args.data_dir, "--type_path", args.type_path]
    words += ["--model_name_or_path", folder / mode / "export", "--tokenizer", folder / "start"]
    words += ["--max_source_length", args.max_source_length, "--gpus", int(args.device == "cuda")]
    words += ["--output_dir", folder / "scores" / mode]
    words += ["--label_field", args.label_field] if args.label_field else []
    finetune([str(word) for word in words])
    scores = json.loads((folder / "scores" / mode / f"{args.type_path}_scores.json").read_bytes())
    return scores["f1" if args.task == "tagging" else "accuracy"]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(ClassifierArguments, argv, str(__doc__))
    parse_finetune_arguments(recipe(args, args.model_name_or_path))  # refuses values that no run would take
    machine, runs = environment(int(args.device == "cuda"), "accelerate"), {mode: [] for mode in args.modes}
    for seed in range(args.seed, args.seed + args.rounds):
        count, done = measuring.beside_peers(replace(args, seed=seed, rounds=1), prepare, train)
        for mode, of_mode in runs.items():
            of_mode += done[mode]
    results = measuring.compared(runs, args.modes[-1])
    for row in results:
        scores, row["losses"] = zip(*((run["score"], run["losses"]) for run in runs[row["mode"]]), strict=True)
        row["scores"] = scores
        row["listed"], row["mean"] = " ".join(f"{score:.2f}" for score in scores), statistics.mean(scores)
        row["standard_error"] = statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None
    metric = "F1 of entities" if args.task == "tagging" else "accuracy"
    print(f"{metric} on {args.type_path} after {args.steps:,} steps on {count:,} examples, {machine['devices'][0]}")
    measuring.report(args, COLUMNS, results, machine, train_examples=count)
