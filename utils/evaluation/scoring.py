"""A split predicted, scored and timed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from utils.data.batches import Examples
from utils.distributed import at_first, from_first, rank_and_world
from utils.evaluation.journal import Journal, model_identity
from utils.evaluation.predicting import CONTINUOUS, predict_share
from utils.evaluation.results import write_results
from utils.evaluation.speed import speed_report
from utils.machine import versions
from utils.memory import FittingSize
from utils.tasks.task import Prediction, Task

logger = logging.getLogger(__name__)
VERSIONED = ("torch", "tokenizers")  # packages whose version may bear on predictions


@dataclass(frozen=True)
class Settings:
    """How a split is scored; see `utils.recipes.evaluation_arguments` for what is not explained here.

    Attributes:
        model_name: where the weights come from, by which a run that was broken off is known again.
        task_name: for the results.
        batch_size_option: what sets the batch size, for messages.
        precision: the model's.
        replaces_progress: whether a run of another kind that was broken off in the same directory is forgotten.
    """

    model_name: str | os.PathLike[str]
    task_name: str
    batch_size: int
    batch_size_option: str
    split: str = "test"
    precision: str = "fp32"
    batching: str = CONTINUOUS
    warmup_batches: int = 1
    seed: int = 42
    info: str | None = None
    replaces_progress: bool = False


def score_split(
    task: Task[Any], model: nn.Module, raw: Any, save_dir: str | os.PathLike[str], settings: Settings
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Predict every example, score the predictions, and write what `write_results` says.

    In a process group each process takes a share of the examples, and rank 0 merges, scores and writes. What an
    interrupted run has finished, which lies in a `Journal`, is not predicted again. Apart from the speed the files are
    the same bytes whatever the number of processes, in fp32 and without sampling: in other precisions an example may
    depend on those in the batch with it, as batches round differently.

    Args:
        raw: what the task's `read` gave.

    Returns:
        Scores and speed, as the files hold them; None on other ranks than 0.
    """
    journal = Journal(Path(save_dir), settings.split)
    try:
        return _score(task, model, raw, Path(save_dir), settings, journal)
    finally:
        journal.close()


def _score(
    task: Task[Any], model: nn.Module, raw: Any, save_dir: Path, settings: Settings, journal: Journal
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    rank, _ = rank_and_world()
    examples = task.encode(raw, settings.split)
    conditions = task.settings(model)
    samples = bool(conditions.get("generation", {}).get("do_sample"))
    earlier: dict[int, Prediction] = {}
    if rank == 0:
        earlier = journal.resume(_identity(settings, conditions, examples, samples), settings.replaces_progress)
        if earlier:
            logger.warning(
                "%d of %d examples were predicted before the run was broken off", len(earlier), len(examples)
            )
    finished = set(from_first(list(earlier)))
    if samples:
        torch.manual_seed(settings.seed + rank)
    journal.open(rank)
    predicted, speed = predict_share(
        task,
        model,
        examples,
        [number for number in range(len(examples)) if number not in finished],
        fitting=FittingSize(settings.batch_size, settings.batch_size_option),
        batching=settings.batching,
        warmup_batches=settings.warmup_batches,
        journal=journal,
    )
    shares = at_first((predicted, speed))
    if shares is None:
        return None
    merged = {number: entry for part in (earlier, *(part for part, _ in shares)) for number, entry in part.items()}
    predictions = [merged[number] for number in range(len(examples))]
    figures, each = task.score(raw, predictions)
    scores: dict[str, Any] = {
        "split": settings.split,
        "task": settings.task_name,
        "examples": len(predictions),
        **figures,
        "loss": _mean_loss(predictions),
        "precision": settings.precision,
        **conditions,
    }
    if samples:
        scores["seed"] = settings.seed
    if settings.info is not None:
        scores["info"] = settings.info
    report = speed_report([part for _, part in shares], settings.batching, model.device, len(earlier))
    write_results(save_dir, settings.split, _rows(task, raw, examples, predictions, each), scores, report)
    journal.remove()
    return scores, report


def _identity(settings: Settings, conditions: Mapping[str, Any], examples: Examples, samples: bool) -> dict[str, Any]:
    """All that bears on what is predicted."""
    identity = {**model_identity(settings.model_name), "precision": settings.precision, **conditions}
    identity |= {"examples": len(examples), "content": examples.identity, "versions": versions(VERSIONED)}
    if settings.precision != "fp32":  # an example's rounding depends on the batch
        identity |= {"batch_size": settings.batch_size, "batching": settings.batching}
    return identity | ({"seed": settings.seed} if samples else {})


def _mean_loss(predictions: Sequence[Prediction]) -> float:
    """Loss per target; rounded, since fp32 cannot be trusted further."""
    return round(sum(each.loss for each in predictions) / sum(each.targets for each in predictions), 4)


def _rows(
    task: Task[Any],
    raw: Any,
    examples: Examples,
    predictions: Sequence[Prediction],
    each: Mapping[str, Sequence[float]],
) -> Iterator[dict[str, Any]]:
    """The rows of `<split>_articles.jsonl`."""
    for number, prediction in enumerate(predictions):
        row = task.row(raw, examples, number, prediction)
        yield row | {name: float(values[number]) for name, values in each.items()}
