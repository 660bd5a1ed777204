"""The seam of speed: what the network computes in other ways on other devices, here in plain torch.

Layers call a backend and know no device. `PretrainedModel.compute_with` gives a model a faster one when the model is
made ready for a device; `bart.cpu.backend` has that of CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bart.rows import Rows, Spans

# cuDNN's attention makes a plan for each shape, which takes 40 ms and more, and batches have many; in torch 2.11 it may
# round the rate of dropout to sixteenths.
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# What layers pass on: states (…, D), which are the residual stream; the same for products, perhaps in their precision;
# and the seed of the next dropout, where kernels pass it on.
Streams = tuple[Tensor, Tensor, Tensor | None]
Mask = Tensor | Spans | None  # of attention; see `Backend.attend`
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
BLOCK = 128  # columns, in the search for the best of many
IGNORE_INDEX = -100  # labels that are left out of a loss, as in torch.nn.functional.cross_entropy


def activated(states: Tensor, activation: str | None) -> Tensor:
    """The states after one of ACTIVATIONS, or after none."""
    return states if activation is None else ACTIVATIONS[activation](states)


class Backend:
    """Plain torch, for all devices. Backends for a device override what they compute faster."""

    joins_layers = False  # true while one product for many layers that read the same states is faster than one for each

    def rows_of(self, ids: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Rows | None:
        """The rows to compute of a padded batch, of ids (B, L), or embeddings, under a mask (B, L) of ones and zeros.

        None where all of it is computed; else the states of padding are zeros. dtype is that of the weights.
        """
        return None

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Mask, is_causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """Scaled dot-product attention (Vaswani et al., 2017, section 3.2.1).

        Args:
            query: (B, H, T, Dh).
            keys, values: (B, H, L, Dh).
            mask: a tensor (B or 1, 1, T or 1, L), true, or 0, where a key may be read, and false, or -inf, elsewhere;
                None; or spans, where B = 1.
            is_causal: in place of a tensor as mask, a query reads its text's keys up to its own position.
            dropout: the probability with which a weight is dropped.

        Returns:
            (B, H, T, Dh).
        """
        if isinstance(mask, Spans):
            return self._attend_padded(query, keys, values, mask, is_causal, dropout)
        with sdpa_kernel(WITHOUT_CUDNN) if query.is_cuda else nullcontext():
            return F.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
            )

    def _attend_padded(
        self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans, is_causal: bool, dropout: float
    ) -> Tensor:
        """Attention among rows by that of the padded batch."""

        def padded(states: Tensor, rows: Rows) -> Tensor:
            return rows.unpack(states.transpose(1, 2), rows.longest).transpose(1, 2)

        given = padded(query, spans.queries), padded(keys, spans.keys), padded(values, spans.keys)
        context = self.attend(*given, None if is_causal else spans.readable, is_causal, dropout)
        return spans.queries.pack(context.transpose(1, 2)).transpose(1, 2)

    def dropout(self, states: Tensor, probability: float, added: Tensor | None = None) -> Tensor:
        """States after dropout, on top of what is added, a residual stream of the same shape."""
        if probability:  # torch copies where none is dropped
            states = F.dropout(states, probability)
        return states if added is None else added + states

    def activated(self, states: Tensor, layer: nn.Module, activation: str | None, probability: float) -> Any:
        """Inner states: a linear layer's output after an activation and dropout, or what stands for it."""
        return self.dropout(activated(self.linear(states, layer), activation), probability)

    def add_and_norm(
        self, inner: Any, layer: nn.Module, states: Streams, norm: nn.Module, probability: float
    ) -> Streams:
        """The norm of states (…, D), to which a branch's last layer adds its output for inner states (…, I)."""
        hidden = norm(self.dropout(self.linear(inner, layer), probability, added=states[0]))
        return hidden, hidden, None

    def project(self, states: Any, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        """The outputs (B, L, D) of several linear layers for the same states (B, L, D)."""
        return tuple(layer(states) for layer in layers)

    def linear(self, states: Any, layer: nn.Module) -> Tensor:
        """The output (…, O) of a linear layer, or of what stands for one, for states (…, I)."""
        return self.project(states, [layer])[0]

    def step(self, layers: Sequence[nn.Module]) -> AbstractContextManager[None]:
        """The time of an optimizer step's forward and backward passes, in which weights do not change."""
        return nullcontext()

    def cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        """Cross entropy (Szegedy et al., 2016, section 7) of logits (N, V), which it may overwrite.

        bias (V,), in fp32 or fp64, is added to the logits. labels (N,) are IGNORE_INDEX where there is no target: loss,
        hit and gradients are 0 there.

        Returns:
            The losses (N,), and with `gradients` those by the logits, as the logits; else (N,) true, or 1, where the
            label is the first of the greatest logits.
        """
        is_target, labels = labels != IGNORE_INDEX, labels[:, None]
        labels = labels.where(is_target[:, None], 0)
        # In place where that can be, so that at most two of its size are held.
        logs = (logits.add_(bias) if logits.dtype == bias.dtype else logits + bias).log_softmax(1)
        losses = (label_smoothing - 1) * logs.gather(1, labels).squeeze(1)
        if label_smoothing:
            losses -= label_smoothing * logs.mean(1)
        losses = losses.where(is_target, 0)
        if not gradients:
            return losses, (logs.argmax(1) == labels.squeeze(1)) & is_target
        gradient = logs.exp_()  # the probabilities, less the smoothed targets
        if label_smoothing:
            gradient -= label_smoothing / logs.shape[1]
        gradient.scatter_add_(1, labels, gradient.new_full(labels.shape, label_smoothing - 1))
        return losses, gradient.masked_fill_(~is_target[:, None], 0).to(logits.dtype)

    def log_softmax(self, logits: Tensor) -> Tensor:
        """The log-probabilities (N, V) in fp32 of logits (N, V), which it may overwrite, in decoding."""
        return logits.log_softmax(dim=1, dtype=torch.float32)

    def top_sums(self, scores: Tensor, bases: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The ``count`` greatest of scores (B, K, V) + bases (B, K) of each article, and their places in its K·V.

        This is `torch.topk` of the sums, in one quick pass over the scores: the greatest sums lie in the ``count``
        blocks with the greatest maxima, so the other blocks need not be searched.
        """
        _, beams, width = scores.shape
        blocks = width // BLOCK
        if beams * blocks <= 4 * count:
            return (scores + bases[:, :, None]).flatten(1).topk(count)
        split = scores[:, :, : blocks * BLOCK].unflatten(2, (blocks, BLOCK))
        # Rounding keeps the order, so a block's greatest sum is the sum of its greatest score.
        best = (split.amax(dim=3) + bases[:, :, None]).flatten(1).topk(count).indices
        firsts = best // blocks * width + best % blocks * BLOCK  # (B, count)
        columns = (firsts[:, :, None] + torch.arange(BLOCK, device=scores.device)).flatten(1)
        rest = torch.arange(beams * width, device=scores.device).view(beams, width)[:, blocks * BLOCK :].flatten()
        columns = torch.cat((columns, rest.expand(len(scores), -1)), dim=1)
        sums = scores.flatten(1).gather(1, columns) + bases.gather(1, columns // width)
        top, places = sums.topk(count)
        return top, columns.gather(1, places)


def join(states: Tensor, layers: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """The outputs of several linear layers in training by one product; None where adapters are in them."""
    if len(layers) == 1 or not (torch.is_grad_enabled() and all(type(layer) is nn.Linear for layer in layers)):
        return None
    weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
    return F.linear(states, weight, bias).chunk(len(layers), dim=-1)


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of two matrices in a type; on a GPU its sums in fp32 are not rounded to half precision before."""
    if left.is_cuda and dtype == torch.float32:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


TORCH = Backend()


class BackendModule(nn.Module):
    """A module that computes through a backend, which `PretrainedModel.compute_with` sets."""

    backend: Backend = TORCH
