"""The options that all training recipes have in common."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bart.errors import InputError
from bart.files import as_named
from utils.app.cli import OnResume, all_options
from utils.data.options import BatchOptions
from utils.models.options import NewModelOptions
from utils.tasks import find_task
from utils.training.options import EpochOptions, HardwareOptions, OptimisationOptions, RunOptions

if TYPE_CHECKING:
    from typing import Self

    from utils.tasks.task import TrainedTask


@dataclass(frozen=True, kw_only=True)
class TrainingArguments(ABC):
    """All options, in the parts that need them; defaults that depend on other options are filled in.

    Attributes:
        task_options, training: an `Options` and a `TrainingOptions` of the task.
    """

    run: RunOptions
    batches: BatchOptions
    optimisation: OptimisationOptions
    hardware: HardwareOptions
    model: NewModelOptions
    task_options: Any
    training: Any
    # Fields of those that have such options; an annotation would place them here on the command line.
    do_train, do_predict = True, False
    epochs = EpochOptions(min_epochs=0)

    def _complete(self, rate: float) -> None:
        """Fill in the config of random weights, the learning rate, and the output directory, named after the start."""
        if self.model.is_scratch and self.model.config_path is None:
            self._fill_in(model=replace(self.model, config_path=self.task_class.default_config))
        if self.optimisation.learning_rate is None:
            self._fill_in(optimisation=replace(self.optimisation, learning_rate=rate))
        if self.run.output_dir is None:
            start = self.model.config_path if self.model.is_scratch else self.model.model_name_or_path
            self._fill_in(run=replace(self.run, output_dir=self._new_output_dir(start.removesuffix("/export"))))
        if self.hardware.strategy != "ddp" and self.optimisation.optimizer == "adafactor":
            raise InputError(
                f"--strategy {self.hardware.strategy} and --optimizer adafactor exclude each other: it needs whole "
                "matrices, and each process has parts of them; allowed: another optimizer"
            )

    def _fill_in(self, **parts: Any) -> None:
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    @property
    def task_class(self) -> type[Any]:
        return find_task(self.task)

    @abstractmethod
    def make_task(self) -> TrainedTask:
        """The task, with its options."""

    def resolved(self) -> tuple[Self, TrainedTask]:
        """These options with the defaults that depend on the data and the model's config; and their task."""
        made = self.make_task()
        task = made.fitted(made.config(self.model))
        return replace(self, task_options=task.options, training=task.training), task

    def check_metric(self, metrics: Iterable[str]) -> None:
        """Raise InputError where --val_metric is none of a task's metrics."""
        if self.run.val_metric not in (None, "loss", *metrics):
            allowed = ", ".join(dict.fromkeys(["loss", *metrics]))
            raise InputError(f"--val_metric is {self.run.val_metric!r}; allowed for --task {self.task}: {allowed}")

    def _new_output_dir(self, start: str) -> str:
        """A folder for this run alone, in all its processes."""
        from utils.app.distributed import told_by_first  # here, because --help needs no torch

        stamp = told_by_first("time of the run", lambda: time.strftime("%y%m%d_%H%M%S"), of_all=True)
        name = re.sub(r"\.(json|ckpt)$", "", as_named(start).name)
        return f"results/{name}_{stamp}"

    def settings(self, on_resume: OnResume | None = None) -> dict[str, Any]:
        """The options by name: those of which this becomes when a run goes on, by default all but --config."""
        return {
            field.name: value
            for field, value in all_options(self)
            if (field.name != "config" if on_resume is None else field.metadata["on_resume"] == on_resume)
        }
