"""Checks of the tensors that networks are given, with errors that name them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bart.errors import InputError, in_short


def check_tensors(**inputs: object) -> None:
    """Raise InputError for an input that is neither None nor a tensor, such as a text."""
    for name, value in inputs.items():
        if value is not None and not isinstance(value, Tensor):
            raise InputError(
                f"{name} is {in_short(value)}; allowed: a tensor, for ids of a text "
                "tokenizer(text, return_tensors='pt')['input_ids']"
            )


def check_ids(name: str, ids: Any, size: int, soft: bool = False, /, **alike: Tensor | None) -> Tensor:
    """The ids, if (B, S) and below size, or if soft embeddings (B, S, D), and others (B, S); else InputError."""
    check_tensors(**{name: ids})
    if ids is None:
        raise InputError(f"forward() needs {name}, and got none")
    is_embedded = soft and ids.dim() == 3 and ids.is_floating_point()
    if not is_embedded and (ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64)):
        raise InputError(f"{name} are {ids.dtype} {tuple(ids.shape)}; allowed: integers (texts, length)")
    for beside, value in alike.items():
        check_shape(beside, value, ids.shape[:2], name)
    if is_embedded or ids.device.type != "cpu" or not ids.numel():
        return ids
    least, most = map(int, ids.aminmax())
    if least < 0 or most >= size:
        raise InputError(f"{name} hold {least} to {most}; allowed: ids from 0 to {size - 1}")
    return ids


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


def check_shape(name: str, value: Any, shape: torch.Size, beside: str) -> None:
    """Raise InputError for a tensor of another shape than that of what it stands beside, or no tensor."""
    check_tensors(**{name: value})
    if value is not None and value.shape != shape:
        raise InputError(f"{name} is {tuple(value.shape)}; allowed: {tuple(shape)}, as {beside}")
