"""The results of calls of a tokenizer, and the texts from which a vocabulary is learnt."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bart.elsewhere import missing
from bart.errors import InputError

if TYPE_CHECKING:
    import torch


class Encoded(dict[str, Any]):
    """`input_ids` and `attention_mask`, by key or as attributes: lists, or int64 tensors (B, S)."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise missing(self, name) from None

    def to(self, device: torch.device | str, **options: Any) -> Encoded:
        """A copy whose tensors lie on `device`; options are those of torch, such as non_blocking."""
        moved = {key: value.to(device, **options) if hasattr(value, "to") else value for key, value in self.items()}
        return Encoded(moved)


def check_integer(name: str, value: object, smallest: int) -> None:
    """Raise InputError for a value that is no integer, or below the smallest."""
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise InputError(f"{name}={value!r}: give a whole number from {smallest}")


def texts_to_learn(texts: Iterable[str]) -> Iterator[str]:
    """Texts to learn a vocabulary from, without empty ones; InputError where there are none, or it is a single text."""
    if isinstance(texts, str):
        raise InputError("texts must be several texts, not one string")
    texts = filter(None, texts)
    first = next(texts, None)
    if first is None:
        raise InputError("texts is empty: there is nothing to learn a vocabulary from")
    return itertools.chain([first], texts)
