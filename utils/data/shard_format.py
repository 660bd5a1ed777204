"""What whoever makes shards and whoever reads them must agree on. It loads no torch: making shards needs none."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MANIFEST, TOKENIZER = "manifest.json", "tokenizer"  # in a directory of shards
FORMAT = 1  # of the manifest
# The task that shards are for, and the tokens of an example that they do not hold: <s> and </s>; [CLS] and two [SEP].
SPECIAL = {"denoising": 2, "mlm_nsp": 3}
DENOISING, MLM_NSP = SPECIAL


class ShardRow(NamedTuple):
    """An example as a shard has it.

    Attributes:
        number: in its split.
        ids: (T,) tokens, without special ones.
        sentences: tokens of each of its sentences, or of its two segments.
        label: of segments, 1 if the second one does not follow the first.
    """

    number: int
    ids: np.ndarray
    sentences: np.ndarray
    label: int = 0
