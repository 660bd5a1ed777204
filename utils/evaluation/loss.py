"""How likely a model finds the references."""

from __future__ import annotations

import torch

from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.dataset import Collate, PairDataset, evaluation_batches
from utils.distributed import rank_and_world
from utils.evaluation.decoding import BATCH_SIZE_OPTION
from utils.memory import FittingSize
from utils.progress import Progress
from utils.training.loss import smoothed_loss, teacher_forced


def batch_losses(
    model: BartForConditionalGeneration, tokenizer: BartTokenizer, dataset: PairDataset, batch_size: int
) -> dict[int, tuple[float, int]]:
    """Negative log-likelihood in nats of the target tokens of this process's batches, summed, and how many they are.

    Batches are numbered through, and the same ones whatever the number of processes, of which each takes some. Summed
    in their order, losses do not depend on that number by a single bit.
    """
    rank, world = rank_and_world()
    model.eval()
    collate = Collate(tokenizer.pad_token_id)
    fitting = FittingSize(batch_size, BATCH_SIZE_OPTION)
    batches = dict(enumerate(evaluation_batches(dataset.sources.lengths, batch_size)))
    mine = {number: batch for number, batch in batches.items() if number % world == rank}
    progress = Progress("loss of the references", len(mine), "batches")
    losses: dict[int, tuple[float, int]] = {}
    for number, batch in mine.items():
        parts: list[tuple[float, int]] = []

        def add(indices: list[int], parts: list[tuple[float, int]] = parts) -> None:
            inputs = {name: tensor.to(model.device) for name, tensor in collate([dataset[i] for i in indices]).items()}
            with torch.inference_mode():
                loss, tokens = smoothed_loss(teacher_forced(model, inputs).logits, inputs["labels"])
            parts.append((loss.item(), int(tokens)))

        fitting.run_in_parts(batch, add)
        losses[number] = sum(loss for loss, _ in parts), sum(tokens for _, tokens in parts)
        progress.advance()
    return losses
