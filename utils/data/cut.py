"""Texts that are longer than a model reads at once: cut, and counted in one line of the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.app.start import is_first

logger = logging.getLogger(__name__)


def encode_cut(tokenizer: PretrainedTokenizer, texts: Sequence[str], most: int) -> tuple[list[list[int]], np.ndarray]:
    """The ids of texts, at most so many of each, the last of them the end token; and (B,) whether each was cut."""
    rows = tokenizer.encode_many(texts, most + 1)  # one more, so that a text that just fits is told from a longer one
    is_cut = np.array([len(row) > most for row in rows])
    return [[*row[: most - 1], row[-1]] if cut else row for row, cut in zip(rows, is_cut, strict=True)], is_cut


def warn_of_cut(cut: int, total: int, texts: str, most: int, option: str, effect: str = "and are cut there") -> None:
    """Say in one line, in the first process, how many texts are cut, and which option changes it."""
    if cut and is_first():
        logger.warning(f"{cut:,} of {total:,} {texts} are longer than {most:,} tokens ({option}) {effect}")
