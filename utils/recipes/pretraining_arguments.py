"""The options of run_pretraining.py; names and defaults are those of NVIDIA's example where it has them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import early_option, fixed, option, parse_dataclass
from utils.data.options import DataOptions
from utils.recipes.training_arguments import TrainingArguments
from utils.runs.run_directory import LAST
from utils.tasks.denoising import Denoising
from utils.tasks.mlm_nsp import MlmNsp
from utils.tasks.pretraining import Pretraining
from utils.tasks.task import Task
from utils.training.options import (
    POLY_SQRT,
    SCHEDULES,
    SCRATCH_RATE,
    HardwareOptions,
    OptimisationOptions,
    RunOptions,
)

TASKS: dict[str, type[Pretraining[Any]]] = {task.name: task for task in (Denoising, MlmNsp)}
LAMB_RATE = 5e-3  # of NVIDIA's first phase, with batches of 64,000


@dataclass(frozen=True)
class PretrainingRunOptions(RunOptions):
    """What a pretraining run does, where it writes, and when it saves, validates and logs."""

    resume_from_checkpoint: str | None = option(
        None,
        help="checkpoint to go on from, with all that it holds; "
        f"'{LAST}' takes the newest whole one of --output_dir, and starts afresh where there is none",
    )
    load_model_weights_only: bool = option(
        False,
        section="run",
        help="begin a new run, such as the second phase, with the weights of --resume_from_checkpoint: a checkpoint "
        "file, run directory or export",
    )
    save_every_n_steps: int | None = option(
        100, alias="save_checkpoint_steps", least=1, help="optimizer steps between two writings of last.ckpt"
    )
    log_every_n_steps: int = option(100, alias="log_freq", least=1, help="optimizer steps between two lines of the log")
    val_check_interval: float = option(
        0.1,
        section="validation",
        above=0,
        help="validate after every such share of the run (up to 1), or every so many training samples (above 1)",
    )
    val_metric: str | None = option(
        None,
        help="what makes a checkpoint the best one: loss, accuracy or another figure of validation; by default loss",
    )
    do_train: bool = fixed(True)
    do_predict: bool = fixed(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load_model_weights_only and self.resume_from_checkpoint in (None, LAST):
            raise InputError(
                f"--load_model_weights_only needs --resume_from_checkpoint with a checkpoint, run directory or export; "
                f"it is {self.resume_from_checkpoint}"
            )
        if self.load_model_weights_only and self.output_dir is not None:
            weights, output = Path(self.resume_from_checkpoint).resolve(), Path(self.output_dir).resolve()
            if output in (weights, *weights.parents):
                raise InputError(
                    f"--resume_from_checkpoint {self.resume_from_checkpoint} lies in --output_dir {self.output_dir}: "
                    "with --load_model_weights_only the new run needs a directory of its own"
                )

    @property
    def resumed(self) -> str | None:
        return None if self.load_model_weights_only else self.resume_from_checkpoint


@dataclass(frozen=True)
class ShardOptions(DataOptions):
    """Where shards are, and how their examples are put together to batches."""

    data_dir: str = option(section="data", help="directory of shards, which utils.corpora.make_shards makes")
    train_batch_size: int = option(32, least=1, help="examples per process and micro-batch")
    eval_batch_size: int = option(32, least=1, help="examples per process in validation")
    cache_dir: str | None = fixed(None)
    n_test: int = fixed(-1)
    sortish_sampler: bool = fixed(False)
    max_tokens_per_batch: int | None = fixed(None)


@dataclass(frozen=True)
class PretrainingOptimisation(OptimisationOptions):
    """The optimizer, its schedule and the length of pretraining."""

    learning_rate: float | None = option(
        None, above=0, help=f"peak; by default {SCRATCH_RATE:g}, with --lamb {LAMB_RATE:g}"
    )
    lr_scheduler: str = option(
        "polynomial",
        choices=tuple(SCHEDULES),
        help=f"decay after the warm-up; {POLY_SQRT} is NVIDIA's for BERT",
    )
    max_steps: int = option(-1, least=1, help="optimizer steps to train; must be given")
    weight_decay: float = option(0.1, least=0, help="of all but biases and norms")
    gradient_clip_val: float = option(
        0.1, least=0, help="gradient norm limit, which is lamb's pre-normalisation too; 0 for none"
    )
    adam_epsilon: float | None = option(1e-8, above=0, help="added to the root of the second moment by adamw and lamb")
    max_epochs: int | None = fixed(None)
    min_epochs: int = fixed(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_steps < 1:
            raise InputError("--max_steps is not given; allowed: at least 1, the optimizer steps of the run")


@dataclass(frozen=True, kw_only=True)
class PretrainingArguments(TrainingArguments):
    """All options of run_pretraining.py."""

    task: str = option(
        Denoising.name, section="run", choices=tuple(TASKS), help="what is trained: BART, or BERT by mlm_nsp"
    )

    @property
    def default_rate(self) -> float:
        return LAMB_RATE if "lamb" in self.optimisation.optimizer else SCRATCH_RATE

    @property
    def start(self) -> str:
        return self.task_options.config_path

    @property
    def task_class(self) -> type[Pretraining[Any]]:
        return TASKS[self.task]

    def new_task(self) -> Task[Any]:
        weights = self.run.resume_from_checkpoint if self.run.load_model_weights_only else None
        return self.task_class(self.task_options, self.data, weights, self.run.seed)


def parse_pretraining_arguments(argv: Sequence[str] | None = None) -> PretrainingArguments:
    """Read run_pretraining.py's command line, and the YAML file that it may name."""
    task = early_option(sys.argv[1:] if argv is None else argv, "task", Denoising.name)
    return parse_dataclass(
        PretrainingArguments,
        argv,
        "Pretrain BART, or BERT, on shards of text.",
        parts={
            "run": PretrainingRunOptions,
            "data": ShardOptions,
            "optimisation": PretrainingOptimisation,
            "hardware": HardwareOptions,
            "task_options": TASKS.get(task, Denoising).Options,
        },
    )
