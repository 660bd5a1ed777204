"""The results of forward passes and of generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from bart.elsewhere import missing


class Output(Mapping[str, Any]):
    """A dataclass whose values have numbers and names as in transformers, without what is None: `output[0]` is the loss
    when there is one, else the logits or states, and `output["logits"]` the logits. A loss is a scalar, of a call with
    labels.
    """

    def __post_init__(self) -> None:
        """Take the values of a mapping, too, from which libraries such as accelerate make copies."""
        first = next(iter(vars(self).values()))
        if isinstance(first, Mapping):
            vars(self).update({**dict.fromkeys(vars(self)), **first})

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in vars(self).items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, key: int | slice | str) -> Any:
        values = {name: getattr(self, name) for name in self}
        return values[key] if isinstance(key, str) else tuple(values.values())[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return self[:]


@dataclass
class StatesOutput(Output):
    """The result of a network without a head.

    Attributes:
        last_hidden_state: (B, T, D), of BART's decoder, or (B, S, D), of BERT.
        encoder_last_hidden_state: (B, S, D), of BART.
        pooler_output: (B, D), of BERT: the state of `[CLS]` through the pooler.
    """

    last_hidden_state: Tensor
    encoder_last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None


@dataclass
class LogitsOutput(Output):
    """The result of a head.

    Attributes:
        logits: (B, T, V) of a vocabulary, None of a summed loss; (B, N) of texts; or (B, S, N) of tokens.
        encoder_last_hidden_state: (B, S, D), of BART.
        correct: scalar, of a summed loss without gradients: how many targets are the arg-max of their logits.
    """

    loss: Tensor | None
    logits: Tensor | None = None
    encoder_last_hidden_state: Tensor | None = None
    correct: Tensor | None = None


@dataclass
class QuestionAnsweringOutput(Output):
    """The logits (B, S) of an answer's first and last token, and of BART the encoder's states (B, S, D)."""

    loss: Tensor | None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    encoder_last_hidden_state: Tensor | None = None


@dataclass
class GenerationOutput(Output):
    """The result of ``generate(return_dict_in_generate=True)``.

    Attributes:
        sequences: (B·N, T) ids, article by article, best first; padded on the right to the longest.
        sequences_scores: (B·N,) length-penalised scores; only with beams and output_scores.
        scores: one (R, V) tensor per step, the scores after all rules; only with output_scores.
        beam_indices: (B·N, T - 1), for each generated id the row of ``scores`` it was chosen in, -1 after the end; only
            with beams.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    scores: tuple[Tensor, ...] | None = None
    beam_indices: Tensor | None = None
