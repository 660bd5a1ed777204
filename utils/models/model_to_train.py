"""The model that a run trains, and how it begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from bart.configuration.configuration import ModelConfig, kind_of, stored_configs
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError, naming
from bart.modeling.pretrained import PretrainedModel
from bart.tensor_files import SHARDS, read_file
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.models.loading import (
    LoadedModel,
    Model,
    check_lengths,
    check_vocabulary,
    class_for,
    fit_vocabulary,
    own_vocabulary,
    vocabulary_at,
)
from utils.models.options import LORA_DEFAULT, NewModelOptions

logger = logging.getLogger(__name__)
# Parts of names of the fields that may differ between the config of a run and that of the weights it starts from.
NOT_OF_SHAPE = ("drop", "init")
# What a training checkpoint holds; a file that lacks one of these is something else.
CHECKPOINT_PARTS = {"config", "state_dict", "optimizer_states", "loops", "identity"}


def initial_model(
    options: NewModelOptions,
    config: ModelConfig,
    model_classes: Sequence[type[Model]],
    labels: Sequence[str] | None = None,
    new_head: bool = False,
    columns: Sequence[str] | Mapping[str, str] = (),
    checkpoint: Path | None = None,
    source_length: int | None = None,
    of_shards: PretrainedTokenizer | None = None,
) -> LoadedModel[Model]:
    """The model that a run starts from, or goes on from, and its vocabulary.

    Args:
        config: gives the architecture and the decoding defaults; the vocabulary's size is that of weights or tokenizer.
        labels: of a head. A head of the same labels keeps their order.
        new_head: whether to begin a new head even if the weights have one.
        columns: of the texts in the training data, or the options that named them, which the config then has.
        checkpoint: of training, to go on from. Weights, vocabulary, labels and columns are then its own.
        source_length: the most tokens of a source in training, which the config then has, since later positions are
            not trained; None for models with a head, whose config has what their task says.
        of_shards: the vocabulary of the shards that a model is pretrained on. Weights must have the same one, and the
            shape that the config says.
    """
    name, model_class = options.model_name_or_path, class_for(config, model_classes)
    check_lengths(config, max_source_length=source_length)
    if checkpoint is not None:
        return _resumed(checkpoint, options, config, model_class)
    logger.info("initial weights: %s", "random" if options.is_scratch else name)
    logger.info("architecture and decoding options: %s", options.config_path or f"those of {name}")
    stored, generation = (None, None) if options.is_scratch else stored_configs(name, [type(config)])
    if of_shards is not None:
        tokenizer = of_shards
        if not options.is_scratch:
            check_vocabulary(tokenizer, "that of the shards", model_class, name)
        elif len(tokenizer) > config.vocab_size:
            fault = f"the vocab_size of {options.config_path} is {config.vocab_size}"
            raise InputError(f"the shards' vocabulary has {len(tokenizer)} ids; {fault}")
    elif options.is_scratch or options.new_vocabulary:
        if options.tokenizer is None:
            raise InputError(
                "--model_name_or_path scratch needs --tokenizer; `python -m utils.corpora.train_tokenizer` makes one"
            )
        tokenizer = vocabulary_at(model_class, options.tokenizer)
    else:
        tokenizer = own_vocabulary(model_class, name, options.tokenizer, ", or give --new_vocabulary")
    if options.is_scratch:
        config.vocab_size = len(tokenizer)
    if stored is not None:
        config.vocab_size = stored.vocab_size
        if of_shards is not None:
            check_same_config(stored, config, f"--model_name_or_path {name}", apart_from=NOT_OF_SHAPE)
        if labels is not None and not new_head:
            labels = _labels_of_head(stored, labels, name)
    if labels is not None:
        config.labels = labels
    config.validate()
    if options.is_scratch:
        model = model_class(config)
    else:
        model = model_class.from_pretrained(name, config, new_head=new_head or None)
    if options.config_path is None and None not in (generation, model.generation_config):
        model.generation_config = generation
    if options.new_vocabulary:
        model.resize_token_embeddings(len(tokenizer), keep=False)
        logger.info("--new_vocabulary: random embeddings for %d tokens", len(tokenizer))
    model.config.extra.pop("columns", None)  # of the run that the weights come from
    if columns:
        model.config.columns = columns if isinstance(columns, Mapping) else list(columns)
    if source_length is not None:
        known = 0 if options.is_scratch else stored and stored.extra.get("max_source_length")
        model.config.extra.pop("max_source_length", None)  # --config_path may name the file of another model
        if known is not None:  # published weights have none
            model.config.max_source_length = max(known, source_length)
    if options.distill is not None:
        shrink(model, options.kept_layers, options.shrunk_stacks)
    return adapted(model, tokenizer, options)


def _labels_of_head(stored: ModelConfig, labels: Sequence[str], name: str) -> Sequence[str]:
    """The labels of the data in the order of the weights' head, unless it is of other ones; case does not count."""
    of_data = renamed(stored.labels, labels)
    if sorted(of_data) == sorted(labels):
        return of_data
    if not stored.has_unnamed_labels and len(stored.labels) == len(labels):
        raise InputError(
            f"--model_name_or_path {name}: its labels are {', '.join(stored.labels)}, and those of the data "
            f"are {', '.join(labels)}; --new_head begins another head"
        )
    return labels


