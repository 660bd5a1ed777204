"""Denoising, by which BART is pretrained: the original text is predicted from a corrupted one (Lewis et al., 2020)."""

from __future__ import annotations

from dataclasses import replace

from bart.configuration.configuration import stored_configs
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration, LogitsOutput
from utils.data.batches import Batch, Inputs, pairs_as_rows
from utils.data.corruption import Corruption
from utils.data.shard_format import DENOISING
from utils.models.options import NewModelOptions
from utils.tasks.options import PRETRAINING
from utils.tasks.pretraining import Pretraining
from utils.tasks.text_to_text import operations_of, summed_loss


class Denoising(Pretraining[BartForConditionalGeneration]):
    """Corrupted examples of shards to the original ones."""

    Options, TrainingOptions = PRETRAINING[DENOISING]
    name = DENOISING
    model_classes = (BartForConditionalGeneration,)

    def make_noise(self, seed: int) -> Corruption:
        return Corruption(self.training, self.tokenizer, seed)

    def config(self, model: NewModelOptions) -> BartConfig:
        config, pre_ln = super().config(model), self.options.pre_ln
        if pre_ln is None:
            pre_ln = model.is_scratch or (stored_configs(model.model_name_or_path, [BartConfig])[0] or config).pre_ln
        config.pre_ln = pre_ln
        return config

    def fitted(self, config: BartConfig) -> Denoising:
        return self.with_parts(options=replace(self.options, pre_ln=config.pre_ln))

    def as_rows(self, inputs: Inputs, multiple: int) -> Inputs:
        return pairs_as_rows(inputs, multiple)

    # ---- Training and validation

    def operations(self, model: BartForConditionalGeneration, batch: Batch) -> float:
        return operations_of(model, batch)

    def output_of(self, model: BartForConditionalGeneration, batch: Inputs) -> LogitsOutput:
        return summed_loss(model, batch)
