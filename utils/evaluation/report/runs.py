"""A run's files: what training and scoring wrote, of this and of former versions."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bart.errors import InputError
from utils.errors import brief

SPLITS = ("test", "val", "train")  # in the order in which a report looks for one that was scored
LABELS = {
    **{"rouge": "ROUGE", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"},
    **{"bleu": "BLEU", "loss": "Loss"},
}


@dataclass(eq=False)
class Run:
    """What a run's directory holds; a part that is not there is empty.

    Attributes:
        metrics: columns of metrics.csv; what is empty or not finite is None.
        summary: train_summary.json.
        scores, speeds: split -> `<split>_scores.json`, `<split>_speed.json`.
        articles: the articles of one split, which `add_articles` reads.
    """

    folder: Path
    name: str
    metrics: dict[str, list[float | None]]
    arguments: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    speeds: dict[str, dict[str, Any]]
    articles: list[dict[str, Any]] = field(default_factory=list)


def label_of(score: str) -> str:
    """The name by which readers know a score."""
    first, *others = score.split("_")
    return " ".join([LABELS.get(first, first), *others])


def number_of(record: Mapping[str, Any], name: str) -> float | None:
    """A record's number; None where it has none that is finite."""
    value = record.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None


def mapping_of(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping within a record; empty where it has none."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def scores_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The scores in scores.json or of an article, whatever the task. Settings and counts are no fractions."""
    return {name: value for name, value in record.items() if isinstance(value, float) and math.isfinite(value)}


def read_text(path: Path) -> str | None:
    """A text file; None where there is none.

    Raises:
        InputError: the file cannot be read or is not UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: damaged ({error})") from None


def read_mapping(path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """A file's mapping of names to values; empty where there is no such file.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    text = read_text(path)
    try:
        content = {} if text is None else parse(text)
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: damaged ({brief(error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; a mapping of names to values is expected")
    return content


def read_metrics(path: Path) -> dict[str, list[float | None]]:
    """Columns of metrics.csv by name; empty where there is no such file.

    Raises:
        InputError: the file cannot be read, or a row is not of numbers; it names the line.
    """
    text = read_text(path) or "step"
    try:
        header, *rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise InputError(f"{path}: damaged ({error})") from None
    if "step" not in header:
        raise InputError(f"{path}: has no column 'step'; its first line is {','.join(header)!r}")
    columns: dict[str, list[float | None]] = {name: [] for name in header}
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells; the header has {len(header)}")
        for name, cell in zip(header, row, strict=True):
            try:
                value = float(cell or "nan")
            except ValueError:
                raise InputError(f"{path}, line {line}: {name} is {cell!r}; a number is expected") from None
            columns[name].append(value if math.isfinite(value) else None)
    return columns if rows else {}


def articles_path(run: Run, split: str) -> Path:
    return run.folder / f"{split}_articles.jsonl"


def read_run(folder: str | os.PathLike[str]) -> Run:
    """All of a run but its articles.

    Raises:
        InputError: the directory is missing, holds nothing of a run, or a file of it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"run directory {folder}: no such directory")
    scores, speeds = (
        {split: content for split in SPLITS if (content := read_mapping(folder / f"{split}_{kind}.json"))}
        for kind in ("scores", "speed")
    )
    run = Run(
        folder=folder,
        name=folder.resolve().name,
        metrics=read_metrics(folder / "metrics.csv"),
        arguments=read_mapping(folder / "arguments.yaml", yaml.safe_load),
        environment=read_mapping(folder / "environment.json"),
        summary=read_mapping(folder / "train_summary.json"),
        scores=scores,
        speeds=speeds,
    )
    if not (run.summary or scored_splits([run]) or (folder / "metrics.csv").exists()):
        raise InputError(
            f"run directory {folder}: holds no metrics.csv, train_summary.json, <split>_scores.json, "
            "<split>_speed.json or <split>_articles.jsonl; what finetune.py or run_eval.py wrote is expected"
        )
    return run


def scored_splits(runs: Sequence[Run]) -> list[str]:
    """Splits of which any run holds anything."""
    return [
        split
        for split in SPLITS
        if any(split in run.scores or split in run.speeds or articles_path(run, split).exists() for run in runs)
    ]
