"""LAMB: Adam's update, rescaled in every tensor to the size of its weights (You et al., 2020, arXiv:1904.00962)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from bart.torch_internals import foreach, fused_adamw_


class Lamb(Optimizer):
    """LAMB (You et al., 2020, algorithm 2), as NVIDIA's apex computes it.

    With Adam's moments m and v, corrected for their start at 0, a tensor w of a group with weight decay d moves by

        u = m / (sqrt(v) + eps) + d·w,    w ← w - lr · |w| / |u| · u,

    where the ratio of norms, the trust ratio, is 1 if either of them is 0. It is 1 throughout a group without decay
    (biases and norms), which leaves Adam's step; `nvlamb` takes the ratio there too. apex's own clip of the gradients
    is left to the training loop. If a loss scaler's `found_inf` is 1, a step changes nothing; the host does not wait
    for it, so the number of steps is a tensor.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        nvlamb: bool = False,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0})
        self.nvlamb = nvlamb

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        found_inf = getattr(self, "found_inf", None)
        for group in self.param_groups:
            group["step"] = group["step"] + (1 if found_inf is None else 1 - found_inf)
            if parameters := [parameter for parameter in group["params"] if parameter.grad is not None]:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        means = [self.state[parameter]["exp_avg"] for parameter in parameters]
        squares = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters]
        (beta1, beta2), found_inf = group["betas"], getattr(self, "found_inf", None)
        if found_inf is not None:
            updates, steps = foreach.mul(means, 0), [group["step"]] * len(means)
            rates = {"lr": -1.0, "beta1": beta1, "beta2": beta2, "weight_decay": 0.0, "eps": group["eps"]}
            options = {"amsgrad": False, "maximize": False, "found_inf": found_inf}
            fused_adamw_(updates, gradients, means, squares, [], steps, **rates, **options)
        else:
            foreach.lerp_(means, gradients, 1 - beta1)
            foreach.mul_(squares, beta2)
            foreach.addcmul_(squares, gradients, gradients, value=1 - beta2)

            updates = foreach.sqrt(squares)
            foreach.div_(updates, (1 - beta2 ** group["step"]) ** 0.5)
            foreach.add_(updates, group["eps"])
            foreach.reciprocal_(updates)
            foreach.mul_(updates, means)
            foreach.div_(updates, 1 - beta1 ** group["step"])
        if group["weight_decay"]:
            foreach.add_(updates, parameters, alpha=group["weight_decay"])
            if found_inf is not None:
                foreach.mul_(updates, 1 - found_inf)
        if group["weight_decay"] or self.nvlamb:
            ratios = _norms(parameters) / _norms(updates)
            # A norm of 0 makes the ratio 0, NaN or infinite.
            ratios = torch.where((ratios > 0) & ratios.isfinite(), ratios, 1)
            foreach.mul_(updates, list(ratios.unbind()))
        foreach.add_(parameters, updates, alpha=-group["lr"])


def _norms(tensors: list[Tensor]) -> Tensor:
    """The norms of whole tensors, also of those of which each process has a part."""
    norms = torch.stack(foreach.norm(tensors))
    return norms.full_tensor() if isinstance(norms, DTensor) else norms
