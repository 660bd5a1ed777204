"""One training run, from its arguments to its scores: fine-tuning, or pretraining, which has none."""

from __future__ import annotations

import gc
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml

from bart.cpu.backend import CpuBackend
from bart.cuda.backend import CudaBackend
from bart.errors import InputError
from bart.files import write_json
from bart.hub import EXPORT
from bart.rounding import multiple_of_rows
from utils.app.cli import all_options
from utils.app.distributed import told_by_first
from utils.app.errors import RunError
from utils.app.machine import check_gpus, environment, is_first
from utils.app.output_files import LOCK, check_output, held, writable_folder
from utils.app.progress import start_log
from utils.app.run_directory import LOG, check_free, options_to_resume, remove_run
from utils.app.stores import fetch, local_path, publish
from utils.data.order import ORDER
from utils.evaluation.card import write_card
from utils.evaluation.report.building import write_report
from utils.evaluation.scoring import ScoringRun
from utils.recipes.data import read_to_score, read_to_train, with_table_prepared
from utils.recipes.evaluation import card_options, device_of, evaluate
from utils.recipes.finetuning_arguments import FinetuneArguments
from utils.recipes.training_arguments import TrainingArguments
from utils.tasks.task import ScoredTask, TrainedTask
from utils.training import trainer
from utils.training.checkpoints import FORMAT, find_checkpoint
from utils.training.datamodule import TrainingData
from utils.training.options import Plan
from utils.training.precision import half_dtype, precision_name

logger = logging.getLogger(__name__)


def run(args: TrainingArguments) -> None:
    """Train and score as the arguments say; everything written lies in `--output_dir`."""
    check_gpus(args.hardware.gpus)
    project = args.run.wandb_project
    if project is not None and not any(metadata.distributions(name="wandb")):
        raise InputError(f"--wandb_project is {project}; it needs the package wandb: pip install wandb")
    with run_folder(args) as earlier_log:
        args, task = args.resolved()
        task = with_table_prepared(task)
        # All examples are read first: better refused now than after a download, or after hours of training.
        splits = read_to_train(task, args.settings()["data_dir"]) if args.do_train else {}
        scored = read_to_score(task, args.scoring.type_path) if args.do_predict else None
        if scored is not None:
            check_output("json_summary", args.scoring.json_summary, args.places.data_dir, args.model.model_name_or_path)
        logger.info("writing to %s", args.run.output_dir)
        set_up(args)
        if args.do_train:
            learned = task.learn({**splits, **dict([scored] if scored else [])})
            args.check_metric(task.metrics_for(learned))
            train(args, task, splits, learned, earlier_log)
        if scored is not None:
            score(args, task, *scored)
        elif is_first():
            write_report(Path(local_path(args.run.output_dir)))
        publish(args.run.output_dir)


@contextmanager
def run_folder(args: TrainingArguments) -> Iterator[int]:
    """The folder of a run, which it alone uses and logs to; gives the size of the log that an earlier run wrote."""
    folder = Path(local_path(args.run.output_dir))
    log = writable_folder("--output_dir", folder, log=LOG) / LOG
    start_log(file=log)
    alone = held(folder / LOCK, f"--output_dir {folder}: another run is at work there")
    with alone if is_first() else nullcontext():
        try:
            fetch(args.run.output_dir, may_be_missing=True)
            if args.do_train and is_first():
                resumed, weights = args.run.resume_from_checkpoint, args.model.model_name_or_path
                check_free(args.run.output_dir, folder, resumed, weights, args.run.overwrite_output_dir)
            earlier_log = log.stat().st_size if log.exists() else 0
            yield earlier_log
        except RunError as error:  # the terminal gets it from the command
            if is_first() and folder.exists():
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{error}\n")
            raise


def set_up(args: TrainingArguments) -> None:
    """Set up the libraries: their messages, the precision of products, the seeds."""
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
        "`broadcast_buffers` is deprecated",  # torch 2.11 does not know the option that replaces it
    ):
        warnings.filterwarnings("ignore", message=f".*{harmless}")
    if not torch.cuda.is_available():
        logger.info("no CUDA device here: running on the CPU in %s", precision_name(args.hardware))
    if args.hardware.tf32:
        torch.set_float32_matmul_precision("high")
    pl.seed_everything(args.run.seed, verbose=False)


