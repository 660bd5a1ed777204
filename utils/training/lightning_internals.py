"""The parts of Lightning that training changes, some private, because no public part serves."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loops.fetchers import _DataFetcher
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
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


class Ddp(DDPStrategy):
    """DDP whose processes all save a checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        self.checkpoint_io.save_checkpoint(checkpoint, filepath)


class ModelParallel(ModelParallelStrategy):
    """FSDP whose processes save and load their own parts, by the checkpoint IO, as they are."""

    lightning_restore_optimizer = True
    save_checkpoint, load_checkpoint = Ddp.save_checkpoint, Strategy.load_checkpoint
    lightning_module_state_dict, optimizer_state = Strategy.lightning_module_state_dict, Strategy.optimizer_state
    load_model_state_dict = Strategy.load_model_state_dict
    load_optimizer_state_dict = Strategy.load_optimizer_state_dict


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
