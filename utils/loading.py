"""A model and the tokenizer that belongs to it, from what a command line names."""

from __future__ import annotations

import logging
import os

import torch

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.generation import GenerationConfig
from bart.modeling.checkpoint import stored_config
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import SCRATCH

logger = logging.getLogger(__name__)


def load_for_training(
    model_name_or_path: str, config: BartConfig, tokenizer_path: str | None
) -> tuple[BartForConditionalGeneration, BartTokenizer]:
    """Initial weights and their vocabulary for a training run.

    The config gives the architecture and the decoding defaults. Its vocabulary size gives way to that of the weights,
    and from scratch to that of the tokenizer.

    Raises:
        InputError: no tokenizer can be found, or vocabulary, weights and config do not fit together.
    """
    if model_name_or_path == SCRATCH:
        if tokenizer_path is None:
            raise InputError(
                "--model_name_or_path scratch needs --tokenizer; `python -m utils.data.train_tokenizer` makes one"
            )
        tokenizer = BartTokenizer.from_pretrained(tokenizer_path)
        if config.vocab_size != len(tokenizer):
            logger.info("vocab_size: %d from the tokenizer, not the config's %d", len(tokenizer), config.vocab_size)
            config.vocab_size = len(tokenizer)
        config.validate()
        model = BartForConditionalGeneration(config)
    else:
        tokenizer = BartTokenizer.from_pretrained(tokenizer_path or model_name_or_path)
        stored = stored_config(model_name_or_path)
        if stored is not None and stored.vocab_size != config.vocab_size:
            logger.info("vocab_size: %d from the weights, not the config's %d", stored.vocab_size, config.vocab_size)
            config.vocab_size = stored.vocab_size
        model = BartForConditionalGeneration.from_pretrained(model_name_or_path, config)
    fit_vocabulary(model, tokenizer)
    return model, tokenizer


def load_for_evaluation(
    model_name_or_path: str | os.PathLike[str],
    config_path: str | os.PathLike[str] | None,
    tokenizer_path: str | None = None,
) -> tuple[BartForConditionalGeneration, BartTokenizer]:
    """A trained model and its vocabulary.

    A checkpoint that carries its architecture keeps it; the config then gives the decoding options alone. Without a
    config the checkpoint's own serve.
    """
    tokenizer = BartTokenizer.from_pretrained(tokenizer_path or model_name_or_path)
    if config_path is None:
        model = BartForConditionalGeneration.from_pretrained(model_name_or_path)
        fit_vocabulary(model, tokenizer)
        return model, tokenizer
    config = BartConfig.from_json(config_path)
    stored = stored_config(model_name_or_path)
    model = BartForConditionalGeneration.from_pretrained(model_name_or_path, stored or config)
    model.generation_config = GenerationConfig.from_model_config(config)
    fit_vocabulary(model, tokenizer)
    return model, tokenizer


def for_inference(model: BartForConditionalGeneration, precision: str) -> BartForConditionalGeneration:
    """The model laid out to generate in one of `utils.arguments.PRECISIONS`; tf32 is fp32 with faster products."""
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    return model.for_inference("fp32" if precision == "tf32" else precision)


def fit_vocabulary(model: BartForConditionalGeneration, tokenizer: BartTokenizer) -> None:
    """Check that every id of the tokenizer has its row in the model, and that special ids and lengths agree.

    facebook/bart-large-cnn and -xsum were published without a row for `<mask>`, their vocabulary's last id; that row
    is added.

    Raises:
        InputError: the vocabulary does not fit the model.
    """
    config = model.config
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(config, name) != getattr(tokenizer, name):
            raise InputError(
                f"the vocabulary does not fit the model: {name} is {getattr(tokenizer, name)} in the tokenizer and "
                f"{getattr(config, name)} in the model"
            )
    if len(tokenizer) == config.vocab_size + 1 and tokenizer.mask_token_id == config.vocab_size:
        model.resize_token_embeddings(len(tokenizer))
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the vocabulary does not fit the model: the tokenizer has {len(tokenizer)} ids, the model's vocab_size is "
            f"{config.vocab_size}"
        )
    tokenizer.model_max_length = config.max_position_embeddings


def check_lengths(config: BartConfig, **options: int | None) -> None:
    """Raise InputError for an option that asks for more positions than the model has."""
    for name, value in options.items():
        if value is not None and value > config.max_position_embeddings:
            raise InputError(
                f"--{name} is {value}; the model has {config.max_position_embeddings} positions "
                "(max_position_embeddings of the config)"
            )


def check_gpus(gpus: int) -> None:
    """Raise InputError when the machine has fewer GPUs than asked for."""
    if gpus > torch.cuda.device_count():
        raise InputError(
            f"--gpus is {gpus}; this machine has {torch.cuda.device_count()} CUDA devices (--gpus 0 runs on the CPU)"
        )
