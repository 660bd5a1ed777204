"""The format of shards, for the code that makes them and the code that reads them. It loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

MANIFEST, TOKENIZER = "manifest.json", "tokenizer"  # in a directory of shards
FORMAT = 1  # of the manifest
ROWS = 1024  # of a row group: what a process of training reads at once
# The task that shards are for, and the tokens of an example that they do not hold: <s> and </s>; [CLS] and two [SEP];
# [CLS] and [SEP].
SPECIAL = {"denoising": 2, "mlm_nsp": 3, "mlm": 2}
DENOISING, MLM_NSP, MLM = SPECIAL


class ShardRow(NamedTuple):
    """A row of a shard: an example."""

    ids: np.ndarray  # (T,) tokens, without special ones
    sentences: Sequence[int] | np.ndarray  # tokens of each of its sentences, or of its two segments
    label: int = 0  # of segments, 1 if the second one is from another document
    number: int = -1  # in the split, once the shard is there
