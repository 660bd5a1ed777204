"""The options of data, whatever the task."""

from __future__ import annotations

from dataclasses import dataclass

from bart.errors import InputError
from utils.app.cli import option
from utils.data.places import KINDS


@dataclass(frozen=True)
class DataOptions:
    """Where examples come from, how many are used, and how they are put together to batches."""

    data_dir: str = option("data/cnn_dm", section="data", help=f"where examples are: for texts a {KINDS}")
    cache_dir: str | None = option(
        None,
        help="folder for what is made of the data once: token ids, the splits of a file; by default .cache in the data "
        "directory, beside the file or, where that cannot be written, ~/.cache/bart-pytorch",
    )
    n_train: int = option(-1, least=-1, help="training examples to use; -1 for all")
    n_val: int = option(-1, least=-1, help="validation examples to use; -1 for all")
    n_test: int = option(-1, least=-1, help="test examples to use; -1 for all")
    sortish_sampler: bool = option(False, help="group training examples of like length: less padding")
    num_workers: int = option(
        2, least=0, help="loader processes per GPU, one at most for a stream; 0 loads in the training process"
    )
    train_batch_size: int = option(8, least=1, help="examples per process and micro-batch")
    max_tokens_per_batch: int | None = option(
        None,
        least=1,
        help="tokens per process and micro-batch, padding and targets included, in place of --train_batch_size; "
        "micro-batches then hold examples of like length, the same in every epoch",
    )
    gradient_accumulation_steps: int = option(1, least=1, help="micro-batches per optimizer step")
    eval_batch_size: int = option(8, least=1, help="examples per process in validation and test")

    def __post_init__(self) -> None:
        for name in ("n_train", "n_val", "n_test"):
            if getattr(self, name) == 0:
                raise InputError(f"--{name} is 0; allowed: -1, or at least 1")

    def limit(self, split: str) -> int:
        """How many examples of a split are used; -1 for all."""
        return {"train": self.n_train, "val": self.n_val, "test": self.n_test}[split]
