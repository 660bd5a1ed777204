"""The model that a run trains: its options, and how it begins."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import nn

from bart.configuration.configuration import ModelConfig, kind_of
from bart.configuration.configuration_bart import BartConfig
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError, naming
from bart.modeling.checkpoint import stored_configs
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.modeling.pretrained import PretrainedModel
from bart.tensor_files import read_file
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.cli import option
from utils.loading import Model, class_for, fit_vocabulary, own_vocabulary, read_config

logger = logging.getLogger(__name__)
SCRATCH = "scratch"  # what --model_name_or_path calls random weights
DEFAULT_CONFIG = "configs/config.json"
DROPOUTS = ("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop")
# Fields in which the weights that a run starts from may have been trained otherwise.
NOT_OF_SHAPE = (*DROPOUTS, "activation_dropout", "init_std", "hidden_dropout_prob", "attention_probs_dropout_prob")
NOT_OF_SHAPE += ("classifier_dropout", "initializer_range")
OF_HEADS = {"problem_type", "token_states"}  # what configs of models with a head say of it, besides its labels
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
LORA_DEFAULT = ("q_proj", "v_proj")  # Hu et al. (2021), section 7.1
# What a training checkpoint holds; a file that lacks one of these is something else.
CHECKPOINT_PARTS = {"config", "state_dict", "optimizer_states", "loops", "identity"}


@dataclass(frozen=True)
class ModelOptions:
    """The model that training starts from, and what of it is trained."""

    model_name_or_path: str = option(
        "facebook/bart-large",
        section="model",
        help="initial weights: a Hub name, Hub-format or run directory, checkpoint file, or 'scratch' for random ones",
    )
    config_path: str | None = option(
        None,
        help=f"JSON with architecture and decoding options; by default the weights' own, from scratch {DEFAULT_CONFIG}",
    )
    tokenizer: str | None = option(
        None, help="vocabulary: a Hub name or directory; by default the one that lies with the weights"
    )
    new_vocabulary: bool = option(
        False, help="let --tokenizer be another vocabulary than that of the weights; token embeddings start anew"
    )
    freeze_embeds: bool = option(False, help="do not train token and position embeddings")
    freeze_encoder: bool = option(False, help="do not train the encoder")
    distill: str | None = option(
        None,
        choices=("sft",),
        help="sft, shrink and fine-tune, starts from some --layers of the weights (Shleifer & Rush, 2020)",
    )
    layers: str | None = option(None, help="layers that --distill keeps, counted from 0, such as 0-6-11")
    do_encoder: bool = option(False, help="--distill shrinks the encoder")
    do_decoder: bool = option(False, help="--distill shrinks the decoder")
    activation_checkpointing: bool = option(
        False, help="recompute activations in the backward pass: less memory, a third more time"
    )
    compile: bool = option(
        False,
        help="train layers that torch.compile has compiled, which takes a minute or more; meant for GPUs, no faster on "
        "CPUs",
    )
    lora_rank: int | None = option(
        None,
        section="LoRA",
        least=1,
        help="train adapters of this rank and freeze all weights (Hu et al., 2021); the export has them merged in; by "
        "default all weights are trained",
    )
    lora_alpha: float | None = option(
        None, above=0, help="adapters are scaled by lora_alpha / lora_rank; by default twice the rank"
    )
    lora_dropout: float | None = option(None, least=0, most=0.99, help="of the adapters' inputs; by default 0")
    lora_targets: tuple[str, ...] | None = option(
        None,
        choices=LORA_TARGETS,
        metavar="LAYER",
        help=f"layers that get adapters, of {', '.join(LORA_TARGETS)}; by default {' '.join(LORA_DEFAULT)}",
    )
    dropout: float | None = option(
        None,
        section="regularisation",
        least=0,
        most=0.99,
        help="of embeddings and layer outputs; by default the config's",
    )
    attention_dropout: float | None = option(
        None, least=0, most=0.99, help="of attention weights; by default the config's"
    )
    encoder_layerdrop: float | None = option(
        None, least=0, most=0.99, help="chance to skip an encoder layer; by default the config's"
    )
    decoder_layerdrop: float | None = option(
        None, least=0, most=0.99, help="chance to skip a decoder layer; by default the config's"
    )

    new_head = False  # an option of those tasks whose head begins anew
    config_classes: ClassVar[tuple[type[ModelConfig], ...]] = (BartConfig,)  # of models that the task has a class for
    default_config = DEFAULT_CONFIG  # from scratch

    def __post_init__(self) -> None:
        if self.is_scratch and self.config_path is None:
            here = Path(self.default_config)  # as users see it, where the current folder is the repository
            root = Path(__file__).resolve().parents[1]
            object.__setattr__(self, "config_path", str(here if here.exists() else root / here))
        if self.new_vocabulary and (self.is_scratch or self.tokenizer is None):
            raise InputError(f"--new_vocabulary needs --tokenizer, and a --model_name_or_path that is not {SCRATCH}")
        for name in ("freeze_embeds", "lora_rank"):
            if self.new_vocabulary and getattr(self, name):
                raise InputError(f"--new_vocabulary and --{name} exclude each other: new embeddings must be trained")
        for owner, value, names in (
            ("--distill sft", self.distill, ("layers", "do_encoder", "do_decoder")),
            ("--lora_rank", self.lora_rank, ("lora_alpha", "lora_dropout", "lora_targets")),
        ):
            for name in names:
                if value is None and getattr(self, name):
                    raise InputError(f"--{name} is about {owner}, which is not given")
            if value is not None and self.is_scratch:
                raise InputError(
                    f"{owner} is about trained weights; --model_name_or_path is {SCRATCH}, which has none: name weights"
                )
        if self.distill is not None and (self.layers is None or not self.shrunk):
            raise InputError("--distill sft needs --layers, and --do_encoder, --do_decoder or both")
        if self.lora_rank is not None and importlib.util.find_spec("peft") is None:
            raise InputError(f"--lora_rank is {self.lora_rank}; it needs the package peft: pip install peft")

    @property
    def is_scratch(self) -> bool:
        """Whether training starts from random weights."""
        return self.model_name_or_path == SCRATCH

    @property
    def shrunk(self) -> list[str]:
        """The stacks that --distill shrinks."""
        return ["encoder"] * self.do_encoder + ["decoder"] * self.do_decoder

    @property
    def kept_layers(self) -> list[int]:
        """The layers that --distill keeps."""
        try:
            layers = [int(number) for number in (self.layers or "").split("-")]
            if sorted(set(layers)) != layers:
                raise ValueError
        except ValueError:
            raise InputError(f"--layers is {self.layers!r}; allowed: rising numbers such as 0-6-11") from None
        return layers

    @property
    def lora_scale(self) -> float | None:
        """What the product of an adapter's matrices is multiplied by; None without LoRA."""
        return None if self.lora_rank is None else (self.lora_alpha or 2 * self.lora_rank) / self.lora_rank

    def config(self) -> ModelConfig:
        """The config of --config_path or of the weights, with the dropouts that are given in place of its own.

        Raises:
            InputError: the file is no config, the weights have none, it is of an architecture that the task has no
                model of, or an option is about what it has not.
        """
        if self.config_path is not None:
            config = read_config(self.config_path, self.config_classes)
        elif (config := stored_configs(self.model_name_or_path, self.config_classes)[0]) is None:
            raise InputError(f"--model_name_or_path {self.model_name_or_path}: no config there; give --config_path")
        architecture = config.model_types[0]
        if self.new_vocabulary and not isinstance(config, BartConfig):
            raise InputError(f"--new_vocabulary is given; allowed with bart alone, and this model is {architecture}")
        for name in DROPOUTS:
            if (value := getattr(self, name)) is not None:
                if name not in config.dropouts:
                    raise InputError(f"--{name} is {value}; {architecture} has no such dropout")
                setattr(config, config.dropouts[name], value)
        for name in self.shrunk:
            if name not in config.depths:
                raise InputError(f"--do_{name} is given; {architecture} has no {name}")
            count = getattr(config, config.depths[name])
            if max(self.kept_layers) >= count:
                raise InputError(f"--layers is {self.layers}; the {name} has {count} layers, allowed: 0 to {count - 1}")
        if (self.lora_rank or 0) > config.d_model:
            raise InputError(
                f"--lora_rank is {self.lora_rank}; allowed: at most {config.d_model}, the config's d_model"
            )
        return config


