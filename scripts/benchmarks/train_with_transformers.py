"""A plain loop that trains transformers' mBART, the peer of `run_translation.sh`, at the same size and steps.

    python scripts/benchmarks/train_with_transformers.py --data_dir DATA --tokenizer VOCABULARY --output_dir MODEL

It has the same vocabulary, lengths, batch size, learning rate, warm-up, weight decay, clipping and label smoothing, and
batches of like length, as transformers groups them; there is no dropout. `run_eval.py` scores what it writes, so that
both are decoded alike.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import LengthGroupedSampler

# Python looks for modules in the folder of the file that it runs, and not in the root, which holds utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.train_with_transformers")

from utils.app.cli import option, parse_dataclass
from utils.data.parallel_text import read_pairs

LOG_STEPS = 100


@dataclass(frozen=True)
class PeerArguments:
    """The command line."""

    data_dir: str = option(help="folder with train.source and train.target")
    tokenizer: str = option(help="folder of the vocabulary, BART's kind")
    output_dir: str = option(help="folder for the model")
    config_path: str = option("configs/config_small.json", help="JSON with the architecture")
    max_steps: int = option(4500, least=1, help="optimizer steps")
    train_batch_size: int = option(16, least=1, help="pairs in a step")
    learning_rate: float = option(1e-3, above=0, help="peak")
    warmup_steps: int = option(400, least=0, help="steps to the peak")
    max_length: int = option(128, least=3, help="tokens that sources and targets are cut to")
    seed: int = option(1, least=0, help="of weights and order")


def collate(pairs: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Pairs of ids -> the network's inputs, and labels."""
    sources, targets = (pad_sequence(side, batch_first=True, padding_value=1) for side in zip(*pairs, strict=True))
    starts = torch.cat((torch.full_like(targets[:, :1], 2), targets[:, :-1]), dim=1)
    inputs = {"input_ids": sources, "attention_mask": (sources != 1).long(), "decoder_input_ids": starts}
    return {**inputs, "labels": targets.masked_fill(targets == 1, -100)}


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(PeerArguments, argv, "Train transformers' mBART to translate, by a plain loop.")
    torch.manual_seed(args.seed)
    tokenizer = transformers.BartTokenizerFast.from_pretrained(args.tokenizer)
    fields = json.loads(Path(args.config_path).read_text()) | {"vocab_size": len(tokenizer)}
    fields |= {"model_type": "mbart", "dropout": 0, "attention_dropout": 0}
    model = transformers.MBartForConditionalGeneration(transformers.MBartConfig(**fields)).train()
    sides = [
        [torch.tensor(ids) for ids in tokenizer(texts, truncation=True, max_length=args.max_length).input_ids]
        for texts in map(list, read_pairs(args.data_dir, "train"))
    ]
    pairs = list(zip(*sides, strict=True))
    sampler = LengthGroupedSampler(
        args.train_batch_size,
        lengths=[len(source) + len(target) for source, target in pairs],
        generator=torch.Generator().manual_seed(args.seed),
    )
    loader = DataLoader(pairs, args.train_batch_size, sampler=sampler, collate_fn=collate)
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    schedule = transformers.get_polynomial_decay_schedule_with_warmup(optimizer, args.warmup_steps, args.max_steps)
    tokens, total, started = 0, 0.0, time.monotonic()
    batches = islice(chain.from_iterable(repeat(loader)), args.max_steps)  # of one epoch after another
    for step, batch in enumerate(batches, 1):
        labels = batch.pop("labels")
        logits = model(**batch).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.item()
        tokens += int(batch["attention_mask"].sum() + (labels >= 0).sum())
        if step % LOG_STEPS == 0:
            seconds = time.monotonic() - started
            print(f"step {step}  loss {total / LOG_STEPS:.4f}  {tokens / seconds:,.0f} tokens/s", flush=True)
            total = 0.0
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
