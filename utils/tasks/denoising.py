"""Denoising, which BART is pretrained by: the original text is to be told from a corrupted one (Lewis et al., 2020)."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import IGNORE_INDEX, BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils import loading
from utils.cli import fixed, option
from utils.data.batches import Batch, Inputs
from utils.data.corruption import Corruption, CorruptionOptions
from utils.data.options import DataOptions
from utils.data.pairs import collate_pairs
from utils.data.shard_format import TOKENIZER
from utils.data.shards import Manifest, ShardExamples, StreamedShards
from utils.loading import ModelOptions, check_lengths
from utils.tasks.task import Task
from utils.tasks.text_to_text import summed_loss


@dataclass(frozen=True)
class DenoisingOptions(ModelOptions, CorruptionOptions):
    """The options of run_pretraining.py: a whole network is trained, from random weights or from those of a run."""

    model_name_or_path: str = fixed(loading.SCRATCH)
    config_path: str | None = option(
        None,
        section="model",
        help=f"JSON with the architecture, and decoding options for the export; by default {loading.DEFAULT_CONFIG}",
    )
    tokenizer: str | None = option(
        None, help="vocabulary that the shards' own must be equal to: a Hub name or directory; by default it is that"
    )
    pre_ln: bool = option(
        True, section="model", help="normalise before each sublayer, not behind it, whatever the config says"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        CorruptionOptions.__post_init__(self)

    def config(self) -> BartConfig:
        config = super().config()
        config.pre_ln = self.pre_ln
        return config


class Denoising(Task[DenoisingOptions]):
    """Corrupted examples of shards to the original ones.

    The corruption of a training example is another one in every epoch, that of a validation example always the same.

    Args:
        weights: checkpoint file, run directory, export or Hub name to take the initial weights from; None for random
            ones.
        seed: of the corruption.
    """

    Options = DenoisingOptions
    figures: ClassVar[Mapping[str, str]] = {"accuracy": "max", "perplexity": "min"}
    tokenizer: BartTokenizer

    def __init__(self, options: DenoisingOptions, data: DataOptions, weights: str | None = None, seed: int = 0) -> None:
        self.manifest = manifest = Manifest.read(data.data_dir)
        length = options.max_source_length or manifest.sequence_length
        super().__init__(dataclasses.replace(options, max_source_length=length), data)
        self.weights, self.seed = weights, seed
        self.tokenizer = BartTokenizer.from_pretrained(options.tokenizer or manifest.directory / TOKENIZER)
        manifest.check(self.tokenizer, length)
        check_lengths(self.options.config(), max_source_length=length)

    def default_metric(self) -> str:
        return "loss"

    # ---- Data

    @cached_property
    def corruption(self) -> Corruption:
        return Corruption(self.options, self.tokenizer, self.seed)

    def read(self, split: str, for_scoring: bool = False) -> str:
        """The split's name: the manifest is read, and its files are checked, when the task is made."""
        return split

    def encode(self, raw: str, split: str) -> StreamedShards | ShardExamples:
        if split == "train":
            return StreamedShards(self.manifest, self.corruption, self.data.limit(split))
        return ShardExamples(self.manifest, split, self.corruption, self.data.limit(split))

    def collate(self, examples: Sequence[Any]) -> Inputs:
        return collate_pairs(examples, self.tokenizer.pad_token_id)

    # ---- Model

    def initial_model(self) -> BartForConditionalGeneration:
        return loading.pretraining_model(self.options, self.tokenizer, self.weights)

    def resumed_model(self, checkpoint: Path) -> BartForConditionalGeneration:
        model, _ = loading.resumed_model(self.options, checkpoint)
        loading.fit_vocabulary(model, self.tokenizer)
        return model

    def trained_model(
        self, path: str | os.PathLike[str], config_path: str | None = None, tokenizer: str | None = None
    ) -> BartForConditionalGeneration:
        model, self.tokenizer = loading.load_for_evaluation(path, config_path, tokenizer)
        return model

    def checkpoint_parts(self, model: BartForConditionalGeneration) -> dict[str, Any]:
        return loading.checkpoint_parts(model, self.tokenizer)

    def export(self, checkpoint: Path, directory: Path) -> None:
        BartForConditionalGeneration.from_pretrained(checkpoint).save_pretrained(directory, self.tokenizer)

    # ---- Training and validation

    def count(self, batch: Inputs) -> Tensor:
        return (batch["labels"] != IGNORE_INDEX).sum()

    def operations(self, model: BartForConditionalGeneration, batch: Batch) -> float:
        (_, source), (_, target) = (batch.inputs[name].shape for name in ("input_ids", "labels"))
        return model.training_operations(source, target) * batch.tokens / (source + target)

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

    # ---- Prediction

    def _unscored(self, *_: Any) -> NoReturn:
        raise InputError("denoising predicts nothing: its figures are those of validation")

    predict = score = row = settings = _unscored
