"""The optimizer and its schedule."""

from __future__ import annotations

import importlib
import logging
import math
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler
from transformers.optimization import Adafactor

from bart.torch_internals import leave_scaling
from utils.training.lamb import Lamb
from utils.training.options import POLY_SQRT, SCHEDULES, HardwareOptions, OptimisationOptions
from utils.training.precision import MasterWeights, keeps_master_weights

logger = logging.getLogger(__name__)
# The classes of NVIDIA's apex, and what is used where apex cannot run.
APEX_CLASSES = {"fused_adam": ("FusedAdam", "torch's fused AdamW"), "fused_lamb": ("FusedLAMB", "our own LAMB")}
MOMENTUM = 0.9  # of SGD


def build_optimizer(model: nn.Module, options: OptimisationOptions, hardware: HardwareOptions) -> Optimizer:
    """The optimizer that `--optimizer` names, over the trainable parameters, without decay on biases and norms.

    AdamW (Loshchilov & Hutter, 2019), LAMB (You et al., 2020), Adafactor (Shazeer & Stern, 2018) with the learning rate
    as it is given, or SGD with a momentum of 0.9, whose decay is an L2 penalty.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Biases and norms are the parameters that are no matrices, whatever their names.
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    build = partial(_build, options=options, hardware=hardware)
    if keeps_master_weights(hardware):
        return MasterWeights(groups, build)
    return build(groups)


def _build(groups: list[dict[str, Any]], options: OptimisationOptions, hardware: HardwareOptions) -> Optimizer:
    name, lr = options.optimizer, options.learning_rate
    eps = {} if options.adam_epsilon is None else {"eps": options.adam_epsilon}
    if name in APEX_CLASSES and (fused := apex_class(name, hardware)) is not None:
        if name == "fused_adam":
            return fused(groups, lr=lr, adam_w_mode=True, **eps)
        nvlamb = {"use_nvlamb": True} if options.nvlamb else {}
        return fused(groups, lr=lr, max_grad_norm=math.inf, **nvlamb, **eps)  # the training loop clips
    match name:
        case "lamb" | "fused_lamb":
            return Lamb(groups, lr=lr, nvlamb=options.nvlamb, **eps)
        case "adafactor":
            return Adafactor(groups, lr=lr, relative_step=False, scale_parameter=False)
        case "sgd":
            has_scaler = hardware.fp16 and hardware.amp_level != "O0"
            optimizer = SGD(groups, lr=lr, momentum=MOMENTUM, fused=has_scaler or None)
            # Fused, it skips steps; if that is the first one, torch would leave momentum without values.
            for group in groups if has_scaler else ():
                for parameter in group["params"]:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        case _:
            optimizer = AdamW(groups, lr=lr, fused=True, **eps)
    # Fused ones would otherwise unscale fp16 gradients themselves, after the clip, which Lightning refuses.
    leave_scaling(optimizer)
    return optimizer


def apex_class(optimizer: str, hardware: HardwareOptions) -> type[Optimizer] | None:
    """The class of NVIDIA's apex for fused_adam or fused_lamb; None, and a line in the log, where it cannot run."""
    name, stand_in = APEX_CLASSES[optimizer]
    if hardware.gpus and hardware.strategy == "ddp":
        with suppress(ImportError, AttributeError):
            importlib.import_module("amp_C")  # its CUDA extensions
            return getattr(importlib.import_module("apex.optimizers"), name)
    logger.info(
        "--optimizer %s needs GPUs, --strategy ddp, and NVIDIA's apex, built with its CUDA extensions from "
        "https://github.com/NVIDIA/apex (PyPI's is another package); %s is used instead",
        *(optimizer, stand_in),
    )
    return None


def clip(optimizer: Optimizer, parameters: list[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Clip gradients of this norm as torch does; on a GPU torch's fused AdamW divides them where it reads them."""
    if type(optimizer) is AdamW and norm.is_cuda and not isinstance(norm, DTensor):
        optimizer.grad_scale = ((norm.float() + 1e-6) / limit).clamp(min=1)  # type: ignore[attr-defined]
    else:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)


def build_schedule(name: str, optimizer: Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Linear warm-up from 0, then the decay of `SCHEDULES`, over total_steps optimizer steps, by `transformers`.

    POLY_SQRT is NVIDIA's PolyWarmUpScheduler of degree 0.5: with p = (step + 1) / total_steps, and a share w of
    warm-up, the rate is the peak times p / w in the warm-up, and times sqrt(1 - p) behind it.
    """
    if name == POLY_SQRT:
        return LambdaLR(optimizer, partial(_poly_sqrt, warmup_steps, total_steps))
    kind, settings = SCHEDULES[name]
    return get_scheduler(kind, optimizer, warmup_steps, total_steps, settings)


def _poly_sqrt(warmup_steps: int, total_steps: int, step: int) -> float:
    done = step + 1
    return done / warmup_steps if done < warmup_steps else max(0.0, 1 - done / total_steps) ** 0.5
