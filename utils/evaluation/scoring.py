"""A split predicted, scored and timed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from bart.errors import InputError
from bart.files import read_json, write_json
from utils.app.formatting import figure
from utils.evaluation.journal import Journal, model_identity
from utils.evaluation.predicting import CONTINUOUS, predict_share
from utils.evaluation.speed import speed_report
from utils.runs.distributed import at_first, from_first, rank_and_world
from utils.runs.machine import versions
from utils.runs.memory import FittingSize
from utils.runs.outputs import difference, write_whole
from utils.runs.run_directory import REPORT_ORDER, remove, scored
from utils.tasks.task import Prediction, Task

logger = logging.getLogger(__name__)
VERSIONED = ("torch", "tokenizers")  # packages whose version may bear on predictions


def score_split(
    task: Task[Any],
    model: nn.Module,
    raw: Any,
    save_dir: str | os.PathLike[str],
    *,
    model_name: str | os.PathLike[str],
    task_name: str,
    batch_size: int,
    batch_size_option: str,
    split: str = "test",
    precision: str = "fp32",
    batching: str = CONTINUOUS,
    warmup_batches: int = 1,
    seed: int = 42,
    info: str | None = None,
    overwrites: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Predict every example, score the predictions if there are targets, and write the files of `write_results`.

    In a process group each process takes a share of the examples, and rank 0 merges, scores and writes. What an
    interrupted run has finished, which lies in a `Journal`, is not predicted again. Apart from the speed the files are
    the same bytes whatever the number of processes, in fp32 and without sampling: in other precisions an example may
    depend on those in the batch with it, as batches round differently.

    Args:
        raw: what the task's `read` gave.
        model_name: where the weights come from, by which a run that was broken off is known again.
        batch_size_option: what sets the batch size, for messages.
        precision: the model's.
        overwrites: whether what another run has left in the same directory, its scores or its progress, is replaced.

    Other arguments are explained by `utils.recipes.evaluation_arguments`.

    Returns:
        Scores and speed, as the files hold them; None on other ranks than 0.

    Raises:
        InputError: another run's scores or progress lie there.
    """
    rank, _ = rank_and_world()
    examples = task.encode(raw, split)
    conditions = task.settings(model)
    samples = bool(conditions.get("generation", {}).get("do_sample"))
    # All that bears on what is predicted.
    identity = {**model_identity(model_name), "precision": precision, **conditions, "examples": len(examples)}
    identity |= {"content": examples.identity, "versions": versions(VERSIONED)}
    if precision != "fp32":  # an example's rounding depends on the batch
        identity |= {"batch_size": batch_size, "batching": batching}
    if samples:
        identity["seed"] = seed
    told = {"task": task_name, "model": identity["model"], "data_dir": task.data.data_dir.rstrip("/")}
    told |= {"examples": len(examples), "precision": precision, **conditions}
    others = other_runs(Path(save_dir), split, told)
    if others and not overwrites:
        raise InputError(f"{next(iter(others.values()))}: name another directory, or give --overwrite_output_dir")
    earlier: dict[int, Prediction] = {}
    with closing(Journal(Path(save_dir), split)) as journal:
        if rank == 0:
            earlier = journal.resume(identity, overwrites)
            if earlier:
                logger.warning(
                    "%d of %d examples were predicted before the run was broken off", len(earlier), len(examples)
                )
        finished = set(from_first(list(earlier)))
        if samples:
            torch.manual_seed(seed + rank)
        journal.open(rank)
        predicted, speed = predict_share(
            task,
            model,
            examples,
            [number for number in range(len(examples)) if number not in finished],
            fitting=FittingSize(batch_size, batch_size_option),
            batching=batching,
            warmup_batches=warmup_batches,
            journal=journal,
        )
        shares = at_first((predicted, speed))
        if shares is None:
            return None
        merged = {number: entry for part in (earlier, *(part for part, _ in shares)) for number, entry in part.items()}
        predictions = [merged[number] for number in range(len(examples))]
        targets = sum(entry.targets for entry in predictions)
        figures, each = task.score(raw, predictions) if targets else ({}, {})
        if targets:
            loss = sum(entry.loss for entry in predictions) / targets
            figures = {**figures, "loss": round(loss, 4)}  # fp32 cannot be trusted further
        scores: dict[str, Any] = {
            "split": split,
            **told,
            **figures,
        }
        if samples:
            scores["seed"] = seed
        if info is not None:
            scores["info"] = info
        rows = [
            task.row(raw, examples, number, prediction) | {name: float(of[number]) for name, of in each.items()}
            for number, prediction in enumerate(predictions)
        ]
        said = list(map(task.line_of, rows))
        if empty := said.count(""):
            logger.warning("%d of %d predictions are empty", empty, len(rows))
        report = speed_report([part for _, part in shares], batching, model.device, len(earlier))
        remove(Path(save_dir), *scored(*(others.keys() - {split})))
        write_results(Path(save_dir), split, rows, said, scores, report)
        for name, text in task.files(raw, predictions, split).items():
            write_whole(Path(save_dir) / name, text)
        journal.remove()
    return scores, report


def other_runs(folder: Path, split: str, told: Mapping[str, Any]) -> dict[str, str]:
    """The splits that another run has scored in a directory, each with what tells that run from this one.

    Runs are known by the name of their model, so that one that was trained further replaces its own scores.

    Args:
        told: what this run's scores will say of it. For other splits the model alone must be the same.
    """
    found = {}
    for one in REPORT_ORDER:
        path = folder / f"{one}_scores.json"
        own = json.loads(json.dumps(told if one == split else {"model": told["model"]}))
        if path.exists() and (other := difference({name: read_json(path).get(name) for name in own}, own)):
            found[one] = f"{path} holds the scores of another run ({other})"
    return found


def write_results(
    folder: Path,
    split: str,
    rows: Sequence[Mapping[str, Any]],
    said: Sequence[str],
    scores: Mapping[str, Any],
    speed: Mapping[str, Any],
) -> None:
    """Write `<split>_generations.txt`, `<split>_articles.jsonl`, `<split>_speed.json`, and last `<split>_scores.json`.

    Args:
        rows: index, source, reference if there is one, prediction and more of each example, in the order of the input.
        said: the predictions, one line each.
    """
    write_whole(folder / f"{split}_generations.txt", "".join(f"{text}\n" for text in said))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(folder / f"{split}_articles.jsonl", lines)
    write_json(folder / f"{split}_speed.json", speed)
    write_json(folder / f"{split}_scores.json", scores)


def format_scores(scores: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    """Scores and speed as a table for people, the scores by the names that they have in the files."""
    rows = [(name, figure(name, value)) for name, value in scores.items() if isinstance(value, float)]
    rows = rows or [("scores", "none without references")]
    if speed["timed_articles"]:
        rates = ("articles_per_second", "generated_tokens_per_second")
        rows += [
            ("speed", ", ".join(figure(name, speed[name]) for name in rates if speed[name])),
            ("latency", ", ".join(f"{name} {speed['latency_ms'][name]:,.0f} ms" for name in ("p50", "p95", "p99"))),
            ("batch", f"{speed['batch_size']}, {speed['batching']}"),
            ("peak memory", figure("peak_memory_gb", speed["peak_memory_gb"])),
        ]
    head = f"{scores['split']}: {scores['examples']:,} examples, {scores['precision']} on {speed['device']}"
    return f"{head}\n{indent(tabulate(rows, tablefmt='plain', disable_numparse=True), '  ')}"
