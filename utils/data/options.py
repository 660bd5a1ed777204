"""The options of data, whatever the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from bart.errors import InputError
from utils.app.cli import card_option, changeable, option, part
from utils.app.stores import STORES, in_store
from utils.data.columns import BY_ENDING, InputOptions
from utils.data.places import KINDS, is_reached
from utils.data.splits import Choice

TEXT_FILES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")  # of raw text
SHARDS_VAL_RATIO = 0.01  # --val_ratio of text of which shards are made
ALL = -1  # the number of examples that stands for all of them
MOST_HELD_OUT = 1 << 16  # examples of shards that validation takes, unless --n_val says otherwise


@dataclass(frozen=True)
class BatchOptions:
    """The number of examples that training takes, and the batches that they are put together to."""

    n_train: int = option(
        ALL,
        section="data",
        least=-1,
        besides=0,
        help="number of training examples to use, chosen by a hash of their texts; of shards the first; -1 for all",
    )
    n_val: int = option(
        ALL,
        least=-1,
        besides=0,
        help=f"validation examples to use, chosen in the same way; -1 for all, or {MOST_HELD_OUT:,} of shards at most",
        on_resume="validation",
    )
    num_workers: int = changeable(
        2, least=0, most=256, help="loader processes per GPU; 0 loads in the training process"
    )
    train_batch_size: int = card_option(8, least=1, help="examples per process and micro-batch", on_resume="by_content")
    gradient_accumulation_steps: int = card_option(
        1, least=1, help="micro-batches per optimizer step", on_resume="by_content"
    )
    eval_batch_size: int = changeable(8, least=1, help="examples per process in validation")


val_ratio_option = partial(
    option,
    None,
    least=0.001,
    most=0.9,
    help="share of the training examples to hold out for validation if the data have no validation split; a hash of "
    "their texts chooses them",
)


@dataclass(frozen=True)
class PlaceOptions:
    """Where the examples of fine-tuning are."""

    data_dir: str = option(
        "data/cnn_dm",
        section="data",
        help=f"where the examples are: for texts a {KINDS}",
        reaches=is_reached,
        on_resume="by_content",
    )
    cache_dir: str | None = changeable(
        None,
        help="folder for token ids, and for the lines of tables and published sets, which are made once; by default "
        ".cache in the data directory or beside the file; for sets, and if that cannot be written, "
        "~/.cache/bart-pytorch",
    )
    val_ratio: float | None = val_ratio_option()
    tables: InputOptions = part(InputOptions)
    n_test: int = changeable(
        ALL, least=-1, besides=0, help="number of test examples to use, chosen in the same way; -1 for all"
    )


@dataclass(frozen=True)
class ShardOptions:
    """Where shards are, or text, and what shards are made of it."""

    data_dir: str = option(
        section="data",
        help="directory of shards, as utils.corpora.make_shards makes them; or text, and shards of it are made once: "
        f"a file ({', '.join(TEXT_FILES)}), or a folder of these files; here, or a {STORES}",
        reaches=in_store,
        on_resume="by_content",
    )
    val_ratio: float | None = option(
        None,
        above=0,
        most=0.5,
        help=f"share of the documents of text to hold out, one at least; by default {SHARDS_VAL_RATIO:g}",
        on_resume="by_content",
    )
    text_field: str | None = option(
        None, help="field of JSON Lines and Parquet that holds a document; by default text", on_resume="by_content"
    )
    cache_dir: str | None = changeable(
        None,
        help="folder for the shards of text; by default .cache beside the text or, if that cannot be written, "
        "~/.cache/bart-pytorch",
    )


@dataclass(frozen=True)
class CorruptionOptions:
    """The share of each kind of noise."""

    mlm_probability: float = card_option(
        0.3,
        section="corruption",
        least=0,
        most=1,
        help="share of the tokens that infilling replaces: it takes spans of words, and each becomes one <mask>",
    )
    poisson_lambda: float = card_option(
        3.0, least=0.1, most=100, help="mean length of these spans in words; a span of length 0 inserts a <mask>"
    )
    permute_sentence_ratio: float = card_option(
        1.0, least=0, most=1, help="share of an example's sentences that change places"
    )
    token_mask_ratio: float = card_option(
        0.0, least=0, most=1, help="share of the tokens that are masked; each becomes a <mask>"
    )
    token_delete_ratio: float = card_option(0.0, least=0, most=1, help="share of the tokens that are deleted")
    rotate_ratio: float = card_option(0.0, least=0, most=1, help="share of the examples that begin at another token")
    random_ratio: float = card_option(0.0, least=0, most=1, help="share of the <mask> that become random tokens")

    def __post_init__(self) -> None:
        shares = self.mlm_probability, self.token_mask_ratio, self.token_delete_ratio
        if sum(shares) > 1 + 1e-9:
            raise InputError(
                f"--mlm_probability, --token_mask_ratio and --token_delete_ratio are {sum(shares):g} in all; allowed: 1"
            )


@dataclass(frozen=True)
class MaskingOptions:
    """The choice of the tokens that are to be predicted."""

    mlm_probability: float = card_option(
        0.15, section="masking", above=0, most=1, help="share of an example's tokens to predict; special ones count"
    )
    max_predictions_per_seq: int | None = card_option(
        None, least=1, help="most tokens of an example to predict; by default 20 at length 128 and 80 at 512"
    )
    whole_word_mask: bool = card_option(False, help="mask whole words, with all their pieces")


@dataclass(frozen=True)
class Place:
    """Where a task finds its examples, and how many of each split it uses; see `PlaceOptions`."""

    data_dir: str
    cache_dir: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    val_ratio: float | None = None
    tables: InputOptions = BY_ENDING

    def chosen(self, split: str) -> tuple[str, Choice]:
        """The split of the data that holds the examples of a split, and which of them it has."""
        limit = self.limits.get(split, ALL)
        if self.val_ratio is None or split not in ("train", "val"):
            return split, Choice(limit=limit, tables=self.tables)
        begin, end = (0, self.val_ratio) if split == "val" else (self.val_ratio, 1)
        return "train", Choice(begin, end, limit, self.tables)
