"""The distance that a network's results may have from exact ones, found by simulating the errors of its operations.

Bounds that are worked out for a whole network are far too wide. So each layer of a copy in double precision gets errors
as large as rounding or quantisation allows, with random signs, and the change of the results is measured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.modeling.layers import BartAttention

FP32, BF16 = 2.0**-24, 2.0**-8  # the greatest relative error of one rounding
Run = Callable[[nn.Module], Tensor]


def exact(model: nn.Module, run: Run) -> Tensor:
    """The result in double precision."""
    with torch.no_grad():
        return run(copy.deepcopy(model).double().eval())


def rounding(model: nn.Module, run: Run, unit: float = FP32) -> float:
    """A bound on the errors of the result where one rounding has a relative error of at most `unit`.

    The errors of a sum of n terms grow with the root of n (Higham and Mary, 2019, doi:10.1137/18M1226312). In bf16,
    products are summed in fp32: only inputs, weights and results are rounded.
    """

    def shake(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.register_forward_hook(linear)
        elif isinstance(module, nn.LayerNorm):
            module.register_forward_hook(norm)

    def linear(module: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if unit == FP32:
            size = (module.in_features + 2) ** 0.5 * F.linear(inputs[0].abs(), module.weight.abs())
        else:
            size = 2 * F.linear(inputs[0].square(), module.weight.square()).sqrt()
        return output + unit * (size + output.abs()) * _noise(output)

    def norm(module: nn.LayerNorm, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + unit * 3 * (output.abs() + 2 * module.bias.abs()) * _noise(output)

    return 4 * _changes(model, run, shake).max().item()


def quantisation(model: nn.Module, run: Run, greatest_weight_code: int) -> float:
    """The mean error of the result where weights, and inputs of products and of attention, are rounded to codes."""

    def shake(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.register_forward_hook(linear)
        elif isinstance(module, BartAttention):
            module.register_forward_pre_hook(attention)

    def coded(numbers: Tensor, greatest: int = 127) -> Tensor:
        return numbers + numbers.abs().amax(dim=-1, keepdim=True) / greatest / 2 * _noise(numbers)

    def linear(module: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return F.linear(coded(inputs[0]), coded(module.weight, greatest_weight_code), module.bias)

    def attention(module: BartAttention, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return *(coded(part) for part in inputs[:3]), *inputs[3:]

    return _changes(model, run, shake).mean().item()


def _noise(like: Tensor) -> Tensor:
    """Uniform between -1 and 1."""
    return 2 * torch.rand_like(like) - 1


def _changes(model: nn.Module, run: Run, shake: Callable[[nn.Module], None]) -> Tensor:
    """The changes of the result in some draws of the errors that `shake` adds to modules."""
    shaken = copy.deepcopy(model).double().eval()
    for module in shaken.modules():
        shake(module)
    right = exact(model, run)
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.stack([(run(shaken) - right).abs() for _ in range(4)])
