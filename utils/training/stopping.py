"""Checks of each step that end a run: of values that are not finite, and of gradients that overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import pytorch_lightning as pl
import torch
from torch import Tensor

from utils.app.distributed import from_all
from utils.app.errors import RunError
from utils.data.batches import Batch
from utils.training.module import TrainingModule

MAX_SKIPPED_IN_A_ROW = 20


@dataclass
class _Step:
    number: int
    lr: float
    values: Tensor  # (3,) loss, gradient norm and `asked`, on the host once `copied` has happened
    copied: torch.cuda.Event | None
    batches: list[Batch]  # of this process
    losses: Tensor  # of these batches


class Divergence:
    """Ends a run whose loss or gradient is NaN or infinite, or whose steps fp16's loss scaler skips again and again.

    A step's values are read one step late. By then a GPU has computed them, so that reading does not hold it up.
    Infinite gradients in fp16 are left to the loss scaler, which skips such a step.

    Attributes:
        is_asked: whether a process had been asked to end before the last step that was read; the same in all processes.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self.skipped = self.in_a_row = 0  # steps: of the whole run, and one after the other at the moment
        self.unread: _Step | None = None

    def after_step(self, trainer: pl.Trainer, module: TrainingModule, batches: list[Batch], losses: Tensor) -> None:
        """Check the step before this one, whose micro-batches on this process have these losses."""
        values = [module.train_loss, module.grad_norm, module.asked]
        values = torch.stack([value.float() for value in values]).to("cpu", non_blocking=True)
        copied = torch.cuda.Event() if module.device.type == "cuda" else None
        if copied is not None:
            copied.record()
        self.check(trainer)
        self.unread = _Step(trainer.global_step, module.lr, values, copied, batches, losses)

    def check(self, trainer: pl.Trainer) -> None:
        """Read the last step's values; RunError if they are not finite, or too many steps in a row were skipped."""
        if self.unread is None:
            return
        step, self.unread = self.unread, None
        if step.copied is not None:
            step.copied.synchronize()
        loss, grad_norm, asked = step.values.tolist()
        self.is_asked |= asked > 0
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if not math.isfinite(loss):
            raise RunError(_not_finite(f"training loss is {loss}", step, ~torch.isfinite(step.losses), trainer))
        if math.isfinite(grad_norm):
            self.in_a_row = 0
        elif scaler is None:
            raise RunError(_not_finite(f"gradient norm is {grad_norm}", step, torch.ones_like(step.losses), trainer))
        else:
            self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        if self.in_a_row >= MAX_SKIPPED_IN_A_ROW:
            rate = trainer.lightning_module.plan.optimisation.learning_rate
            raise RunError(
                f"{self.in_a_row} steps in a row, up to step {step.number}, were skipped because gradients overflow "
                f"fp16; try --bf16, or a --learning_rate lower than {rate:g}"
            )


def _not_finite(what: str, step: _Step, is_suspect: Tensor, trainer: pl.Trainer) -> str:
    """The error for a step, with the examples of its suspect batches on all processes, which all come here."""
    batches = zip(step.batches, is_suspect.tolist(), strict=True)
    shares = from_all([index + 1 for batch, suspect in batches if suspect for index in batch.index])
    order = "the training shards" if trainer.datamodule.streams else "the files, among the examples in use"
    return (
        f"the {what} at step {step.number}, with learning rate {step.lr:.4g}; examples in its batch, counted from 1 in "
        f"the order of {order}: {', '.join(map(str, sorted(chain(*shares))))}"
    )
