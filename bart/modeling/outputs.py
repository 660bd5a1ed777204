"""The results of forward passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


class Output(Mapping[str, Any]):
    """A dataclass whose values have numbers and names as in transformers, without what is None.

    So `output[0]` is the loss when there is one, else the logits or states, and `output["logits"]` the logits. As in
    transformers, it is a mapping, and a loop over it goes over names.
    """

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in vars(self).items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, key: int | slice | str) -> Any:
        values = {name: getattr(self, name) for name in self}
        return values[key] if isinstance(key, str) else tuple(values.values())[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """All values, in order."""
        return self[:]


@dataclass
class ModelOutput(Output):
    """The result of a head.

    Attributes:
        loss: scalar, of a call with labels.
    """

    loss: Tensor | None


@dataclass
class EncoderOutput(Output):
    """The result of an encoder without a head.

    Attributes:
        last_hidden_state: (B, S, D).
        pooler_output: (B, D), of BERT: the state of `[CLS]` through the pooler.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None


@dataclass
class Seq2SeqStates(Output):
    """The result of an encoder and a decoder without a head.

    Attributes:
        last_hidden_state: (B, T, D), the decoder's.
        encoder_last_hidden_state: (B, S, D).
    """

    last_hidden_state: Tensor
    encoder_last_hidden_state: Tensor


@dataclass
class Seq2SeqOutput(ModelOutput):
    """The result of a model that generates.

    Attributes:
        logits: (B, T, V); None of a summed loss.
        encoder_last_hidden_state: (B, S, D).
        correct: scalar, of a summed loss without gradients: how many targets are the arg-max of their logits.
    """

    logits: Tensor | None
    encoder_last_hidden_state: Tensor
    correct: Tensor | None = None


@dataclass
class ClassifierOutput(ModelOutput):
    """The result of a head that classifies texts or tokens.

    Attributes:
        logits: (B, N) of texts, (B, S, N) of tokens.
        encoder_last_hidden_state: (B, S, D), of BART.
    """

    logits: Tensor
    encoder_last_hidden_state: Tensor | None = None


@dataclass
class QuestionAnsweringOutput(ModelOutput):
    """The result of a head that finds answers.

    Attributes:
        start_logits, end_logits: (B, S), of each token to be the first or last one of the answer.
        encoder_last_hidden_state: (B, S, D), of BART.
    """

    start_logits: Tensor
    end_logits: Tensor
    encoder_last_hidden_state: Tensor | None = None
