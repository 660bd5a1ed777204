"""Translation, scored by BLEU and chrF; from a language that BART does not know, with an encoder of its own for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.checkpoint import stored_configs
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.cli import option
from utils.data.parallel_text import Pairs
from utils.metrics.bleu import translation_scores
from utils.models import loading
from utils.tasks.task import Prediction, Scores
from utils.tasks.text_to_text import TextToText, TextToTextOptions

# What the first stage trains (Lewis et al., 2020, section 3.4): the new encoder, BART's positions, and the input
# projection of the self-attention of its encoder's first layer.
STAGE_1 = (
    "model.encoder.embed_tokens.",
    "model.encoder.embed_positions.",
    "model.decoder.embed_positions.",
    *(f"model.encoder.layers.0.self_attn.{name}_proj." for name in "qkv"),
)


@dataclass(frozen=True)
class TranslationOptions(TextToTextOptions):
    """The options of finetune.py."""

    source_encoder_layers: int | None = option(
        None,
        section="source language",
        least=1,
        help="put a new encoder of so many layers, with --source_tokenizer, in place of the encoder's token embeddings",
    )
    source_tokenizer: str | None = option(None, help="vocabulary of the sources: a Hub name or directory")
    translation_stage: int | None = option(
        None,
        least=1,
        most=2,
        help="1 trains the new encoder, the positions, and the first layer's input projection; 2 all; by default all",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source_encoder_layers is None) != (self.source_tokenizer is None):
            raise InputError(
                f"--source_encoder_layers is {self.source_encoder_layers}, --source_tokenizer is "
                f"{self.source_tokenizer}: give both or neither"
            )
        if self.translation_stage == 1 and (self.freeze_embeds or self.freeze_encoder or self.lora_rank):
            raise InputError(
                "--translation_stage 1 freezes what it does not train; --freeze_embeds, --freeze_encoder and "
                "--lora_rank exclude it"
            )

    def config(self) -> BartConfig:
        config = super().config()
        if self.source_encoder_layers is not None:
            config.source_encoder_layers = self.source_encoder_layers
            config.source_vocab_size = len(BartTokenizer.from_pretrained(self.source_tokenizer))
        elif not self.is_scratch and (self.translation_stage is not None or Path(self.model_name_or_path).exists()):
            stored = stored_configs(self.model_name_or_path)[0]
            if stored is not None and stored.source_encoder_layers:  # of the first stage
                config.source_encoder_layers = stored.source_encoder_layers
                config.source_vocab_size = stored.source_vocab_size
        if self.translation_stage is not None and not config.source_encoder_layers:
            raise InputError(
                f"--translation_stage is {self.translation_stage}; it needs --source_encoder_layers, or weights that "
                "have an encoder of the source language"
            )
        config.validate()
        return config


class Translation(TextToText):
    """Sentences to their translations. Validation reports the loss alone, since corpus BLEU is no mean."""

    Options = TranslationOptions

    # ---- Model

    def initial_model(self) -> BartForConditionalGeneration:
        options = self.options
        return self._reading(super().initial_model(), options.source_tokenizer or options.model_name_or_path)

    def resumed_model(self, checkpoint: Path) -> BartForConditionalGeneration:
        return self._reading(super().resumed_model(checkpoint), checkpoint)

    def trained_model(
        self, path: str | os.PathLike[str], config_path: str | None = None, tokenizer: str | None = None
    ) -> BartForConditionalGeneration:
        return self._reading(super().trained_model(path, config_path, tokenizer), path)

    def _reading(
        self, model: BartForConditionalGeneration, where: str | os.PathLike[str]
    ) -> BartForConditionalGeneration:
        """The model, frozen as its stage wants it, and the vocabulary of its sources."""
        if model.config.source_encoder_layers:
            self.source_tokenizer = loading.source_vocabulary(where)
            loading.check_source_vocabulary(model.config, self.source_tokenizer)
        if getattr(self.options, "translation_stage", None) == 1:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.startswith(STAGE_1))
        return model

    def checkpoint_parts(self, model: BartForConditionalGeneration) -> dict[str, Any]:
        parts = super().checkpoint_parts(model)
        if model.config.source_encoder_layers:
            parts[loading.SOURCE_TOKENIZER_JSON] = self.source_tokenizer.to_json()
        return parts

    def export(self, checkpoint: Path, directory: Path) -> None:
        super().export(checkpoint, directory)
        if self.source_tokenizer is not self.tokenizer:
            self.source_tokenizer.save_pretrained(directory / loading.SOURCE_TOKENIZER)

    # ---- Prediction

    def score(self, raw: Pairs, predictions: Sequence[Prediction]) -> Scores:
        return dict(translation_scores([prediction.values["texts"][0] for prediction in predictions], raw[1])), {}
