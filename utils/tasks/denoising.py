"""Denoising, by which BART is pretrained: the original text is predicted from a corrupted one (Lewis et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration, Seq2SeqOutput
from utils.app.cli import option
from utils.data.batches import Batch, Inputs
from utils.data.corruption import Corruption, CorruptionOptions
from utils.data.shard_format import DENOISING
from utils.models.options import NewModelOptions
from utils.tasks.pretraining import Pretraining, PretrainingOptions
from utils.tasks.text_to_text import operations_of, summed_loss

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class DenoisingOptions(PretrainingOptions):
    """The options of the task, apart from those of its noise."""

    pre_ln: bool | None = option(
        None,
        section="model",
        help="normalise before each sublayer, not behind it, whatever the config says; by default on, and with "
        "--model_name_or_path as the weights have it",
        on_resume="by_content",
    )


class Denoising(Pretraining[BartForConditionalGeneration]):
    """Corrupted examples of shards to the original ones."""

    Options = DenoisingOptions
    TrainingOptions = CorruptionOptions
    name = DENOISING
    model_class = BartForConditionalGeneration

    def make_noise(self, seed: int) -> Corruption:
        return Corruption(self.training, self.tokenizer, seed)

    def config(self, model: NewModelOptions) -> BartConfig:
        config = super().config(model)
        if self.options.pre_ln is not None or model.model_name_or_path is None:
            config.pre_ln = self.options.pre_ln is not False
        return config

    def fitted(self, config: BartConfig) -> Self:
        return super().fitted(config).with_parts(options=replace(self.options, pre_ln=config.pre_ln))

    # ---- Training and validation

    def operations(self, model: BartForConditionalGeneration, batch: Batch) -> float:
        return operations_of(model, batch)

    def output_of(self, model: BartForConditionalGeneration, batch: Inputs) -> Seq2SeqOutput:
        return summed_loss(model, batch)
