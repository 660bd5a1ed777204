"""BERT: a bidirectional encoder under heads (Devlin et al., 2019, arXiv:1810.04805), built of BART's encoder layers.

Classes, arguments and results are those of `transformers`, and weights go in and out under its names. Within, the
encoder's parameters have the names of BART's.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.backend import ACTIVATIONS
from bart.errors import InputError
from bart.inputs import check_ids
from bart.modeling.checkpoint import prefix_of
from bart.modeling.heads import SpanHead, TextLoss
from bart.modeling.layers import BartEncoder
from bart.modeling.loss import chunked_cross_entropy, loss_of_tokens
from bart.modeling.pretrained import PretrainedModel
from bart.outputs import LogitsOutput, Output, QuestionAnsweringOutput, StatesOutput
from bart.rows import Rows
from bert.configuration.configuration_bert import BertConfig
from bert.tokenization.tokenization_bert import BertTokenizer

# Parts of names: those of transformers, and ours.
_NAMES = (
    ("embeddings.word_embeddings.", "encoder.embed_tokens."),
    ("embeddings.position_embeddings.", "encoder.embed_positions."),
    ("embeddings.token_type_embeddings.", "encoder.embed_types."),
    ("embeddings.LayerNorm.", "encoder.layernorm_embedding."),
    ("encoder.layer.", "encoder.layers."),
    (".attention.self.query.", ".self_attn.q_proj."),
    (".attention.self.key.", ".self_attn.k_proj."),
    (".attention.self.value.", ".self_attn.v_proj."),
    (".attention.output.dense.", ".self_attn.out_proj."),
    (".attention.output.LayerNorm.", ".self_attn_layer_norm."),
    (".intermediate.dense.", ".fc1."),
    (".output.dense.", ".fc2."),
    (".output.LayerNorm.", ".final_layer_norm."),
)
_ANCHOR = re.compile(r"(?:^|(?<=\.))(embeddings\.word_embeddings|encoder\.embed_tokens)\.weight$")
_COPIES = {  # names under which files hold a weight again
    "cls.predictions.decoder.weight": "bert.encoder.embed_tokens.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_CLASSIFIERS = ("classifier", "qa_outputs")


@dataclass
class BertForPreTrainingOutput(Output):
    """The result of both heads of pretraining.

    Attributes:
        prediction_logits: (B, S, V); None of a summed loss.
        seq_relationship_logits: (B, 2), of the second segment to follow the first one, and to be a random one.
        correct: scalar, of a summed loss without gradients: how many masked tokens are the arg-max of their logits.
    """

    loss: Tensor | None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    correct: Tensor | None = None


class BertEncoder(BartEncoder):
    """BART's encoder, with types of tokens, and positions that are counted from 0."""

    position_offset = 0

    def __init__(self, config: BertConfig) -> None:
        table = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        super().__init__(config.encoder(), table)
        self.embed_types = nn.Embedding(config.type_vocab_size, config.hidden_size)
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = config.layer_norm_eps


