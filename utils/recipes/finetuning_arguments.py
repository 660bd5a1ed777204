"""The options of finetune.py: those of every run, and those of its task."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bart.errors import InputError
from utils.app.cli import early_option, option, parse_dataclass
from utils.data.options import DataOptions
from utils.data.places import is_streamed
from utils.recipes.training_arguments import TrainingArguments
from utils.tasks import TASKS, find_task
from utils.tasks.task import Task
from utils.training.options import FINE_TUNING_RATE, SCRATCH_RATE, HardwareOptions, OptimisationOptions, RunOptions


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments(TrainingArguments):
    """All options of finetune.py."""

    task: str = option(
        TASKS[0],
        section="run",
        help=f"what to train: {', '.join(TASKS)}, or the path of a Python file that defines a task",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.task_options, "lora_rank", None) is not None and not self.run.do_train:
            raise InputError(f"--lora_rank is {self.task_options.lora_rank}; it needs --do_train, which is not given")
        if is_streamed(self.data.data_dir) and self.run.do_train and self.task_class.streams:
            self._check_stream()

    @property
    def default_rate(self) -> float:
        return SCRATCH_RATE if self.task_options.is_scratch else FINE_TUNING_RATE

    @property
    def start(self) -> str:
        options = self.task_options
        return options.config_path if options.is_scratch else options.model_name_or_path.removesuffix("/export")

    def _check_stream(self) -> None:
        """Refuse what needs the length of an epoch, the lengths of all examples, or files."""
        data, optimisation = self.data, self.optimisation
        stream = f"--data_dir {data.data_dir} is streamed, and nobody knows the length of its epochs"
        if optimisation.max_steps < 0 or optimisation.max_epochs is not None:
            raise InputError(f"{stream}: give --max_steps, and not --max_epochs")
        if self.run.val_check_interval <= 1:
            raise InputError(
                f"{stream}: --val_check_interval is {self.run.val_check_interval:g}, a part of an epoch; allowed: "
                "training samples, above 1"
            )
        if optimisation.min_epochs > 1:
            raise InputError(f"{stream}: --min_epochs is {optimisation.min_epochs}; allowed: 0 or 1, which mean none")
        if data.cache_dir is not None:
            raise InputError(
                f"--cache_dir is {data.cache_dir}, for token ids of line files; --data_dir {data.data_dir} is streamed"
            )
        if data.max_tokens_per_batch is not None:
            raise InputError(
                f"--max_tokens_per_batch needs the lengths of all examples; --data_dir {data.data_dir} is streamed and "
                "takes --train_batch_size"
            )

    @property
    def task_class(self) -> type[Task[Any]]:
        return find_task(self.task)


def parse_finetune_arguments(argv: Sequence[str] | None = None) -> FinetuneArguments:
    """Read finetune.py's command line, and the YAML file that it may name."""
    task = find_task(early_option(sys.argv[1:] if argv is None else argv, "task", TASKS[0]))
    return parse_dataclass(
        FinetuneArguments,
        argv,
        "Fine-tune BART and score it.",
        parts={
            "run": RunOptions,
            "data": DataOptions,
            "optimisation": OptimisationOptions,
            "hardware": HardwareOptions,
            "task_options": task.Options,
        },
    )
