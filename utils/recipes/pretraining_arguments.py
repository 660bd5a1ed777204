"""The options of run_pretraining.py; names and defaults are those of NVIDIA's example where it has them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import early_option, option, parse_dataclass
from utils.data.options import Place
from utils.models.options import NewModelOptions, shipped_config
from utils.recipes.training_arguments import TrainingArguments
from utils.runs.run_directory import LAST
from utils.tasks.denoising import Denoising
from utils.tasks.mlm_nsp import MlmNsp
from utils.tasks.pretraining import Pretraining
from utils.training.options import LAMB_RATE, SCRATCH_RATE

TASKS: dict[str, type[Pretraining]] = {task.name: task for task in (Denoising, MlmNsp)}
DEFAULTS: dict[str, Any] = {
    "save_every_n_steps": 100,
    "log_every_n_steps": 100,
    "val_check_interval": 0.1,
    "train_batch_size": 32,
    "eval_batch_size": 32,
    "lr_scheduler": "polynomial",
    "weight_decay": 0.1,
    "gradient_clip_val": 0.1,
}
EPSILON = 1e-8  # --adam_epsilon


@dataclass(frozen=True)
class ShardOptions:
    """Where shards are."""

    data_dir: str = option(
        section="data", help="directory of shards, which utils.corpora.make_shards makes", on_resume="by_content"
    )


@dataclass(frozen=True, kw_only=True)
class PretrainingArguments(TrainingArguments):
    """All options of run_pretraining.py."""

    model: NewModelOptions
    shards: ShardOptions
    task: str = option(
        Denoising.name, section="run", choices=tuple(TASKS), help="what is trained: BART, or BERT by mlm_nsp"
    )
    load_model_weights_only: bool = option(
        False,
        help="begin a new run, such as the second phase, with the weights of --resume_from_checkpoint: a checkpoint "
        "file, run directory or export",
        on_resume="may_change",
    )

    def __post_init__(self) -> None:
        optimisation, checkpoint = self.optimisation, self.run.resume_from_checkpoint
        if optimisation.max_steps < 1:
            given = "not given" if optimisation.max_steps < 0 else optimisation.max_steps
            raise InputError(f"--max_steps is {given}; allowed: at least 1, the optimizer steps of the run")
        if self.load_model_weights_only and checkpoint in (None, LAST):
            raise InputError(
                f"--load_model_weights_only needs --resume_from_checkpoint with a checkpoint, run directory or export; "
                f"it is {checkpoint}"
            )
        if self.load_model_weights_only and self.run.output_dir is not None:
            weights, output = Path(checkpoint).resolve(), Path(self.run.output_dir).resolve()
            if output in (weights, *weights.parents):
                raise InputError(
                    f"--resume_from_checkpoint {checkpoint} lies in --output_dir {self.run.output_dir}: "
                    "with --load_model_weights_only the new run needs a directory of its own"
                )
        if optimisation.adam_epsilon is None and optimisation.optimizer not in ("sgd", "adafactor"):
            self._fill_in(optimisation=replace(optimisation, adam_epsilon=EPSILON))
        if self.model.config_path is None:
            config_path = shipped_config(self.task_class.default_config)
            self._fill_in(model=replace(self.model, config_path=config_path))
        super().__post_init__()

    @property
    def default_rate(self) -> float:
        return LAMB_RATE if self.optimisation.is_lamb else SCRATCH_RATE

    @property
    def start(self) -> str:
        return self.model.config_path

    @property
    def trains(self) -> bool:
        return True

    @property
    def resumed(self) -> str | None:
        return None if self.load_model_weights_only else self.run.resume_from_checkpoint

    @property
    def data_dir(self) -> str:
        return self.shards.data_dir

    @property
    def task_class(self) -> type[Pretraining]:
        return TASKS[self.task]

    def _make_task(self) -> Pretraining:
        place = Place(self.data_dir, limits={"train": self.batches.n_train, "val": self.batches.n_val})
        weights = self.run.resume_from_checkpoint if self.load_model_weights_only else None
        return self.task_class(place, self.task_options, self.training, weights, self.run.seed)


def parse_pretraining_arguments(argv: Sequence[str] | None = None) -> PretrainingArguments:
    """Read run_pretraining.py's command line, and the YAML file that it may name."""
    name = early_option(sys.argv[1:] if argv is None else argv, "task", Denoising.name)
    task = TASKS.get(name, Denoising)
    return parse_dataclass(
        PretrainingArguments,
        argv,
        "Pretrain BART, or BERT, on shards of text.",
        parts={"task_options": task.Options, "training": task.TrainingOptions},
        defaults=DEFAULTS,
    )
