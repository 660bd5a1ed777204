"""Shrink and fine-tune: a smaller model from layers of a trained one (Shleifer & Rush, 2020, arXiv:2010.13002)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration


def check_layers(config: BartConfig, layers: Sequence[int], encoder: bool, decoder: bool) -> None:
    """Raise InputError where `--layers` names one that the stack to shrink does not have."""
    for name in ["encoder"] * encoder + ["decoder"] * decoder:
        count = getattr(config, f"{name}_layers")
        if max(layers) >= count:
            raise InputError(
                f"--layers is {'-'.join(map(str, layers))}; the {name} has {count} layers, allowed: 0 to {count - 1}"
            )


def shrink(model: BartForConditionalGeneration, layers: Sequence[int], encoder: bool, decoder: bool) -> None:
    """Remove all layers but those of these numbers from a model's encoder, decoder or both.

    Args:
        layers: rising numbers from 0 that pass `check_layers`.
    """
    network = model.model
    for stack in [network.encoder] * encoder + [network.decoder] * decoder:
        stack.layers = nn.ModuleList([stack.layers[i] for i in layers])
    set_layers(model.config, len(layers), encoder, decoder)


def set_layers(config: BartConfig, count: int, encoder: bool, decoder: bool) -> None:
    """Make a config describe the model that `shrink` leaves."""
    if encoder:
        config.encoder_layers = count
        config.extra.pop("num_hidden_layers", None)  # transformers' other name of encoder_layers
    if decoder:
        config.decoder_layers = count
