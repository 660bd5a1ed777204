"""The options of finetune.py: those of every run, and those of its task."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.cli import early_option, option, parse_dataclass
from utils.data.options import DataOptions
from utils.data.places import is_streamed
from utils.progress import is_first
from utils.tasks import TASKS, find_task
from utils.tasks.task import Task
from utils.training.options import FINE_TUNING_RATE, SCRATCH_RATE, HardwareOptions, OptimisationOptions, RunOptions

STAMP = "BART_RUN_STAMP"  # environment variable by which the processes of a run agree on its folder


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments:
    """All options, in the parts that need them. Defaults that depend on other options are filled in.

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
        if self.optimisation.learning_rate is None:
            rate = SCRATCH_RATE if self.task_options.is_scratch else FINE_TUNING_RATE
            object.__setattr__(self, "optimisation", dataclasses.replace(self.optimisation, learning_rate=rate))
        if self.run.output_dir is None:
            object.__setattr__(self, "run", dataclasses.replace(self.run, output_dir=self._new_output_dir()))
        if self.hardware.strategy == "fsdp" and self.optimisation.optimizer in ("adafactor", "lamb", "fused_lamb"):
            raise InputError(
                f"--strategy fsdp and --optimizer {self.optimisation.optimizer} exclude each other: it needs whole "
                "matrices, and fsdp gives each process parts; fsdp takes adamw, fused_adam or sgd"
            )
        if is_streamed(self.data.data_dir) and self.run.do_train:
            self._check_stream()

    def _new_output_dir(self) -> str:
        """A folder for this run alone. Processes that Lightning starts inherit the stamp of the first one."""
        if "LOCAL_WORLD_SIZE" in os.environ and self.hardware.processes > 1:
            raise InputError("--output_dir is not given; torchrun's processes must write to one folder: name it")
        if is_first() or STAMP not in os.environ:
            os.environ[STAMP] = time.strftime("%y%m%d_%H%M%S")
        start = self.task_options
        named = start.config_path if start.is_scratch else start.model_name_or_path.removesuffix("/export")
        name = re.sub(r"\.(json|ckpt)$", "", Path(named).resolve().name)
        return f"results/{name}_{os.environ[STAMP]}"

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
        task, metric = find_task(self.task), self.run.val_metric
        if metric not in (None, "loss", *task.figures):
            allowed = ", ".join(["loss", *task.figures])
            raise InputError(f"--val_metric is {metric!r}; allowed for --task {self.task}: {allowed}")
        return task(self.task_options, self.data)

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
        parts={
            "run": RunOptions,
            "data": DataOptions,
            "optimisation": OptimisationOptions,
            "hardware": HardwareOptions,
            "task_options": task.Options,
        },
    )
