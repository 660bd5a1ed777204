"""Callbacks that end a run early: no progress, values that are not finite, gradients that overflow."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping
from torch import Tensor

from utils.app.errors import RunError
from utils.app.output_files import difference
from utils.data.batches import Batch

logger = logging.getLogger(__name__)
MAX_SKIPPED_IN_A_ROW = 20


class Patience(EarlyStopping):
    """Ends a run after so many validations without a better metric; one that it ended ends at once when resumed.

    Args:
        min_epochs: epochs before the run may end.
        conditions: plain values on which the metric depends. Validations under different ones do not count.
    """

    def __init__(self, metric: str, mode: str, patience: int, min_epochs: int, conditions: Mapping[str, Any]) -> None:
        super().__init__(metric, mode=mode, patience=patience, check_on_train_epoch_end=False)
        self.min_epochs, self.conditions = min_epochs, dict(conditions)
        self.stopped = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or self.stopped

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking and not torch.isfinite(value := trainer.callback_metrics[self.monitor]):
            raise RunError(f"{self.monitor} is {value.item()}: the run has diverged; try a lower --learning_rate")
        super().on_validation_end(trainer, pl_module)
        step, data = trainer.global_step, trainer.datamodule
        epochs = data.epoch(step + 1)  # that are finished
        if trainer.should_stop and epochs < self.min_epochs:
            trainer.should_stop = False
        elif trainer.should_stop and step < data.total_steps and not self.stopped:
            logger.info("early stopping: %s did not get better in %d validations", self.monitor, self.wait_count)
            self.stopped = True

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "stopped": self.stopped, "conditions": self.conditions}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not difference(state_dict["conditions"], self.conditions):
            super().load_state_dict({**state_dict, "patience": self.patience})  # which may have changed
            self.stopped = state_dict["stopped"] and self.wait_count >= self.patience


class _Copy:
    """Values (N,) that are copied to the host; to read them does not wait for work that the device gets later."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.to("cpu", non_blocking=True)
        self.copied = torch.cuda.Event() if values.is_cuda else None
        if self.copied is not None:
            self.copied.record()

    def read(self) -> list[float]:
        if self.copied is not None:
            self.copied.synchronize()
        return self.values.tolist()


@dataclass
class _Step:
    number: int
    lr: float
    values: _Copy  # (2,) loss and gradient norm
    batches: list[Batch]  # of this process
    losses: Tensor  # of these batches


class StopOnNonFinite(Callback):
    """Ends a run whose loss or gradient is NaN or infinite, before a checkpoint of it is written.

    A step's values are read one step late. By then a GPU has computed them, so that reading does not hold it up.
    Before a validation or a checkpoint, the last step's values are read. This callback must come before any that writes
    checkpoints. Infinite gradients in fp16 are left to the loss scaler.
    """

    def __init__(self) -> None:
        self.unseen: _Step | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: list[Batch], batch_idx: int
    ) -> None:
        values = _Copy(torch.stack([pl_module.train_loss, pl_module.grad_norm]))
        step = _Step(trainer.global_step, pl_module.lr, values, batch, outputs["loss"])
        self._look(trainer)
        self.unseen = step

    def _look(self, trainer: pl.Trainer, *_: Any) -> None:
        step = self.unseen
        if step is None:
            return
        loss, grad_norm = step.values.read()
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if not math.isfinite(loss):
            what = f"training loss is {loss}"
        elif not math.isfinite(grad_norm) and not scaled:
            what = f"gradient norm is {grad_norm}"
        else:
            self.unseen = None  # otherwise it stays, so that no checkpoint is written on the way out either
            return
        # Loss and norm are those of all processes, so all processes come here.
        numbers = []
        for batch, value in zip(step.batches, step.losses, strict=True):
            if math.isfinite(loss) or not torch.isfinite(value):
                numbers += [index + 1 for index in batch.index]
        if trainer.world_size > 1:
            parts: list[list[int]] = [[] for _ in range(trainer.world_size)]
            torch.distributed.all_gather_object(parts, numbers)
            numbers = [number for part in parts for number in part]
        order = "this epoch's stream" if trainer.datamodule.streams else "the files, among the examples in use"
        raise RunError(
            f"the {what} at step {step.number}, with learning rate {step.lr:.4g}; examples in its batch, counted from "
            f"1 in the order of {order}: {', '.join(map(str, sorted(numbers)))}"
        )

    on_validation_start = on_save_checkpoint = _look


class CountSkippedSteps(Callback):
    """Counts the steps that fp16's loss scaler skips because gradients overflowed, and ends a run that gets nowhere.

    Their gradient norm is not finite. Its copy, which the callback before this one made, is read one step late, or when
    the count is asked for.
    """

    def __init__(self, copies: StopOnNonFinite) -> None:
        self.copies = copies
        self.skipped = self.in_a_row = 0
        self.unread: _Copy | None = None

    @property
    def count(self) -> int:
        """Skipped steps of the whole run."""
        if self.unread is not None:
            is_skipped = not math.isfinite(self.unread.read()[1])
            self.unread, self.skipped = None, self.skipped + is_skipped
            self.in_a_row = self.in_a_row + 1 if is_skipped else 0
        return self.skipped

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self._check(trainer, pl_module, trainer.global_step - 1)
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            self.unread = self.copies.unseen.values

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check(trainer, pl_module, trainer.global_step)

    def _check(self, trainer: pl.Trainer, pl_module: pl.LightningModule, step: int) -> None:
        """Raise RunError if all of the last steps, up to this one, were skipped."""
        if self.count and self.in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise RunError(
                f"{self.in_a_row} steps in a row, up to step {step}, were skipped because gradients overflow fp16 even "
                f"at a loss scale of {trainer.precision_plugin.scaler.get_scale():g}; try --bf16, or a --learning_rate "
                f"lower than {pl_module.plan.optimisation.learning_rate:g}"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped = state_dict["count"]
