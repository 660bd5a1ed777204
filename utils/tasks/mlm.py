"""Masked tokens, by which BERT is pretrained without next sentences (Devlin et al., 2019, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bart.modeling.loss import IGNORE_INDEX
from bert.modeling.modeling_bert import BertForMaskedLM, BertForPreTraining
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.data.batches import Inputs, as_rows
from utils.data.masking import Masking
from utils.data.shard_format import MLM, MLM_NSP
from utils.tasks.options import PRETRAINING
from utils.tasks.pretraining import Pretraining

SHARE = 0.15625  # of a length, that is predicted at most: 20 of 128 tokens, and 80 of 512


class Mlm(Pretraining[BertForMaskedLM | BertForPreTraining]):
    """Texts with masks to the masked tokens."""

    Options, TrainingOptions = PRETRAINING[MLM]
    name = MLM
    model_classes = (BertForMaskedLM,)
    pipeline = "fill-mask"
    default_config = "configs/bert_base.json"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "labels", "masked_positions")  # of the model

    @property
    def most(self) -> int:
        """Tokens of an example that are predicted, but for a long word alone."""
        return self.training.max_predictions_per_seq or max(1, round(SHARE * self.options.max_source_length))

    def make_noise(self, seed: int) -> Masking:
        options = replace(self.training, max_predictions_per_seq=self.most)
        return Masking(options, self.tokenizer, seed, of_pairs=self.name == MLM_NSP)

    def collate(self, examples: Sequence[Any], tokenizer: BertTokenizer) -> Inputs:
        inputs = super().collate(examples, tokenizer)
        # Found here, because a GPU would have to be waited for, and of one number, so that sizes of products recur.
        is_masked = (inputs["labels"] != IGNORE_INDEX).long()
        is_masked[:, 0] = 0  # the label of [CLS], if it has any, is that of a pair
        width = min(max(self.most, int(is_masked.sum(1).max())), is_masked.shape[1])
        return inputs | {"masked_positions": is_masked.topk(width, dim=1).indices}

    def as_rows(self, inputs: Inputs, multiple: int) -> Inputs:
        columns, inputs = inputs["masked_positions"], as_rows(inputs, multiple, ("labels", "token_type_ids"))
        return inputs | {"masked_positions": inputs["input_ids"].places(columns).flatten()[None]}

    # ---- Training and validation

    def output_of(self, model: BertForMaskedLM | BertForPreTraining, batch: Inputs) -> Any:
        return model(**{name: batch[name] for name in self.inputs if name in batch})
