"""A model and the vocabulary that belongs to it, from what a command line names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from bart.configuration.configuration import ModelConfig, kind_of, stored_configs
from bart.configuration.configuration_bart import BartConfig
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError, naming
from bart.files import PathName, read_json
from bart.hub import resolve
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.modeling.pretrained import PretrainedModel
from bart.tensor_files import read_file
from bart.tokenization.tokenization_bart import BartTokenizer
from bart.tokenization.tokenizer import OtherTokenizer, PretrainedTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.app.machine import ROOT

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=PretrainedModel)
SOURCE_TOKENIZER, SOURCE_TOKENIZER_JSON = "source_tokenizer", "source_tokenizer_json"  # in exports, and in checkpoints


@dataclass(frozen=True)
class LoadedModel(Generic[Model]):
    """A model, and what belongs to it."""

    model: Model
    tokenizer: PretrainedTokenizer
    source_tokenizer: PretrainedTokenizer | None = None  # where sources have a vocabulary of their own
    lora_scale: float | None = None  # the factor of the product of an adapter's matrices
    decoder: Model | None = None  # a copy for inference, which generates in the model's place

    @property
    def labels(self) -> list[str]:
        return self.model.config.labels


LoadedBart = LoadedModel[BartForConditionalGeneration]


def read_config(path: PathName, kinds: Sequence[type[ModelConfig]]) -> ModelConfig:
    """A config.json of one of some architectures; where there is no such file, one of ours in `configs/`."""
    shipped = ROOT / path
    fields = read_json(shipped if shipped.exists() and not Path(path).exists() else Path(path))
    with naming(path):
        return kind_of(fields, kinds)(**fields)


def class_for(config: ModelConfig, model_classes: Sequence[type[Model]]) -> type[Model]:
    return next(model_class for model_class in model_classes if isinstance(config, model_class.config_class))


def checkpoint_parts(loaded: LoadedModel) -> dict[str, Any]:
    """The parts of a checkpoint by which, besides weights, a model and its vocabularies can be made of it alone."""
    model, sources = loaded.model, loaded.source_tokenizer
    return {
        "config": model.config.to_dict(),
        "generation_config": None if model.generation_config is None else model.generation_config.to_dict(),
        "tokenizer_json": loaded.tokenizer.to_json(),
        **({} if sources is None else {SOURCE_TOKENIZER_JSON: sources.to_json()}),
        "lora_scale": loaded.lora_scale,
    }


def export(loaded: LoadedModel, model_class: type[Model], checkpoint: Path, directory: Path) -> None:
    """Write a checkpoint's model in Hub format; its class is given, since fsdp replaces that of the loaded one."""
    model_class.from_pretrained(checkpoint).save_pretrained(directory, loaded.tokenizer)
    if loaded.source_tokenizer is not None:
        loaded.source_tokenizer.save_pretrained(directory / SOURCE_TOKENIZER)


def load_for_evaluation(
    model_name_or_path: PathName,
    config_path: PathName | None,
    tokenizer_path: str | None = None,
    model_classes: Sequence[type[Model]] = (BartForConditionalGeneration,),
) -> tuple[Model, PretrainedTokenizer]:
    """A trained model and its vocabulary; the config gives the architecture and decoding options that it lacks."""
    kinds = [candidate.config_class for candidate in model_classes]
    config = None if config_path is None else read_config(config_path, kinds)
    stored = stored_configs(model_name_or_path, kinds)[0]
    known = config if stored is None else stored
    model_class = model_classes[0] if known is None else class_for(known, model_classes)
    tokenizer = own_vocabulary(model_class, model_name_or_path, tokenizer_path)
    model = model_class.from_pretrained(model_name_or_path, config if stored is None else None, new_head=False)
    if config is not None and model.generation_config is not None:
        given = GenerationConfig.from_model_config(config.to_dict())
        if not model.generation_config.choices():
            model.generation_config = given
        elif given.choices() != model.generation_config.choices():
            logger.info("decoding options of %s are not used: the model has its own", config_path)
    fit_vocabulary(model, tokenizer)
    return model, tokenizer