def renamed(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Labels by those of some names that differ from them in case alone, where this mixes up none."""
    folded = {name.casefold(): name for name in names}
    alike = [folded.get(label.casefold(), label) for label in labels]
    is_clear = len(folded) == len(names) and len({*alike}) == len(labels)
    return alike if is_clear else list(labels)


def _resumed(
    checkpoint: Path, options: NewModelOptions, config: ModelConfig, model_class: type[Model]
) -> LoadedModel[Model]:
    """The model and vocabulary of a training checkpoint; the config is what the options ask for."""
    if options.distill is not None:  # weights that `shrink` left
        for name in options.shrunk_stacks:
            setattr(config, config.depths[name], len(options.kept_layers))
    content = read_file(checkpoint)
    if not content.keys() >= CHECKPOINT_PARTS:
        raise InputError(f"--resume_from_checkpoint {checkpoint}: not a training checkpoint of this program")
    with naming(f"--resume_from_checkpoint {checkpoint}"):
        stored = kind_of(content["config"], [type(config)])(**content["config"])
    config.vocab_size = stored.vocab_size  # weights or tokenizer gave it
    check_same_config(stored, config, f"--resume_from_checkpoint {checkpoint}")
    if SHARDS in content:  # of which each process takes its part once it knows the others
        model = model_class(stored)
        if content["generation_config"] is not None:
            model.generation_config = GenerationConfig.from_dict(content["generation_config"])
    else:
        model = model_class.from_pretrained(checkpoint, new_head=False)
    if options.config_path is not None and model.generation_config is not None:
        model.generation_config = GenerationConfig.from_model_config(config.to_dict())
    return adapted(model, vocabulary_at(model_class, checkpoint), options)


def check_same_config(stored: ModelConfig, config: ModelConfig, where: str, apart_from: Sequence[str] = ()) -> None:
    """Raise InputError where the config of stored weights is another one than this run's."""
    for name in config.types:
        old, new = getattr(stored, name), getattr(config, name)
        if old != new and not any(part in name for part in apart_from):
            raise InputError(f"{where}: its {name} is {old}, this run's is {new}")


def shrink(model: PretrainedModel, layers: Sequence[int], stacks: Sequence[str]) -> None:
    """Remove all layers but those of these numbers from the stacks (Shleifer & Rush, 2020, arXiv:2010.13002)."""
    for name in stacks:
        stack = getattr(model.network, name)
        stack.layers = nn.ModuleList([stack.layers[i] for i in layers])
        setattr(model.config, model.config.depths[name], len(layers))


def adapted(model: Model, tokenizer: PretrainedTokenizer, options: NewModelOptions) -> LoadedModel[Model]:
    """The model with frozen parts and adapters, which keeps and computes activations as the options say."""
    fit_vocabulary(model, tokenizer)
    network, table = model.network, model.get_input_embeddings()
    stacks = [getattr(network, name) for name in model.config.depths]  # a source encoder's positions are always trained
    if options.freeze_embeds:
        for embeddings in (table, *(stack.embed_positions for stack in stacks)):
            embeddings.requires_grad_(False)
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
    model.gradient_checkpointing_enable(enabled=options.activation_checkpointing)
    return LoadedModel(model, tokenizer, lora_scale=options.lora_scale)