def initial_model(
    options: ModelOptions,
    model_classes: Sequence[type[Model]] = (BartForConditionalGeneration,),
    labels: Sequence[str] | None = None,
) -> tuple[Model, PretrainedTokenizer]:
    """Initial weights and their vocabulary for a training run.

    The config gives the architecture and the decoding defaults. Its vocabulary size is replaced by that of the weights,
    or from scratch by that of the tokenizer.

    Args:
        model_classes: one for each architecture.
        labels: of a head; by default those of the weights. A head of the same labels keeps their order.

    Raises:
        InputError: no tokenizer can be found, or vocabulary, weights, labels and config do not fit together.
    """
    config, name = options.config(), options.model_name_or_path
    model_class = class_for(config, model_classes)
    logger.info("architecture and decoding options: %s", options.config_path or f"those of {name}")
    if options.is_scratch:
        if options.tokenizer is None:
            raise InputError(
                "--model_name_or_path scratch needs --tokenizer; `python -m utils.corpora.train_tokenizer` makes one"
            )
        tokenizer = model_class.tokenizer_class.from_pretrained(options.tokenizer)
        config.vocab_size = len(tokenizer)
        if labels is not None:
            config.labels = labels
        config.validate()
        model = model_class(config)
    else:
        stored, generation = stored_configs(name, [type(config)])
        if stored is not None:
            config.vocab_size = stored.vocab_size
            config.validate()
        if stored is not None and not options.new_head:
            own = OF_HEADS & stored.extra.keys() - config.extra.keys()
            config.extra.update({name: stored.extra[name] for name in own})
            if labels is None or sorted(stored.labels) == sorted(labels):
                labels = stored.labels
            elif not stored.has_unnamed_labels and len(stored.labels) == len(labels):
                raise InputError(
                    f"--model_name_or_path {name}: its labels are {', '.join(stored.labels)}, and those of the data "
                    f"are {', '.join(labels)}; --new_head begins another head"
                )
        if labels is not None:
            config.labels = labels
        if options.new_vocabulary:
            tokenizer = model_class.tokenizer_class.from_pretrained(options.tokenizer)
        else:
            remedy = ", or give --new_vocabulary"
            tokenizer = own_vocabulary(name, options.tokenizer, model_class.tokenizer_class, remedy)
        try:
            model = model_class.from_pretrained(name, config, new_head=options.new_head or None)
        except InputError as error:
            hint = "; --new_head begins it" if "its head has" in str(error) else ""
            raise InputError(f"{error}{hint}") from None
        if options.config_path is None and None not in (generation, model.generation_config):
            model.generation_config = generation
        if options.new_vocabulary:
            model.resize_token_embeddings(len(tokenizer), keep=False)
            logger.info("--new_vocabulary: random embeddings for %d tokens", len(tokenizer))
    fit_vocabulary(model, tokenizer)
    if options.distill is not None:
        shrink(model, options.kept_layers, options.shrunk)
    _prepare(model, options)
    return model, tokenizer


