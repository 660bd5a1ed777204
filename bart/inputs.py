"""Checks of the tensors that networks are given, with errors that name them.

Shapes: B batch, S length.
"""

from __future__ import annotations

from textwrap import shorten

import torch
from torch import Tensor

from bart.errors import InputError


def check_tensors(**inputs: object) -> None:
    """Raise InputError for an input that is neither None nor a tensor, such as a text."""
    for name, value in inputs.items():
        if value is not None and not isinstance(value, Tensor):
            raise InputError(
                f"{name} is {in_short(value)}; allowed: a tensor, for ids of a text "
                "tokenizer(text, return_tensors='pt')['input_ids']"
            )


def check_ids(name: str, ids: Tensor | None, vocab_size: int, **same_shape: Tensor | None) -> None:
    """Raise InputError unless ids are (B, S) integers, of the vocabulary as far as the CPU can tell at once.

    Args:
        same_shape: other inputs by name, which have the shape of the ids, or are None.
    """
    check_tensors(**{name: ids}, **same_shape)
    if ids is None:
        raise InputError(f"forward() needs {name}, and got none")
    if ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{name} are {ids.dtype} {tuple(ids.shape)}; allowed: integers (texts, length)")
    for beside, value in same_shape.items():
        check_shape(beside, value, ids.shape, name)
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or not ids.numel():  # nor exporting
        return
    try:
        least, most = map(int, ids.aminmax())
    except RuntimeError:  # in `torch.func.vmap`, and of fake tensors, no number can be read
        return
    if least < 0 or most >= vocab_size:
        raise InputError(f"{name} hold {least} to {most}; allowed: ids from 0 to {vocab_size - 1}")


def check_shape(name: str, value: Tensor | None, shape: torch.Size, beside: str) -> None:
    """Raise InputError for a tensor of another shape than that of what it stands beside."""
    if value is not None and value.shape != shape:
        raise InputError(f"{name} is {tuple(value.shape)}; allowed: {tuple(shape)}, as {beside}")


def in_short(value: object) -> str:
    """A value of the wrong kind, in short."""
    return f"{type(value).__name__} {shorten(repr(value), 40)}"
