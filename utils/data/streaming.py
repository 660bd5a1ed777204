"""Training on data that do not fit the disk: batches made while the examples are read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bart.modeling.modeling_bart import IGNORE_INDEX
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import LAST, TrainArguments
from utils.cli import RunError
from utils.data.dataset import Collate, Example, TrainBatches
from utils.data.padding import padded_length
from utils.data.tables import Reader, Table

logger = logging.getLogger(__name__)
# Of English text in BART's vocabulary. Only how well batches are grouped depends on it.
BYTES_PER_TOKEN = 4
# Batches that a loader process makes ahead: enough to train on while it reads the next window.
PREFETCHED = 32
CURSOR, ERROR = "cursor", "error"


class TrainStream(IterableDataset[dict[str, Any]]):
    """One rank's batches of an epoch, made of what a table gives while it is read.

    The examples of `TrainBatches.WINDOW` optimizer steps at a time are drawn, grouped and cut by TrainBatches; every
    rank reads all of them, and tokenises its share. So an epoch's order depends on (seed, epoch) alone, what a step
    holds does not depend on how it is cut into micro-batches and ranks, each example is seen once an epoch, and all
    ranks have equally many batches, in whole steps. Files are read in another order in every epoch, unless
    `--n_train` takes the first examples.

    A batch carries under CURSOR where its window begins. A batch with nothing but a text under ERROR stands where the
    data could not be read: an exception would reach the training process from a loader process as many lines.

    Args:
        cursor: that of the last batch that an interrupted run came to, so that what was read before need not be again.

    Attributes:
        examples_per_step: examples of an optimizer step on all ranks.
        start: the epoch, and how many of this rank's batches an interrupted run has seen of it; they are left out.
    """

    def __init__(
        self,
        table: Table,
        tokenizer: BartTokenizer,
        args: TrainArguments,
        rank: int = 0,
        world_size: int = 1,
        cursor: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        self.tokenizer = tokenizer
        self.args = args
        self.rank = rank
        self.world_size = world_size
        self.collate = Collate(tokenizer.pad_token_id)
        self.examples_per_step = args.train_batch_size * args.gradient_accumulation_steps * world_size
        self.cursor = cursor
        self.start = (0, 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            # Threads of the tokenizer do not survive the fork that made a loader process.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        try:
            yield from self._batches(*self.start)
        except RunError as error:
            yield {ERROR: str(error)}

    def _batches(self, epoch: int, seen: int) -> Iterator[dict[str, Any]]:
        first, position = 0, None
        if self.cursor is not None and self.cursor["epoch"] == epoch:
            first, position = self.cursor["window"], self.cursor["position"]
        limit = self.args.n_train
        files = self.table.dataset.num_shards
        order = np.random.default_rng((self.args.seed, epoch)).permutation(files).tolist() if limit < 0 else None
        reader = Reader(self.table, order, position)
        size = TrainBatches.WINDOW * self.examples_per_step
        with closing(iter(reader)) as examples:
            for window in count(first):
                cursor = {"epoch": epoch, "window": window, "position": reader.position()}
                begin = reader.count
                pairs = list(islice(examples, size if limit < 0 else min(size, limit - begin)))
                if not pairs:
                    break
                seen_here = seen - window * TrainBatches.WINDOW * self.args.gradient_accumulation_steps
                for indices in self._cut(pairs, epoch, window)[max(0, seen_here) :]:
                    yield {**self._batch(pairs, indices, begin), CURSOR: cursor}
        if not reader.count:
            raise RunError(f"{self.table.name}: the train split has no examples")
        if self.rank == 0:
            logger.info(
                "epoch %d of the stream: %d examples; %d with an empty side are left out",
                *(epoch, reader.count, reader.left_out),
            )

    def _cut(self, pairs: list[tuple[str, str]], epoch: int, window: int) -> list[list[int]]:
        """This rank's batches of a window, as indices of its examples."""
        tokens = np.array([[len(text.encode()) for text in pair] for pair in pairs]) // BYTES_PER_TOKEN
        # As coarse as padding is: examples of one length come together in another way in every epoch.
        lengths = padded_length(np.minimum(tokens, [self.args.max_source_length, self.args.max_target_length]))
        batches = TrainBatches(
            *lengths.T,
            self.args.train_batch_size,
            self.args.seed,
            accumulation=self.args.gradient_accumulation_steps,
            rank=self.rank,
            world_size=self.world_size,
            group_by_length=self.args.sortish_sampler,
        )
        return batches.batches(epoch, window)

    def _batch(self, pairs: list[tuple[str, str]], indices: list[int], begin: int) -> dict[str, Any]:
        """A batch of some of a window's examples; `~i` is example i with no target that counts."""
        chosen = [pairs[max(index, ~index)] for index in indices]
        sources, targets = (
            self.tokenizer.encode_many(texts, longest)
            for texts, longest in zip(
                zip(*chosen, strict=True), (self.args.max_source_length, self.args.max_target_length), strict=True
            )
        )
        examples = [
            Example(
                begin + max(index, ~index),
                np.asarray(source, dtype=np.int32),
                np.asarray(target, dtype=np.int32) if index >= 0 else np.full(len(target), IGNORE_INDEX, np.int32),
            )
            for index, source, target in zip(indices, sources, targets, strict=True)
        ]
        return self.collate(examples)


class StreamLoader(DataLoader):
    """Loads a TrainStream, each epoch from the position that the training process is at."""

    def __init__(self, stream: TrainStream, position: Callable[[], tuple[int, int]], **options: Any) -> None:
        super().__init__(stream, batch_size=None, **options)
        self.position = position

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.dataset.start = self.position()
        return super().__iter__()


def take_cursor(batch: dict[str, Any]) -> dict[str, Any]:
    """Take out of a batch where its window begins.

    Raises:
        RunError: there is no batch, as the data could not be read.
    """
    if ERROR in batch:
        raise RunError(
            f"{batch[ERROR]}; --resume_from_checkpoint {LAST} goes on from the newest checkpoint of --output_dir"
        )
    return batch.pop(CURSOR)
