"""What shows how a run goes on, and what ends it."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, ProgressBar, RichProgressBar, TQDMProgressBar
from pytorch_lightning.callbacks.progress.rich_progress import RichProgressBarTheme
from torch import Tensor

from utils.cli import RunError

# On a terminal the progress bar shows the same, so that the log goes to the file alone.
progress = logging.getLogger("progress")
logger = logging.getLogger(__name__)
SHOWN = ("train_loss", "lr", "grad_norm", "tokens_per_second", "skipped_steps")
MAX_SKIPPED_IN_A_ROW = 20


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


@dataclass
class _Step:
    number: int
    lr: float
    values: Tensor  # (2,) loss and gradient norm on the CPU, once they are copied
    copied: torch.cuda.Event | None
    batches: list[tuple[Tensor, Tensor]]  # of this process: indices of examples, and their loss


class Patience(EarlyStopping):
    """Ends a run after so many validations without a better metric; a resumed run does not change its mind."""

    def __init__(self, metric: str, mode: str, patience: int) -> None:
        super().__init__(metric, mode=mode, patience=patience, check_on_train_epoch_end=False)
        self.stopped = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or self.stopped

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        if not torch.isfinite(current):
            raise RunError(f"{self.monitor} is {current.item()}: the run has diverged; try a lower --learning_rate")
        stop, reason = super()._evaluate_stopping_criteria(current)
        if stop and not self.stopped:
            logger.info("early stopping: %s did not get better in %d validations", self.monitor, self.wait_count)
        self.stopped = self.stopped or stop
        return stop, reason

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "stopped": self.stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.stopped = state_dict["stopped"]
        super().load_state_dict(state_dict)


class StopOnNonFinite(Callback):
    """Ends a run whose loss or gradient is NaN or infinite, before a checkpoint of it is written.

    A GPU has long computed a step's values when they are looked at one step late, so that looking does not hold it up;
    before a validation and in a checkpoint's making, none are left unseen. This callback is to be the first, ahead of
    any that write checkpoints. Infinite gradients in fp16 are the loss scaler's business, where there is one.
    """

    def __init__(self) -> None:
        self.step = 0
        self.batches: list[tuple[Tensor, Tensor]] = []
        self.unseen: _Step | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        self.batches.append((batch["index"], outputs["loss"]))
        if trainer.global_step == self.step:  # gradients are accumulated
            return
        self.step = trainer.global_step
        values = torch.stack([pl_module.train_loss, pl_module.grad_norm]).to("cpu", non_blocking=True)
        copied = torch.cuda.Event() if pl_module.device.type == "cuda" else None
        if copied is not None:
            copied.record()
        step = _Step(self.step, pl_module.lr, values, copied, self.batches)
        self.batches = []
        self._look(trainer)
        self.unseen = step

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._look(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._look(trainer)

    def _look(self, trainer: pl.Trainer) -> None:
        step = self.unseen
        if step is None:
            return
        if step.copied is not None:
            step.copied.synchronize()
        loss, grad_norm = step.values.tolist()
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if not math.isfinite(loss):
            what = f"training loss is {loss}"
        elif not math.isfinite(grad_norm) and not scaled:
            what = f"gradient norm is {grad_norm}"
        else:
            self.unseen = None  # else it stays, so that no checkpoint is written on the way out either
            return
        # Loss and norm are those of all processes, which all come here.
        lines = [
            index + 1
            for indices, value in step.batches
            if math.isfinite(loss) or not torch.isfinite(value)
            for index in indices.tolist()
        ]
        if trainer.world_size > 1:
            parts: list[list[int]] = [[] for _ in range(trainer.world_size)]
            torch.distributed.all_gather_object(parts, lines)
            lines = [line for part in parts for line in part]
        streams = trainer.lightning_module.args.streams
        named = "examples of the stream, as this epoch read them," if streams else "lines of train.source"
        _end_run(
            trainer,
            f"the {what} at step {step.number}, with learning rate {step.lr:.4g}; {named} in its "
            f"batch: {', '.join(map(str, sorted(lines)))}",
        )


class CountSkippedSteps(Callback):
    """Counts the steps that fp16's loss scaler skips because gradients overflowed, and ends a run that gets nowhere.

    Logs `loss_scale` and `skipped_steps`, of the whole run.
    """

    def __init__(self) -> None:
        self.count = 0
        self.in_a_row = 0
        self.step = 0
        self.stepped = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step
        # The scaler calls `step` only where it does not skip; asking it for its scale would wait for the device.
        trainer.optimizers[0].register_step_post_hook(self._on_step)

    def _on_step(self, *_: Any) -> None:
        self.stepped = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None or trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        self.count += not self.stepped
        self.in_a_row = 0 if self.stepped else self.in_a_row + 1
        self.stepped = False
        if self.in_a_row == MAX_SKIPPED_IN_A_ROW:
            _end_run(
                trainer,
                f"{self.in_a_row} steps in a row, up to step {self.step}, were skipped because gradients overflow fp16 "
                f"even at a loss scale of {scaler.get_scale():g}; try --bf16, or a --learning_rate lower than "
                f"{pl_module.args.learning_rate:g}",
            )
        if trainer._logger_connector.should_update_logs:
            pl_module.log_dict({"loss_scale": scaler.get_scale(), "skipped_steps": float(self.count)})

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def _end_run(trainer: pl.Trainer, message: str) -> NoReturn:
    if trainer.is_global_zero:
        progress.error(message)  # for log.txt
    raise RunError(message)


def progress_bar(every: int) -> ProgressBar:
    """Lightning's bar: rich's where rich is installed, else tqdm's.

    Args:
        every: optimizer steps between two readings of the metrics, each of which waits for the device.
    """
    rich = find_spec("rich") is not None

    class Bar(RichProgressBar if rich else TQDMProgressBar):  # type: ignore[misc]
        def __init__(self) -> None:
            # By default rich shows three decimals, and learning rates as 0.
            super().__init__(**({"theme": RichProgressBarTheme(metrics_format=".4g")} if rich else {}))
            self.shown: dict[str, Any] = {}
            self.read_at = 0

        def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
            step = trainer.global_step
            if trainer.validating or (step % every == 0 and step != self.read_at):
                self.read_at = step
                self.shown = super().get_metrics(trainer, pl_module)
            return self.shown

    return Bar()
