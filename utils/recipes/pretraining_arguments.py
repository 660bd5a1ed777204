"""The options of run_pretraining.py; names and defaults are those of NVIDIA's example where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        optimisation = self.optimisation
        if optimisation.max_steps < 1:
            raise InputError("--max_steps is not given; allowed: at least 1, the optimizer steps of the run")
        if optimisation.adam_epsilon is None and optimisation.optimizer not in ("sgd", "adafactor"):
            self._fill_in(optimisation=replace(optimisation, adam_epsilon=EPSILON))
        if not self.model.is_scratch and self.run.num_sanity_val_steps is None:
            self._fill_in(run=replace(self.run, num_sanity_val_steps=-1))
        if self.load_model_weights_only:  # NVIDIA's way to give --model_name_or_path
            weights = self.run.resume_from_checkpoint
            if weights in (None, LAST) or not self.model.is_scratch:
                raise InputError(
                    "--load_model_weights_only needs --resume_from_checkpoint with a checkpoint, run directory or "
                    f"export, which is {weights}, in place of --model_name_or_path"
                )
            steps = self.run.num_sanity_val_steps or 0
            self._fill_in(
                run=replace(self.run, resume_from_checkpoint=None, num_sanity_val_steps=steps),
                model=replace(self.model, model_name_or_path=weights),
                load_model_weights_only=False,
            )
        of_adam = SCRATCH_RATE if self.model.is_scratch else FINE_TUNING_RATE
        self._complete(LAMB_RATE if optimisation.is_lamb else of_adam)

    def make_task(self) -> Pretraining:
        from utils.app.distributed import told_by_first
        from utils.corpora.make_shards import is_text, shards_of_text
        from utils.models.loading import check_lengths, check_vocabulary

        self.check_metric(self.task_class.metrics)
        shards = replace(self.shards, data_dir=fetch(self.shards.data_dir))
        data_dir, options = shards.data_dir, self.task_options
        if is_text(data_dir):
            with naming(f"--task {self.task}"):  # before shards are made, which take a while
                config = self.model.config(self.task_class.config_classes())
            most = min(MOST_OF_TEXT, config.max_position_embeddings)
            options = replace(options, max_source_length=options.max_source_length or most)
            check_lengths(config, max_source_length=options.max_source_length)
            if self.model.is_scratch and options.tokenizer is None:
                raise InputError(
                    f"--data_dir {data_dir}: {MANIFEST} is missing, which shards have; to read it as text, give "
                    "--model_name_or_path or --tokenizer"
                )
            [model_class], weights = self.task_class.model_classes, self.model.model_name_or_path
            tokenizer = model_class.tokenizer_class.from_pretrained(options.tokenizer or weights)
            if not self.model.is_scratch:
                given = f"--tokenizer {options.tokenizer}"
                check_vocabulary(tokenizer, given, model_class, weights, "; leave off --tokenizer")
            of_text = shards, tokenizer, self.task, options.max_source_length
            data_dir = told_by_first(f"shards of {of_text[::2]}", lambda: shards_of_text(*of_text))
        elif given := [name for name in ("val_ratio", "text_field", "cache_dir") if getattr(self.shards, name)]:
            raise InputError(
                f"--{given[0]} is {getattr(self.shards, given[0])}, which is about text; --data_dir {data_dir} holds "
                "shards, or nothing"
            )
        place = Place(data_dir, limits={"train": self.batches.n_train, "val": self.batches.n_val})
        return self.task_class(place, options, self.training, self.run.seed)


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
