"""Hidden states and attention weights of a pass, recorded beside it, so that layers need not know of them.

Attention weights are computed a second time, in plain torch, from the queries and keys that the layers attend with: the
fast ways of the backends never hold them.

Shapes: B batch, S source length, T target length, L keys, D model width, H heads, Dh head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from bart.backend import TORCH
from bart.errors import InputError
from bart.modeling.pretrained import PretrainedModel


class Recording:
    """The states and the attention weights of each stack's layers in a pass.

    Args:
        model: its config tells by `output_hidden_states` and `output_attentions` what to record by default.
        hidden_states, attentions: true or false to record it or not; None for the config's choice.

    Raises:
        InputError: the model is a copy for inference, and attention weights are asked for; or it is in training, with
            another backend than plain torch.
    """

    def __init__(self, model: PretrainedModel, hidden_states: bool | None, attentions: bool | None) -> None:
        chosen = {"output_hidden_states": hidden_states, "output_attentions": attentions}
        for name, value in chosen.items():
            value = model.config.extra.get(name) if value is None else value
            if value not in (None, False, True):
                raise InputError(f"{name} is {value!r}; allowed: True, False")
            chosen[name] = bool(value)
            is_plain = model.backend is TORCH and not any(stack.compiled for stack in model.stacks)
            if value and model.training and not is_plain:
                raise InputError(f"{name} in training needs plain torch: no backend for a device, no compiled layers")
        records_states, records_weights = chosen.values()
        if records_weights and model.training and any(stack.activation_checkpointing for stack in model.stacks):
            raise InputError("output_attentions in training needs set_activation_checkpointing(False): it records once")
        if records_weights and model.is_packed:
            raise InputError("output_attentions: a copy for inference has none; use the model it was made from")
        self._values: dict[str, Callable[..., Tensor]] = {}  # by the names of layers' parts; "" is the layer
        if records_states:
            self._values[""] = lambda hidden, *_, **__: hidden
        if records_weights:
            self._values |= dict.fromkeys(("self_attn", "encoder_attn"), attention_weights)
        self._kept: dict[tuple[nn.Module, str], list[Tensor]] = {}

    @contextmanager
    def of(self, *stacks: nn.Module) -> Iterator[None]:
        """Record the passes of these stacks, in this thread, until the context ends."""
        with ExitStack() as hooks:
            for stack, name in product(stacks, self._values):
                keep = partial(self._keep, get_ident(), stack, name)
                for layer in stack.layers:
                    if (part := dict(layer.named_modules()).get(name)) is not None:
                        hooks.callback(part.register_forward_pre_hook(keep, with_kwargs=True).remove)
            yield

    def _keep(self, thread: int, stack: nn.Module, name: str, _: nn.Module, args: Any, options: dict[str, Any]) -> None:
        if get_ident() == thread:
            self._kept.setdefault((stack, name), []).append(self._values[name](*args, **options))

    def states(self, stack: nn.Module, last: Tensor) -> tuple[Tensor, ...] | None:
        """The input of each layer of a stack, (B, S, D) each, and the stack's last states."""
        return (*self._kept.get((stack, ""), ()), last) if "" in self._values else None

    def weights(self, stack: nn.Module, name: str = "self_attn") -> tuple[Tensor, ...] | None:
        """The weights (B, H, T, L) of each layer's attention of a name."""
        return tuple(self._kept.get((stack, name), ())) if name in self._values else None


def attention_weights(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """The weights (B, H, T, L) of scaled dot-product attention; arguments are those of `Backend.attend`.

    A query that may read no key has equal weights for all of them.
    """
    scores = query @ keys.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if is_causal:
        mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)
