"""Precisions: what `--fp16`, `--bf16`, `--tf32` and `--amp_level` mean to Lightning.

The levels keep the names that NVIDIA's apex gave them. apex.amp itself is gone; torch's autocast took its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import AdamW

from utils.arguments import TrainArguments


def half_dtype(args: TrainArguments) -> torch.dtype | None:
    """The half precision asked for, or None."""
    if args.amp_level == "O0" or not (args.fp16 or args.bf16):
        return None
    return torch.float16 if args.fp16 else torch.bfloat16


def keeps_master_weights(args: TrainArguments) -> bool:
    """Whether weights are halves with fp32 master copies in the optimizer (O2)."""
    return args.amp_level == "O2" and half_dtype(args) is not None


def precision_of(args: TrainArguments) -> dict[str, Any]:
    """Lightning's Trainer arguments for the precision asked for."""
    dtype = half_dtype(args)
    if dtype is None:
        return {"precision": "32-true"}
    name = "16" if dtype is torch.float16 else "bf16"
    if keeps_master_weights(args):
        return {"plugins": [HalfWeights(f"{name}-mixed", "cuda" if args.gpus else "cpu")]}
    return {"precision": f"{name}-true" if args.amp_level == "O3" else f"{name}-mixed"}


class HalfWeights(MixedPrecision):
    """O2: the network computes in half precision throughout, with loss scaling for fp16, and no autocast.

    The fp32 copies of the weights are kept by `MasterWeightAdamW`.
    """

    def __init__(self, precision: Literal["16-mixed", "bf16-mixed"], device: str) -> None:
        super().__init__(precision, device)
        self.dtype = torch.float16 if precision == "16-mixed" else torch.bfloat16

    def convert_module(self, module: nn.Module) -> nn.Module:
        # The Lightning module's own counters stay as precise as they are.
        module.model.to(self.dtype)
        return module

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()


class MasterWeightAdamW(AdamW):
    """AdamW on fp32 copies of half-precision weights, which are rounded back after every step.

    Small updates that a half-precision weight would round away add up in the copies (Micikevicius et al., 2018,
    section 3.1). The copies stand in `param_groups`, so that clipping and loss scaling act on them.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        self.halves = [parameter for group in groups for parameter in group["params"]]
        masters = [[nn.Parameter(p.detach().float()) for p in group["params"]] for group in groups]
        self.masters = [parameter for group in masters for parameter in group]
        super().__init__([{**group, "params": ps} for group, ps in zip(groups, masters, strict=True)], **options)

    def collect_gradients(self) -> None:
        """Copy the weights' gradients to the fp32 copies; called after every backward pass."""
        for master, half in zip(self.masters, self.halves, strict=True):
            master.grad = None if half.grad is None else half.grad.float()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = super().step(closure)
        torch._foreach_copy_(self.halves, self.masters)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for half in self.halves:
            half.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "masters": [master.detach() for master in self.masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        masters = state_dict["masters"]
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        torch._foreach_copy_(self.masters, [master.to(self.masters[0].device) for master in masters])
