"""BART under heads that classify texts, pairs of them, tokens, and spans that answer a question.

Names, arguments and results are those of transformers, which has no class for tokens. The decoder reads the source one
place to the right, so that each of its states knows the whole text (Lewis et al., 2020, section 3).
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.configuration.configuration import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.inputs import check_ids
from bart.modeling.loss import loss_of_tokens
from bart.modeling.modeling_bart import PretrainedBart
from bart.modeling.pretrained import PretrainedModel
from bart.outputs import LogitsOutput, QuestionAnsweringOutput
from bart.rows import Rows


class TextLoss:
    """The loss of heads that classify texts."""

    config: Any

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        reduction: str = "mean",
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The loss of logits (B, N), which is that of the config's problem type.

        Args:
            weight: (N,) of each class, or of the examples that have each of several labels.
            label_smoothing: probability spread over the classes, where an example has one.
        """
        problem = self.config.extra.get("problem_type")
        if problem is None:
            problem = MULTI_LABEL if labels.is_floating_point() else SINGLE_LABEL
            problem = REGRESSION if logits.shape[1] == 1 else problem
        if problem == REGRESSION:
            return F.mse_loss(logits.view(labels.shape), labels, reduction=reduction)
        if problem == SINGLE_LABEL:
            return F.cross_entropy(logits, labels, weight, reduction=reduction, label_smoothing=label_smoothing)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction=reduction, pos_weight=weight)


class SpanHead(PretrainedModel):
    """A head that finds answers: a layer with two logits for each token, and their loss."""

    head = ("qa_outputs",)
    reads_padding = True
    output_weight = "qa_outputs.weight"

    def __init__(self, config: Any) -> None:
        config = copy.deepcopy(config)
        config.labels = ["start", "end"]
        super().__init__(config)

    def add_head(self) -> None:
        self.qa_outputs = nn.Linear(self.config.d_model, 2)

    def loss(self, logits: Tensor, positions: Tensor, **options: Any) -> Tensor:
        """The cross entropy of logits (B, S) and positions (B,)."""
        behind = logits.shape[1]
        return F.cross_entropy(logits, positions.clamp(0, behind), ignore_index=behind, **options)

    def answers(
        self,
        ids: Tensor | Rows | None,
        states: Tensor,
        starts: Tensor | None,
        ends: Tensor | None,
        encoder_states: Tensor | None = None,
    ) -> QuestionAnsweringOutput:
        """The logits of states (B, S, D), or of rows, and the mean of both losses, if positions (B,) of both tokens are
        given.
        """
        logits = self.qa_outputs(states)
        if isinstance(ids, Rows):  # a softmax over each text
            logits = ids.unpack(logits, ids.longest, -torch.inf)
        start, end = logits.unbind(dim=-1)
        loss = None if starts is None or ends is None else (self.loss(start, starts) + self.loss(end, ends)) / 2
        return QuestionAnsweringOutput(loss, start, end, encoder_states)


class BartClassificationHead(nn.Module):
    """Dropout, dense layer, tanh, dropout, output layer: (B, D) -> (B, N)."""

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.out_proj = nn.Linear(config.d_model, len(config.labels))

    def forward(self, states: Tensor) -> Tensor:
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(states)))))


class BartForSequenceClassification(TextLoss, PretrainedBart):
    """BART that classifies texts, or pairs of texts, by the decoder's state at the last `</s>`.

    `config.labels` are the classes. `config.problem_type` is one of `configuration.PROBLEMS`; by default it follows
    from the labels: regression if there is one label, one class for each text if labels are integers, else any number
    of classes.
    """

    head = ("classification_head",)
    output_weight: ClassVar[str | None] = "classification_head.out_proj.weight"

    def add_head(self) -> None:
        self.classification_head = BartClassificationHead(self.config)

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        *,
        labels: Tensor | None = None,
    ) -> LogitsOutput:
        """Classify.

        Args:
            input_ids: (B, S), with a `</s>` in each row.
            attention_mask, decoder_attention_mask, encoder_outputs: as for `BartForConditionalGeneration`.
            decoder_input_ids: (B, S); by default input_ids moved one place right behind the start token.
            labels: (B,) classes, (B,) or (B, N) numbers of a regression, or (B, N) of 0.0 and 1.0.

        Raises:
            InputError: on the CPU, a row without `</s>`; or see `bart.modeling.modeling_bart.BartNetwork.forward`.
        """
        if not isinstance(input_ids, Rows):
            check_ids("input_ids", input_ids, self.config.vocab_size, decoder_input_ids=decoder_input_ids)
        hidden, encoder_states = self.model(
            input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs
        )
        given: Any = input_ids
        ids = (given.ids if isinstance(given, Rows) else given).flatten()
        numbers = torch.arange(len(ids), device=ids.device)
        texts = given.texts if isinstance(given, Rows) else numbers // given.shape[1]
        ends = numbers.where(ids == self.config.eos_token_id, -1)
        last = ends.new_full((len(given) + 1,), -1).scatter_reduce(0, texts, ends, "amax")[: len(given)]
        has_none = last < 0
        if ids.device.type == "cpu" and has_none.any():  # a GPU would have to be waited for: there logits are NaN
            row = int(has_none.nonzero()[0])
            raise InputError(f"input_ids[{row}] has no </s> ({self.config.eos_token_id}), whose state is classified")
        logits = self.classification_head(hidden.flatten(0, 1)[last])
        logits = logits.masked_fill(has_none[:, None], torch.nan)
        loss = None if labels is None else self.loss(logits, labels)
        return LogitsOutput(loss, logits, encoder_states)


class BartForTokenClassification(PretrainedBart):
    """BART that gives each token a label, by the decoder's state at its place (Lewis et al., 2020, section 3.2).

    transformers has no such class.
    """

    head = ("classifier",)
    output_weight: ClassVar[str | None] = "classifier.weight"

    def add_head(self) -> None:
        config = self.config
        states = config.extra.get("token_states", "decoder")  # earlier versions could also read the encoder's
        if states != "decoder":
            raise InputError(f"config field 'token_states' is {states!r}; allowed: decoder")
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.d_model, len(config.labels))

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
    ) -> LogitsOutput:
        """Logits (B, S, N); labels (B, S) are -100 where a token has none. The others are those of whole texts."""
        hidden, encoder_states = self.model(input_ids, attention_mask)
        logits = self.classifier(self.dropout(hidden))
        return LogitsOutput(loss_of_tokens(logits, labels), logits, encoder_states)


class BartForQuestionAnswering(SpanHead, PretrainedBart):
    """BART that finds the answer to a question as a span of a text, by the decoder's states."""

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> QuestionAnsweringOutput:
        """Find answers; the inputs are those of `BartForSequenceClassification`.

        start_positions and end_positions (B,) are the answer's first and last token. The loss is the mean of their
        cross entropies; positions behind the text have no part in it.
        """
        hidden, encoder_states = self.model(
            input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs
        )
        return self.answers(input_ids, hidden, start_positions, end_positions, encoder_states)
