"""Stand-ins for the kernels in Triton on a CUDA device that is not there: operations with their inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


@torch.library.custom_op("fake_cuda::add_and_norm", mutates_args=())
def _add_and_norm(update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, seed: Tensor) -> list[Tensor]:
    raise NotImplementedError


@_add_and_norm.register_fake
def _(update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, seed: Tensor) -> list[Tensor]:
    outs = [torch.empty_like(update, dtype=torch.float32)] if update.dtype == torch.float16 else []
    half, scales = torch.empty_like(update), weight.new_empty(update.shape[:-1])
    return [torch.empty_like([*outs, half][0]), scales, half, *outs]


@torch.library.custom_op("fake_cuda::add_and_norm_backward", mutates_args=())
def _add_and_norm_backward(
    gradients: list[Tensor], saved: list[Tensor], update: torch.dtype, residual: torch.dtype
) -> list[Tensor]:
    raise NotImplementedError


@_add_and_norm_backward.register_fake
def _(gradients: list[Tensor], saved: list[Tensor], *dtypes: torch.dtype) -> list[Tensor]:
    normed, weight = saved[:2]
    return [*(torch.empty_like(normed, dtype=dtype) for dtype in dtypes), weight.new_empty(2, 792, len(weight))]


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        seed = torch.randint(9, (1,), device=update.device)
        normed, scales, half, *outs = _add_and_norm(update, residual, weight, bias, seed)
        ctx.save_for_backward(normed, weight, seed, scales)
        ctx.dtypes = update.dtype, residual.dtype
        ctx.set_materialize_grads(False)
        return [*outs, half][0], half.view_as(half)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        of_update, of_residual, parts = _add_and_norm_backward(given, list(ctx.saved_tensors), *ctx.dtypes)
        return of_update, of_residual, *parts.sum(dim=1)


def add_and_norm(update: Tensor, residual: Tensor, norm: nn.LayerNorm, rate: float) -> tuple[Tensor, Tensor]:
    return _AddAndNorm.apply(update, residual, norm.weight, norm.bias)


@torch.library.custom_op("fake_cuda::attend_few", mutates_args=())
def attend_few(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    raise NotImplementedError


@attend_few.register_fake
def _(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    return query.new_empty(query.transpose(1, 2).shape).transpose(1, 2)


def can_attend_few(query: Tensor, keys: Tensor, mask: Tensor) -> bool:
    return query.dtype == mask.dtype == torch.bfloat16
