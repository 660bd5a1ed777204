"""Measurements of a run while it goes on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from utils.app.formatting import duration, format_metric
from utils.app.memory import peak_memory_gb
from utils.app.progress import IN_THE_LINE, LOG_SECONDS, progress
from utils.app.run_directory import SECONDS
from utils.data.batches import Batch
from utils.training.module import Stamp, TrainingModule, stamp
from utils.training.stopping import Divergence

logger = logging.getLogger(__name__)
PERCENTILES = (50, 95, 99)
IN_THE_LOG = ("lr", "grad_norm", "mfu", "waiting", "skipped_steps")  # besides what the line of progress shows
SAID = 10.0  # seconds, beyond which the log says what a validation took


def seconds(start: Stamp, end: Stamp) -> float:
    """Time between two stamps; waits for the second."""
    if isinstance(start, float):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1000


def rates(sums: np.ndarray, times: list[float]) -> dict[str, float]:
    """The speed of steps that took these times, by (4,) sums over them: tokens, samples, seconds, and those waited."""
    tokens, samples, elapsed, waited = sums.tolist()
    points = zip(PERCENTILES, np.percentile(times, PERCENTILES).tolist(), strict=True)
    return {
        "samples_per_second": samples / elapsed,
        "tokens_per_second": tokens / elapsed,
        **({"waiting": waited / elapsed} if waited else {}),
        **{f"step_time_p{point}": value for point, value in points},
    }


class Measurements:
    """Logs at every logging interval and at the end, over all processes: loss, rate, gradient norm, speed, memory.

    `train_loss` is the mean of the interval's steps; `lr` and `grad_norm` (before clipping) are those of its last one.
    `tokens_per_second` counts tokens without padding, and so does `mfu`, the share of the GPUs' peak rate that the
    model's operations take (Chowdhery et al., 2022, appendix B). `waiting` is the share of the processes' time in which
    they waited for others, or for the last gradients that these exchange, under DDP. The time of a step includes the
    loading of its batches, but neither validation nor the writing of checkpoints.
    """

    def __init__(self, every: int, peak_rate: float | None = None, earlier_seconds: float = 0.0) -> None:
        self.every, self.peak_rate = every, peak_rate
        self.line = progress[Any]("step", None, "", wait=0, every=math.inf)  # the log has the intervals
        self.shown: list[str] = []  # parts of the line, of the last interval
        self.began = time.perf_counter()
        self.earlier_seconds = earlier_seconds
        self.since: Stamp = 0.0
        self.validation_began = self.validation_seconds = 0.0  # of the last validation, or of one by its first batches
        # Of the interval under way, on this process.
        self.steps: list[tuple[Stamp, Stamp]] = []
        self.waits: list[tuple[Stamp, Stamp]] = []
        self.losses: list[Tensor | float] = []
        self.tokens = self.samples = self.operations = 0
        # Of the run so far, over all processes.
        self.step_times: list[float] = []
        self.sums = np.zeros(4)  # as `rates` takes them

    def begin(self, trainer: pl.Trainer) -> None:
        self.line.total = trainer.datamodule.total_steps
        self.line.begin(trainer.global_step)
        self.line.update(0)

    def start_clock(self, device: torch.device) -> None:
        self.since = stamp(device)

    def after_step(
        self, trainer: pl.Trainer, module: TrainingModule, batches: list[Batch], divergence: Divergence
    ) -> None:
        """End the time of a step, and log the interval if it ends, too."""
        real = [batch for batch in batches if batch.is_real]
        self.losses.append(module.train_loss)
        self.steps.append((self.since, stamp(module.device)))
        if isinstance(trainer.model, DistributedDataParallel):
            self.waits += module.waits
        self.tokens += sum(batch.tokens for batch in real)
        self.samples += sum(map(len, real))
        if self.peak_rate is not None:
            self.operations += sum(module.task.operations(module.model, batch) for batch in real)
        step, total, interval = trainer.global_step, trainer.datamodule.total_steps, trainer.val_check_batch
        closes = step % self.every == 0 or step >= total
        if closes:
            values = self._close_interval(trainer, module.device)
            values |= {"lr": module.lr, "grad_norm": float(module.grad_norm)}
            if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
                divergence.check(trainer)
                values |= {"loss_scale": scaler.get_scale(), "skipped_steps": float(divergence.skipped)}
            write_metrics(trainer, values)
            self.shown = [named("train_loss", values), format_metric("tokens_per_second", values["tokens_per_second"])]
        until = min(-step % interval, total - step)
        self.line.notes = [*self.shown, f"next validation in {until:,} steps" if until else "validation comes next"]
        self.line.done = step
        self._count_left(trainer, time.monotonic())
        self.line.update(0)
        if closes and trainer.is_global_zero:
            more = [named(name, values) for name in IN_THE_LOG if values.get(name)]
            logger.info("  ".join([self.line.text(), *more]), extra=IN_THE_LINE)

    def _count_left(self, trainer: pl.Trainer, trained_until: float, validation: float | None = None) -> None:
        """Let the line say the time left; a validation under way, which began at `trained_until`, takes that long."""
        line, every = self.line, trainer.val_check_batch
        to_come = -(-line.total // every) - (line.done - 1) // every - (validation is not None)
        step_seconds = (trained_until - line.began) / max(1, line.done - line.done_before)
        left = (line.total - line.done) * step_seconds + to_come * self.validation_seconds + (validation or 0)
        line.left = left or math.inf
        line.more = "" if self.validation_seconds else f" and {to_come} validation{'s' * (to_come > 1)}"

    def before_validation(self) -> None:
        self.validation_began = time.monotonic()
        self.line.notes = ["validating"]
        self.line.log_every(LOG_SECONDS)
        self.line.update(0)

    def after_validation_batch(self, trainer: pl.Trainer, batch_idx: int) -> None:
        batches = sum(trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches)
        self.line.notes = [f"validating {batch_idx + 1:,}/{batches:,}"]
        if not trainer.sanity_checking:
            took = time.monotonic() - self.validation_began
            self.validation_seconds = took * batches / (batch_idx + 1)
            self._count_left(trainer, self.validation_began, self.validation_seconds - took)
        self.line.update(0)

    def after_validation(self, trainer: pl.Trainer) -> None:
        """Log its metrics; those of a few batches before training are no metrics."""
        self.line.log_every(math.inf)
        took = time.monotonic() - self.validation_began
        self.line.began += took
        if not trainer.sanity_checking or trainer.num_sanity_val_steps == math.inf:
            metrics = trainer.callback_metrics.items()
            values = {name: float(value) for name, value in metrics if name.startswith("val_")}
            write_metrics(trainer, values)
            if trainer.is_global_zero:
                parts = [f"val {trainer.global_step:,}", *(named(name, values) for name in values)]
                parts += [f"took {duration(took)}"] if took > SAID else []
                logger.info("  ".join(parts))
        self.line.notes = self.shown

    def end(self, trainer: pl.Trainer, device: torch.device) -> None:
        self.line.__exit__()
        if self.steps:
            self._close_interval(trainer, device)

    @property
    def wall_seconds(self) -> float:
        return self.earlier_seconds + time.perf_counter() - self.began

    def state_dict(self) -> dict[str, Any]:
        losses = [float(loss) for loss in self.losses]
        return {"losses": losses, "sums": self.sums.tolist(), SECONDS: self.wall_seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses = state_dict["losses"]
        # A session that was killed has written metrics after its last checkpoint; one that was ended, before it.
        self.earlier_seconds = max(self.earlier_seconds, state_dict[SECONDS])
        self.sums = np.array(state_dict["sums"])

    def _close_interval(self, trainer: pl.Trainer, device: torch.device) -> dict[str, float]:
        """The interval's loss, speed and memory; waits for the device, and reduces over processes."""
        times, waited = [seconds(*step) for step in self.steps], sum(seconds(*wait) for wait in self.waits)
        totals = torch.tensor([self.tokens, self.samples, self.operations, waited], dtype=torch.float64, device=device)
        # A step takes as long as its slowest process does.
        worst = torch.tensor([peak_memory_gb(device), sum(times), *times], dtype=torch.float64, device=device)
        tokens, samples, operations, waited = trainer.strategy.reduce(totals, reduce_op="sum").tolist()
        peak, elapsed, *times = trainer.strategy.reduce(worst, reduce_op="max").tolist()
        self.train_loss = sum(map(float, self.losses)) / len(self.losses)
        self.steps, self.waits, self.losses = [], [], []
        self.tokens = self.samples = self.operations = 0
        sums = np.array([tokens, samples, elapsed, waited / trainer.world_size])
        self.sums += sums
        self.step_times += times
        return {
            "train_loss": self.train_loss,
            **({"mfu": operations / elapsed / (self.peak_rate * trainer.world_size)} if operations else {}),
            **rates(sums, times),
            "peak_memory_gb": peak,
            SECONDS: self.wall_seconds,
        }


def named(name: str, values: Mapping[str, float]) -> str:
    return f"{name.removeprefix('train_').removeprefix('val_')} {format_metric(name, values[name])}"


def write_metrics(trainer: pl.Trainer, values: Mapping[str, float]) -> None:
    """Write metrics to all loggers, as of the last optimizer step."""
    step = trainer.global_step
    for each in trainer.loggers:
        each.log_metrics({**values, "epoch": trainer.datamodule.epoch(step)}, step - 1)  # files count steps from 0
        each.save()
