"""What a run shows and measures while it goes on."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

# On a terminal the progress bar shows the same, so that the log goes to the file alone.
progress = logging.getLogger("progress")
SHOWN = ("train_loss", "lr", "tokens_per_second")


class Throughput(Callback):
    """Logs `tokens_per_second`: source and target tokens trained on, padding not counted, over all processes.

    Time spent in validation and in writing checkpoints does not count.
    """

    def __init__(self) -> None:
        self.tokens: Tensor | None = None
        self.seconds = 0.0
        self.started = 0.0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        tokens = batch["attention_mask"].sum() + (batch["labels"] >= 0).sum()
        self.tokens = tokens if self.tokens is None else self.tokens + tokens
        if not trainer._logger_connector.should_update_logs:
            self.seconds += time.perf_counter() - self.started
            return
        # Reading the count waits for the device, so that the time taken is that of finished work.
        total = self.tokens.item() * trainer.world_size
        self.seconds += time.perf_counter() - self.started
        pl_module.log("tokens_per_second", total / self.seconds, prog_bar=True)
        self.tokens, self.seconds = None, 0.0


class LogProgress(Callback):
    """Logs a line every so many steps, and one per validation: what a log file or a pipe can hold."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.logged_at = 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step % self.every or step == self.logged_at or not trainer.is_global_zero:
            return
        self.logged_at = step
        values = {name: trainer.callback_metrics[name] for name in SHOWN if name in trainer.callback_metrics}
        self._log(f"step {step}/{trainer.max_steps} (epoch {trainer.current_epoch})", values)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking and trainer.is_global_zero:
            values = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("val_")}
            self._log(f"step {trainer.global_step} validation", values)

    def _log(self, head: str, values: dict[str, Tensor]) -> None:
        progress.info("%s  %s", head, "  ".join(f"{name} {float(value):.4g}" for name, value in values.items()))


class ValidateAtTheEnd(Callback):
    """Validates after the last step too, so that what the last steps learnt is scored and saved."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step >= trainer.max_steps:
            # Lightning validates before it obeys a stop, unless min_epochs forbids the stop.
            trainer.fit_loop.min_epochs = 0
            trainer.should_stop = True


class StopOnNonFiniteLoss(Callback):
    """Ends a run whose loss is NaN or infinite, before it writes a ruined checkpoint.

    fp16 overflows show in the gradients, which the loss scaler skips; a loss that is not finite is beyond that.
    """

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loss = trainer.callback_metrics.get("train_loss")
        if loss is not None and not torch.isfinite(loss):
            raise FloatingPointError(f"the training loss is {loss.item()} at step {trainer.global_step}")
