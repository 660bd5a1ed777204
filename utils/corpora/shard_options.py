"""The options of `make_shards`, and the description of the work that its stages share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import option
from utils.app.stores import STORES, in_store
from utils.corpora.documents import TEXT_FILES
from utils.data.shard_format import DENOISING, MLM_NSP, SPECIAL

WORK = ".work"  # a folder beside the shards, until they are whole
VAL_RATIO, SHORTER, DUPLICATES = 0.005, 0.1, 5  # --val_ratio, --short_seq_prob and --duplicate_factor
MOST_EXAMPLES, LEAST_SHARDS = 1 << 16, 8  # of a file, and of a bin, unless --shards says otherwise


@dataclass(frozen=True)
class MakeShardsOptions:
    input: tuple[str, ...] = option(
        metavar="PATH",
        help=f"files of text ({', '.join(TEXT_FILES)}), and folders of them, here or as a {STORES}",
        reaches=in_store,
    )
    tokenizer: str = option(metavar="NAME", help="folder of a vocabulary, or Hub name")
    output: str = option(metavar="DIR", help=f"folder for the shards, or a {STORES}", reaches=in_store)
    task: str = option(
        DENOISING,
        choices=tuple(SPECIAL),
        help="denoising is for BART; mlm, and mlm_nsp on pairs of segments, are for BERT",
    )
    sequence_length: int = option(128, least=16, most=65535, help="most tokens of an example, special ones included")
    bins: tuple[int, ...] = option(
        (), least=3, metavar="N", help="greatest lengths of the examples of each file, rising to --sequence_length"
    )
    val_input: tuple[str, ...] = option(
        (),
        metavar="PATH",
        help="held-out documents; if --input also has them, they are left out there",
        reaches=in_store,
    )
    val_ratio: float | None = option(
        None,
        least=0,
        most=0.5,
        help=f"share of the documents to hold out without --val_input: 0, or at least one; by default {VAL_RATIO}",
    )
    text_field: str = option("text", help="field of JSON Lines and Parquet that holds a document")
    min_tokens: int = option(8, least=1, help="leave out examples with fewer tokens; special ones do not count")
    shards: int | None = option(
        None,
        least=1,
        help=f"training files of each bin (default: {LEAST_SHARDS}, or more, of {MOST_EXAMPLES:,} examples)",
    )
    seed: int = option(42, least=0, help="seed of the order of examples, and of the choice of held-out documents")
    short_seq_prob: float | None = option(
        None, section=MLM_NSP, least=0, most=1, help=f"share of the documents with shorter pairs; by default {SHORTER}"
    )
    duplicate_factor: int | None = option(
        None, least=1, help=f"times that a document is cut into pairs, each time into others; by default {DUPLICATES}"
    )
    workers: int | None = option(
        None,
        least=0,
        help="number of processes; 0 is a thread of this one; by default one for each core",
        section="Dask",
    )
    scheduler: str | None = option(
        None, metavar="ADDRESS", help="scheduler of a running Dask cluster, such as tcp://host:8786", reaches=bool
    )

    def __post_init__(self) -> None:
        bins = self.bins or (self.sequence_length,)
        if bins[-1] != self.sequence_length or list(bins) != sorted({*bins}):
            raise InputError(f"--bins {' '.join(map(str, bins))}: they must rise to --sequence_length")
        most = self.room // 2
        if self.min_tokens > most:
            raise InputError(f"--min_tokens is {self.min_tokens}; allowed with this --sequence_length: at most {most}")
        if self.scheduler is not None and self.workers is not None:
            raise InputError(f"--workers {self.workers}: --scheduler {self.scheduler} has workers of its own")
        if self.val_input and self.val_ratio is not None:
            raise InputError(f"--val_ratio {self.val_ratio:g}: --val_input names all that is held out; give one")
        of_pairs = {"short_seq_prob": SHORTER, "duplicate_factor": DUPLICATES}
        for name in of_pairs:
            if self.task != MLM_NSP and getattr(self, name) is not None:
                raise InputError(f"--{name} is of use with --task {MLM_NSP} only; --task is {self.task}")
        for name, default in {"bins": bins, "val_ratio": 0.0 if self.val_input else VAL_RATIO, **of_pairs}.items():
            if getattr(self, name) in (None, ()):
                object.__setattr__(self, name, default)

    @property
    def room(self) -> int:
        """The number of tokens that an example has at most, special ones not counted."""
        return self.sequence_length - SPECIAL[self.task]

    @property
    def lasting(self) -> dict[str, Any]:
        """The other options on which the shards depend, for the manifest."""
        of_pairs = ("short_seq_prob", "duplicate_factor") if self.task == MLM_NSP else ()
        return {name: getattr(self, name) for name in ("text_field", "min_tokens", "shards", *of_pairs, "val_ratio")}


@dataclass(frozen=True)
class Work:
    """The description of the work, for all stages."""

    options: MakeShardsOptions
    folder: Path  # of the shards and the tokenizer; other files lie in WORK there
    vocabulary: str  # SHA-256 of the tokenizer's JSON
    kind: str  # the type of ids in NumPy

    def path(self, stage: str, name: str) -> Path:
        return self.folder / WORK / stage / name
