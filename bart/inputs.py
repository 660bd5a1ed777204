"""Checks of the tensors that networks are given, with errors that name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from bart.errors import InputError

# Arguments of transformers that have no counterpart here, with the values at which they change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = dict.fromkeys(
    "inputs_embeds decoder_inputs_embeds position_ids past_key_values encoder_hidden_states encoder_attention_mask "
    "head_mask decoder_head_mask cross_attn_head_mask output_attentions output_hidden_states text_target "
    "text_pair_target stride return_overflowing_tokens return_length return_special_tokens_mask pad_to_multiple_of "
    "is_split_into_words".split(),
    (None, False),
)
_NEUTRAL |= dict.fromkeys(("use_cache", "verbose"), (None, False, True))
_NEUTRAL |= {"padding_side": (None, "right"), "return_attention_mask": (None, True), "return_token_type_ids": (None,)}


def check_tensors(**inputs: object) -> None:
    """Raise InputError for an input that is neither None nor a tensor, such as a text."""
    for name, value in inputs.items():
        if value is not None and not isinstance(value, Tensor):
            raise InputError(
                f"{name} is {in_short(value)}; allowed: a tensor, for ids of a text "
                "tokenizer(text, return_tensors='pt')['input_ids']"
            )


def check_ids(name: str, ids: Tensor | None, vocab_size: int, **same_shape: Tensor | None) -> Tensor:
    """The ids, if (B, S) integers of the vocabulary, as far as the CPU tells, and others alike; else InputError."""
    check_tensors(**{name: ids}, **same_shape)
    if ids is None:
        raise InputError(f"forward() needs {name}, and got none")
    if ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{name} are {ids.dtype} {tuple(ids.shape)}; allowed: integers (texts, length)")
    for beside, value in same_shape.items():
        check_shape(beside, value, ids.shape, name)
    if ids.device.type != "cpu" or not ids.numel():
        return ids
    least, most = map(int, ids.aminmax())
    if least < 0 or most >= vocab_size:
        raise InputError(f"{name} hold {least} to {most}; allowed: ids from 0 to {vocab_size - 1}")
    return ids


def check_others(owner: str, known: Iterable[str], others: Mapping[str, Any]) -> None:
    """Raise InputError for arguments that are not known, but for transformers' at values that change nothing."""
    check_recorded(others)
    for name, value in others.items():
        if not isinstance(value, (bool, int, str, type(None))) or value not in _NEUTRAL.get(name, ()):
            raise InputError(f"{owner} got {name}, which is {in_short(value)}; allowed: {', '.join(known)}")


def check_recorded(options: Mapping[str, Any]) -> None:
    """Raise InputError for arguments or fields of a config that ask for hidden states or attention weights."""
    for name in ("output_hidden_states", "output_attentions"):
        if options.get(name) not in (None, False):
            raise InputError(f"{name} is {options[name]!r}; allowed: False; use transformers on the exported model")


def states_of(encoder_outputs: Any) -> Tensor | None:
    """An encoder's states (B, S, D), given alone or in an output or a tuple that begins with them; else InputError."""
    if isinstance(encoder_outputs, (tuple, list)) and encoder_outputs:
        encoder_outputs = encoder_outputs[0]
    states = getattr(encoder_outputs, "last_hidden_state", encoder_outputs)
    check_tensors(encoder_outputs=states)
    if states is not None and (states.dim() != 3 or not states.is_floating_point()):
        got = f"{states.dtype} {tuple(states.shape)}"
        raise InputError(f"encoder_outputs are {got}; allowed: an encoder's states (texts, length, d_model)")
    return states


def check_shape(name: str, value: Tensor | None, shape: torch.Size, beside: str) -> None:
    """Raise InputError for a tensor of another shape than that of what it stands beside."""
    if value is not None and value.shape != shape:
        raise InputError(f"{name} is {tuple(value.shape)}; allowed: {tuple(shape)}, as {beside}")


def in_short(value: object) -> str:
    """A value of the wrong kind, in short."""
    return f"{type(value).__name__} {shorten(repr(value), 40)}"
