"""The optimizer and its schedule."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import optimization as schedules

from utils.arguments import POLYNOMIAL_END, TrainArguments
from utils.training.precision import MasterWeightAdamW, half_dtype, keeps_master_weights


def build_optimizer(model: nn.Module, args: TrainArguments) -> AdamW:
    """AdamW (Loshchilov & Hutter, 2019) over the trainable parameters, without decay on biases and norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Biases and norm weights are the vectors among BART's parameters; all else are matrices.
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = MasterWeightAdamW if keeps_master_weights(args) else AdamW
    # torch's fused AdamW unscales half-precision gradients itself, and Lightning refuses to clip such gradients. O3
    # scales nothing, and needs the fused one, which computes in fp32: in fp16 its epsilon would round to zero.
    return optimizer(groups, lr=args.learning_rate, fused=half_dtype(args) is None or args.amp_level == "O3")


def build_schedule(name: str, optimizer: Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Linear warm-up from 0, then the named decay, over total_steps optimizer steps, as `transformers` has them."""
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
            return schedules.get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, warmup_steps, total_steps)
        case "constant":
            return schedules.get_constant_schedule_with_warmup(optimizer, warmup_steps)
    raise ValueError(f"unknown schedule {name!r}")
