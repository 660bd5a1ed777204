"""The options of the model that a run trains: its origin, its computation, its adaptation in fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bart.errors import InputError
from utils.app.cli import card_option, changeable, option

if TYPE_CHECKING:
    from bart.configuration.configuration import ModelConfig

SCRATCH = "scratch"  # what --model_name_or_path calls random weights
DEFAULT_CONFIG = "configs/config.json"
DROPOUTS = ("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop")
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
LORA_DEFAULT = ("q_proj", "v_proj")  # Hu et al. (2021), section 7.1
dropout_option = partial(option, None, least=0, most=0.99, on_resume="by_content")


@dataclass(frozen=True)
class NewModelOptions:
    """The model that pretraining starts from, whose weights are random or those of an earlier run."""

    model_name_or_path: str | None = option(
        None,
        section="model",
        help="initial weights: a Hub name, Hub-format or run directory, or checkpoint file; by default random ones",
        on_resume="by_content",
    )
    config_path: str | None = option(
        None,
        help="JSON with architecture and decoding options; by default the weights' own, of random ones "
        f"{DEFAULT_CONFIG}, or configs/bert_base.json in BERT's pretraining",
        on_resume="by_content",
    )
    activation_checkpointing: bool = changeable(
        False, help="compute activations again in the backward pass: less memory, a third more time"
    )
    dropout: float | None = dropout_option(
        section="regularisation", help="of embeddings and layer outputs; by default the config's", in_card=True
    )
    attention_dropout: float | None = dropout_option(help="of attention weights; by default the config's", in_card=True)
    encoder_layerdrop: float | None = dropout_option(help="chance to skip an encoder layer; by default the config's")
    decoder_layerdrop: float | None = dropout_option(help="chance to skip a decoder layer; by default the config's")
    # Fields of `ModelOptions`; an annotation would place them here on the command line.
    new_vocabulary = freeze_embeds = freeze_encoder = False
    distill = lora_rank = lora_scale = None

    @property
    def is_scratch(self) -> bool:
        """True if the weights are random."""
        return self.model_name_or_path in (None, SCRATCH)

    def config(self, kinds: Sequence[type[ModelConfig]]) -> ModelConfig:
        """The config of --config_path or of the weights, with the dropouts that are given in place of its own."""
        from bart.configuration.configuration import stored_configs
        from utils.models.loading import read_config  # here, because --help needs no torch

        if self.config_path is not None:
            config = read_config(self.config_path, kinds)
        elif (config := stored_configs(self.model_name_or_path, kinds)[0]) is None:
            raise InputError(f"--model_name_or_path {self.model_name_or_path}: no config there; give --config_path")
        for name in DROPOUTS:
            value = getattr(self, name)
            if value is not None and name not in config.dropouts:
                raise InputError(f"--{name} is {value}; {config.model_types[0]} has no such dropout")
            if value is not None:
                setattr(config, config.dropouts[name], value)
        return config


@dataclass(frozen=True)
class ModelOptions(NewModelOptions):
    """The model that fine-tuning starts from, and what it changes: frozen parts, layers left out, adapters."""

    model_name_or_path: str = option(
        "facebook/bart-large",
        section="model",
        help="initial weights: a Hub name, Hub-format or run directory, checkpoint file, or 'scratch' for random ones",
    )
    tokenizer: str | None = option(
        None, section="model", help="vocabulary: a Hub name or directory; by default that of the weights"
    )
    new_vocabulary: bool = option(False, help="allow another --tokenizer; token embeddings then start anew")
    freeze_embeds: bool = card_option(False, help="do not train token and position embeddings")
    freeze_encoder: bool = card_option(False, help="do not train the encoder")
    distill: str | None = card_option(
        None, choices=("sft",), help="sft starts from some --layers of the weights (Shleifer & Rush, 2020)"
    )
    layers: str | None = card_option(None, help="numbers of the layers that --distill keeps, from 0 on, such as 0-6-11")
    do_encoder: bool = option(False, help="let --distill shrink the encoder")
    do_decoder: bool = option(False, help="let --distill shrink the decoder")
    lora_rank: int | None = card_option(
        None,
        section="LoRA",
        least=1,
        help="train only adapters, of this rank (Hu et al., 2021); they are merged into the export",
    )
    lora_alpha: float | None = card_option(
        None, above=0, help="scale of the adapters times their rank; by default twice the rank"
    )
    lora_dropout: float | None = card_option(None, least=0, most=0.99, help="of the adapters' inputs; by default 0")
    lora_targets: tuple[str, ...] | None = card_option(
        None,
        choices=LORA_TARGETS,
        metavar="LAYER",
        help=f"layers that get adapters, from {', '.join(LORA_TARGETS)}; by default {' '.join(LORA_DEFAULT)}",
    )

    def __post_init__(self) -> None:
        if self.new_vocabulary and (self.is_scratch or self.tokenizer is None):
            raise InputError(f"--new_vocabulary needs --tokenizer, and a --model_name_or_path that is not {SCRATCH}")
        for owner, value, names in (
            ("--distill sft", self.distill, ("layers", "do_encoder", "do_decoder")),
            ("--lora_rank", self.lora_rank, ("lora_alpha", "lora_dropout", "lora_targets")),
        ):
            for name in names:
                if value is None and getattr(self, name):
                    raise InputError(f"--{name} is about {owner}, which is not given")
        if self.distill is not None and (self.layers is None or not self.shrunk_stacks):
            raise InputError("--distill sft needs --layers, and --do_encoder, --do_decoder or both")
        for name in ("freeze_embeds", "lora_rank"):
            if self.new_vocabulary and getattr(self, name):
                raise InputError(f"--new_vocabulary and --{name} exclude each other: new embeddings must be trained")
        for name in ("distill", "lora_rank"):
            if self.is_scratch and getattr(self, name):
                raise InputError(f"--{name} is about trained weights; --model_name_or_path is {SCRATCH}")

    @property
    def shrunk_stacks(self) -> list[str]:
        return [name for name, is_shrunk in (("encoder", self.do_encoder), ("decoder", self.do_decoder)) if is_shrunk]

    @property
    def kept_layers(self) -> list[int]:
        try:
            layers = [int(number) for number in (self.layers or "").split("-")]
            if sorted(set(layers)) != layers:
                raise ValueError
        except ValueError:
            raise InputError(f"--layers is {self.layers!r}; allowed: rising numbers such as 0-6-11") from None
        return layers

    @property
    def lora_scale(self) -> float | None:
        """The factor of the product of an adapter's matrices; None without LoRA."""
        return None if self.lora_rank is None else (self.lora_alpha or 2 * self.lora_rank) / self.lora_rank

    def config(self, kinds: Sequence[type[ModelConfig]]) -> ModelConfig:
        """See `NewModelOptions.config`; InputError for options about what a network of this config has not."""
        config = super().config(kinds)
        architecture = config.model_types[0]
        if self.new_vocabulary and "bart" not in config.model_types:
            raise InputError(f"--new_vocabulary takes a model of bart; this one is {architecture}")
        for name in self.shrunk_stacks:
            if name not in config.depths:
                raise InputError(f"--do_{name} is given; {architecture} has no {name}")
            count = getattr(config, config.depths[name])
            if max(self.kept_layers) >= count:
                raise InputError(f"--layers is {self.layers}; the {name} has {count} layers, allowed: 0 to {count - 1}")
        if self.lora_rank is not None and self.lora_rank > config.d_model:
            raise InputError(f"--lora_rank is {self.lora_rank}; allowed: at most {config.d_model}, its d_model")
        return config
