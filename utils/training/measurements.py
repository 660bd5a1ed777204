"""Measurements of a run while it goes on, and the summary at its end."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint
from torch import Tensor

from utils.app.formatting import format_metric
from utils.app.memory import peak_memory_gb
from utils.app.progress import IN_ONE_LINE, IN_THE_LINE, progress
from utils.app.run_metrics import SECONDS
from utils.data.batches import Batch
from utils.training.callbacks import CountSkippedSteps

logger = logging.getLogger(__name__)
Stamp = float | torch.cuda.Event
PERCENTILES = (50, 95, 99)
LOG_SECONDS = 60  # between two lines of a validation in the log, where no terminal shows how far it is


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

    `train_loss` is the mean of the interval's steps; `lr`, `grad_norm` (before clipping) and the range of LAMB's trust
    ratios are those of its last one. `tokens_per_second` counts tokens without padding, and so does `mfu`, the share of
    the GPUs' peak rate that the model's operations take (Chowdhery et al., 2022, appendix B). The time of a step
    includes the loading of its batches, but neither validation nor the writing of checkpoints: it ends before those,
    and `StartClock` starts the next one after them.

    `wall_seconds` and the sums over the run go on from those of its earlier sessions.

    Args:
        every: optimizer steps of an interval.
        peak_rate: operations per second of a process's GPU, where it is known.
        earlier_seconds: the wall clock of the run's earlier sessions.
    """

    def __init__(self, every: int, peak_rate: float | None = None, earlier_seconds: float = 0.0) -> None:
        self.every, self.peak_rate = every, peak_rate
        self.line = progress[Any]("step", None, "", wait=0, every=math.inf)  # the log has the intervals
        self.shown: list[str] = []  # parts of the line, of the last interval
        self.began = time.perf_counter()
        self.earlier_seconds = earlier_seconds
        self.since: Stamp = 0.0
        # Of the validations in this session: when the last one began, their number, which grows with their batches, and
        # the time that the finished ones took.
        self.validation_began = self.validations = self.validation_seconds = 0.0
        # Of the interval under way, on this process.
        self.steps: list[tuple[Stamp, Stamp]] = []
        self.losses: list[Tensor | float] = []
        self.tokens = self.samples = self.operations = 0
        # Of the run so far, over all processes.
        self.step_times: list[float] = []
        self.run_tokens = self.run_samples = self.run_seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.line.total = trainer.datamodule.total_steps
        self.line.begin(trainer.global_step)
        self.line.update(0)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: list[Batch], batch_idx: int
    ) -> None:
        self.losses.append(pl_module.train_loss)
        self.steps.append((self.since, stamp(pl_module.device)))
        self.tokens += sum(part.tokens for part in batch if part.is_real)
        self.samples += sum(len(part) for part in batch if part.is_real)
        if self.peak_rate is not None:
            task, model = pl_module.task, pl_module.model
            self.operations += sum(task.operations(model, part) for part in batch if part.is_real)
        step, total, interval = trainer.global_step, trainer.datamodule.total_steps, trainer.val_check_batch
        closes = step % self.every == 0 or step >= total
        if closes:
            values = self._close_interval(trainer, pl_module)
            values |= {"lr": pl_module.lr, "grad_norm": float(pl_module.grad_norm)}
            if (ratios := pl_module.trust_ratios) is not None:
                spread = torch.stack([ratios.min(), ratios.mean(), ratios.max()]).tolist()
                values |= dict(zip(("trust_ratio_min", "trust_ratio_mean", "trust_ratio_max"), spread, strict=True))
            if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
                skipped = float(_of(CountSkippedSteps, trainer).count)
                values |= {"loss_scale": scaler.get_scale(), "skipped_steps": skipped}
            write_metrics(trainer, values)
            self.shown = [named("train_loss", values), format_metric("tokens_per_second", values["tokens_per_second"])]
        self.line.notes = [*self.shown, f"next validation in {min(interval - step % interval, total - step):,} steps"]
        self.line.done = step
        self.line.left = self._seconds_left(trainer)
        self.line.update(0)
        if closes and trainer.is_global_zero:
            more = [named(name, values) for name in ("lr", "grad_norm", "mfu", "skipped_steps") if values.get(name)]
            logger.info("  ".join([self.line.text(), *more]), extra=IN_THE_LINE)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.validation_began = time.monotonic()
        self.line.notes = ["validating"]
        self.line.log_every(LOG_SECONDS)
        self.line.update(0)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        batches = sum(trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches)
        self.line.notes = [f"validating {batch_idx + 1:,}/{batches:,}"]
        if not trainer.sanity_checking:
            self.line.left = self._seconds_left(trainer, (batch_idx + 1) / batches)
        self.line.update(0)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.line.log_every(math.inf)
        if not trainer.sanity_checking:
            self.validations += 1
            self.validation_seconds += time.monotonic() - self.validation_began
        if not trainer.sanity_checking or trainer.num_sanity_val_steps == math.inf:
            metrics = trainer.callback_metrics.items()
            values = {name: float(value) for name, value in metrics if name.startswith("val_")}
            write_metrics(trainer, values)
            if trainer.is_global_zero:
                parts = [f"val {trainer.global_step:,}", *(named(name, values) for name in values)]
                logger.info("  ".join(parts), extra=IN_ONE_LINE)
        self.line.notes = self.shown

    def _seconds_left(self, trainer: pl.Trainer, validated: float = 0.0) -> float:
        """The time until the end of the run, if steps and validations take as long as before; infinity if unknown.

        Args:
            validated: the share of the validation under way that is done.
        """
        step, total, interval = trainer.global_step, trainer.datamodule.total_steps, trainer.val_check_batch
        now, validations, of_validations = time.monotonic(), self.validations + validated, self.validation_seconds
        of_validations += now - self.validation_began if validated else 0.0
        of_steps = now - self.line.began - of_validations
        left = (total - step) * of_steps / max(1, step - self.line.done_before)
        if validations:
            left += (math.ceil(total / interval) - (step - 1) // interval - validated) * of_validations / validations
        return left if validations or step < total else math.inf

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.line.__exit__()
        if self.steps:
            self._close_interval(trainer, pl_module)

    def on_exception(self, *_: Any) -> None:
        self.line.__exit__()

    @property
    def wall_seconds(self) -> float:
        """The time that this session and the earlier ones have taken."""
        return self.earlier_seconds + time.perf_counter() - self.began

    def state_dict(self) -> dict[str, Any]:
        sums = [self.run_tokens, self.run_samples, self.run_seconds]
        return {"losses": [float(loss) for loss in self.losses], "sums": sums, SECONDS: self.wall_seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses = state_dict["losses"]
        # A session that was killed has written metrics after its last checkpoint; one that was ended, before it. Former
        # versions kept losses alone.
        self.earlier_seconds = max(self.earlier_seconds, state_dict.get(SECONDS, 0.0))
        self.run_tokens, self.run_samples, self.run_seconds = state_dict.get("sums", (0.0, 0.0, 0.0))

    def _close_interval(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, float]:
        """The interval's loss, speed and memory; waits for the device, and reduces over processes."""
        device, strategy = pl_module.device, trainer.strategy
        times = [seconds(*step) for step in self.steps]
        totals = torch.tensor([self.tokens, self.samples, self.operations], dtype=torch.float64, device=device)
        # A step takes as long as its slowest process does.
        worst = torch.tensor([peak_memory_gb(device), sum(times), *times], dtype=torch.float64, device=device)
        tokens, samples, operations = strategy.reduce(totals, reduce_op="sum").tolist()
        peak, elapsed, *times = strategy.reduce(worst, reduce_op="max").tolist()
        self.train_loss = sum(map(float, self.losses)) / len(self.losses)
        self.steps, self.losses = [], []
        self.tokens = self.samples = self.operations = 0
        self.step_times += times
        self.run_tokens += tokens
        self.run_samples += samples
        self.run_seconds += elapsed
        return {
            "train_loss": self.train_loss,
            "tokens_per_second": tokens / elapsed,
            "samples_per_second": samples / elapsed,
            **({"mfu": operations / elapsed / (self.peak_rate * trainer.world_size)} if operations else {}),
            **step_time_percentiles(times),
            "peak_memory_gb": peak,
            SECONDS: self.wall_seconds,
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


def named(name: str, values: Mapping[str, float]) -> str:
    """A figure with its name, short enough for a line of several."""
    return f"{name.removeprefix('train_').removeprefix('val_')} {format_metric(name, values[name])}"


def write_metrics(trainer: pl.Trainer, values: Mapping[str, float]) -> None:
    """Write metrics to all loggers, as of the last optimizer step."""
    step = trainer.global_step
    for each in trainer.loggers:
        each.log_metrics({**values, "epoch": trainer.datamodule.epoch(step)}, step - 1)  # files count steps from 0
        each.save()


def _of(kind: type[Callback], trainer: pl.Trainer) -> Any:
    """The trainer's callback of a kind."""
    return next(callback for callback in trainer.callbacks if isinstance(callback, kind))


def run_summary(trainer: pl.Trainer, metric: str, score: float | None, best: Path) -> dict[str, Any]:
    """The content of train_summary.json: steps, epochs, times and rates of the whole run, with all its sessions.

    The percentiles of step times are those of the last session. Unknown values are left out: epochs of a stream of
    texts, or speeds where a session had no step left.

    Args:
        metric: the name of the score by which checkpoints are compared.
        score: that of the best checkpoint.
    """
    measured, data = _of(Measurements, trainer), trainer.datamodule
    last = trainer.callback_metrics.get(metric)
    summary = {"steps": trainer.global_step, "steps_since_start": len(measured.step_times)}
    if data.steps_per_epoch:
        summary |= {"epochs": trainer.global_step / data.steps_per_epoch, "train_examples": len(data.train)}
    summary |= {SECONDS: measured.wall_seconds, "training_seconds": measured.run_seconds}
    if measured.step_times:
        summary |= {
            "samples_per_second": measured.run_samples / measured.run_seconds,
            "tokens_per_second": measured.run_tokens / measured.run_seconds,
            **step_time_percentiles(measured.step_times),
            "train_loss": measured.train_loss,
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
