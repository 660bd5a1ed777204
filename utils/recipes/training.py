"""One training run, from its arguments to its scores: fine-tuning, or pretraining, which has none."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any

import pytorch_lightning as pl
import torch
import yaml

from bart.errors import InputError
from bart.files import write_json
from bart.hub import EXPORT
from utils.app.errors import RunError
from utils.app.progress import start_log
from utils.app.start import is_first
from utils.data.order import ORDER
from utils.evaluation.card import write_card
from utils.evaluation.report import write_report
from utils.evaluation.scoring import format_scores, score_split
from utils.models.loading import for_inference
from utils.models.model_to_train import DROPOUTS
from utils.recipes.training_arguments import TrainingArguments
from utils.runs.distributed import connected
from utils.runs.machine import check_gpus, environment
from utils.runs.outputs import writable_folder
from utils.runs.run_directory import LAST, LOG, check_free, remove_run
from utils.tasks.task import Task
from utils.training.checkpoints import FORMAT, find_checkpoint
from utils.training.datamodule import TrainingData
from utils.training.options import Plan
from utils.training.precision import precision_name
from utils.training.trainer import check_plan, train

logger = logging.getLogger(__name__)
# What becomes of an option when a run goes on from a checkpoint; all others must stay.
MAY_CHANGE = (
    *("config", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "do_train", "do_predict"),
    *("max_steps", "max_epochs", "min_epochs", "save_top_k", "save_every_n_steps", "log_every_n_steps"),
    *("wandb_project", "val_check_interval", "early_stopping_patience", "num_sanity_val_steps", "eval_batch_size"),
    *("num_workers", "cache_dir", "activation_checkpointing", "compile", "n_test", "test_max_target_length"),
    "load_model_weights_only",
)
# They may change too; the scores of earlier checkpoints are then not compared with those of later ones.
VALIDATION = ("val_metric", "n_val", "val_max_target_length", "eval_beams", "eval_max_gen_length")
# They may be given in another way: the content of the data, the config, or the number of processes must stay.
COMPARED_BY_CONTENT = ("data_dir", "config_path", "pre_ln", *DROPOUTS, "gpus", "accelerator", "devices")


def run(args: TrainingArguments) -> None:
    """Train and score as the arguments say; everything written lies in `--output_dir`.

    Raises:
        InputError: anything wrong with options, files or the machine, found before training starts.
        RunError: the run cannot go on.
    """
    output_dir = Path(args.run.output_dir)
    check_gpus(args.hardware.gpus)
    check_wandb(args.run.wandb_project)
    if args.task_options.compile:
        check_compiler(args.hardware.gpus)
    if args.run.do_train and is_first():
        check_free(output_dir, args.run.resumed, args.run.overwrite_output_dir)
    task = args.make_task()
    args = replace(args, task_options=task.options, data=task.data)  # with defaults that depend on model and task
    # All examples are looked at first: better refused now than after a download, or after hours of training.
    splits = {split: task.read(split) for split in ("train", "val")} if args.run.do_train else {}
    args.check_metric(task.figures)
    test = task.read("test", for_scoring=True) if args.run.do_predict else None
    log = output_dir / LOG
    writable_folder("--output_dir", output_dir, log=LOG)
    earlier_log = log.stat().st_size if log.exists() else 0
    start_log(file=log)
    quieten_lightning()
    logger.info("writing to %s", output_dir)
    if not torch.cuda.is_available():
        logger.info("no CUDA device here: running on the CPU in %s", precision_name(args.hardware))
    if args.hardware.tf32:
        torch.set_float32_matmul_precision("high")
    pl.seed_everything(args.run.seed, verbose=False)
    if args.run.do_train:
        try:
            train_on(args, task, splits, earlier_log)
        except RunError as error:  # the terminal gets it from the command
            if is_first():
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{error}\n")
            raise
    if test is not None:
        predict(args, task, test)
    if is_first():
        write_report(output_dir)


def train_on(args: TrainingArguments, task: Task[Any], splits: Mapping[str, Any], earlier_log: int) -> None:
    """Train on what the task read of the splits train and val, from the beginning or from a checkpoint.

    Args:
        earlier_log: bytes of the log that an earlier run wrote.
    """
    output_dir = Path(args.run.output_dir)
    checkpoint = find_checkpoint(args.run.resumed, output_dir)
    model = task.initial_model() if checkpoint is None else task.resumed_model(checkpoint)
    data = TrainingData(
        task.encode(splits["train"], "train"),
        task.encode(splits["val"], "val"),
        task.collate,
        args.data,
        args.optimisation,
        args.hardware,
        args.run.seed,
    )
    settings, metric = args.settings(), args.run.val_metric or task.default_metric()
    plan = Plan(
        args.run,
        args.hardware,
        args.optimisation,
        settings=settings,
        metric=metric,
        identity=identity_of(args, data.train.identity),
        conditions={
            **{name: settings.get(name) for name in VALIDATION},
            "val_metric": metric,
            "data": data.val.identity,
        },
        checkpoint=checkpoint,
    )
    check_plan(plan, model, data)
    if is_first():
        if args.run.overwrite_output_dir:
            remove_run(output_dir, earlier_log)
        write_records(args, output_dir)
    train(plan, task, model, data)
    if is_first():
        write_card(output_dir, output_dir / EXPORT)


def identity_of(args: TrainingArguments, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a run that goes on from a checkpoint must share with the one that wrote it."""
    free = {*MAY_CHANGE, *VALIDATION, *COMPARED_BY_CONTENT}
    return {
        "format": [FORMAT, ORDER],
        **{name: value for name, value in args.settings().items() if name not in free},
        "processes": args.hardware.processes,
        "data": data,
    }


