"""Beam search over a split, its ROUGE, and how fast it went."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.dataset import Collate, PairDataset, evaluation_batches
from utils.evaluation.rouge import ROUGE_MODES, rouge
from utils.memory import FittingSize
from utils.progress import Progress
from utils.training.loss import smoothed_loss, teacher_forced

PERCENTILES = (50, 90, 95, 99)
BATCH_SIZE_OPTION = "--eval_batch_size (run_eval.py: --bs)"


def generation_options(beams: int | None, max_gen_length: int | None) -> dict[str, int]:
    """Options of `generate` for what the command line gave; the model's defaults stand for what it did not."""
    options = {"num_beams": beams, "max_length": max_gen_length}
    return {name: value for name, value in options.items() if value is not None}


def score_split(
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    dataset: PairDataset,
    batch_size: int,
    options: Mapping[str, Any],
    save_dir: str | os.PathLike[str],
    split: str = "test",
    precision: str = "fp32",
) -> dict[str, Any] | None:
    """Summarise every source, write the summaries in the order of the input, and score them.

    Writes `<split>_generations.txt`, one summary a line, and `<split>_scores.json` to save_dir. In a process group each
    process takes a share of the articles, and rank 0 merges, scores and writes.

    Args:
        batch_size: articles at once; fewer where memory does not suffice.
        options: passed to `model.generate_many`.
        precision: the model's, for the report.

    Returns:
        The scores: ROUGE F in percent, `loss` (mean negative log-likelihood of the target tokens, nats), articles and
        generated tokens per second, and percentiles of the milliseconds that an article spends in the batch. None on
        other ranks than 0.
    """
    distributed = dist.is_available() and dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    loss, tokens = _teacher_forced_loss(model, tokenizer, dataset, batch_size, rank, world_size)
    mine = range(rank, len(dataset), world_size)
    progress = Progress("generating", len(mine), "articles")
    fitting = FittingSize(batch_size, BATCH_SIZE_OPTION)
    summaries: dict[int, str] = {}
    latencies: list[float] = []
    generated = 0

    def summarise(left: list[int], size: int) -> Iterator[int]:
        nonlocal generated
        sources = [dataset.sources[index].tolist() for index in left]
        for article in model.generate_many(sources, size, **options):
            if rank == 0:
                progress(len(summaries))
            [ids] = article.sequences
            [summary] = tokenizer.batch_decode([ids], skip_special_tokens=True)
            summaries[left[article.index]] = " ".join(summary.split("\n")).strip()
            generated += int((ids != tokenizer.pad_token_id).sum())
            latencies.append(article.seconds)
            yield left[article.index]

    start = time.perf_counter()
    fitting.run(mine, summarise)
    seconds = time.perf_counter() - start
    if rank == 0:
        progress(len(mine))
    share = (summaries, loss, tokens, generated, latencies, seconds)
    shares: list[Any] = [share]
    if distributed:
        shares = [None] * world_size if rank == 0 else []
        dist.gather_object(share, shares if rank == 0 else None)
    if rank != 0:
        return None

    merged = {index: summary for part in shares for index, summary in part[0].items()}
    predictions = [merged[index] for index in range(len(dataset))]
    loss, tokens, generated = (sum(part[i] for part in shares) for i in (1, 2, 3))
    seconds = max(part[5] for part in shares)
    milliseconds = 1000 * np.concatenate([part[4] for part in shares])
    scores: dict[str, Any] = {
        "split": split,
        "examples": len(predictions),
        "rouge_mode": ROUGE_MODES[0],
        **rouge(predictions, dataset.references),
        "loss": loss / tokens,
        "generation_seconds": seconds,
        "articles_per_second": len(predictions) / seconds,
        "generated_tokens_per_second": generated / seconds,
        "batch_size": fitting.size,
        "latency_ms": {f"p{p}": float(np.percentile(milliseconds, p)) for p in PERCENTILES},
        "processes": world_size,
        "device": str(model.device),
        "precision": precision,
        "generation": {**model.generation_config.to_dict(), **options},
    }
    save_dir = Path(save_dir)
    save_dir.mkdir(parents=True, exist_ok=True)
    (save_dir / f"{split}_generations.txt").write_text("".join(f"{text}\n" for text in predictions), encoding="utf-8")
    (save_dir / f"{split}_scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    return scores


def _teacher_forced_loss(
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    dataset: PairDataset,
    batch_size: int,
    rank: int,
    world_size: int,
) -> tuple[float, int]:
    """Negative log-likelihood in nats of a rank's target tokens, summed, and how many they are."""
    model.eval()
    collate = Collate(tokenizer.pad_token_id)
    loss, tokens = 0.0, 0

    def add(indices: list[int]) -> None:
        nonlocal loss, tokens
        batch = {name: tensor.to(model.device) for name, tensor in collate([dataset[i] for i in indices]).items()}
        with torch.inference_mode():
            batch_loss, batch_tokens = smoothed_loss(teacher_forced(model, batch).logits, batch["labels"])
        loss += batch_loss.item()
        tokens += int(batch_tokens)

    fitting = FittingSize(batch_size, BATCH_SIZE_OPTION)
    for indices in evaluation_batches(dataset.sources.lengths, batch_size, rank, world_size):
        fitting.run_in_parts(indices, add)
    return loss, tokens


def format_scores(scores: Mapping[str, Any]) -> str:
    """The scores as a few lines for people."""
    latency = "  ".join(f"{name} {value:.0f}" for name, value in scores["latency_ms"].items())
    generation = scores["generation"]
    return "\n".join(
        [
            f"{scores['split']}: {scores['examples']} examples, {generation['num_beams']} beams, "
            f"{scores['precision']} on {scores['device']}",
            f"  ROUGE-1 {scores['rouge1']:.2f}   ROUGE-2 {scores['rouge2']:.2f}   ROUGE-Lsum {scores['rougeLsum']:.2f}"
            f"   loss {scores['loss']:.3f}",
            f"  {scores['articles_per_second']:.2f} articles/s, {scores['generated_tokens_per_second']:.0f} tokens/s; "
            f"ms per article among {scores['batch_size']}: {latency}",
        ]
    )
