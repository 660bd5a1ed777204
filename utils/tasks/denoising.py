"""Denoising, which BART is pretrained by: the original text is to be told from a corrupted one (Lewis et al., 2020)."""

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
from utils.tasks.pretraining import Pretraining, PretrainingOptions
from utils.tasks.text_to_text import operations_of, summed_loss


@dataclass(frozen=True)
class DenoisingOptions(PretrainingOptions, CorruptionOptions):
    """The options of run_pretraining.py."""

    pre_ln: bool = option(
        True, section="model", help="normalise before each sublayer, not behind it, whatever the config says"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        CorruptionOptions.__post_init__(self)

    def config(self) -> BartConfig:
        config = super().config()
        config.pre_ln = self.pre_ln
        return config


class Denoising(Pretraining[DenoisingOptions]):
    """Corrupted examples of shards to the original ones."""

    Options = DenoisingOptions
    name = DENOISING
    model_class = BartForConditionalGeneration
    figures: ClassVar[Mapping[str, str]] = {"accuracy": "max", "perplexity": "min"}

    def noise(self) -> Corruption:
        return Corruption(self.options, self.tokenizer, self.seed)

    # ---- Training and validation

    def operations(self, model: BartForConditionalGeneration, batch: Batch) -> float:
        return operations_of(model, batch)

    def loss(self, model: BartForConditionalGeneration, batch: Inputs) -> Tensor:
        return summed_loss(model, batch).loss

    def validate(self, model: BartForConditionalGeneration, batch: Inputs) -> Tensor:
        """Sums (3,): loss, targets, and targets that are the likeliest token after the original's own prefix."""
        output = summed_loss(model, batch)
        return torch.stack([output.loss.double(), self.count(batch).double(), output.correct.double()])

    def figures_of(self, sums: Sequence[float]) -> dict[str, float]:
        loss, targets, correct = sums
        mean = loss / targets
        return {"loss": mean, "accuracy": correct / targets, "perplexity": math.exp(min(mean, 700))}
