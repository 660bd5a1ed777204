"""The training loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bart.modeling.modeling_bart import (
    IGNORE_INDEX,
    BartForConditionalGeneration,
    Seq2SeqOutput,
    shift_tokens_right,
)


def teacher_forced(model: BartForConditionalGeneration, batch: dict[str, Tensor]) -> Seq2SeqOutput:
    """Logits for every target token of a batch (see `utils.data.dataset.Collate`) after the reference's prefix."""
    config = model.config
    decoder_input_ids = shift_tokens_right(batch["labels"], config.pad_token_id, config.decoder_start_token_id)
    return model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=decoder_input_ids)


def smoothed_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross entropy (Szegedy et al., 2016, section 7), summed over the targets that are not padding.

    Args:
        logits: (B, T, V).
        labels: (B, T), -100 where padded.

    Returns:
        The sum in fp32 and the number of targets; their ratio equals `torch.nn.functional.cross_entropy`'s mean.
    """
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return loss, (labels != IGNORE_INDEX).sum()
