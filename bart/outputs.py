"""The results of forward passes and of generation."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from torch import Tensor

from bart.elsewhere import missing


class _OutputType(ABCMeta):
    def __call__(cls, *values: Any, **named: Any) -> Any:
        """Make an output; also of a mapping of its values, from which libraries such as accelerate make copies."""
        if values and isinstance(values[0], Mapping):
            names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
            return super().__call__(**{**dict.fromkeys(names), **values[0]})
        return super().__call__(*values, **named)


class Output(Mapping[str, Any], metaclass=_OutputType):
    """A dataclass whose values have numbers and names as in transformers, without what is None: `output[0]` is the loss
    when there is one, else the logits or states, and `output["logits"]` the logits.
    """

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
class ModelOutput(Output):
    """The result of a head, whose loss is a scalar, of a call with labels."""

    loss: Tensor | None


@dataclass
class EncoderOutput(Output):
    """The states (B, S, D) of BERT without a head, and that of `[CLS]` through the pooler, (B, D)."""

    last_hidden_state: Tensor
    pooler_output: Tensor


@dataclass
class Seq2SeqStates(Output):
    """The states (B, T, D) of a decoder, and (B, S, D) of its encoder, without a head."""

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
    """The logits (B, N) of texts, or (B, S, N) of tokens, and of BART the encoder's states (B, S, D)."""

    logits: Tensor
    encoder_last_hidden_state: Tensor | None = None


@dataclass
class QuestionAnsweringOutput(ModelOutput):
    """The logits (B, S) of an answer's first and last token, and of BART the encoder's states (B, S, D)."""

    start_logits: Tensor
    end_logits: Tensor
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
