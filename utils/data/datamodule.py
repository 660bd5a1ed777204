"""Lightning's view of a data directory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Mapping

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import TrainArguments
from utils.data.dataset import Collate, PairDataset, TrainBatches, evaluation_batches
from utils.data.tokenized import PairFiles


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
        files: sources and targets by split, "train" and "val" among them.

    Attributes:
        references: the validation targets, by their line.
    """

    def __init__(self, args: TrainArguments, tokenizer: BartTokenizer, files: Mapping[str, PairFiles]) -> None:
        super().__init__()
        self.args = args
        self.collate = Collate(tokenizer.pad_token_id)
        self.train_set, self.val_set = (
            PairDataset(
                files[split][0].tokenized(tokenizer, args.max_source_length),
                files[split][1].tokenized(tokenizer, target_length),
            )
            for split, target_length in (("train", args.max_target_length), ("val", args.val_max_target_length))
        )
        self.references = files["val"][1].read()

    def train_batches(self) -> TrainBatches:
        """This process's batches; before the trainer is attached, those of rank 0 from the start."""
        trainer = self.trainer

        def position() -> tuple[int, int]:
            if trainer is None:
                return 0, 0
            # A run resumed inside an epoch finds here how many of its batches it has already seen.
            return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.completed

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
            position=position,
        )

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.train_set, self.train_batches())

    def val_dataloader(self) -> DataLoader:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = evaluation_batches(self.val_set.sources.lengths, self.args.eval_batch_size, rank, world_size)
        return self._loader(self.val_set, batches)

    def _loader(self, dataset: PairDataset, batches: Iterable[list[int]]) -> DataLoader:
        return DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=self.collate,
            num_workers=self.args.num_workers,
            generator=torch.Generator(),  # a loader must not draw from the stream that dropout draws from
            pin_memory=self.args.gpus > 0,
            worker_init_fn=outlive_sigterm,
        )
