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
import torch.nn.functional as F
from torch import Tensor

from bart.backend import TORCH

PROCESSORS = 132  # of an H100


@torch.library.custom_op("fake_cuda::add_and_norm", mutates_args=("outs", "scales", "sums", "next_seed"))
def _add_and_norm(
    inputs: list[Tensor], outs: list[Tensor], scales: Tensor, sums: Tensor, next_seed: Tensor, rate: float, eps: float
) -> None:
    update, residual, weight, bias, seed, *last = inputs
    stream = residual.double() + _kept(sum(last, update.double()), seed, rate)
    scales.copy_((stream.var(dim=-1, unbiased=False) + eps).rsqrt().flatten())
    normed = (stream - stream.mean(dim=-1, keepdim=True)) * scales.view(*stream.shape[:-1], 1)
    outs[0].copy_(normed)
    for out in outs[1:]:
        out.copy_(normed * weight + bias)
    sums.zero_()
    next_seed.copy_(seed + 1)


@torch.library.custom_op("fake_cuda::add_and_norm_backward", mutates_args=("of_sums", "sums"))
def _add_and_norm_backward(
    gradients: list[Tensor], saved: list[Tensor], of_sums: list[Tensor], sums: Tensor, rate: float
) -> None:
    normed, weight, seed, scales = saved
    gradient, normed = sum(gradient.double() for gradient in gradients), normed.double()
    of_normed = gradient * weight
    means = normed * (of_normed * normed).mean(dim=-1, keepdim=True) + of_normed.mean(dim=-1, keepdim=True)
    of_residual = (of_normed - means) * scales.view(*normed.shape[:-1], 1)
    of_update = _kept(of_residual, seed, rate)
    of_sums[0].copy_(of_update)
    of_sums[1].copy_(of_residual)
    sums += torch.stack([each.flatten(0, -2).sum(dim=0) for each in (gradient * normed, gradient, of_update)])


@torch.library.custom_op("fake_cuda::gelu", mutates_args=("out", "sums"))
def _gelu(states: Tensor, bias: Tensor, out: Tensor, sums: Tensor, seed: Tensor, rate: float) -> None:
    out.copy_(_kept(F.gelu(states.double() + bias), seed, rate))
    sums.zero_()


@torch.library.custom_op("fake_cuda::gelu_backward", mutates_args=("out", "gradient", "sums"))
def _gelu_backward(
    states: Tensor, bias: Tensor, out: Tensor, gradient: Tensor, sums: Tensor, seed: Tensor, rate: float
) -> None:
    x = states.double() + bias
    out.copy_(_kept(F.gelu(x), seed, rate))
    of_x = torch.ops.aten.gelu_backward(_kept(gradient, seed, rate), x)
    gradient.copy_(of_x)
    sums += of_x.flatten(0, -2).sum(dim=0)


@torch.library.custom_op("fake_cuda::join", mutates_args=("out", "sums"))
def _join(matrices: list[Tensor], out: Tensor, sums: Tensor) -> None:
    joined = torch.cat(matrices, dim=1)
    if len(matrices) > 1:
        out.copy_(joined)
    sums.copy_(joined.double().sum(dim=0))


@torch.library.custom_op("fake_cuda::cross_entropy", mutates_args=("logits", "losses"))
def _cross_entropy(logits: Tensor, bias: Tensor, labels: Tensor, losses: Tensor, smoothing: float) -> None:
    one, other = TORCH.cross_entropy(logits.double(), bias.double(), labels, smoothing, True)
    losses.copy_(one)
    logits.copy_(other)


@torch.library.custom_op("fake_cuda::attend_few", mutates_args=("out",))
def _attend_few(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, out: Tensor) -> None:
    raise NotImplementedError


OPERATIONS = _add_and_norm, _add_and_norm_backward, _gelu, _gelu_backward, _join, _cross_entropy, _attend_few
for operation in OPERATIONS:
    operation.register_fake(lambda *_: None)


def _kept(numbers: Tensor, seed: Tensor, rate: float) -> Tensor:
    """Numbers after dropout, the same for the same seed."""
    if not rate:
        return numbers.double()
    drawn = torch.rand(numbers.shape, generator=torch.Generator().manual_seed(int(seed)))
    return numbers.double().where(drawn >= rate, 0) / (1 - rate)


def _launch_forward(*arguments: Any) -> None:
    update, residual, weight, bias, last, seed, out, half, normed, scales, sums, next_seed, *numbers = arguments
    _, rate, eps, has_last, has_out, _ = numbers
    outs = [normed, half, *[out] * has_out]
    _add_and_norm([update, residual, weight, bias, seed, *[last] * has_last], outs, scales, sums, next_seed, rate, eps)


def _launch_backward(*arguments: Any) -> None:
    of_out, of_half, *saved, of_update, of_residual, sums, _, _, rate, has_out, has_half, _ = arguments
    given = [gradient for gradient, is_given in ((of_out, has_out), (of_half, has_half)) if is_given]
    _add_and_norm_backward(given, saved, [of_update, of_residual], sums, rate)


def _launch_gelu(*arguments: Any) -> None:
    states, bias, out, gradient, sums, seed, _, _, rate, has_gradient, _ = arguments
    if has_gradient:
        _gelu_backward(states, bias, out, gradient, sums, seed, rate)
    else:
        _gelu(states, bias, out, sums, seed, rate)


def _launch_join(*arguments: Any, **_: Any) -> None:
    *matrices, out, sums, _, _, parts, _, _ = arguments
    _join(matrices[:parts], out, sums)


def _launch_cross_entropy(*arguments: Any, **_: Any) -> None:
    logits, *others, _, width, smoothing, _, _ = arguments
    _cross_entropy(logits[:, :width], *others, smoothing)


LAUNCHES = {
    "_add_and_norm": _launch_forward,
    "_add_and_norm_backward": _launch_backward,
    "_gelu": _launch_gelu,
    "_join": _launch_join,
    "_cross_entropy": _launch_cross_entropy,
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
    triton.cdiv = lambda number, size: -(-number // size)  # type: ignore[attr-defined]
    triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()  # type: ignore[attr-defined]
    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment, misc]
    torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"multi_processor_count": PROCESSORS})
    sys.modules |= {"triton": triton, "triton.language": language}
    try:
        return importlib.import_module("bart.cuda.kernels")
    finally:  # torch would take it for the real one
        del sys.modules["triton"], sys.modules["triton.language"]
