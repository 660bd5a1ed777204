"""The data module of Lightning: the order of training, its loaders, and the place to go on from."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from utils.data.batches import Batch, Batches, Collate, Examples, evaluation_batches
from utils.data.options import BatchOptions, LengthBatchOptions
from utils.data.order import RunOrder, TrainOrder
from utils.data.shards import StreamedShards
from utils.data.streaming import StreamLoader, TrainStream
from utils.training.options import HardwareOptions


class TrainingData(pl.LightningDataModule):
    """Loaders of training and validation.

    Training is one sequence of optimizer steps through all epochs, one epoch to Lightning. So the number of steps taken
    tells the place in it; shards add a cursor, which saves reading everything before that place again. A batch of
    the training loader is a whole optimizer step of this process, as a list of micro-batches.

    Args:
        max_steps, max_epochs: the length of the run, whichever ends it first; -1 and None for neither, which is one
            epoch.

    Attributes:
        examples_per_step: on all processes; with `--max_tokens_per_batch`, their mean.
    """

    def __init__(
        self,
        train: Examples | StreamedShards,
        val: Examples,
        collate: Collate,
        options: BatchOptions,
        max_steps: int,
        hardware: HardwareOptions,
        seed: int,
        lengths: LengthBatchOptions,
        max_epochs: int | None,
    ) -> None:
        super().__init__()
        self.train, self.val, self.collate = train, val, collate
        self.options, self.seed, self.lengths = options, seed, lengths
        self.loader: StreamLoader | None = None
        self.cursor: dict[str, Any] | None = None  # of the checkpoint that shards are read on from
        self.loader_options = {
            "num_workers": options.num_workers,
            "generator": torch.Generator(),  # a loader must not draw from the random state that dropout draws from
            "pin_memory": hardware.gpus > 0,
            "worker_init_fn": _outlive_signals,
        }
        if self.streams:
            stream = self._stream(0, hardware.processes)
            self.examples_per_step: float = stream.examples_per_step
            self.steps_per_epoch = stream.steps_per_epoch
            self.total_steps = max_steps
        else:
            order = self._order(0, hardware.processes)
            self.steps_per_epoch, self.examples_per_step = order.steps, order.examples_per_step
            epochs = 1 if max_epochs is None and max_steps < 0 else max_epochs
            self.total_steps = max_steps if epochs is None else epochs * order.steps
            if max_steps > 0:
                self.total_steps = min(self.total_steps, max_steps)

    @property
    def streams(self) -> bool:
        return isinstance(self.train, StreamedShards)

    def epoch(self, step: int) -> int:
        """The epoch, from 0, that the run's optimizer step belongs to; steps count from 1."""
        return max(0, step - 1) // self.steps_per_epoch

    def train_dataloader(self) -> Iterable[list[Batch]]:
        rank, world_size, start = self.trainer.global_rank, self.trainer.world_size, self.trainer.global_step
        if not self.streams:
            steps = RunOrder(self._order(rank, world_size), self.total_steps, start)
            batches = Batches(self.train, self.collate)
            return DataLoader(batches, batch_sampler=steps, collate_fn=list, **self.loader_options)
        workers = min(1, self.options.num_workers)  # each of several would read everything
        options = {**self.loader_options, "num_workers": workers}
        self.loader = StreamLoader(self._stream(rank, world_size, start), self.total_steps, **options)
        return self.loader

    def val_dataloader(self) -> DataLoader[Batch]:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = evaluation_batches(self.val.lengths[:, 0], self.options.eval_batch_size, rank, world_size)
        return DataLoader(Batches(self.val, self.collate), sampler=batches, batch_size=None, **self.loader_options)

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.loader.cursor(self.trainer.global_step)} if self.loader is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.cursor = state_dict["cursor"]

    def _order(self, rank: int, world_size: int) -> TrainOrder:
        return TrainOrder(
            self.train.lengths,
            self.options.train_batch_size,
            self.seed,
            max_tokens=self.lengths.max_tokens_per_batch,
            accumulation=self.options.gradient_accumulation_steps,
            rank=rank,
            world_size=world_size,
            group_by_length=self.lengths.sortish_sampler,
        )

    def _stream(self, rank: int, world_size: int, start: int = 0) -> TrainStream:
        return TrainStream(
            self.train,
            self.collate,
            self.options,
            self.seed,
            self.lengths.sortish_sampler,
            rank=rank,
            world_size=world_size,
            cursor=self.cursor,
            start=start,
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
