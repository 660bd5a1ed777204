"""A split summarised, scored and timed."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.dataset import PairDataset
from utils.data.line_files import Pairs
from utils.data.tokenized import TokenizedTexts
from utils.distributed import at_first, from_first, rank_and_world
from utils.evaluation.decoding import decode_share
from utils.evaluation.journal import Decoded, Journal, model_identity
from utils.evaluation.loss import batch_losses
from utils.evaluation.results import write_results
from utils.evaluation.rouge import wordnet_exceptions
from utils.evaluation.speed import speed_report
from utils.evaluation.text_scores import score_texts

logger = logging.getLogger(__name__)


def generation_options(beams: int | None, max_gen_length: int | None) -> dict[str, int]:
    """Options of `generate` for what the command line gave; the model's defaults stand for what it did not."""
    options = {"num_beams": beams, "max_length": max_gen_length}
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Settings:
    """How a split is scored; see `utils.evaluation.arguments` for what is not said here.

    Attributes:
        model_name: where the weights come from, by which a run that was broken off is known again.
        max_source_length, max_target_length: tokens.
        generation: options of `model.generate_many`.
        precision: the model's.
    """

    model_name: str | os.PathLike[str]
    max_source_length: int
    max_target_length: int
    batch_size: int
    generation: Mapping[str, Any] = field(default_factory=dict)
    split: str = "test"
    task: str = "summarization"
    rouge_mode: str = "rouge-score"
    wordnet_exceptions: str | None = None
    precision: str = "fp32"
    prefix: str = ""
    batching: str = "continuous"
    warmup_batches: int = 1
    seed: int = 42
    info: str | None = None


def score_split(
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    pairs: Pairs,
    save_dir: str | os.PathLike[str],
    settings: Settings,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Summarise every source, score the summaries, and write what `write_results` says.

    In a process group each process takes a share of the articles, and rank 0 merges, scores and writes. What an
    interrupted run has finished, which lies in a `Journal`, is not decoded again. But for the speed the files are the
    same bytes whatever the number of processes, in fp32 and without sampling: in other precisions an article may
    depend on those in the batch with it, as batches round differently.

    Args:
        pairs: sources and references.

    Returns:
        Scores and speed, as the files hold them; None on other ranks than 0.
    """
    sources, references = pairs
    rank, _ = rank_and_world()
    dataset = PairDataset.from_texts(
        [settings.prefix + source for source in sources],
        references,
        tokenizer,
        settings.max_source_length,
        settings.max_target_length,
    )
    generation = model.generation_config.merged(**settings.generation).to_dict()
    exceptions: dict[str, str] = {}
    if rank == 0 and settings.task == "summarization" and settings.rouge_mode == "rouge-1.5.5":
        exceptions = wordnet_exceptions(settings.wordnet_exceptions)  # before hours of decoding
    journal = Journal(Path(save_dir), settings.split)
    earlier: dict[int, Decoded] = {}
    if rank == 0:
        earlier = journal.resume(_identity(settings, generation, dataset.sources))
        if earlier:
            logger.warning("%d of %d articles were decoded before the run was broken off", len(earlier), len(dataset))
    finished = set(from_first(list(earlier)))
    losses = batch_losses(model, tokenizer, dataset, settings.batch_size)
    if generation["do_sample"]:
        torch.manual_seed(settings.seed + rank)
    journal.open(rank)
    try:
        decoded, speed = decode_share(
            model,
            tokenizer,
            dataset.sources,
            [index for index in range(len(dataset)) if index not in finished],
            settings.generation,
            batch_size=settings.batch_size,
            batching=settings.batching,
            warmup_batches=settings.warmup_batches,
            journal=journal,
        )
    finally:
        journal.close()
    shares = at_first((decoded, losses, speed))
    if shares is None:
        return None
    all_decoded = [part for part, _, _ in shares]
    merged = {index: entry for part in (earlier, *all_decoded) for index, entry in part.items()}
    summaries = [merged[index] for index in range(len(dataset))]
    best = [entry.texts[0] for entry in summaries]
    quality, each = score_texts(settings.task, best, references, settings.rouge_mode, exceptions)
    scores: dict[str, Any] = {
        "split": settings.split,
        "task": settings.task,
        "examples": len(summaries),
        **quality,
        "loss": _mean_loss({number: loss for _, part, _ in shares for number, loss in part.items()}),
        "precision": settings.precision,
        "generation": generation,
        "max_source_length": settings.max_source_length,
        "max_target_length": settings.max_target_length,
        "prefix": settings.prefix,
    }
    if generation["do_sample"]:
        scores["seed"] = settings.seed
    if settings.info is not None:
        scores["info"] = settings.info
    report = speed_report([part for _, _, part in shares], settings.batching, model.device, len(earlier))
    write_results(Path(save_dir), settings.split, _articles(pairs, dataset, summaries, each), scores, report)
    journal.remove()
    return scores, report


def _identity(settings: Settings, generation: Mapping[str, Any], sources: TokenizedTexts) -> dict[str, Any]:
    """All that bears on what the articles become."""
    digest = hashlib.sha256(sources.lengths.tobytes())
    for index in range(len(sources)):
        digest.update(sources[index].tobytes())
    identity = {**model_identity(settings.model_name), "precision": settings.precision, **generation}
    identity |= {"examples": len(sources), "source_ids": digest.hexdigest()}
    return identity | ({"seed": settings.seed} if generation["do_sample"] else {})


def _mean_loss(losses: Mapping[int, tuple[float, int]]) -> float:
    """Nats per target token; rounded as fp32 is not to be trusted further."""
    ordered = [losses[number] for number in sorted(losses)]
    return round(sum(loss for loss, _ in ordered) / sum(tokens for _, tokens in ordered), 4)


def _articles(
    pairs: Pairs, dataset: PairDataset, summaries: Sequence[Decoded], each: Mapping[str, Sequence[float]]
) -> Iterator[dict[str, Any]]:
    """The rows of `<split>_articles.jsonl`."""
    sources, references = pairs
    for index, entry in enumerate(summaries):
        row: dict[str, Any] = {
            "index": index,
            "source": sources[index],
            "reference": references[index],
            "summary": entry.texts[0],
        }
        if len(entry.texts) > 1:
            row["alternatives"] = entry.texts[1:]
        row |= {
            "source_tokens": int(dataset.sources.lengths[index]),
            "reference_tokens": int(dataset.targets.lengths[index]),
            "summary_tokens": entry.tokens,
        }
        yield row | {name: float(values[index]) for name, values in each.items()}
