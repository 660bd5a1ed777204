"""The results of forward passes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor


@dataclass
class ModelOutput:
    """`output[0]` is the loss when there is one, else the logits, and so on: as in transformers, without what is None.

    Attributes:
        loss: scalar, of a call with labels.
    """

    loss: Tensor | None

    def __getitem__(self, index: int) -> Tensor:
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return [value for value in values if value is not None][index]


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
