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

from utils.arguments import COSINE_CYCLES, POLYNOMIAL_END, TrainArguments
from utils.training.lamb import Lamb
from utils.training.precision import MasterWeights, half_dtype, keep_state_dtypes, keeps_master_weights

logger = logging.getLogger(__name__)
APEX_CLASSES = {"fused_adam": "FusedAdam", "fused_lamb": "FusedLAMB"}
STAND_INS = {"fused_adam": "adamw", "fused_lamb": "lamb"}
MOMENTUM = 0.9  # of SGD


def build_optimizer(model: nn.Module, args: TrainArguments) -> Optimizer:
    """The optimizer that `--optimizer` names, over the trainable parameters, without decay on biases and norms.

    AdamW (Loshchilov & Hutter, 2019), LAMB (You et al., 2020), Adafactor (Shazeer & Stern, 2018) with the learning rate
    as it is given, or SGD with a momentum of 0.9, whose decay is an L2 penalty. fused_adam and fused_lamb are those of
    NVIDIA's apex where that can run, and otherwise adamw and lamb.

    The training loop clips gradients (`--gradient_clip_val`), so that LAMB's own clip is off.
    """
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (plain if name.endswith("bias") or "norm" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    build = _builder(args)
    if keeps_master_weights(args):
        return MasterWeights(groups, build)
    optimizer = build(groups)
    if args.amp_level == "O3":
        keep_state_dtypes(optimizer)
    return optimizer


def _builder(args: TrainArguments) -> Callable[[list[dict[str, Any]]], Optimizer]:
    """What makes the optimizer of its parameter groups."""
    name, lr = args.optimizer, args.learning_rate
    fused = apex_class(args) if name in APEX_CLASSES else None
    if fused is not None:
        return partial(fused, lr=lr, **{"adam_w_mode": True} if name == "fused_adam" else {"max_grad_norm": math.inf})
    match STAND_INS.get(name, name):
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
    # The fused one also computes in fp32 where weights are halves: in fp16 its epsilon would round to zero.
    optimizer = AdamW(groups, lr=lr, fused=True)
    # It would unscale fp16 gradients itself, behind the clip, which Lightning refuses. Without this mark it gets them
    # unscaled and clipped like those of any other optimizer.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    return optimizer


def apex_class(args: TrainArguments) -> type[Optimizer] | None:
    """The class of NVIDIA's apex for fused_adam or fused_lamb; None, and a line in the log, where it cannot run."""
    name = APEX_CLASSES[args.optimizer]
    stand_in = {"fused_adam": "torch's fused AdamW", "fused_lamb": "our own LAMB"}[args.optimizer]
    if not args.gpus:
        missing = f"apex's {name} runs on GPUs alone, and this run is on the CPU"
    elif name == "FusedLAMB" and args.amp_level == "O3" and half_dtype(args) is torch.bfloat16:
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
    logger.info("--optimizer %s: %s; %s serves instead", args.optimizer, missing, stand_in)
    return None


def build_schedule(name: str, optimizer: Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Linear warm-up from 0, then the named decay, over total_steps optimizer steps, as `transformers` has them.

    cosine_w_restarts falls from the peak to 0 `COSINE_CYCLES` times (Loshchilov & Hutter, 2017); one time, the default
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
