"""Lightning's view of a data directory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import TrainArguments
from utils.data.dataset import Collate, PairDataset, TrainBatches, evaluation_batches
from utils.data.line_files import Pairs
from utils.data.streaming import PREFETCHED, StreamLoader, TrainStream, take_cursor
from utils.data.tables import Table
from utils.data.token_cache import PairFiles


def outlive_sigterm(worker: int) -> None:
    """Let nobody but the training process end a loader process.

    torchrun and schedulers send SIGTERM to every process of a run, and the training process, which goes on until it has
    saved a checkpoint, fails when it loses a loader process.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS, which cannot tell who sent a signal
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


class SummarizationDataModule(pl.LightningDataModule):
    """Training and validation loaders over the line files of `--data_dir`.

    Texts are tokenised when the object is made, if they never were.

    Args:
        splits: of "train" line files or a table to stream from, of "val" line files or, beside a table, lists of texts.

    Attributes:
        references: the validation targets, by their line.
    """

    def __init__(
        self, args: TrainArguments, tokenizer: BartTokenizer, splits: Mapping[str, PairFiles | Pairs | Table]
    ) -> None:
        super().__init__()
        self.args = args
        self.tokenizer = tokenizer
        self.collate = Collate(tokenizer.pad_token_id)
        self.table = splits["train"] if isinstance(splits["train"], Table) else None
        self.cursor: dict[str, Any] | None = None  # where the stream's window begins that training is at
        if self.table is None:
            self.train_set = self._mapped(splits["train"], args.max_target_length)
            self.val_set = self._mapped(splits["val"], args.val_max_target_length)
            self.references = splits["val"][1].read()
        else:
            lengths = args.max_source_length, args.val_max_target_length
            self.val_set = PairDataset.from_texts(*splits["val"], tokenizer, *lengths)
            self.references = splits["val"][1]

    def _mapped(self, files: PairFiles, target_length: int) -> PairDataset:
        source, target = files
        return PairDataset(
            source.tokenized(self.tokenizer, self.args.max_source_length),
            target.tokenized(self.tokenizer, target_length),
        )

    def position(self) -> tuple[int, int]:
        """The epoch, and how many of its batches training has seen."""
        if self.trainer is None:
            return 0, 0
        # A run resumed inside an epoch finds here how many of its batches it has already seen.
        return self.trainer.current_epoch, self.trainer.fit_loop.epoch_loop.batch_progress.current.completed

    def train_batches(self) -> TrainBatches | TrainStream:
        """This process's batches; before the trainer is attached, those of rank 0 from the start."""
        trainer = self.trainer
        if self.table is not None:
            rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, self.args.processes)
            return TrainStream(self.table, self.tokenizer, self.args, rank, world_size, self.cursor)
        return TrainBatches(
            self.train_set.sources.lengths,
            self.train_set.targets.lengths,
            self.args.train_batch_size,
            self.args.seed,
            max_tokens=self.args.max_tokens_per_batch,
            accumulation=self.args.gradient_accumulation_steps,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else self.args.processes,
            group_by_length=self.args.sortish_sampler,
            position=self.position,
        )

    def train_dataloader(self) -> DataLoader:
        if self.table is None:
            batches = self.train_batches()
            return DataLoader(self.train_set, batch_sampler=batches, collate_fn=self.collate, **self._loader_options())
        options = self._loader_options()
        if self.args.num_workers:
            options |= {"num_workers": 1, "prefetch_factor": PREFETCHED}  # each of several would read everything
        return StreamLoader(self.train_batches(), self.position, **options)

    def val_dataloader(self) -> DataLoader:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = evaluation_batches(self.val_set.sources.lengths, self.args.eval_batch_size, rank, world_size)
        return DataLoader(self.val_set, batch_sampler=batches, collate_fn=self.collate, **self._loader_options())

    def on_before_batch_transfer(self, batch: dict[str, Any], dataloader_idx: int) -> dict[str, Any]:
        """Learn from a streamed batch that training comes to where its window begins; loaders are ahead of that."""
        if self.table is not None and self.trainer.training:
            self.cursor = take_cursor(batch)
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {} if self.cursor is None else {"cursor": self.cursor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.cursor = state_dict["cursor"]

    def _loader_options(self) -> dict[str, Any]:
        return {
            "num_workers": self.args.num_workers,
            "generator": torch.Generator(),  # a loader must not draw from the stream that dropout draws from
            "pin_memory": self.args.gpus > 0,
            "worker_init_fn": outlive_sigterm,
        }
