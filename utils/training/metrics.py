"""What a run measures of itself while it goes on, and the summary at its end."""

from __future__ import annotations

import math
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint, ModelCheckpoint
from torch import Tensor

from utils.memory import peak_memory_gb
from utils.training.callbacks import CountSkippedSteps

Stamp = float | torch.cuda.Event
PERCENTILES = (50, 95, 99)


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
    points = torch.tensor(PERCENTILES, dtype=torch.float64) / 100
    values = torch.tensor(times, dtype=torch.float64).quantile(points).tolist()
    return {f"step_time_p{point}": value for point, value in zip(PERCENTILES, values, strict=True)}


class TrainingMetrics(Callback):
    """Logs at every logging interval, over all processes: loss, rate, gradient norm, speed, memory.

    `train_loss`, `lr` and `grad_norm` (before clipping) are those of the interval's last step. `tokens_per_second`
    counts source and target tokens without padding. The time of a step includes the loading of its batches, but neither
    validation nor the writing of checkpoints: it ends before those, and `StartClock` begins the next one after them.
    """

    def __init__(self) -> None:
        self.started_at = time.perf_counter()
        self.step = 0
        self.since: Stamp = 0.0
        self.stretches: list[tuple[Stamp, Stamp]] = []  # of the step under way
        # Of the interval under way, on this process.
        self.steps: list[list[tuple[Stamp, Stamp]]] = []
        self.tokens: Tensor | int = 0
        self.samples: Tensor | int = 0
        # Of the run so far, over all processes.
        self.step_times: list[float] = []
        self.run_tokens = self.run_samples = self.run_seconds = self.peak_memory_gb = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.stretches.append((self.since, stamp(pl_module.device)))  # a checkpoint may be written next

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        self.stretches.append((self.since, stamp(pl_module.device)))
        targets = (batch["labels"] >= 0).sum(dim=1)
        counted = targets > 0  # not those that stand in where a process has too few
        self.tokens += (batch["attention_mask"].sum(dim=1) * counted).sum() + targets.sum()
        self.samples += counted.sum()
        if trainer.global_step == self.step:  # gradients are accumulated
            return
        self.step = trainer.global_step
        self.steps.append(self.stretches)
        self.stretches = []
        if trainer._logger_connector.should_update_logs:
            metrics = self._close_interval(trainer, pl_module)
            pl_module.log("train_loss", pl_module.train_loss, prog_bar=True)
            pl_module.log("lr", pl_module.lr, prog_bar=True)
            pl_module.log("grad_norm", pl_module.grad_norm)
            pl_module.log("tokens_per_second", metrics.pop("tokens_per_second"), prog_bar=True)
            pl_module.log_dict(metrics)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.steps:
            self._close_interval(trainer, pl_module)

    def _close_interval(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, float]:
        """The interval's metrics; waits for the device, and reduces over processes."""
        device, strategy = pl_module.device, trainer.strategy
        times = [sum(seconds(*stretch) for stretch in step) for step in self.steps]
        totals = torch.tensor([float(self.tokens), float(self.samples)], dtype=torch.float64, device=device)
        # A step takes as long as its slowest process does.
        worst = torch.tensor([peak_memory_gb(device), sum(times), *times], dtype=torch.float64, device=device)
        tokens, samples = strategy.reduce(totals, reduce_op="sum").tolist()
        self.peak_memory_gb, elapsed, *times = strategy.reduce(worst, reduce_op="max").tolist()
        self.steps, self.tokens, self.samples = [], 0, 0
        self.step_times += times
        self.run_tokens += tokens
        self.run_samples += samples
        self.run_seconds += elapsed
        return {
            "tokens_per_second": tokens / elapsed,
            "samples_per_second": samples / elapsed,
            **step_time_percentiles(times),
            "peak_memory_gb": self.peak_memory_gb,
        }


class StartClock(Checkpoint):
    """Starts the time of the next batch once validation and the writing of checkpoints are over.

    Lightning runs callbacks of this class after all others, in the order given: this one is to be the last.
    """

    def __init__(self, metrics: TrainingMetrics) -> None:
        self.metrics = metrics

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.since = stamp(pl_module.device)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.metrics.since = stamp(pl_module.device)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.metrics.since = stamp(pl_module.device)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.since = stamp(pl_module.device)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.since = stamp(pl_module.device)


def run_summary(trainer: pl.Trainer, checkpoints: ModelCheckpoint, best: Path) -> dict[str, Any]:
    """What train_summary.json holds: steps and epochs of the whole run; times and speeds since it was last started.

    What a resumed run with nothing left to do did not measure is None.
    """
    measured = next(callback for callback in trainer.callbacks if isinstance(callback, TrainingMetrics))
    skipped = next(callback for callback in trainer.callbacks if isinstance(callback, CountSkippedSteps))
    metric, score = checkpoints.monitor, checkpoints.best_model_score
    last = trainer.callback_metrics.get(metric)
    best_step = re.search(r"_step(\d+)", best.stem)
    trained = bool(measured.step_times)
    return {
        "steps": trainer.global_step,
        "steps_since_start": len(measured.step_times),
        "epochs": None  # of a stream, whose length is not known
        if trainer.num_training_batches == math.inf
        else trainer.global_step / -(-trainer.num_training_batches // trainer.accumulate_grad_batches),
        "wall_seconds": time.perf_counter() - measured.started_at,
        "training_seconds": measured.run_seconds,
        "samples_per_second": measured.run_samples / measured.run_seconds if trained else None,
        "tokens_per_second": measured.run_tokens / measured.run_seconds if trained else None,
        **(step_time_percentiles(measured.step_times) if trained else {f"step_time_p{n}": None for n in PERCENTILES}),
        "train_loss": float(trainer.lightning_module.train_loss) if trained else None,
        f"last_{metric}": None if last is None else float(last),
        metric: None if score is None else float(score),
        "best_checkpoint": best.name,
        "best_step": int(best_step[1]) if best_step else trainer.global_step,
        "skipped_steps": skipped.count,
        "peak_memory_gb": peak_memory_gb(trainer.lightning_module.device),
    }


def format_summary(summary: dict[str, Any], metric: str, export: Path) -> str:
    """A run's summary as lines of two columns.

    Args:
        metric: what the best checkpoint is best in, such as `val_loss`.
        export: where it lies in Hub format.
    """

    def number(name: str, form: str = ".4g") -> str:
        return "not measured" if summary[name] is None else format(summary[name], form)

    steps = str(summary["steps"])
    if summary["epochs"] is not None:
        steps += f" ({summary['epochs']:.2f} epochs)"
    if summary["steps_since_start"] < summary["steps"]:
        steps += f", {summary['steps_since_start']} of them since it was resumed"
    wall, training = (timedelta(seconds=round(summary[f"{name}_seconds"])) for name in ("wall", "training"))
    rows = [
        ("steps", steps),
        ("wall time", f"{wall}, {training} of it training"),
        ("samples/s", number("samples_per_second")),
        ("tokens/s", number("tokens_per_second", ",.0f")),
        ("step time in s", "  ".join(f"p{n} {number(f'step_time_p{n}')}" for n in PERCENTILES)),
        ("train_loss", number("train_loss")),
        (f"{metric}, last", f"{number(f'last_{metric}')}  step {summary['steps']}  last.ckpt"),
        (f"{metric}, best", f"{number(metric)}  step {summary['best_step']}  {summary['best_checkpoint']}"),
        ("skipped steps", number("skipped_steps")),
        ("peak memory", f"{number('peak_memory_gb')} GB"),
        ("best model", str(export)),
        ("all results", str(export.parent)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:{width}}  {text}" for name, text in rows)
