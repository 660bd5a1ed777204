"""The options of finetune.py: those of every run, and those of its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bart.errors import InputError
from utils.app.cli import all_options, changeable, early_option, option, parse_dataclass
from utils.app.stores import fetch, in_store
from utils.data.options import Place, PlaceOptions
from utils.evaluation.options import ScoringOptions
from utils.models.options import ModelOptions
from utils.recipes.training_arguments import TrainingArguments
from utils.tasks import TASKS, options_of
from utils.training.options import FINE_TUNING_RATE, LORA_RATE, SCRATCH_RATE, EpochOptions

if TYPE_CHECKING:
    from utils.tasks.task import ScoredTask


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments(TrainingArguments):
    """All options of finetune.py."""

    model: ModelOptions
    places: PlaceOptions
    epochs: EpochOptions
    scoring: ScoringOptions
    task: str = option(
        TASKS[0],
        section="run",
        help=f"what to train: {', '.join(TASKS)}, or the path of a Python file that defines a task",
    )
    do_train: bool = changeable(False, help="train on the train split")
    do_predict: bool = changeable(False, help="score a split, by default test, with the best checkpoint after training")
    pred_batch_size: int | None = changeable(
        None,
        section="prediction",
        least=1,
        help="examples per process and batch in scoring; by default --eval_batch_size",
    )

    def __post_init__(self) -> None:
        if not (self.do_train or self.do_predict):
            raise InputError("nothing to do: give --do_train, --do_predict or both")
        epochs = self.epochs
        if epochs.max_epochs is not None and epochs.min_epochs > epochs.max_epochs:
            raise InputError(f"--min_epochs is {epochs.min_epochs}; allowed: at most --max_epochs {epochs.max_epochs}")
        for field, value in all_options(self.scoring):  # scripts set --pred_batch_size in any case
            if value != field.default and not self.do_predict:
                raise InputError(f"--{field.name} is {value}; it needs --do_predict, which is not given")
        rank, scratch = self.model.lora_rank, self.model.model_name_or_path if self.model.is_scratch else None
        for name, value in {"lora_rank": rank, "distill": self.model.distill, "model_name_or_path": scratch}.items():
            if value is not None and not self.do_train:
                raise InputError(f"--{name} is {value}; it needs --do_train, which is not given")
        of_weights = FINE_TUNING_RATE if rank is None else LORA_RATE
        self._complete(SCRATCH_RATE if self.model.is_scratch else of_weights)
        if not self.hardware.gpus and getattr(self.training, "eval_beams", 0) is None:
            self._fill_in(training=replace(self.training, eval_beams=0))

    def make_task(self) -> ScoredTask:
        self.check_metric(self.task_class.metrics)
        limits = {"train": self.batches.n_train, "val": self.batches.n_val, "test": self.places.n_test}
        places = self.places
        place = Place(fetch(places.data_dir), places.cache_dir, limits, places.val_ratio, places.tables)
        task = self.task_class(place, self.task_options, self.training)
        if self.do_train:
            return task
        from utils.recipes.data import as_trained  # here, because --help needs no torch

        return as_trained(task, self.model.model_name_or_path)

    def resolved(self) -> tuple[FinetuneArguments, ScoredTask]:
        args, task = super().resolved()
        data_dir = args.places.data_dir if in_store(args.places.data_dir) else task.place.data_dir
        return replace(args, places=replace(args.places, data_dir=data_dir)), task


def parse_finetune_arguments(argv: Sequence[str] | None = None) -> FinetuneArguments:
    """Read finetune.py's command line, and the YAML file that it may name."""
    options, training, _ = options_of(early_option(argv, "task", TASKS[0]))
    return parse_dataclass(
        FinetuneArguments,
        argv,
        "Fine-tune BART and score it.",
        parts={"task_options": options, "training": training},
        of_tasks={task: options_of(task)[:2] for task in TASKS},
    )