def train(
    args: TrainingArguments, task: TrainedTask, splits: Mapping[str, Any], learned: Any, earlier_log: int
) -> None:
    """Train on the splits train and val, from the beginning or from a checkpoint."""
    output_dir = Path(local_path(args.run.output_dir))
    # The first of all processes alone compares checksums of shards.
    resumed = args.run.resume_from_checkpoint
    find = partial(find_checkpoint, resumed, output_dir)
    checkpoint = told_by_first(f"checkpoint {resumed} {output_dir}", find, of_all=True)
    loaded = task.initial_model(args.model, learned, checkpoint)
    loaded.model.compute_with(CudaBackend() if args.hardware.gpus else CpuBackend())
    train, val = (task.encode(splits[split], split, loaded) for split in ("train", "val"))
    metric = args.run.val_metric or task.metrics_for(learned)[0]
    batches, processes = args.batches, args.hardware.processes
    size = {"--train_batch_size": batches.train_batch_size} if args.epochs.max_tokens_per_batch is None else {}
    size |= {"--gradient_accumulation_steps": batches.gradient_accumulation_steps, "processes": processes}
    plan = Plan(
        *(args.run, args.hardware, args.optimisation, args.batches, args.epochs),
        directory=output_dir,
        settings=args.settings(),
        metric=metric,
        direction={"loss": "min", **task.metrics}[metric],
        identity={
            "format": [FORMAT, ORDER],
            **args.settings("must_stay"),
            " x ".join(size): math.prod(size.values()),  # of an optimizer step
            "data": train.identity,
        },
        conditions={**args.settings("validation"), "val_metric": metric, "data": val.identity},
        defaults={field.name: field.default for field, _ in all_options(args)},
        checkpoint=checkpoint,
    )
    multiple = multiple_of_rows("cuda" if args.hardware.gpus else "cpu", half_dtype(args.hardware) is not None)
    collates = partial(task.collate_rows, multiple=multiple), task.collate
    data = TrainingData(train, val, *(partial(each, tokenizer=loaded.tokenizer) for each in collates), plan)
    trainer.check_plan(plan, loaded.model, data)
    if is_first():
        if args.run.overwrite_output_dir:
            remove_run(output_dir, earlier_log)
        write_records(args, output_dir)
    trainer.train(plan, task, loaded, data)
    if is_first():
        write_card(output_dir, output_dir / EXPORT, card_options)
    publish(args.run.output_dir)  # scoring may take hours


def score(args: FinetuneArguments, task: ScoredTask, split: str, raw: Any) -> None:
    """Predict and score a split, with the best checkpoint of this run or, without training, the model that is named."""
    gc.collect()  # what training leaves: models, trainers and optimizers name each other
    torch.cuda.empty_cache()
    output_dir, device = Path(local_path(args.run.output_dir)), "cuda" if args.hardware.gpus else "cpu"
    named = args.model.model_name_or_path, args.model.config_path, args.model.tokenizer
    resuming = "the same command"
    if args.do_train:
        named, resuming = (str(output_dir / EXPORT),), options_to_resume(args.run.output_dir)
        if args.hardware.gpus:
            device = f"cuda:{torch.cuda.current_device()}"  # which Lightning has chosen
    run = ScoringRun(
        save_dir=output_dir,
        split=split,
        task_name=args.task,
        data_dir=args.places.data_dir,
        model_name=named[0],
        precision=precision_name(args.hardware),
        batch_size=args.pred_batch_size or args.batches.eval_batch_size,
        batch_size_option="--eval_batch_size" if args.pred_batch_size is None else "--pred_batch_size",
        options=args.scoring,
        seed=args.run.seed,
        overwrites=args.do_train or args.run.overwrite_output_dir,
    )
    loaded = task.trained_model(*named)
    evaluate(run, task, loaded, raw, device_of(device, run.precision), args.settings(), resuming)


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