def resumed_model(
    options: ModelOptions, checkpoint: Path, model_classes: Sequence[type[Model]] = (BartForConditionalGeneration,)
) -> tuple[Model, PretrainedTokenizer]:
    """The model and vocabulary of a training checkpoint.

    Raises:
        InputError: the file is no training checkpoint, or its network has another shape than the options ask for.
    """
    config = options.config()
    if options.distill is not None:
        set_layers(config, len(options.kept_layers), options.shrunk)
    content = read_file(checkpoint)
    if not content.keys() >= CHECKPOINT_PARTS:
        raise InputError(f"--resume_from_checkpoint {checkpoint}: not a training checkpoint of this program")
    with naming(f"--resume_from_checkpoint {checkpoint}"):
        stored = kind_of(content["config"], [type(config)])(**content["config"])
    config.vocab_size = stored.vocab_size  # weights or tokenizer gave it
    config.labels = stored.labels  # the data did
    check_same_config(stored, config, checkpoint)
    model_class = class_for(config, model_classes)
    tokenizer = model_class.tokenizer_class.from_pretrained(checkpoint)
    model = model_class.from_pretrained(checkpoint, config, new_head=False)
    if options.config_path is None and model.generation_config is not None:
        model.generation_config = GenerationConfig.from_dict(content["generation_config"])
    fit_vocabulary(model, tokenizer)
    _prepare(model, options)
    return model, tokenizer


