"""The data module of Lightning: the order of training, its loaders, and the place to go on from."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from bart.torch_internals import has_flash
from utils.data.batches import Batch, Batches, Collate, Examples, evaluation_batches
from utils.data.order import RunOrder, TrainOrder
from utils.data.shards import StreamedShards
from utils.data.streaming import StreamLoader, TrainStream
from utils.training.options import Plan
from utils.training.precision import half_dtype


class TrainingData(pl.LightningDataModule):
    """Loaders of training and validation.

    Training is one sequence of optimizer steps through all epochs, one epoch to Lightning. So the number of steps taken
    tells the place in it. A batch of the training loader is a whole optimizer step of this process, as a list of
    micro-batches.

    Attributes:
        total_steps: of `--max_steps` and `--max_epochs`, whichever ends the run first; of neither, one epoch.
        examples_per_step: on all processes; with `--max_tokens_per_batch`, their mean.
    """

    def __init__(
        self, train: Examples | StreamedShards, val: Examples, collate_rows: Collate, collate: Collate, plan: Plan
    ) -> None:
        """Batches of training are made by collate_rows, those of validation by collate."""
        super().__init__()
        self.train, self.val, self.plan = train, val, plan
        self.collate_rows, self.collate = collate_rows, collate
        self.loader_options = {
            "num_workers": plan.batches.num_workers,
            "generator": torch.Generator(),  # a loader must not draw from the random state that dropout draws from
            "pin_memory": plan.hardware.gpus > 0,
            "worker_init_fn": _outlive_signals,
        }
        self.order = self._order()
        self.steps_per_epoch, self.examples_per_step = self.order.steps_per_epoch, self.order.examples_per_step
        limits = plan.optimisation.max_steps, (plan.epochs.max_epochs or 0) * self.steps_per_epoch
        self.total_steps = min((limit for limit in limits if limit > 0), default=self.steps_per_epoch)

    @property
    def streams(self) -> bool:
        return isinstance(self.train, StreamedShards)

    def epoch(self, step: int) -> int:
        """The epoch, from 0, that the run's optimizer step belongs to; steps count from 1."""
        return max(0, step - 1) // self.steps_per_epoch

    def train_dataloader(self) -> Iterable[list[Batch]]:
        start, device = self.trainer.global_step, self.trainer.strategy.root_device
        half = half_dtype(self.plan.hardware)
        # On GPUs where attention among rows would be computed padded, batches are not made rows.
        is_padded = device.type != "cpu" and (half is None or not has_flash(device, half))
        place = {"rank": self.trainer.global_rank, "is_padded": is_padded}
        collate = self.collate if is_padded else self.collate_rows
        if isinstance(self.order, TrainOrder):
            steps = RunOrder(replace(self.order, **place), self.total_steps, start)
            batches = Batches(self.train, collate)
            return DataLoader(batches, batch_sampler=steps, collate_fn=list, **self.loader_options)
        stream = replace(self.order, **place, collate=collate)
        return StreamLoader(stream, self.total_steps, start, **self.loader_options)

    def val_dataloader(self) -> DataLoader[Batch]:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = evaluation_batches(self.val.lengths[:, 0], self.plan.batches.eval_batch_size, rank, world_size)
        return DataLoader(Batches(self.val, self.collate), sampler=batches, batch_size=None, **self.loader_options)

    def _order(self) -> TrainOrder | TrainStream:
        """The optimizer steps of the first process."""
        options, seed, processes = self.plan.batches, self.plan.run.seed, self.plan.hardware.processes
        if isinstance(self.train, StreamedShards):
            return TrainStream(self.train, self.collate, options, seed, world_size=processes)
        return TrainOrder(
            self.train.lengths,
            options.train_batch_size,
            seed,
            max_tokens=self.plan.epochs.max_tokens_per_batch,
            accumulation=options.gradient_accumulation_steps,
            world_size=processes,
            group_by_length=self.plan.epochs.sortish_sampler,
        )


def _outlive_signals(worker: int) -> None:
    """Let only the training process end a loader process, which it needs until it has saved a checkpoint."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if not hasattr(signal, "sigwaitinfo"):  # macOS, where the sender of a signal is not known
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
