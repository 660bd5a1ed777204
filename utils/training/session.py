"""The one callback of a run, which logs, saves, validates and stops in this order around its steps."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from utils.app.errors import RunError
from utils.app.machine import peak_rate
from utils.app.memory import peak_memory_gb
from utils.app.run_directory import SECONDS, options_to_resume, seconds_of_sessions
from utils.app.signals import NAMES, Signals, answer, status
from utils.app.stores import publish
from utils.data.batches import Batch
from utils.tasks.task import TrainedTask
from utils.training.checkpoints import LAST_FILE, BestCheckpoints, check_same_start, completed, remove_unnamed_shards
from utils.training.lightning_internals import settle
from utils.training.measurements import Measurements, rates
from utils.training.module import TrainingModule
from utils.training.options import Plan
from utils.training.precision import precision_name
from utils.training.stopping import Divergence

logger = logging.getLogger(__name__)


class Session(Callback):
    """The one callback of a run.

    A validation that a signal breaks off is done again, from its beginning, when the run goes on.
    """

    def __init__(self, plan: Plan, task: TrainedTask) -> None:
        run, self.plan, self.directory = plan.run, plan, plan.directory
        metric = task.validation_name(plan.metric)
        # Operations per second of this process's GPU at its best, where they are known.
        rate = peak_rate(torch.cuda.get_device_name(), precision_name(plan.hardware)) if plan.hardware.gpus else None
        self.measurements = Measurements(run.log_every_n_steps, rate, seconds_of_sessions(self.directory))
        self.divergence = Divergence()
        self.signals: Signals | None = None  # in training, when they ask the run to end
        self.best = BestCheckpoints(plan, metric)
        self.in_validation = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        check_same_start(self.plan.checkpoint)

    def on_train_start(self, trainer: pl.Trainer, pl_module: TrainingModule) -> None:
        publish(self.plan.run.output_dir)  # better refused now than with the first checkpoint
        self.measurements.begin(trainer)
        self.signals = pl_module.signals = Signals(postpone)
        self.best.forget_absent()
        trainer.should_stop = self.best.has_stopped
        self.measurements.start_clock(pl_module.device)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: TrainingModule, outputs: Any, batch: list[Batch], batch_idx: int
    ) -> None:
        step, every = trainer.global_step, self.plan.run.save_every_n_steps
        self.divergence.after_step(trainer, pl_module, batch, outputs["loss"])
        self.measurements.after_step(trainer, pl_module, batch, self.divergence)
        self._finish(trainer, waits=False)
        # Where a validation comes next, it saves and leaves.
        if (batch_idx + 1) % trainer.val_check_batch and step < trainer.datamodule.total_steps:
            # Of several processes, all learn in the same step that one was asked to end.
            ends = self.divergence.is_asked if trainer.world_size > 1 else self.signals.number
            if ends or (every is not None and step % every == 0):
                self._finish(trainer)
                self._save(trainer)
            if ends:
                self._leave(trainer)
        self.measurements.start_clock(pl_module.device)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.divergence.check(trainer)
        self._finish(trainer)
        self.measurements.before_validation()

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: TrainingModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        self.measurements.after_validation_batch(trainer, batch_idx)
        examples = len(trainer.datamodule.val) // trainer.world_size
        all_come_here = batch_idx * self.plan.batches.eval_batch_size < examples
        if all_come_here and not trainer.sanity_checking and self._is_asked(pl_module):
            pl_module.keep_whole(False)
            self.in_validation = True
            self._save(trainer)
            self._leave(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: TrainingModule) -> None:
        self.measurements.after_validation(trainer)
        if trainer.sanity_checking:
            return
        self.best.after_validation(trainer)
        self._save(trainer)
        if self._is_asked(pl_module):
            self._leave(trainer)
        self.measurements.start_clock(pl_module.device)

    def on_train_end(self, trainer: pl.Trainer, pl_module: TrainingModule) -> None:
        self._finish(trainer)
        self.measurements.end(trainer, pl_module.device)
        self._restore_signals()

    def on_exception(self, *_: Any) -> None:
        self.measurements.line.__exit__()
        self._restore_signals()

    def _restore_signals(self) -> None:
        if self.signals is not None:
            self.signals.restore()

    def _is_asked(self, module: TrainingModule) -> bool:
        """True if a process has been asked to end until now; all processes must call it at the same place."""
        if module.trainer.world_size == 1:
            return self.signals.number > 0
        return bool(module.summed(torch.tensor(self.signals.number, device=module.device)))

    def _save(self, trainer: pl.Trainer) -> None:
        self.divergence.check(trainer)
        trainer.save_checkpoint(self.directory / LAST_FILE)
        self._finish(trainer, waits=False)

    def _finish(self, trainer: pl.Trainer, waits: bool = True) -> None:
        """Let checkpoints that are written take their places, and bring them to a store."""
        if not trainer.strategy.checkpoint_io.finish(waits):
            return
        if trainer.is_global_zero:
            for entry in self.best.dropped:
                (self.directory / entry["name"]).unlink(missing_ok=True)
            remove_unnamed_shards(self.directory)
        try:
            publish(self.plan.run.output_dir)
        except RunError as error:
            logger.warning("%s; the next checkpoint tries it again", error)

    def _leave(self, trainer: pl.Trainer) -> NoReturn:
        self._finish(trainer)
        trainer.strategy.barrier("leave")  # torchrun ends the others when one has left
        number = self.signals.number or signal.SIGTERM  # which another process got
        options = options_to_resume(self.plan.run.output_dir)
        logger.info("ended by %s after step %d; %s goes on", NAMES[number], trainer.global_step, options)
        raise SystemExit(status(number))

    def summary(self, trainer: pl.Trainer, best: Path) -> dict[str, Any]:
        """The content of train_summary.json, of all sessions; percentiles of step times are those of the last one."""
        measured, data, metric = self.measurements, trainer.datamodule, self.best.metric
        summary = {
            "steps": trainer.global_step,
            "steps_since_start": len(measured.step_times),
            "epochs": trainer.global_step / data.steps_per_epoch,
            "train_examples": len(data.train),
            SECONDS: measured.wall_seconds,
            "training_seconds": float(measured.sums[2]),
        }
        if measured.step_times:
            summary |= {**rates(measured.sums, measured.step_times), "train_loss": measured.train_loss}
        if metric in trainer.callback_metrics:
            summary[f"last_{metric}"] = float(trainer.callback_metrics[metric])
        if self.best.score is not None:
            summary[metric] = self.best.score
        return summary | {
            "best_checkpoint": best.name,
            "skipped_steps": self.divergence.skipped,
            "peak_memory_gb": peak_memory_gb(trainer.lightning_module.device),
        }

    # ---- Its part of a checkpoint

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        settle(checkpoint["loops"], trainer.global_step, self.in_validation)

    def state_dict(self) -> dict[str, Any]:
        parts = {"Measurements": self.measurements.state_dict(), "BestCheckpoints": self.best.state_dict()}
        return {**parts, "skipped_steps": self.divergence.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.divergence.skipped = state_dict["skipped_steps"]
        self.measurements.load_state_dict(state_dict["Measurements"])
        best = {**state_dict.get("Patience", {}), **state_dict["BestCheckpoints"]}  # earlier code had both
        best["conditions"] = completed(best["conditions"], self.plan.conditions, self.plan.defaults)
        self.best.load_state_dict(best)


def postpone(number: int) -> None:
    """Answer a signal that ends the run later, when all processes know of it by the sums of a step."""
    answer(f"{NAMES[number]}: saving after this step, or batch of validation; again: end now")
