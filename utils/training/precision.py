"""Precisions: `--fp16`, `--bf16`, `--tf32` and `--amp_level` in terms of Lightning.

The levels keep the names that NVIDIA's apex gave them. apex.amp itself is gone; torch's autocast took its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import Optimizer

from bart.torch_internals import foreach, leave_scaling
from utils.training.lamb import Lamb
from utils.training.options import HardwareOptions


def half_dtype(hardware: HardwareOptions) -> torch.dtype | None:
    if hardware.amp_level == "O0" or not (hardware.fp16 or hardware.bf16):
        return None
    return torch.float16 if hardware.fp16 else torch.bfloat16


def precision_name(hardware: HardwareOptions) -> str:
    half = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(half_dtype(hardware), "fp32")
    return "tf32" if hardware.tf32 else half


def keeps_master_weights(hardware: HardwareOptions) -> bool:
    """True if weights are halves with fp32 master copies in the optimizer (O2)."""
    return hardware.amp_level == "O2" and half_dtype(hardware) is not None


def precision_plugins(hardware: HardwareOptions) -> list[MixedPrecision]:
    """Lightning's plugin for half precision; none for fp32."""
    dtype = half_dtype(hardware)
    if dtype is None:
        return []
    name = "16" if dtype is torch.float16 else "bf16"
    device = "cuda" if hardware.gpus else "cpu"
    scaler = LossScaler(device) if dtype is torch.float16 else None
    plugin = HalfWeights if keeps_master_weights(hardware) else MixedPrecision
    return [plugin(f"{name}-mixed", device, scaler)]


class LossScaler(torch.amp.GradScaler):
    """Loss scaling in which LAMB and torch's fused optimizers skip steps, so that the host need not ask the device.

    torch lets them skip steps only where they unscale gradients too, after the clip. Here that is done before it.
    """

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        inner = optimizer.inner if isinstance(optimizer, MasterWeights) else optimizer
        skips = isinstance(inner, Lamb) or inner.param_groups[0].get("fused")
        leave_scaling(optimizer, not skips)
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            leave_scaling(optimizer)


class HalfWeights(MixedPrecision):
    """O2: the network computes in half precision throughout, with loss scaling for fp16, and no autocast."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        # The Lightning module's own counters stay as precise as they are.
        module.model.to(torch.float16 if self.precision == "16-mixed" else torch.bfloat16)
        return module

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()


class MasterWeights(Optimizer):
    """Any optimizer, applied to fp32 copies of half-precision weights, which are rounded back after every step.

    Small updates that a half-precision weight would round away add up in the copies (Micikevicius et al., 2018,
    section 3.1). `param_groups` holds the copies, so clipping and loss scaling act on them.
    """

    def __init__(self, groups: list[dict[str, Any]], build: Callable[[list[dict[str, Any]]], Optimizer]) -> None:
        self.halves = [parameter for group in groups for parameter in group["params"]]
        masters = [[nn.Parameter(p.detach().float()) for p in group["params"]] for group in groups]
        self.masters = [parameter for group in masters for parameter in group]
        self.inner = build([{**group, "params": ps} for group, ps in zip(groups, masters, strict=True)])
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self._share()

    def _share(self) -> None:
        """Let schedules and clipping work on the groups and the state of the optimizer inside."""
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def add_gradients(self) -> None:
        """Move the weights' gradients to the fp32 copies, where those of several micro-batches add up."""
        for master, half in zip(self.masters, self.halves, strict=True):
            if half.grad is not None:
                master.grad = half.grad.float() if master.grad is None else master.grad.add_(half.grad)
                half.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        self.inner.found_inf = getattr(self, "found_inf", None)  # which `LossScaler` may give
        loss = self.inner.step(closure)
        foreach.copy_(self.halves, self.masters)
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {**self.inner.state_dict(), "masters": [master.detach() for master in self.masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        masters = state_dict["masters"]
        self.inner.load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        self._share()
        foreach.copy_(self.masters, [master.to(self.masters[0].device) for master in masters])
