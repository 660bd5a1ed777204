"""What tasks of pretraining share: shards of text, and a whole network that is trained on them."""

from __future__ import annotations

import dataclasses
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from bart.errors import InputError
from bart.modeling.pretrained import PretrainedModel
from utils.app.cli import fixed, option
from utils.data.batches import Inputs
from utils.data.noise import Noise
from utils.data.options import DataOptions
from utils.data.pairs import collate_pairs
from utils.data.shard_format import TOKENIZER
from utils.data.shards import Manifest, ShardExamples, StreamedShards
from utils.models import loading, model_to_train
from utils.models.loading import check_lengths
from utils.models.model_to_train import ModelOptions
from utils.tasks.task import Task


@dataclass(frozen=True)
class PretrainingOptions(ModelOptions):
    """The options of run_pretraining.py: a whole network is trained, from random weights or from those of a run."""

    model_name_or_path: str = fixed(model_to_train.SCRATCH)
    config_path: str | None = option(
        None,
        section="model",
        help=f"JSON with the architecture, and decoding options for the export; by default "
        f"{model_to_train.DEFAULT_CONFIG}, of mlm_nsp configs/bert_base.json",
    )
    tokenizer: str | None = option(
        None, help="vocabulary that the shards' own must be equal to: a Hub name or directory; by default it is that"
    )
    max_source_length: int | None = option(
        None, section="data", least=3, help="tokens of the longest example; by default as the shards have it"
    )

    new_vocabulary: bool = fixed(False)
    freeze_embeds: bool = fixed(False)
    freeze_encoder: bool = fixed(False)
    distill: str | None = fixed(None)
    layers: str | None = fixed(None)
    do_encoder: bool = fixed(False)
    do_decoder: bool = fixed(False)
    lora_rank: int | None = fixed(None)
    lora_alpha: float | None = fixed(None)
    lora_dropout: float | None = fixed(None)
    lora_targets: tuple[str, ...] | None = fixed(None)


Options = TypeVar("Options", bound=PretrainingOptions)


class Pretraining(Task[Options], Generic[Options]):
    """Examples of shards, with noise, to what they were.

    The noise of a training example is another one in every epoch, that of a validation example always the same.

    Args:
        weights: checkpoint file, run directory, export or Hub name to take the initial weights from; None for random
            ones.
        seed: of the noise.
    """

    name: ClassVar[str]  # of the task, in the manifest of its shards

    def __init__(self, options: Options, data: DataOptions, weights: str | None = None, seed: int = 0) -> None:
        self.manifest = manifest = Manifest.read(data.data_dir)
        length = options.max_source_length or manifest.sequence_length
        super().__init__(dataclasses.replace(options, max_source_length=length), data)
        self.weights, self.seed = weights, seed
        where = options.tokenizer or manifest.directory / TOKENIZER
        if manifest.task != self.name:
            raise InputError(
                f"--data_dir {data.data_dir}: its shards are for --task {manifest.task}, and --task is {self.name}"
            )
        self.tokenizer = self.model_class.tokenizer_class.from_pretrained(where)
        manifest.check(self.tokenizer, length)
        check_lengths(self.options.config(), max_source_length=length)

    def default_metric(self) -> str:
        return "loss"

    # ---- Data

    @abstractmethod
    def noise(self) -> Noise:
        """What makes examples of the rows of shards."""

    @cached_property
    def _noise(self) -> Noise:
        return self.noise()

    def read(self, split: str, for_scoring: bool = False) -> str:
        """The split's name: the manifest is read, and its files are checked, when the task is made."""
        return split

    def encode(self, raw: str, split: str) -> StreamedShards | ShardExamples:
        if split == "train":
            return StreamedShards(self.manifest, self._noise, self.data.limit(split))
        return ShardExamples(self.manifest, split, self._noise, self.data.limit(split))

    def collate(self, examples: Sequence[Any]) -> Inputs:
        return collate_pairs(examples, self.tokenizer.pad_token_id)

    # ---- Model

    def initial_model(self) -> PretrainedModel:
        return model_to_train.pretraining_model(self.options, self.model_class, self.tokenizer, self.weights)

    def resumed_model(self, checkpoint: Path) -> PretrainedModel:
        model, _ = model_to_train.resumed_model(self.options, checkpoint, [self.model_class])
        loading.fit_vocabulary(model, self.tokenizer)
        return model

    def trained_model(
        self, path: str | os.PathLike[str], config_path: str | None = None, tokenizer: str | None = None
    ) -> PretrainedModel:
        model, self.tokenizer = loading.load_for_evaluation(path, config_path, tokenizer, [self.model_class])
        return model

    # ---- Prediction

    def _unscored(self, *_: Any) -> NoReturn:
        raise InputError(f"{self.name} predicts nothing: its figures are those of validation")

    predict = score = row = settings = _unscored
