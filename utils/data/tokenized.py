"""Token ids of many texts, which are cut where they are longer than a model reads, and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bart.tokenization.tokenization_bart import BartTokenizer
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.app.machine import is_first
from utils.app.progress import progress

logger = logging.getLogger(__name__)

# Texts that the tokenizer gets at once: enough to keep its threads busy, few enough to bound its memory.
_AT_ONCE = 512
_CHUNK = 16 * _AT_ONCE  # texts of an array; a mapped file has some pages of each in memory


class TokenizedTexts:
    """Token ids of many texts in flat arrays, which take a sixteenth of the memory of lists of Python integers."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches)
        self._texts = table["ids"]
        self.cut: int = pc.sum(table["cut"]).as_py() if "cut" in table.column_names else 0
        self.lengths = pc.list_value_length(self._texts).to_numpy()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """(S,) ids of a text, not to be written to."""
        return self._texts[index].values.to_numpy()


def tokens_schema(tokenizer: BartTokenizer) -> pa.Schema:
    """The columns of what `tokenise` yields; ids have the smallest type of integers that holds a vocabulary."""
    kind = pa.uint16() if len(tokenizer) <= 1 << 16 else pa.int32()
    return pa.schema([("ids", pa.list_(kind)), ("cut", pa.bool_())])


def tokenise(texts: Iterable[str], total: int, tokenizer: BartTokenizer, max_length: int) -> Iterator[pa.RecordBatch]:
    """Yield `ids`, _CHUNK texts at a time, cut to max_length tokens, `</s>` kept; `cut` says if a text was longer."""
    schema = tokens_schema(tokenizer)
    texts = iter(progress("tokenising", total, "texts", texts))

    def encoded(batch: Sequence[str]) -> pa.RecordBatch:
        rows, is_cut = encode_cut(tokenizer, batch, max_length)
        return pa.record_batch([pa.array(rows, schema.field("ids").type), is_cut], schema=schema)

    batches = map(encoded, iter(lambda: list(islice(texts, _AT_ONCE)), []))
    while chunk := list(islice(batches, _CHUNK // _AT_ONCE)):
        yield pa.concat_batches(chunk)


def encode_cut(tokenizer: PretrainedTokenizer, texts: Sequence[str], most: int) -> tuple[list[list[int]], np.ndarray]:
    """The ids of texts, at most so many of each, the last of them the end token; and (B,) whether each was cut."""
    # One more, so that a text that just fits is told from a longer one.
    rows = tokenizer(texts, max_length=most + 1)["input_ids"]
    is_cut = np.array([len(row) > most for row in rows])
    return [[*row[: most - 1], row[-1]] if cut else row for row, cut in zip(rows, is_cut, strict=True)], is_cut


_added_up: dict[tuple[str, float], tuple[np.ndarray, str]] | None = None


@contextmanager
def warnings_added_up() -> Iterator[None]:
    """Let one line at the end say what `warn_of` would say of each of many parts."""
    global _added_up
    _added_up = {}
    try:
        yield
    finally:
        sums, _added_up = _added_up, None
        for (what, above), (counts, example) in sums.items():
            warn_of(*counts, what, above, example)


def warn_of(count: int, total: int, what: str, above: float = 0.0, example: str = "") -> None:
    """Say in one line, in the first process, of how many texts or words something is so, if more than a share are."""
    if _added_up is not None:
        counts, earlier = _added_up.get((what, above), (np.zeros(2, int), ""))
        _added_up[what, above] = counts + np.array([count, total]), earlier or example
    elif count > above * total and is_first():
        share = f" ({count / total:.1%})" if above else ""
        logger.warning(f"{count:,} of {total:,}{share} {what}{example}")


def warn_of_unknown(tokenizer: PretrainedTokenizer, rows: Sequence[Any], texts: Sequence[str], what: str) -> None:
    """Say if more than a twentieth of the pieces of texts, whose ids are `rows`, are unknown to the vocabulary."""
    ids, unknown, example = np.concatenate(rows), tokenizer.unk_token_id, ""
    if (indices := np.flatnonzero(ids == unknown)).size:
        text = texts[np.searchsorted(np.cumsum([*map(len, rows)]), indices[0], side="right")]
        word = next((word for word in text.split() if unknown in tokenizer(word)["input_ids"]), text)
        example = f"; the first is in {word[:40]!r}"
    pieces = len(ids) - np.isin(ids, [tokenizer.bos_token_id, tokenizer.eos_token_id]).sum()
    what = f"pieces of {what} are unknown to the vocabulary, which may be of another language"
    warn_of(indices.size, pieces, what, 0.05, example)


def warn_of_cut(cut: int, total: int, texts: str, most: int, option: str, effect: str = "and are cut there") -> None:
    """Say how many texts are cut, and which option changes it."""
    warn_of(cut, total, f"{texts} are longer than {most:,} tokens ({option}) {effect}")
