"""Tasks of pretraining: shards of text, and a whole network that is trained on them."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bart.errors import InputError
from utils.data.batches import Inputs
from utils.data.noise import Noise
from utils.data.options import ALL, MOST_HELD_OUT, Place
from utils.data.shard_format import TOKENIZER
from utils.data.shards import Manifest, ShardExamples, StreamedShards
from utils.models.loading import LoadedModel
from utils.models.model_to_train import initial_model
from utils.models.options import NewModelOptions
from utils.tasks.options import PretrainingOptions
from utils.tasks.task import Model, TrainedTask

logger = logging.getLogger(__name__)


class Pretraining(TrainedTask[Model]):
    """Examples of shards, with noise, to what they were."""

    Options = PretrainingOptions
    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "max", "perplexity": "min"}
    name: ClassVar[str]  # of the task, in the manifest of its shards

    def __init__(self, place: Place, options: Any = None, training: Any = None, seed: int = 0) -> None:
        super().__init__(place, options, training)
        self.manifest = Manifest.read(place.data_dir)
        if self.manifest.task != self.name:
            raise InputError(f"--task is {self.name}; the shards in {place.data_dir} are for {self.manifest.task}")
        length = self.options.max_source_length or self.manifest.sequence_length
        self.options = replace(self.options, max_source_length=length)
        vocabulary = self.options.tokenizer or self.manifest.directory / TOKENIZER
        self.tokenizer = self.model_classes[0].tokenizer_class.from_pretrained(vocabulary)
        self.manifest.check(self.tokenizer, length)
        self.noise = self.make_noise(seed)

    def metrics_for(self, learned: None) -> Sequence[str]:
        return "loss", *self.metrics

    # ---- Data

    @abstractmethod
    def make_noise(self, seed: int) -> Noise:
        """The noise that makes examples of the rows of shards."""

    def read(self, split: str, for_scoring: bool = False) -> str:
        return split  # the manifest is read, and its files are checked, when the task is made

    def encode(
        self, raw: str, split: str, loaded: LoadedModel[Model], for_scoring: bool = False
    ) -> StreamedShards | ShardExamples:
        limit = self.place.chosen(split)[1].limit
        if split == "train":
            return StreamedShards(self.manifest, self.noise, limit)
        held_out = sum(shard.examples for shard in self.manifest.shards(split))
        if limit == ALL and held_out > MOST_HELD_OUT:
            limit = MOST_HELD_OUT
            logger.info(f"validation takes {limit:,} of {held_out:,} held-out examples; --n_val {held_out} takes all")
        return ShardExamples(self.manifest, split, self.noise, limit)

    # ---- Model

    def initial_model(
        self, model: NewModelOptions, learned: None, checkpoint: Path | None = None
    ) -> LoadedModel[Model]:
        of_shards = {"source_length": self.options.max_source_length, "of_shards": self.tokenizer}
        return initial_model(model, self.config(model), self.model_classes, checkpoint=checkpoint, **of_shards)

    # ---- Training and validation

    @abstractmethod
    def output_of(self, model: Model, batch: Inputs) -> Any:
        """The output of the network: `loss` is the sum over the targets, and `correct` how many of them are right."""

    def loss(self, model: Model, batch: Inputs) -> Tensor:
        return self.output_of(model, batch).loss

    @property
    def is_recordable(self) -> bool:
        return True

    def validate(self, loaded: LoadedModel[Model], batch: Inputs) -> Tensor:
        """Sums (3,): loss, targets, and targets that are the likeliest token where they stand."""
        output = self.output_of(loaded.model, batch)
        return torch.stack([output.loss.double(), self.count(loaded.model, batch).double(), output.correct.double()])

    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel[Model]) -> dict[str, float]:
        loss, targets, correct = sums
        mean = loss / targets
        return {"loss": mean, "accuracy": correct / targets, "perplexity": math.exp(min(mean, 700))}
