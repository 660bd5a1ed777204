"""The options of finetune.py: those of every run, and those of its task."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bart.errors import InputError
from utils.cli import early_option, option, parse_dataclass
from utils.data.options import DataOptions
from utils.data.places import is_streamed
from utils.tasks import TASKS, find_task
from utils.tasks.task import Task
from utils.training.options import HardwareOptions, OptimisationOptions, RunOptions


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments:
    """All options, in the parts that need them.

    Attributes:
        task_options: an `Options` of the task.
    """

    task: str = option(
        TASKS[0],
        section="run",
        help=f"what to train: {', '.join(TASKS)}, or the path of a Python file that defines a task",
    )
    run: RunOptions
    data: DataOptions
    optimisation: OptimisationOptions
    hardware: HardwareOptions
    task_options: Any

    def __post_init__(self) -> None:
        if self.hardware.strategy == "fsdp" and self.optimisation.optimizer in ("adafactor", "lamb", "fused_lamb"):
            raise InputError(
                f"--strategy fsdp and --optimizer {self.optimisation.optimizer} exclude each other: it needs whole "
                "matrices, and fsdp gives each process parts; fsdp takes adamw, fused_adam or sgd"
            )
        if getattr(self.task_options, "lora_rank", None) is not None and not self.run.do_train:
            raise InputError(f"--lora_rank is {self.task_options.lora_rank}; it needs --do_train, which is not given")
        if is_streamed(self.data.data_dir) and self.run.do_train:
            self._check_stream()

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

    def make_task(self) -> Task[Any]:
        """The task, with its options.

        Raises:
            InputError: options that it cannot obey, or that name files which are not there.
        """
        task = find_task(self.task)(self.task_options, self.data)
        metric = self.run.val_metric
        if metric not in (None, "loss", *task.figures):
            allowed = ", ".join(["loss", *task.figures])
            raise InputError(f"--val_metric is {metric!r}; allowed for --task {self.task}: {allowed}")
        return task

    def settings(self) -> dict[str, Any]:
        """All options by name, whether they come from the command line, a file or the defaults."""
        parts = dataclasses.asdict(self)
        settings = {"task": parts.pop("task")}
        for part in parts.values():
            settings |= part
        del settings["config"]
        return settings


def parse_finetune_arguments(argv: Sequence[str] | None = None) -> FinetuneArguments:
    """Read finetune.py's command line, and the YAML file that it may name."""
    task = find_task(early_option(sys.argv[1:] if argv is None else argv, "task", TASKS[0]))
    return parse_dataclass(
        FinetuneArguments,
        argv,
        "Fine-tune BART and score it.",
        prog="finetune.py",
        parts={
            "run": RunOptions,
            "data": DataOptions,
            "optimisation": OptimisationOptions,
            "hardware": HardwareOptions,
            "task_options": task.Options,
        },
    )
