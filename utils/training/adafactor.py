"""Adafactor (Shazeer & Stern, 2018, arXiv:1804.04235) by operations on all tensors at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import optimization

from bart.torch_internals import foreach

NUMBERS_AT_ONCE = 2**26


class Adafactor(optimization.Adafactor):
    """The optimizer of transformers, bit for bit, with the learning rate as it is given.

    Theirs launches some thirty kernels for each tensor, and a GPU waits for these. Moments and arithmetic are fp32 for
    weights in half precision. If a loss scaler's `found_inf` is 1, a step changes nothing; the host does not wait for
    it, so the numbers of steps are tensors.

    Args:
        parameters: parameters, or groups of them, as for any torch optimizer.
        lr: step size, of updates whose root mean square is at most 1.
    """

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr, relative_step=False, scale_parameter=False)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            alike: dict[tuple[bool, int], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state, step = self.state[parameter], 0
                    if getattr(self, "found_inf", None) is None:
                        step = state["step"] = state.get("step", 0) + 1
                    else:
                        state["step"] = torch.as_tensor(state.get("step", 0.0), device=parameter.device).float()
                    alike[parameter.ndim > 1, step].append(parameter)
            for (is_matrix, step), parameters in alike.items():
                for part in _parts(parameters):
                    self._update(group, part, is_matrix, step)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter], is_matrix: bool, step: int) -> None:
        """Move parameters that are all matrices, or all vectors, and that have taken equally many steps."""
        lr, found_inf = group["lr"], getattr(self, "found_inf", None)
        # `to` makes no copy of what is fp32, or fp64, already.
        dtypes = [torch.promote_types(parameter.dtype, torch.float32) for parameter in parameters]
        gradients = [p.grad.to(dtype) for p, dtype in zip(parameters, dtypes, strict=True)]
        weights = [p.to(dtype) for p, dtype in zip(parameters, dtypes, strict=True)]
        if found_inf is None:
            average = partial(_decay, kept=1 - step ** group["decay_rate"])
        else:
            gradients = [gradient.masked_fill(found_inf > 0, 0) for gradient in gradients]
            steps = [self.state[parameter]["step"] for parameter in parameters]
            new = foreach.mul(foreach.pow(foreach.add(steps, 1), group["decay_rate"]), 1 - found_inf)
            average = partial(foreach.lerp_, weights=new)
            foreach.add_(steps, [1 - found_inf] * len(steps))
        squares = foreach.mul(gradients, gradients)
        foreach.add_(squares, group["eps"][0])
        if is_matrix:
            rows = self._averages("exp_avg_sq_row", parameters, [square.mean(-1) for square in squares], average)
            columns = self._averages("exp_avg_sq_col", parameters, [square.mean(-2) for square in squares], average)
            rows = foreach.rsqrt([row / row.mean(-1, keepdim=True) for row in rows])
            factors = zip(rows, foreach.rsqrt(columns), strict=True)
            del squares  # as large as the gradients, as the updates are
            updates = [row[..., None] * column[..., None, :] for row, column in factors]
        else:
            updates = foreach.rsqrt(self._averages("exp_avg_sq", parameters, squares, average))
        foreach.mul_(updates, gradients)
        sizes = foreach.norm(updates)
        foreach.div_(sizes, [parameter.numel() ** 0.5 for parameter in parameters])
        foreach.div_(sizes, group["clip_threshold"])
        foreach.clamp_min_(sizes, 1)
        foreach.div_(updates, sizes)
        foreach.mul_(updates, lr)
        if found_inf is not None:
            updates = [update.masked_fill_(found_inf > 0, 0) for update in updates]
            foreach.mul_(weights, 1 - (1 - found_inf) * (group["weight_decay"] * lr))
        elif group["weight_decay"]:
            foreach.add_(weights, weights, alpha=-group["weight_decay"] * lr)
        foreach.add_(weights, updates, alpha=-1)
        if any(weight is not parameter for weight, parameter in zip(weights, parameters, strict=True)):
            foreach.copy_(parameters, weights)

    def _averages(
        self, name: str, parameters: Sequence[nn.Parameter], values: list[Tensor], average: Callable[..., Any]
    ) -> list[Tensor]:
        """The running averages of that name, which `average` has moved towards the values."""
        for parameter, value in zip(parameters, values, strict=True):
            self.state[parameter].setdefault(name, torch.zeros_like(value))
        averages = [self.state[parameter][name] for parameter in parameters]
        average(averages, values)
        return averages


def _decay(averages: Sequence[Tensor], values: Sequence[Tensor], kept: float) -> None:
    """Move averages towards the values; they keep this share, as transformers rounds it."""
    foreach.mul_(averages, kept)
    foreach.add_(averages, values, alpha=1 - kept)


def _parts(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters, in lists of as many numbers as are updated at once: an update holds some of their size."""
    parts, numbers = [[]], 0
    for parameter in parameters:
        if parts[-1] and numbers + parameter.numel() > NUMBERS_AT_ONCE:
            parts.append([])
            numbers = 0
        parts[-1].append(parameter)
        numbers += parameter.numel()
    return parts
