"""Translation, scored by BLEU and chrF; from a language that BART does not know, with an encoder of its own for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bart.configuration.configuration import stored_configs
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.files import PathName
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.tables import Pairs
from utils.metrics.bleu import translation_scores
from utils.models import loading
from utils.models.loading import LoadedBart
from utils.models.options import ModelOptions
from utils.tasks.options import OPTIONS
from utils.tasks.task import Prediction, Scores
from utils.tasks.text_to_text import TextToText

# What the first stage trains (Lewis et al., 2020, section 3.4): the new encoder, BART's positions, and the input
# projection of the self-attention of its encoder's first layer.
STAGE_1 = (
    "model.encoder.embed_tokens.",
    "model.encoder.embed_positions.",
    "model.decoder.embed_positions.",
    *(f"model.encoder.layers.0.self_attn.{name}_proj." for name in "qkv"),
)


class Translation(TextToText):
    """Sentences to their translations. Validation reports the loss alone, since corpus BLEU is no mean."""

    Options, TrainingOptions, EvalOptions = OPTIONS["translation"]
    pipeline = "translation"

    def look_at(self, references: Sequence[str]) -> None:
        self.options.bleu.warn_of_scripts(references)

    # ---- Model

    def config(self, model: ModelOptions) -> BartConfig:
        training = self.training
        if training.translation_stage == 1 and (model.freeze_embeds or model.freeze_encoder or model.lora_rank):
            raise InputError("--translation_stage 1 excludes --freeze_embeds, --freeze_encoder and --lora_rank")
        config = super().config(model)
        if training.source_encoder_layers is not None:
            config.source_encoder_layers = training.source_encoder_layers
            config.source_vocab_size = len(BartTokenizer.from_pretrained(training.source_tokenizer))
        elif not model.is_scratch:
            stored = stored_configs(model.model_name_or_path, [BartConfig])[0]
            if stored is not None and stored.source_encoder_layers:  # of the first stage
                config.source_encoder_layers = stored.source_encoder_layers
                config.source_vocab_size = stored.source_vocab_size
        if training.translation_stage is not None and not config.source_encoder_layers:
            raise InputError("--translation_stage needs --source_encoder_layers, or weights that have such layers")
        config.validate()
        return config

    def initial_model(
        self, model: ModelOptions, learned: tuple[str, ...] | None, checkpoint: Path | None = None
    ) -> LoadedBart:
        place = checkpoint or self.training.source_tokenizer or model.model_name_or_path
        return self._with_sources(super().initial_model(model, learned, checkpoint), place)

    def trained_model(self, path: PathName, config_path: str | None = None, tokenizer: str | None = None) -> LoadedBart:
        return self._with_sources(super().trained_model(path, config_path, tokenizer), path)

    def _with_sources(self, loaded: LoadedBart, place: PathName) -> LoadedBart:
        """Freeze the model as its stage wants it, and add the vocabulary of its sources."""
        if self.training.translation_stage == 1:
            for name, parameter in loaded.model.named_parameters():
                parameter.requires_grad_(name.startswith(STAGE_1))
        if not loaded.model.config.source_encoder_layers:
            return loaded
        return replace(loaded, source_tokenizer=loading.source_vocabulary(place, loaded.model.config))

    # ---- Prediction

    def score(self, raw: Pairs, predictions: Sequence[Prediction], loaded: LoadedBart) -> Scores:
        texts = [prediction.values["texts"][0] for prediction in predictions]
        return dict(translation_scores(texts, raw[1], self.options.bleu.bleu_tokenize)), {}
