"""What a run measures of itself while it goes on, and the summary at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint

from utils.data.batches import Batch
from utils.memory import peak_memory_gb
from utils.training.callbacks import CountSkippedSteps

logger = logging.getLogger(__name__)
Stamp = float | torch.cuda.Event
PERCENTILES = (50, 95, 99)
SHOWN = ("train_loss", "lr", "grad_norm", "tokens_per_second", "skipped_steps")  # of training, in a line of progress


def stamp(device: torch.device) -> Stamp:
    """This moment; on a GPU the one at which the work queued so far is done, without waiting for it."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds(start: Stamp, end: Stamp) -> float:
    """Time between two stamps; waits for the second."""
    if isinstance(start, float):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1000


def step_time_percentiles(times: list[float]) -> dict[str, float]:
    """`step_time_p50` and so on, in the unit of the times."""
    values = np.percentile(times, PERCENTILES).tolist()
    return {f"step_time_p{point}": value for point, value in zip(PERCENTILES, values, strict=True)}


class Measurements(Callback):
    """Logs at every logging interval and at the end, over all processes: loss, rate, gradient norm, speed, memory.

    `train_loss`, `lr` and `grad_norm` (before clipping) are those of the interval's last step. `tokens_per_second`
    counts tokens without padding. The time of a step includes the loading of its batches, but neither validation nor
    the writing of checkpoints: it ends before those, and `StartClock` starts the next one after them.

    Args:
        every: optimizer steps of an interval.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.started_at = time.perf_counter()
        self.since: Stamp = 0.0
        # Of the interval under way, on this process.
        self.steps: list[tuple[Stamp, Stamp]] = []
        self.tokens = self.samples = 0
        # Of the run so far, over all processes.
        self.step_times: list[float] = []
        self.run_tokens = self.run_samples = self.run_seconds = 0.0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: list[Batch], batch_idx: int
    ) -> None:
        self.steps.append((self.since, stamp(pl_module.device)))
        self.tokens += sum(part.tokens for part in batch if part.counts)
        self.samples += sum(len(part) for part in batch if part.counts)
        if trainer.global_step % self.every and trainer.global_step < trainer.datamodule.total_steps:
            return
        metrics = {"train_loss": pl_module.train_loss, "lr": pl_module.lr, "grad_norm": pl_module.grad_norm}
        metrics |= self._close_interval(trainer, pl_module)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            metrics |= {"loss_scale": scaler.get_scale(), "skipped_steps": float(_of(CountSkippedSteps, trainer).count)}
        epoch = trainer.datamodule.epoch(trainer.global_step)
        head = f"step {trainer.global_step}/{trainer.datamodule.total_steps} (epoch {epoch})"
        write_metrics(trainer, metrics, head, SHOWN)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            metrics = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("val_")}
            write_metrics(trainer, metrics, f"step {trainer.global_step} validation", metrics)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.steps:
            self._close_interval(trainer, pl_module)

    def _close_interval(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, float]:
        """The interval's speed and memory; waits for the device, and reduces over processes."""
        device, strategy = pl_module.device, trainer.strategy
        times = [seconds(*step) for step in self.steps]
        totals = torch.tensor([self.tokens, self.samples], dtype=torch.float64, device=device)
        # A step takes as long as its slowest process does.
        worst = torch.tensor([peak_memory_gb(device), sum(times), *times], dtype=torch.float64, device=device)
        tokens, samples = strategy.reduce(totals, reduce_op="sum").tolist()
        peak, elapsed, *times = strategy.reduce(worst, reduce_op="max").tolist()
        self.steps, self.tokens, self.samples = [], 0, 0
        self.step_times += times
        self.run_tokens += tokens
        self.run_samples += samples
        self.run_seconds += elapsed
        return {
            "tokens_per_second": tokens / elapsed,
            "samples_per_second": samples / elapsed,
            **step_time_percentiles(times),
            "peak_memory_gb": peak,
        }


class StartClock(Checkpoint):
    """Starts the time of the next step once validation and the writing of checkpoints are over.

    Lightning runs callbacks of this class after all others, in the order given: this one must be the last.
    """

    def __init__(self, measurements: Measurements) -> None:
        self.measurements = measurements

    def _start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.measurements.since = stamp(pl_module.device)

    on_train_start = on_train_batch_end = on_validation_end = _start


def write_metrics(trainer: pl.Trainer, metrics: Mapping[str, Any], head: str, shown: Collection[str]) -> None:
    """Write metrics to all loggers, as of the last optimizer step, and those shown as a line of progress.

    Waits for the device.
    """
    step = trainer.global_step
    values = {name: float(value) for name, value in metrics.items()} | {"epoch": trainer.datamodule.epoch(step)}
    if trainer.is_global_zero:
        logger.info("%s  %s", head, "  ".join(f"{name} {values[name]:.4g}" for name in shown if name in values))
    for each in trainer.loggers:
        each.log_metrics(values, step - 1)  # files count steps from 0
        each.save()


def _of(kind: type[Callback], trainer: pl.Trainer) -> Any:
    """The trainer's callback of a kind."""
    return next(callback for callback in trainer.callbacks if isinstance(callback, kind))


def run_summary(trainer: pl.Trainer, metric: str, score: float | None, best: Path) -> dict[str, Any]:
    """The content of train_summary.json: steps and epochs of the whole run, times and speeds since it was last started.

    What was not measured is left out: epochs of a stream, or speeds of a resumed run with no step left.

    Args:
        metric: what makes a checkpoint the best one.
        score: the best one's.
    """
    measured, data = _of(Measurements, trainer), trainer.datamodule
    last = trainer.callback_metrics.get(metric)
    summary = {"steps": trainer.global_step, "steps_since_start": len(measured.step_times)}
    if data.steps_per_epoch:
        summary["epochs"] = trainer.global_step / data.steps_per_epoch
    summary |= {
        "wall_seconds": time.perf_counter() - measured.started_at,
        "training_seconds": measured.run_seconds,
    }
    if measured.step_times:
        summary |= {
            "samples_per_second": measured.run_samples / measured.run_seconds,
            "tokens_per_second": measured.run_tokens / measured.run_seconds,
            **step_time_percentiles(measured.step_times),
            "train_loss": float(trainer.lightning_module.train_loss),
        }
    if last is not None:
        summary[f"last_{metric}"] = float(last)
    if score is not None:
        summary[metric] = score
    return summary | {
        "best_checkpoint": best.name,
        "skipped_steps": _of(CountSkippedSteps, trainer).count,
        "peak_memory_gb": peak_memory_gb(trainer.lightning_module.device),
    }