class BertNetwork(nn.Module):
    """Encoder and, where a head needs it, pooler: a layer and tanh, for the state of `[CLS]`."""

    def __init__(self, config: BertConfig, pools: bool) -> None:
        super().__init__()
        self.encoder = BertEncoder(config)
        dense = nn.Linear(config.hidden_size, config.hidden_size) if pools else None
        self.pooler = None if dense is None else nn.Sequential(OrderedDict(dense=dense, tanh=nn.Tanh()))

    def forward(
        self, input_ids: Tensor | Rows | None, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """States (B, S, D), or (1, M, D) of rows, and the pooled one (B, D); inputs as of `BertForPreTraining`."""
        types = self.encoder.embed_types
        if not isinstance(input_ids, Rows):
            beside = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
            input_ids = check_ids("input_ids", input_ids, self.encoder.embed_tokens.num_embeddings, True, **beside)
            if token_type_ids is not None:
                check_ids("token_type_ids", token_type_ids, types.num_embeddings)
        typed = types.weight[0] if token_type_ids is None else types(token_type_ids)
        states = self.encoder(input_ids, attention_mask, added=typed)
        if self.pooler is None:
            return states, None
        firsts = states[0, input_ids.starts[: len(input_ids)]] if isinstance(input_ids, Rows) else states[:, 0]
        return states, self.pooler(firsts)


class BertPredictions(nn.Module):
    """The masked-language-model head, whose matrix is that of the token embeddings."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.transform = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.hidden_size), "LayerNorm": norm})
        self.activation = ACTIVATIONS[config.hidden_act]
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def transformed(self, states: Tensor) -> Tensor:
        """The states (…, D) from which the matrix and the bias compute logits."""
        return self.transform["LayerNorm"](self.activation(self.transform["dense"](states)))


class PretrainedBert(PretrainedModel):
    """BERT's network under a head: its weights and files, whatever the head.

    Attributes:
        pools: true if the head reads the pooled state.
    """

    config_class = BertConfig
    tokenizer_class = BertTokenizer
    shared = "bert.encoder.embed_tokens.weight"
    vocabulary_multiple = 8  # of NVIDIA's checkpoints
    pools: ClassVar[bool]
    config: BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertNetwork(config, self.pools)
        self.add_head()
        self.init_weights(self)

    def stored_name(self, name: str) -> str:
        name = super().stored_name(name)
        for theirs, ours in _NAMES:
            name = name.replace(ours, theirs)
        return name

    @classmethod
    def read_names(cls, state: dict[str, Tensor], path: Path) -> tuple[dict[str, Tensor], list[str]]:
        prefix = prefix_of(state, _ANCHOR, "BERT", path).removesuffix("bert.")
        renamed: dict[str, Tensor] = {}
        left_out: list[str] = []
        for stored, tensor in state.items():
            name = stored.removeprefix(prefix).replace(".dense_act.", ".dense.")  # as NVIDIA calls them
            if name.startswith(("embeddings.", "encoder.", "pooler.")):  # of a bare BertModel
                name = f"bert.{name}"
            for theirs, ours in _NAMES:
                name = name.replace(theirs, ours)
            name = name.replace(".gamma", ".weight").replace(".beta", ".bias")  # as TensorFlow calls them
            if name.startswith(_CLASSIFIERS) and not name.startswith(cls.head):
                left_out.append(stored)
            elif not (
                name == "bert.embeddings.position_ids"  # a buffer in old files
                or (name.startswith("cls.") and "cls" not in cls.head)
                or (name.startswith(("cls.seq_relationship.", "bert.pooler.")) and not cls.pools)
            ):
                renamed[name] = tensor
        for again, original in _COPIES.items():
            if again in renamed and not torch.equal(renamed[again], renamed.setdefault(original, renamed[again])):
                raise InputError(f"{path}: {again} differs from {original}; BERT's are tied")
            renamed.pop(again, None)
        return renamed, left_out


class BertModel(PretrainedBert):
    """BERT without a head: states, and the pooled state."""

    head = ()
    optional = ("bert.pooler",)
    reads_padding = True
    pools = True

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> StatesOutput:
        """Encode; arguments and errors are those of `BertForPreTraining`."""
        states, pooled = self.bert(input_ids, attention_mask, token_type_ids)
        return StatesOutput(states, pooler_output=pooled)


class _ForMaskedLM(PretrainedBert):
    """The base of both classes with a masked-language-model head."""

    head = ("cls",)
    optional: tuple[str, ...] = ("cls.predictions",)

    def add_head(self) -> None:
        self.cls: Any = nn.Module()
        self.cls.predictions = BertPredictions(self.config)
        if self.pools:
            self.cls.seq_relationship = nn.Linear(self.config.hidden_size, 2)

    def resize_token_embeddings(self, vocab_size: int, *, keep: bool = True) -> nn.Embedding:
        table, head = super().resize_token_embeddings(vocab_size, keep=keep), self.cls.predictions
        old = head.bias.detach()[: vocab_size if keep else 0]
        head.bias = nn.Parameter(F.pad(old, (0, vocab_size - len(old))), head.bias.requires_grad)
        return table

    def predict(
        self, states: Tensor, labels: Tensor | None, masked_positions: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The loss, the logits (B, S, V), and how many of the masked tokens are right, of states (B, S, D).

        masked_positions (B, M) are all places with a label (B, S), filled up with others. The loss is then summed over
        the labels, and there are no logits (see `bart.modeling.loss`); without them it is the mean, and no count.
        """
        head, table = self.cls.predictions, self.bert.encoder.embed_tokens.weight
        if masked_positions is None:
            logits = F.linear(head.transformed(states), table, head.bias)
            return loss_of_tokens(logits, labels), logits, None
        if labels is None:
            raise InputError("masked_positions need labels, and there are none")
        states = states.gather(1, masked_positions[:, :, None].expand(-1, -1, states.shape[2])).flatten(0, 1)
        labels = labels.gather(1, masked_positions).flatten()
        loss, correct = chunked_cross_entropy(head.transformed(states), table, head.bias, labels, backend=self.backend)
        return loss, None, correct


class BertForPreTraining(_ForMaskedLM):
    """BERT that tells masked tokens, and whether the second segment of a text follows the first one."""

    optional = ("bert.pooler", "cls.predictions", "cls.seq_relationship")
    pools = True

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        masked_positions: Tensor | None = None,
    ) -> BertForPreTrainingOutput:
        """Predict.

        Args:
            input_ids: (B, S).
            attention_mask: (B, S), 1 for tokens and 0 for padding; None means no padding.
            token_type_ids: (B, S), 1 for tokens of the second segment.
            labels: (B, S) ids of the masked tokens, -100 elsewhere.
            next_sentence_label: (B,), 0 where the second segment follows the first one, 1 where it is a random one. The
                loss is the sum of both means, if both kinds of labels are given.
            masked_positions: (B, M), as of `predict`, whose summed loss is then that of the masked tokens alone.

        Raises:
            InputError: inputs are missing, of other shapes, outside the vocabulary, or longer than there are positions.
        """
        states, pooled = self.bert(input_ids, attention_mask, token_type_ids)
        related = self.cls.seq_relationship(pooled)
        loss, logits, correct = self.predict(states, labels, masked_positions)
        if masked_positions is None:
            second = None if next_sentence_label is None else F.cross_entropy(related, next_sentence_label)
            loss = None if loss is None or second is None else loss + second
        return BertForPreTrainingOutput(loss, logits, related, correct)


