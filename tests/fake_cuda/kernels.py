"""Stand-ins for the launches of kernels in Triton: one operation of torch each, with the kernel's inputs and outputs.

All else of `bart.cuda.kernels` is what runs on a GPU, its autograd Functions above all.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PROCESSORS = 132  # of an H100


@torch.library.custom_op("fake_cuda::add_and_norm", mutates_args=("outs", "scales"))
def _add_and_norm(inputs: list[Tensor], outs: list[Tensor], scales: Tensor, rate: float, eps: float) -> None:
    update, residual, weight, bias, seed = inputs
    sums = residual.double() + _kept(update, seed, rate)
    scales.copy_((sums.var(dim=-1, unbiased=False) + eps).rsqrt().flatten())
    normed = (sums - sums.mean(dim=-1, keepdim=True)) * scales.view(*sums.shape[:-1], 1)
    outs[0].copy_(normed)
    for out in outs[1:]:
        out.copy_(normed * weight + bias)


@torch.library.custom_op("fake_cuda::add_and_norm_backward", mutates_args=("of_sums", "parts"))
def _add_and_norm_backward(
    gradients: list[Tensor], saved: list[Tensor], of_sums: list[Tensor], parts: list[Tensor], rate: float
) -> None:
    normed, weight, seed, scales = saved
    gradient, normed = sum(gradient.double() for gradient in gradients), normed.double()
    for part, products in zip(parts, (gradient * normed, gradient), strict=True):
        part.zero_()[0] = products.flatten(0, -2).sum(dim=0)
    of_normed = gradient * weight
    means = normed * (of_normed * normed).mean(dim=-1, keepdim=True) + of_normed.mean(dim=-1, keepdim=True)
    of_residual = (of_normed - means) * scales.view(*normed.shape[:-1], 1)
    of_sums[0].copy_(_kept(of_residual, seed, rate))
    of_sums[1].copy_(of_residual)


@torch.library.custom_op("fake_cuda::attend_few", mutates_args=("out",))
def _attend_few(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, out: Tensor) -> None:
    raise NotImplementedError


for operation in (_add_and_norm, _add_and_norm_backward, _attend_few):
    operation.register_fake(lambda *_: None)


def _kept(numbers: Tensor, seed: Tensor, rate: float) -> Tensor:
    """Numbers after dropout, the same for the same seed."""
    drawn = torch.rand(numbers.shape, generator=torch.Generator().manual_seed(int(seed)))
    return numbers.double().where(drawn >= rate, 0) / (1 - rate)


def _launch_forward(*arguments: Any) -> None:
    *inputs, out, half, normed, scales, _, rate, eps, has_out, _ = arguments
    _add_and_norm(inputs, [normed, half, *[out] * has_out], scales, rate, eps)


def _launch_backward(*arguments: Any) -> None:
    of_out, of_half, *saved, of_update, of_residual, of_weights, of_biases, _, _, rate, has_out, has_half, _ = arguments
    given = [gradient for gradient, is_given in ((of_out, has_out), (of_half, has_half)) if is_given]
    _add_and_norm_backward(given, saved, [of_update, of_residual], [of_weights, of_biases], rate)


LAUNCHES = {
    "_add_and_norm": _launch_forward,
    "_add_and_norm_backward": _launch_backward,
    "_attend_few": lambda *arguments, **_: _attend_few(*arguments[:5]),
}


class _Kernel:
    """The stand-in for a function that `triton.jit` compiled."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.name = function.__name__

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return LAUNCHES[self.name]


def load() -> ModuleType:
    """`bart.cuda.kernels` above stand-ins, in a process that has no Triton and needs none."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit, triton.language = _Kernel, language  # type: ignore[attr-defined]
    triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()  # type: ignore[attr-defined]
    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment, misc]
    torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"multi_processor_count": PROCESSORS})
    sys.modules |= {"triton": triton, "triton.language": language}
    try:
        return importlib.import_module("bart.cuda.kernels")
    finally:  # torch would take it for the real one
        del sys.modules["triton"], sys.modules["triton.language"]
