"""Record steps of timm's LAMB, whose maker wrote it to behave like NVIDIA's FusedLAMB.

timm cannot be among the requirements: it brings torchvision, and a torchvision built for CUDA beside a torch built for
CPUs keeps Lightning from being imported. The file in fixtures/ was made with timm 1.0.31 and torch 2.13.0 by

    pip install --no-deps timm==1.0.31
    python tests/oracles/record_lamb.py
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

STEPS_FILE = Path(__file__).parent / "fixtures" / "lamb.safetensors"
# The first three decay, the third starts from zeros, which have no norm to go by.
SHAPES = [(7, 5), (4, 3), (3, 3), (5,), (3,)]
DECAYED, WEIGHT_DECAY = 3, 0.1
STEPS = 20
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


def learning_rate(step: int) -> float:
    """It changes from step to step, as a schedule's does."""
    return 0.01 * (1 + step % 3)


def timm_lamb() -> type[Optimizer]:
    """timm's class from its own file: its packages would import torchvision."""
    spec = importlib.util.find_spec("timm")
    assert spec is not None and spec.origin is not None
    for name in ("timm", "timm.optim"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(spec.origin).parent.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    return importlib.import_module("timm.optim.lamb").Lamb


def problem() -> dict[str, Tensor]:
    """Weights, and gradients (20, ...); NaN stands for a step without a gradient."""
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    for i, shape in enumerate(SHAPES):
        tensors[f"weights.{i}"] = torch.randn(shape, generator=generator, dtype=torch.float64)
        gradients = 0.1 * torch.randn((STEPS, *shape), generator=generator, dtype=torch.float64)
        tensors[f"gradients.{i}"] = gradients * (1 + torch.arange(STEPS) % 2).view(-1, *[1] * len(shape))
    tensors["weights.2"].zero_()
    tensors["gradients.1"][3] = torch.nan
    return tensors


def walk(optimizer_class: Callable[..., Optimizer], tensors: dict[str, Tensor], dtype: torch.dtype) -> list:
    """The weights (20, ...) of each tensor behind every step."""
    weights = [torch.nn.Parameter(tensors[f"weights.{i}"].to(dtype, copy=True)) for i in range(len(SHAPES))]
    groups = [
        {"params": weights[:DECAYED], "weight_decay": WEIGHT_DECAY},
        {"params": weights[DECAYED:], "weight_decay": 0.0},
    ]
    optimizer = optimizer_class(groups, lr=1.0)
    path: list[list[Tensor]] = [[] for _ in weights]
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        for i, weight in enumerate(weights):
            gradient = tensors[f"gradients.{i}"][step].to(dtype, copy=True)
            weight.grad = None if gradient.isnan().any() else gradient
        optimizer.step()
        for places, weight in zip(path, weights, strict=True):
            places.append(weight.detach().clone())
    return [torch.stack(places) for places in path]


def main() -> None:
    tensors, lamb = problem(), partial(timm_lamb(), max_grad_norm=None)
    paths = {
        f"{name}.{i}": places for name, dtype in DTYPES.items() for i, places in enumerate(walk(lamb, tensors, dtype))
    }
    save_file(tensors | paths, STEPS_FILE)


if __name__ == "__main__":
    main()