class BertForMaskedLM(_ForMaskedLM):
    """BERT that tells masked tokens."""

    pools = False

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
    ) -> LogitsOutput:
        """Logits (B, S, V); arguments as for `BertForPreTraining`."""
        states, _ = self.bert(input_ids, attention_mask, token_type_ids)
        loss, logits, correct = self.predict(states, labels, masked_positions)
        return LogitsOutput(loss, logits, correct=correct)


class _Classifier(PretrainedBert):
    """An output layer for labels over the pooled state, or over that of each token."""

    head = ("classifier",)
    output_weight: ClassVar[str | None] = "classifier.weight"
    loss: Callable[..., Any]

    def add_head(self) -> None:
        config, dropout = self.config, self.config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.classifier = nn.Linear(config.hidden_size, len(config.labels))

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
    ) -> LogitsOutput:
        """Classify; arguments are those of `BertForPreTraining`, and labels as the class says."""
        states, pooled = self.bert(input_ids, attention_mask, token_type_ids)
        logits = self.classifier(self.dropout(pooled if self.pools else states))
        return LogitsOutput(None if labels is None else self.loss(logits, labels), logits)


class BertForSequenceClassification(TextLoss, _Classifier):
    """BERT that classifies texts, or pairs of texts, by the pooled state: logits (B, N).

    Labels are (B,) classes, (B,) or (B, N) numbers of a regression, or (B, N) of 0.0 and 1.0; kinds of problems are
    those of `bart.modeling.heads.BartForSequenceClassification`.
    """

    optional = ("bert.pooler",)
    lookalikes = ("BertForTokenClassification",)
    pools = True


class BertForTokenClassification(_Classifier):
    """BERT that gives each token a label: logits (B, S, N), labels (B, S), -100 where a token has none."""

    lookalikes = ("BertForSequenceClassification",)
    pools = False
    loss = staticmethod(loss_of_tokens)


class BertForQuestionAnswering(SpanHead, PretrainedBert):
    """BERT that finds the answer to a question as a span of a text."""

    pools = False

    def forward(
        self,
        input_ids: Tensor | Rows | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> QuestionAnsweringOutput:
        """Logits (B, S) of the answer's first and last token, whose right places are the positions (B,)."""
        states, _ = self.bert(input_ids, attention_mask, token_type_ids)
        return self.answers(input_ids, states, start_positions, end_positions)
