"""One training run, from its arguments to its scores: fine-tuning, or pretraining, which has none."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any

import pytorch_lightning as pl
import torch
import yaml

from bart.cpu.backend import CpuBackend
from bart.cuda.backend import CudaBackend
from bart.errors import InputError
from bart.files import write_json
from bart.hub import EXPORT
from utils.app.cli import all_options
from utils.app.errors import RunError
from utils.app.machine import check_gpus, environment
from utils.app.output_files import LOCK, check_output, held, writable_folder
from utils.app.progress import start_log
from utils.app.run_directory import LOG, check_free, options_to_resume, remove_run
from utils.app.start import is_first
from utils.data.order import ORDER
from utils.evaluation.card import write_card
from utils.evaluation.report.building import write_report
from utils.evaluation.scoring import ScoringRun
from utils.recipes.data import as_trained, read_to_score, read_to_train, with_table_prepared
from utils.recipes.evaluation import card_options, evaluate
from utils.recipes.finetuning_arguments import FinetuneArguments
from utils.recipes.training_arguments import TrainingArguments
from utils.tasks.task import ScoredTask, TrainedTask
from utils.training.checkpoints import FORMAT, find_checkpoint
from utils.training.datamodule import TrainingData
from utils.training.options import Plan
from utils.training.precision import precision_name
from utils.training.trainer import check_plan, train

logger = logging.getLogger(__name__)


def run(args: TrainingArguments) -> None:
    """Train and score as the arguments say; everything written lies in `--output_dir`.

    Raises:
        InputError: anything wrong with options, files or the machine, found before training starts.
        RunError: the run cannot go on.
    """
    output_dir = Path(args.run.output_dir)
    check_gpus(args.hardware.gpus)
    check_wandb(args.run.wandb_project)
    if args.model.computing.compile:
        check_compiler(args.hardware.gpus)
    if args.do_train and is_first():
        check_free(output_dir, args.resumed, args.run.overwrite_output_dir)
    start_log(keep=True)
    task = args.make_task()
    if not (args.do_train or args.model.weights.is_scratch):
        task = as_trained(task, args.model.weights.model_name_or_path)
    task = task.fitted(task.config(args.model))
    args = replace(args, task_options=task.options, training=task.training)  # whose defaults the config has filled in
    if isinstance(args, FinetuneArguments):
        args = replace(args, places=replace(args.places, data_dir=task.place.data_dir))
    data_dir = task.place.data_dir
    task = with_table_prepared(task)
    # All examples are looked at first: better refused now than after a download, or after hours of training.
    examples = read_to_train(task, data_dir) if args.do_train else {}
    learned = task.learn(examples["train"]) if args.do_train else None
    if args.do_train:
        args.check_metric(task.metrics_for(learned))
    to_score, scored = None, ""
    if isinstance(args, FinetuneArguments) and args.do_predict:
        scored, to_score = read_to_score(task, args.scoring.type_path)
        check_output("json_summary", args.scoring.json_summary, data_dir, args.model.weights.model_name_or_path)
    if args.do_train:
        to_check = examples if to_score is None else {**examples, scored: to_score}
        task.check(to_check, learned)
    writable_folder("--output_dir", output_dir, log=LOG)
    alone = held(output_dir / LOCK, f"--output_dir {output_dir}: another run is at work there")
    with alone if is_first() else nullcontext():
        try:
            train_and_score(args, task, examples, learned, scored, to_score)
        except FileNotFoundError as error:
            if output_dir.exists():
                raise
            raise RunError(f"--output_dir {output_dir}: it was removed during the run") from error


def train_and_score(
    args: TrainingArguments, task: TrainedTask, examples: Mapping[str, Any], learned: Any, scored: str, to_score: Any
) -> None:
    """Train, if that is asked for, and score the examples of a split, if there are any; write log and report.

    Args:
        examples: those of `train_on`.
        learned: what the task learned of the training examples.
        scored: the split of `to_score`, which is None where nothing is scored.
    """
    output_dir, log = Path(args.run.output_dir), Path(args.run.output_dir) / LOG
    earlier_log = log.stat().st_size if log.exists() else 0
    start_log(file=log)
    quieten_lightning()
    logger.info("writing to %s", output_dir)
    if not torch.cuda.is_available():
        logger.info("no CUDA device here: running on the CPU in %s", precision_name(args.hardware))
    if args.hardware.tf32:
        torch.set_float32_matmul_precision("high")
    pl.seed_everything(args.run.seed, verbose=False)
    if args.do_train:
        try:
            train_on(args, task, examples, learned, earlier_log)
        except RunError as error:  # the terminal gets it from the command
            if is_first():
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{error}\n")
            raise
    if to_score is not None:
        gc.collect()  # what training leaves: models, trainers and optimizers name each other
        torch.cuda.empty_cache()
        predict(args, task, scored, to_score)
    elif is_first():
        write_report(output_dir)


def train_on(
    args: TrainingArguments, task: TrainedTask, examples: Mapping[str, Any], learned: Any, earlier_log: int
) -> None:
    """Train on what the task read of the splits train and val, from the beginning or from a checkpoint.

    Args:
        learned: what the task's `learn` gave.
        earlier_log: bytes of the log that an earlier run wrote.
    """
    output_dir = Path(args.run.output_dir)
    checkpoint = find_checkpoint(args.resumed, output_dir)
    loaded = task.initial_model(args.model, learned, checkpoint)
    backend = CudaBackend if args.hardware.gpus else CpuBackend
    loaded.model.compute_with(backend(leaves_out_padding=True))  # no task's loss reads padding
    data = TrainingData(
        task.encode(examples["train"], "train", loaded),
        task.encode(examples["val"], "val", loaded),
        partial(task.collate, tokenizer=loaded.tokenizer),
        args.batches,
        args.optimisation.max_steps,
        args.hardware,
        args.run.seed,
        args.lengths,
        args.epochs.max_epochs,
    )
    metric = args.run.val_metric or task.default_metric(learned)
    plan = Plan(
        args.run,
        args.hardware,
        args.optimisation,
        min_epochs=args.epochs.min_epochs,
        settings=args.settings(),
        metric=metric,
        direction={"loss": "min", **task.metrics}[metric],
        identity={
            "format": [FORMAT, ORDER],
            **args.settings("must_stay"),
            "processes": args.hardware.processes,
            "data": data.train.identity,
        },
        conditions={**args.settings("validation"), "val_metric": metric, "data": data.val.identity},
        defaults={field.name: field.default for field, _ in all_options(args)},
        checkpoint=checkpoint,
    )
    check_plan(plan, loaded.model, data)
    if is_first():
        if args.run.overwrite_output_dir:
            remove_run(output_dir, earlier_log)
        write_records(args, output_dir)
    train(plan, task, loaded, data)
    if is_first():
        write_card(output_dir, output_dir / EXPORT, card_options)


def predict(args: FinetuneArguments, task: ScoredTask, split: str, raw: Any) -> None:
    """Predict and score a split, with the best checkpoint of this run or with the model that is named."""
    output_dir = Path(args.run.output_dir)
    if args.do_train:
        model_name = str(output_dir / EXPORT)
        loaded = task.trained_model(model_name)
    else:
        model_name = args.model.weights.model_name_or_path
        loaded = task.initial_model(args.model, None)
    device = torch.device("cpu")
    if args.hardware.gpus:
        if not args.do_train:  # otherwise Lightning has chosen the device
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        device = torch.device("cuda", torch.cuda.current_device())
    run = ScoringRun(
        save_dir=output_dir,
        split=split,
        task_name=args.task,
        data_dir=args.places.data_dir,
        model_name=model_name,
        precision=precision_name(args.hardware),
        batch_size=args.pred_batch_size or args.batches.eval_batch_size,
        batch_size_option="--eval_batch_size" if args.pred_batch_size is None else "--pred_batch_size",
        options=args.scoring,
        seed=args.run.seed,
        overwrites=args.do_train or args.run.overwrite_output_dir,
    )
    resuming = options_to_resume(output_dir) if args.do_train else "the same command"
    evaluate(run, task, loaded, raw, device, args.settings(), resuming)


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
