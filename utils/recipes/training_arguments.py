"""What the options of all training recipes have in common."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.start import is_first
from utils.data.options import DataOptions
from utils.tasks.task import Task
from utils.training.options import HardwareOptions, OptimisationOptions, RunOptions

STAMP = "BART_RUN_STAMP"  # environment variable by which the processes of a run agree on its folder


@dataclass(frozen=True, kw_only=True)
class TrainingArguments(ABC):
    """All options, in the parts that need them. Defaults that depend on other options are filled in.

    Attributes:
        task: the name, or the file, of what is trained.
        task_options: an `Options` of the task.
    """

    run: RunOptions
    data: DataOptions
    optimisation: OptimisationOptions
    hardware: HardwareOptions
    task_options: Any

    def __post_init__(self) -> None:
        if self.optimisation.learning_rate is None:
            filled = dataclasses.replace(self.optimisation, learning_rate=self.default_rate)
            object.__setattr__(self, "optimisation", filled)
        if self.run.output_dir is None:
            object.__setattr__(self, "run", dataclasses.replace(self.run, output_dir=self._new_output_dir()))
        if self.hardware.strategy == "fsdp" and self.optimisation.optimizer in ("adafactor", "lamb", "fused_lamb"):
            raise InputError(
                f"--strategy fsdp and --optimizer {self.optimisation.optimizer} exclude each other: it needs whole "
                "matrices, and fsdp gives each process parts; fsdp takes adamw, fused_adam or sgd"
            )

    @property
    @abstractmethod
    def default_rate(self) -> float:
        """The learning rate where none is given."""

    @property
    @abstractmethod
    def start(self) -> str:
        """The config or the weights that training starts from; the default --output_dir is named after it."""

    @property
    @abstractmethod
    def task_class(self) -> type[Task[Any]]:
        """The task."""

    def new_task(self) -> Task[Any]:
        return self.task_class(self.task_options, self.data)

    def make_task(self) -> Task[Any]:
        """The task, with its options.

        Raises:
            InputError: options that it cannot obey, or that name files which are not there.
        """
        if isinstance(figures := self.task_class.figures, Mapping):  # others depend on the data
            self.check_metric(figures)
        return self.new_task()

    def check_metric(self, figures: Iterable[str]) -> None:
        """Raise InputError where --val_metric is none of a task's figures."""
        if self.run.val_metric not in (None, "loss", *figures):
            allowed = ", ".join(["loss", *figures])
            raise InputError(f"--val_metric is {self.run.val_metric!r}; allowed for --task {self.task}: {allowed}")

    def _new_output_dir(self) -> str:
        """A folder for this run alone. Processes that Lightning starts inherit the stamp of the first one."""
        if "LOCAL_WORLD_SIZE" in os.environ and self.hardware.processes > 1:
            raise InputError("--output_dir is not given; torchrun's processes must write to one folder: name it")
        if is_first() or STAMP not in os.environ:
            os.environ[STAMP] = time.strftime("%y%m%d_%H%M%S")
        name = re.sub(r"\.(json|ckpt)$", "", Path(self.start).resolve().name)
        return f"results/{name}_{os.environ[STAMP]}"

    def settings(self) -> dict[str, Any]:
        """All options by name, whether they come from the command line, a file or the defaults."""
        settings = {"task": self.task}
        for part in (self.run, self.data, self.optimisation, self.hardware, self.task_options):
            settings |= {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
        del settings["config"]
        return settings