def pretraining_model(
    options: ModelOptions, model_class: type[Model], tokenizer: PretrainedTokenizer, weights: str | None
) -> Model:
    """A model to pretrain.

    Args:
        tokenizer: its vocabulary.
        weights: where initial weights are; None for random ones.

    Raises:
        InputError: there are no such weights, or vocabulary, weights and config do not fit together.
    """
    config = options.config()
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the vocabulary does not fit the config: the shards' has {len(tokenizer)} ids, and the vocab_size of "
            f"{options.config_path} is {config.vocab_size}"
        )
    config.vocab_size = len(tokenizer)
    config.validate()
    if weights is None:
        model = model_class(config)
    else:
        own = model_class.tokenizer_class.from_pretrained(weights)
        if not tokenizer.same_vocabulary(own):
            raise InputError(
                f"--resume_from_checkpoint {weights} has another vocabulary ({len(own)} ids) than the shards "
                f"({len(tokenizer)} ids)"
            )
        stored = stored_configs(weights, [type(config)])[0]
        if stored is not None:
            config.vocab_size = stored.vocab_size
            check_same_config(stored, config, weights, apart_from=NOT_OF_SHAPE)
        model = model_class.from_pretrained(weights, config)
        logger.info("initial weights: those of %s", weights)
    fit_vocabulary(model, tokenizer)
    _prepare(model, options)
    return model


def check_same_config(
    stored: ModelConfig, config: ModelConfig, where: str | os.PathLike[str], apart_from: Sequence[str] = ()
) -> None:
    """Raise InputError where the config of --resume_from_checkpoint is another one than that of this run."""
    for name in config.types:
        old, new = getattr(stored, name), getattr(config, name)
        if old != new and name not in apart_from:
            raise InputError(f"--resume_from_checkpoint {where}: its {name} is {old}, this run's is {new}")


def shrink(model: PretrainedModel, layers: Sequence[int], stacks: Sequence[str]) -> None:
    """Remove all layers but those of these numbers from the stacks (Shleifer & Rush, 2020, arXiv:2010.13002)."""
    for name in stacks:
        stack = getattr(model.network, name)
        stack.layers = nn.ModuleList([stack.layers[i] for i in layers])
    set_layers(model.config, len(layers), stacks)


def set_layers(config: ModelConfig, count: int, stacks: Sequence[str]) -> None:
    """Make a config describe the model that `shrink` leaves."""
    for name in stacks:
        setattr(config, config.depths[name], count)
        if name == "encoder":
            config.extra.pop("num_hidden_layers", None)  # transformers' other name of encoder_layers


def _prepare(model: PretrainedModel, options: ModelOptions) -> None:
    """Freeze what is not trained, add adapters, and set how activations are computed and kept."""
    network = model.network
    stacks = [getattr(network, name) for name in model.config.depths]
    table = model.get_input_embeddings()
    if options.freeze_embeds:
        for one in (table, *(stack.embed_positions for stack in stacks)):
            one.requires_grad_(False)
    if options.freeze_encoder:
        network.encoder.requires_grad_(False)
        if len(stacks) > 1:  # the token table belongs to the decoder and the head as well; --freeze_embeds freezes it
            table.requires_grad_(not options.freeze_embeds)
    if options.lora_rank is not None:
        from peft import LoraConfig, inject_adapter_in_model  # which takes seconds to load

        adapters = LoraConfig(
            r=options.lora_rank,
            lora_alpha=options.lora_scale * options.lora_rank,
            lora_dropout=options.lora_dropout or 0.0,
            target_modules=list(options.lora_targets or LORA_DEFAULT),
        )
        trained = [stack for stack in stacks if next(stack.layers.parameters()).requires_grad]
        if not trained:
            raise InputError("--freeze_encoder and --lora_rank exclude each other: bert has no other layers to adapt")
        inject_adapter_in_model(adapters, trained[0] if len(trained) == 1 else network)
    model.set_activation_checkpointing(options.activation_checkpointing)
    if options.compile:
        model.compile_layers()
