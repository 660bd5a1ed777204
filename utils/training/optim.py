"""The optimizer and its schedule."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import optimization as schedules
from transformers.optimization import Adafactor

from bart.torch_internals import leave_unscaling
from utils.training.lamb import Lamb
from utils.training.options import COSINE_CYCLES, POLYNOMIAL_END, HardwareOptions, OptimisationOptions
from utils.training.precision import (
    MasterWeights,
    half_dtype,
    is_half_throughout,
    keep_state_dtypes,
    keeps_master_weights,
)

logger = logging.getLogger(__name__)
APEX_CLASSES = {"fused_adam": "FusedAdam", "fused_lamb": "FusedLAMB"}
STAND_INS = {"fused_adam": "adamw", "fused_lamb": "lamb"}
MOMENTUM = 0.9  # of SGD


def build_optimizer(model: nn.Module, options: OptimisationOptions, hardware: HardwareOptions) -> Optimizer:
    """The optimizer that `--optimizer` names, over the trainable parameters, without decay on biases and norms.

    AdamW (Loshchilov & Hutter, 2019), LAMB (You et al., 2020), Adafactor (Shazeer & Stern, 2018) with the learning rate
    as it is given, or SGD with a momentum of 0.9, whose decay is an L2 penalty. fused_adam and fused_lamb are those of
    NVIDIA's apex where that can run, and otherwise adamw and lamb.

    The training loop clips gradients (`--gradient_clip_val`), so LAMB's own clip is off. AdamW and LAMB keep their
    moments in fp32 whatever the weights are.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Biases and norms are the parameters that are no matrices, whatever their names.
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    build = _builder(options, hardware)
    if keeps_master_weights(hardware):
        return MasterWeights(groups, build)
    optimizer = build(groups)
    if is_half_throughout(hardware):
        keep_state_dtypes(optimizer)
    return optimizer


def _builder(options: OptimisationOptions, hardware: HardwareOptions) -> Callable[[list[dict[str, Any]]], Optimizer]:
    """What makes the optimizer of its parameter groups."""
    name, lr = options.optimizer, options.learning_rate
    fused = apex_class(name, hardware) if name in APEX_CLASSES else None
    if fused is not None:
        return partial(fused, lr=lr, **{"adam_w_mode": True} if name == "fused_adam" else {"max_grad_norm": math.inf})
    match STAND_INS.get(name, name):
        case "adamw" if is_half_throughout(hardware):
            # torch's AdamW would keep the moments in half precision, where the second ones underflow.
            return partial(Lamb, lr=lr, eps=1e-8, adapts=False, max_grad_norm=None)
        case "adamw":
            return partial(_fused_adamw, lr=lr)
        case "lamb":
            return partial(Lamb, lr=lr, max_grad_norm=None)
        case "adafactor":
            return partial(Adafactor, lr=lr, relative_step=False, scale_parameter=False, warmup_init=False)
        case "sgd":
            return partial(SGD, lr=lr, momentum=MOMENTUM)
    raise ValueError(f"unknown optimizer {name!r}")


def _fused_adamw(groups: list[dict[str, Any]], lr: float) -> AdamW:
    optimizer = AdamW(groups, lr=lr, fused=True)
    # Otherwise it would unscale fp16 gradients itself, after the clip, which Lightning refuses.
    leave_unscaling(optimizer)
    return optimizer


def apex_class(optimizer: str, hardware: HardwareOptions) -> type[Optimizer] | None:
    """The class of NVIDIA's apex for fused_adam or fused_lamb; None, and a line in the log, where it cannot run."""
    name = APEX_CLASSES[optimizer]
    if not hardware.gpus:
        missing = f"apex's {name} runs on GPUs alone, and this run is on the CPU"
    elif name == "FusedLAMB" and is_half_throughout(hardware) and half_dtype(hardware) is torch.bfloat16:
        missing = "apex's FusedLAMB takes no bfloat16 weights (--amp_level O3)"
    else:
        try:
            importlib.import_module("amp_C")  # its CUDA extensions
            return getattr(importlib.import_module("apex.optimizers"), name)
        except (ImportError, AttributeError):
            missing = (
                f"{name} needs NVIDIA's apex, built with its CUDA extensions from https://github.com/NVIDIA/apex "
                "(PyPI's apex is another package)"
            )
    stand_in = {"fused_adam": "torch's fused AdamW", "fused_lamb": "our own LAMB"}[optimizer]
    logger.info("--optimizer %s: %s; %s is used instead", optimizer, missing, stand_in)
    return None


def build_schedule(name: str, optimizer: Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Linear warm-up from 0, then the named decay, over total_steps optimizer steps, as `transformers` has them.

    cosine_w_restarts decays from the peak to 0 `COSINE_CYCLES` times (Loshchilov & Hutter, 2017); one time, the default
    of `transformers`, would be no restart.
    """
    match name:
        case "polynomial":
            return schedules.get_polynomial_decay_schedule_with_warmup(
                optimizer, warmup_steps, total_steps, lr_end=POLYNOMIAL_END
            )
        case "linear":
            return schedules.get_linear_schedule_with_warmup(optimizer, warmup_steps, total_steps)
        case "cosine":
            return schedules.get_cosine_schedule_with_warmup(optimizer, warmup_steps, total_steps)
        case "cosine_w_restarts":
            return schedules.get_cosine_with_hard_restarts_schedule_with_warmup(
                optimizer, warmup_steps, total_steps, COSINE_CYCLES
            )
        case "constant":
            return schedules.get_constant_schedule_with_warmup(optimizer, warmup_steps)
    raise ValueError(f"unknown schedule {name!r}")
