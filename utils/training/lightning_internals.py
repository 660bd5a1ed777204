"""The private parts of Lightning that training uses, because no public part serves."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loops.fetchers import _DataFetcher
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector


class EpochLoop(_TrainingEpochLoop):
    """Lightning's loop over batches, which validates after the last batch too, whatever the interval.

    It has no broadcast of SIGTERM before every batch, for which the host would wait; a training step tells them all.
    """

    def _should_check_val_fx(self, data_fetcher: _DataFetcher) -> bool:
        return super()._should_check_val_fx(data_fetcher) or self._num_ready_batches_reached()

    def _broadcast_sigterm_tensor(self) -> None:
        pass


class NoSignals(_SignalConnector):
    """Installs no handler of SIGTERM: Lightning's exchanges tensors with other processes wherever they are."""

    def register_signal_handlers(self) -> None:
        pass


def prepare(trainer: pl.Trainer) -> None:
    """Give a trainer the parts above."""
    old = trainer.fit_loop.epoch_loop
    trainer.fit_loop.epoch_loop = EpochLoop(trainer, old.min_steps, old.max_steps)
    trainer._signal_connector = NoSignals(trainer)


def settle(loops: dict[str, Any], steps: int, validation_is_due: bool) -> None:
    """Make the state of Lightning's loops that of a run between two optimizer steps.

    A checkpoint may be written after Lightning has begun a batch, or in a validation. Lightning would count that batch
    twice, or lose it, when the run goes on.
    """
    fit = loops["fit_loop"]
    training, validation = fit["epoch_loop.batch_progress"], fit["epoch_loop.val_loop.batch_progress"]
    for counters in (training["total"], training["current"]):
        counters |= dict.fromkeys(("ready", "started", "processed", "completed"), steps)
    # The last batch may not be the last one of a run that goes on with more steps.
    training["is_last_batch"] = validation["is_last_batch"] = False
    # Lightning takes a batch that was begun and not finished for a broken-off validation, and repeats that.
    begun = int(validation_is_due)
    for counters in (validation["total"], validation["current"]):
        counters |= {"ready": begun, "started": begun, "processed": 0, "completed": 0}
