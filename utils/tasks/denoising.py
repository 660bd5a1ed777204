"""Denoising, by which BART is pretrained: the original text is predicted from a corrupted one (Lewis et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from utils.app.cli import option
from utils.data.batches import Batch, Inputs
from utils.data.corruption import Corruption, CorruptionOptions
from utils.data.shard_format import DENOISING
from utils.models.loading import LoadedModel
from utils.models.options import NewModelOptions
from utils.tasks.pretraining import Pretraining, PretrainingOptions
from utils.tasks.text_to_text import operations_of, summed_loss


@dataclass(frozen=True)
class DenoisingOptions(PretrainingOptions):
    """The options of the task, apart from those of its noise."""

    pre_ln: bool = option(
        True,
        section="model",
        help="normalise before each sublayer, not behind it, whatever the config says",
        on_resume="by_content",
    )


class Denoising(Pretraining[BartForConditionalGeneration]):
    """Corrupted examples of shards to the original ones."""

    Options = DenoisingOptions
    TrainingOptions = CorruptionOptions
    name = DENOISING
    model_class = BartForConditionalGeneration
    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "max", "perplexity": "min"}

    def make_noise(self, seed: int) -> Corruption:
        return Corruption(self.training, self.tokenizer, seed)

    def config(self, model: NewModelOptions) -> BartConfig:
        config = super().config(model)
        config.pre_ln = self.options.pre_ln
        return config

    # ---- Training and validation

    def operations(self, model: BartForConditionalGeneration, batch: Batch) -> float:
        return operations_of(model, batch)

    def loss(self, model: BartForConditionalGeneration, batch: Inputs) -> Tensor:
        return summed_loss(model, batch).loss

    def validate(self, loaded: LoadedModel[BartForConditionalGeneration], batch: Inputs) -> Tensor:
        """Sums (3,): loss, targets, and targets that are the likeliest token after the original's own prefix."""
        output = summed_loss(loaded.model, batch)
        return torch.stack([output.loss.double(), self.count(batch).double(), output.correct.double()])

    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel[BartForConditionalGeneration]) -> dict[str, float]:
        loss, targets, correct = sums
        mean = loss / targets
        return {"loss": mean, "accuracy": correct / targets, "perplexity": math.exp(min(mean, 700))}
