"""Masked tokens and next sentences, which BERT is pretrained by (Devlin et al., 2019, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bart.modeling.loss import IGNORE_INDEX
from bert.modeling.modeling_bert import BertForPreTraining
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.data.batches import Inputs
from utils.data.shard_format import MLM_NSP
from utils.models.loading import LoadedModel
from utils.tasks.mlm import Mlm


class MlmNsp(Mlm):
    """Pairs of segments with masks to the masked tokens, and to the answer if the second segment follows the first."""

    name = MLM_NSP
    model_classes = (BertForPreTraining,)
    means = 2
    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "max", "next_sentence_accuracy": "max"}
    inputs = (*Mlm.inputs, "token_type_ids")

    def collate(self, examples: Sequence[Any], tokenizer: BertTokenizer) -> Inputs:
        inputs = super().collate(examples, tokenizer)
        inputs["next_sentence_label"] = inputs["labels"][:, 0].clone()
        inputs["labels"][:, 0] = IGNORE_INDEX
        is_end = (inputs["input_ids"] == tokenizer.sep_token_id).long()
        behind = (is_end.cumsum(1) - is_end).clamp(max=1)  # the first [SEP]
        return inputs | {"token_type_ids": behind * inputs["attention_mask"]}

    # ---- Training and validation

    def count(self, model: BertForPreTraining, batch: Inputs) -> Tensor:
        """(2,): masked tokens, and pairs."""
        masked = (batch["labels"] != IGNORE_INDEX).sum()
        return torch.stack([masked, torch.full_like(masked, len(batch["next_sentence_label"]))])

    def loss(self, model: BertForPreTraining, batch: Inputs) -> Tensor:
        """(2,): the cross entropies of the masked tokens, and of the pairs."""
        return torch.stack([loss for loss, _ in self._measured(model, batch)])

    def validate(self, loaded: LoadedModel[BertForPreTraining], batch: Inputs) -> Tensor:
        """Sums (6,): both losses, both counts, and how many of both are right."""
        losses, right = zip(*self._measured(loaded.model, batch), strict=True)
        return torch.cat([torch.stack(losses), self.count(loaded.model, batch), torch.stack(right)]).double()

    def metrics_of(self, sums: Sequence[float], loaded: LoadedModel[BertForPreTraining]) -> dict[str, float]:
        of_tokens, of_pairs, tokens, pairs, right, right_pairs = sums
        return {
            "loss": of_tokens / tokens + of_pairs / pairs,
            "accuracy": right / tokens,
            "next_sentence_accuracy": right_pairs / pairs,
        }

    def _measured(self, model: BertForPreTraining, batch: Inputs) -> Iterator[tuple[Tensor, Tensor]]:
        """The loss in fp32, and how many are right, of masked tokens and of pairs; all scalars."""
        output = self.output_of(model, batch)
        related, labels = output.seq_relationship_logits.float(), batch["next_sentence_label"]
        yield output.loss, output.correct
        yield F.cross_entropy(related, labels, reduction="sum"), (related.argmax(dim=1) == labels).sum()