def vocabulary_at(model_class: type[PretrainedModel], path_or_name: PathName) -> PretrainedTokenizer:
    """The vocabulary at a place for a model: of its usual kind, or BERT's, which Chinese BART has."""
    try:
        return model_class.tokenizer_class.from_pretrained(path_or_name)
    except OtherTokenizer as error:
        try:
            return BertTokenizer.from_pretrained(path_or_name)
        except OtherTokenizer:
            raise error from None


def own_vocabulary(
    model_class: type[PretrainedModel], name: PathName, tokenizer_path: str | None, remedy: str = ""
) -> PretrainedTokenizer:
    """The vocabulary that lies with the weights, or the same at another place; an error ends with the remedy."""
    if tokenizer_path is None:
        return vocabulary_at(model_class, name)
    tokenizer = vocabulary_at(model_class, tokenizer_path)
    check_vocabulary(tokenizer, f"--tokenizer {tokenizer_path}", model_class, name, f"; leave off --tokenizer{remedy}")
    return tokenizer


def check_vocabulary(
    tokenizer: PretrainedTokenizer, given: str, model_class: type[PretrainedModel], name: PathName, remedy: str = ""
) -> None:
    """Raise InputError, which begins with `given`, where another vocabulary lies with the weights of a model."""
    try:
        stored = vocabulary_at(model_class, name)
    except InputError:  # none lies with the weights
        return
    if tokenizer.get_vocab() != stored.get_vocab():
        sizes = f"({len(tokenizer)} ids) than that of {name} ({len(stored)} ids)"
        raise InputError(f"{given} is another vocabulary {sizes}{remedy}")


def source_vocabulary(path_or_name: PathName, config: BartConfig) -> BartTokenizer:
    """The vocabulary of sources: one for itself, or that which lies with a model that has one for them."""
    path = Path(path_or_name)
    if path.is_file() and path.suffix == ".ckpt":
        content = read_file(path)
        if SOURCE_TOKENIZER_JSON not in content:
            raise InputError(f"{path}: no vocabulary of the sources in it")
        tokenizer = BartTokenizer.from_json(content[SOURCE_TOKENIZER_JSON], source=str(path))
    else:
        files = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json")
        folder = resolve(path_or_name, [*(f"{SOURCE_TOKENIZER}/{name}" for name in files), *files])
        beside_model = folder / SOURCE_TOKENIZER
        tokenizer = BartTokenizer.from_pretrained(beside_model if beside_model.is_dir() else folder)
    if (len(tokenizer), tokenizer.pad_token_id) != (config.source_vocab_size, config.pad_token_id):
        raise InputError(
            f"the vocabulary of the sources has {len(tokenizer)} ids and pads with {tokenizer.pad_token_id}; the "
            f"model's source_vocab_size is {config.source_vocab_size}, its pad_token_id {config.pad_token_id}"
        )
    return tokenizer


def for_inference(model: Model, precision: str) -> Model:
    """The model laid out for prediction in a precision of `utils.app.machine`; tf32 is fp32 with faster products."""
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    return model.for_inference("fp32" if precision == "tf32" else precision)


def fit_vocabulary(model: PretrainedModel, tokenizer: PretrainedTokenizer) -> None:
    """Check that every id of the tokenizer has its row in the model, and that special ids agree.

    facebook/bart-large-cnn and -xsum were published without a row for `<mask>`, their vocabulary's last id; that row
    is added.
    """
    config = model.config
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if name in config.types and getattr(config, name) != getattr(tokenizer, name):
            raise InputError(
                f"the vocabulary does not fit the model: {name} is {getattr(tokenizer, name)} in the tokenizer and "
                f"{getattr(config, name)} in the model"
            )
    adds_mask = isinstance(config, BartConfig) and tokenizer.mask_token_id == config.vocab_size
    if adds_mask and len(tokenizer) == config.vocab_size + 1:
        model.resize_token_embeddings(len(tokenizer))
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the vocabulary does not fit the model: the tokenizer has {len(tokenizer)} ids, the model's vocab_size is "
            f"{config.vocab_size}"
        )
    tokenizer.model_max_length = config.max_position_embeddings


def check_lengths(config: ModelConfig, **options: int | None) -> None:
    """Raise InputError for an option that asks for more positions than the model has."""
    for name, value in options.items():
        if value is not None and value > config.max_position_embeddings:
            raise InputError(
                f"--{name} is {value}; the model has {config.max_position_embeddings} positions "
                "(max_position_embeddings of the config)"
            )
