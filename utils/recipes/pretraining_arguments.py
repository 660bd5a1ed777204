"""The options of run_pretraining.py; names and defaults are those of NVIDIA's example where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError, naming
from utils.app.cli import changeable, early_option, option, parse_dataclass
from utils.app.run_directory import LAST
from utils.app.stores import fetch
from utils.data.options import Place, ShardOptions
from utils.data.shard_format import DENOISING, MANIFEST
from utils.recipes.training_arguments import TrainingArguments
from utils.tasks.options import MOST_OF_TEXT, PRETRAINING
from utils.training.options import FINE_TUNING_RATE, LAMB_RATE, SCRATCH_RATE

if TYPE_CHECKING:
    from utils.tasks.pretraining import Pretraining

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


@dataclass(frozen=True, kw_only=True)
class PretrainingArguments(TrainingArguments):
    """All options of run_pretraining.py."""

    shards: ShardOptions
    task: str = option(
        DENOISING,
        section="run",
        choices=tuple(PRETRAINING),
        help="denoising trains BART; mlm trains BERT, mlm_nsp trains it with next sentences, too",
    )
    load_model_weights_only: bool = changeable(
        False,
        help="start a new run, such as the second phase, from the weights of --resume_from_checkpoint: a checkpoint "
        "file, run directory or export",
    )

    def __post_init__(self) -> None:
        optimisation, checkpoint = self.optimisation, self.run.resume_from_checkpoint
        if optimisation.max_steps < 1:
            raise InputError("--max_steps is not given; allowed: at least 1, the optimizer steps of the run")
        if self.load_model_weights_only and checkpoint in (None, LAST):
            raise InputError(
                f"--load_model_weights_only needs --resume_from_checkpoint with a checkpoint, run directory or export; "
                f"it is {checkpoint}"
            )
        if self.load_model_weights_only and self.model.model_name_or_path is not None:
            raise InputError("--model_name_or_path and --load_model_weights_only exclude each other: both give weights")
        if self.load_model_weights_only and self.run.output_dir is not None:
            weights, output = Path(checkpoint).resolve(), Path(self.run.output_dir).resolve()
            if output in (weights, *weights.parents):
                raise InputError(
                    f"--resume_from_checkpoint {checkpoint} lies in --output_dir {self.run.output_dir}: "
                    "with --load_model_weights_only the new run needs a directory of its own"
                )
        if optimisation.adam_epsilon is None and optimisation.optimizer not in ("sgd", "adafactor"):
            self._fill_in(optimisation=replace(optimisation, adam_epsilon=EPSILON))
        if self.model.model_name_or_path is not None and self.run.num_sanity_val_steps is None:
            self._fill_in(run=replace(self.run, num_sanity_val_steps=-1))
        if self.model.config_path is None and self.model.model_name_or_path is None:
            self._fill_in(model=replace(self.model, config_path=self.task_class.default_config))
        weights = self.model.model_name_or_path
        of_adam = FINE_TUNING_RATE if weights or self.load_model_weights_only else SCRATCH_RATE
        rate = LAMB_RATE if optimisation.is_lamb else of_adam
        self._complete(rate, (weights or self.model.config_path).removesuffix("/export"))

    @property
    def resumed(self) -> str | None:
        return None if self.load_model_weights_only else self.run.resume_from_checkpoint

    def make_task(self) -> Pretraining:
        from utils.app.distributed import told_by_first
        from utils.corpora.make_shards import is_text, shards_of_text
        from utils.models.loading import check_lengths, own_vocabulary

        self.check_metric(self.task_class.metrics)
        weights = self.run.resume_from_checkpoint if self.load_model_weights_only else self.model.model_name_or_path
        shards = replace(self.shards, data_dir=fetch(self.shards.data_dir))
        data_dir, options = shards.data_dir, self.task_options
        if is_text(data_dir):
            with naming(f"--task {self.task}"):  # before shards are made, which take a while
                config = self.model.config(self.task_class.config_classes())
            most = min(MOST_OF_TEXT, config.max_position_embeddings)
            options = replace(options, max_source_length=options.max_source_length or most)
            check_lengths(config, max_source_length=options.max_source_length)
            if weights is None and options.tokenizer is None:
                raise InputError(
                    f"--data_dir {data_dir}: {MANIFEST} is missing, which shards have; to read it as text, give "
                    "--model_name_or_path or --tokenizer"
                )
            read = self.task_class.model_classes[0].tokenizer_class.from_pretrained
            tokenizer = own_vocabulary(weights or options.tokenizer, options.tokenizer, read)
            of_text = shards, tokenizer, self.task, options.max_source_length
            data_dir = told_by_first(f"shards of {of_text[::2]}", lambda: shards_of_text(*of_text))
        elif given := [name for name in ("val_ratio", "text_field", "cache_dir") if getattr(self.shards, name)]:
            raise InputError(
                f"--{given[0]} is {getattr(self.shards, given[0])}, which is about text; --data_dir {data_dir} holds "
                "shards, or nothing"
            )
        place = Place(data_dir, limits={"train": self.batches.n_train, "val": self.batches.n_val})
        return self.task_class(place, options, self.training, weights, self.run.seed)


def parse_pretraining_arguments(argv: Sequence[str] | None = None) -> PretrainingArguments:
    """Read run_pretraining.py's command line, and the YAML file that it may name."""
    options, noise = PRETRAINING.get(early_option(argv, "task", DENOISING), PRETRAINING[DENOISING])
    return parse_dataclass(
        PretrainingArguments,
        argv,
        "Pretrain BART, or BERT, on text or on shards of text.",
        parts={"task_options": options, "training": noise},
        defaults=DEFAULTS,
        of_tasks=PRETRAINING,
    )
