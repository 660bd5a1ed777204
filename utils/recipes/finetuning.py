"""One fine-tuning run, from its arguments to its scores."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml

from bart.errors import InputError
from bart.hub import EXPORT
from utils.data.order import ORDER
from utils.distributed import connected
from utils.errors import RunError
from utils.evaluation.card import write_card
from utils.evaluation.report import write_report
from utils.evaluation.scoring import format_scores, score_split
from utils.files import writable_folder
from utils.machine import check_gpus, environment
from utils.progress import is_first, start_log
from utils.recipes.finetuning_arguments import FinetuneArguments
from utils.tasks.task import Task
from utils.training.checkpoints import FORMAT, find_checkpoint
from utils.training.datamodule import TrainingData
from utils.training.options import Plan
from utils.training.precision import keeps_master_weights, precision_name
from utils.training.trainer import train

logger = logging.getLogger(__name__)
# What the order of the training examples and the meaning of the optimizer's state depend on, besides the data.
LASTING_OPTIONS = (
    *("task", "seed", "n_train", "train_batch_size", "max_tokens_per_batch", "gradient_accumulation_steps"),
    *("sortish_sampler", "max_source_length", "max_target_length", "optimizer", "learning_rate", "weight_decay"),
    *("strategy", "freeze_embeds", "freeze_encoder", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
)


def run(args: FinetuneArguments) -> None:
    """Train and score as the arguments say; everything written lies in `--output_dir`.

    Raises:
        InputError: anything wrong with options, files or the machine, found before training starts.
        RunError: the run cannot go on.
    """
    output_dir = Path(args.run.output_dir)
    check_gpus(args.hardware.gpus)
    check_wandb(args.run.wandb_project)
    task = args.make_task()
    args = replace(args, task_options=task.options)  # with the defaults that depend on the model
    # All examples are looked at first: better refused now than after a download, or after hours of training.
    splits = {split: task.read(split) for split in ("train", "val")} if args.run.do_train else {}
    test = task.read("test", for_scoring=True) if args.run.do_predict else None
    writable_folder("--output_dir", output_dir, log="log.txt")
    start_log(file=output_dir / "log.txt")
    quieten_lightning()
    logger.info("writing to %s", output_dir)
    if not torch.cuda.is_available():
        logger.info("no CUDA device here: running on the CPU in %s", precision_name(args.hardware))
    if args.hardware.tf32:
        torch.set_float32_matmul_precision("high")
    pl.seed_everything(args.run.seed, verbose=False)
    if args.run.do_train:
        try:
            train_on(args, task, splits)
        except RunError as error:  # the terminal gets it from the command
            if is_first():
                with (output_dir / "log.txt").open("a", encoding="utf-8") as log:
                    log.write(f"{error}\n")
            raise
    if test is not None:
        predict(args, task, test)
    if is_first():
        write_report(output_dir)


def train_on(args: FinetuneArguments, task: Task[Any], splits: Mapping[str, Any]) -> None:
    """Train on what the task read of the splits train and val, from the beginning or from a checkpoint."""
    output_dir = Path(args.run.output_dir)
    checkpoint = find_checkpoint(args.run.resume_from_checkpoint, output_dir)
    model = task.initial_model() if checkpoint is None else task.resumed_model(checkpoint)
    if is_first():
        write_records(args, output_dir)
    data = TrainingData(
        task.encode(splits["train"], "train"),
        task.encode(splits["val"], "val"),
        task.collate,
        args.data,
        args.optimisation,
        args.hardware,
        args.run.seed,
    )
    plan = Plan(
        args.run,
        args.hardware,
        args.optimisation,
        settings=args.settings(),
        metric=args.run.val_metric or task.default_metric(),
        identity=identity_of(args, data.train.identity),
        checkpoint=checkpoint,
    )
    train(plan, task, model, data)
    if is_first():
        write_card(output_dir, output_dir / EXPORT)


def identity_of(args: FinetuneArguments, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a run that goes on from a checkpoint must share with the one that wrote it.

    The order of the training examples and the meaning of the optimizer's state depend on it. A user may change all
    other options when a run is resumed.
    """
    settings = args.settings()
    return {
        "format": [FORMAT, ORDER],
        **{name: settings.get(name) for name in LASTING_OPTIONS},
        "amp_level O2": keeps_master_weights(args.hardware),
        "processes": args.hardware.processes,
        "data": data,
    }


def predict(args: FinetuneArguments, task: Task[Any], test: Any) -> None:
    """Predict and score the test split, with the best checkpoint of this run or with the model that is named."""
    export = Path(args.run.output_dir) / EXPORT
    if args.run.do_train:
        model, name = task.trained_model(export), export
    else:
        model, name = task.initial_model(), args.task_options.model_name_or_path
    if args.hardware.gpus:
        if not args.run.do_train:  # otherwise Lightning has chosen the device
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        model.to(torch.device("cuda", torch.cuda.current_device()))
    precision = precision_name(args.hardware)
    with connected(f"--do_predict without --do_train, with --model_name_or_path {name}, goes on"):
        results = score_split(
            task,
            task.for_inference(model, precision),
            test,
            args.run.output_dir,
            model_name=name,
            task_name=args.task,
            batch_size=args.data.eval_batch_size,
            batch_size_option="--eval_batch_size",
            precision=precision,
            seed=args.run.seed,
            replaces_progress=args.run.do_train,
        )
    if results is not None:
        print(format_scores(*results))
        if args.run.do_train:
            write_card(args.run.output_dir, export)


def write_records(args: FinetuneArguments, output_dir: Path) -> None:
    """Write arguments.yaml and environment.json; those of an earlier run, and its metrics, are kept under a number."""
    files = (("arguments", "yaml"), ("environment", "json"), ("metrics", "csv"))
    number = next(n for n in count(1) if not any((output_dir / f"{s}.{n}.{suffix}").exists() for s, suffix in files))
    for stem, suffix in files:
        if (path := output_dir / f"{stem}.{suffix}").exists():
            path.rename(output_dir / f"{stem}.{number}.{suffix}")
    (output_dir / "arguments.yaml").write_text(yaml.safe_dump(args.settings()))
    facts = {**environment(args.hardware.gpus), "processes": args.hardware.processes}
    (output_dir / "environment.json").write_text(json.dumps(facts, indent=2) + "\n")


def check_wandb(project: str | None) -> None:
    """Raise InputError when a Weights & Biases project is named and its package is not installed."""
    try:
        if project is not None:
            version("wandb")
    except PackageNotFoundError:
        raise InputError(f"--wandb_project is {project}; it needs the package wandb: pip install wandb") from None


def quieten_lightning() -> None:
    """Leave out Lightning's greetings and what it says of habits that this program does not have."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for harmless in (
        "does not have many workers",
        "exists and is not empty",  # the run's directory holds its log already
        "your dataloader is not resumable",  # the data module resumes it
        "smaller than the logging interval",
        "isinstance.treespec, LeafSpec",
        "FSDP2-wrapped module .* returned a view tensor",  # which nothing changes in place
    ):
        warnings.filterwarnings("ignore", message=f".*{harmless}")