def predict(args: TrainingArguments, task: Task[Any], test: Any) -> None:
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
    resuming = f"--resume_from_checkpoint {LAST} --output_dir {args.run.output_dir}"
    with connected(f"{resuming if args.run.do_train else 'the same command'} goes on"):
        results = score_split(
            task,
            for_inference(model, precision),
            test,
            args.run.output_dir,
            model_name=name,
            task_name=args.task,
            batch_size=args.data.eval_batch_size,
            batch_size_option="--eval_batch_size",
            precision=precision,
            seed=args.run.seed,
            overwrites=args.run.do_train or args.run.overwrite_output_dir,
        )
    if results is not None:
        print(format_scores(*results))
        if args.run.do_train:
            write_card(args.run.output_dir, export)


def write_records(args: TrainingArguments, output_dir: Path) -> None:
    """Write arguments.yaml and environment.json; those of an earlier run, and its metrics, are kept under a number."""
    files = (("arguments", "yaml"), ("environment", "json"), ("metrics", "csv"))
    number = next(n for n in count(1) if not any((output_dir / f"{s}.{n}.{suffix}").exists() for s, suffix in files))
    for stem, suffix in files:
        if (path := output_dir / f"{stem}.{suffix}").exists():
            path.rename(output_dir / f"{stem}.{number}.{suffix}")
    (output_dir / "arguments.yaml").write_text(yaml.safe_dump(args.settings()))
    facts = {**environment(args.hardware.gpus), "processes": args.hardware.processes}
    write_json(output_dir / "environment.json", facts)


def check_wandb(project: str | None) -> None:
    """Raise InputError when a Weights & Biases project is named and its package is not installed."""
    try:
        if project is not None:
            version("wandb")
    except PackageNotFoundError:
        raise InputError(f"--wandb_project is {project}; it needs the package wandb: pip install wandb") from None


def check_compiler(gpus: int) -> None:
    """Raise InputError where torch.compile lacks what it makes code with."""
    if gpus and find_spec("triton") is None:
        raise InputError("--compile needs the package triton on GPUs; this build of torch came without it")
    if not gpus and which(compiler := os.environ.get("CXX", "g++")) is None:
        raise InputError(f"--compile needs a C++ compiler on CPUs; {compiler} is not found (CXX names another one)")


def quieten_lightning() -> None:
    """Leave out Lightning's greetings and what it says of habits that this program does not have."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for harmless in (
        "does not have many workers",
        "exists and is not empty",  # the run's directory holds its log already
        "your dataloader is not resumable",  # the data module resumes it
        "smaller than the logging interval",
        "isinstance.treespec, LeafSpec",
        "sync_dist=True",  # which sums figures that are sums of all processes already
        "FSDP2-wrapped module .* returned a view tensor",  # which nothing changes in place
    ):
        warnings.filterwarnings("ignore", message=f".*{harmless}")
