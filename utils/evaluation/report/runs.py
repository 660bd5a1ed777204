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
from utils.app.errors import brief
from utils.runs.run_directory import REPORT_ORDER

LABELS = {
    "rouge": "ROUGE",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "bleu": "BLEU",
    "chrf": "chrF",
    "f1": "F1",
    "loss": "Loss",
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


def scores_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The scores in scores.json or of an article, whatever the task. Settings and counts are no fractions."""
    return {name: value for name, value in record.items() if isinstance(value, float) and math.isfinite(value)}


def read(path: Path, parse: Callable[[str], Any]) -> Any:
    """What `parse` makes of a text file; None where there is no such file.

    Raises:
        InputError: the file cannot be read or parsed.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, csv.Error, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read, or is damaged ({brief(error)})") from None


def metrics_of(text: str) -> dict[str, list[float | None]]:
    """The columns of metrics.csv by name.

    Raises:
        ValueError: a row is cut, or not of numbers; the message names its line.
    """
    rows = csv.reader(text.splitlines())
    header = next(rows, [])
    columns: dict[str, list[float | None]] = {name: [] for name in header}
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"line {rows.line_num}: {len(row)} cells; the header has {len(header)}")
        for name, cell in zip(header, row, strict=True):
            try:
                value = float(cell or "nan")
            except ValueError:
                raise ValueError(f"line {rows.line_num}: {name} is {cell!r}; a number is expected") from None
            columns[name].append(value if math.isfinite(value) else None)
    return columns


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

    def mapping(name: str, parse: Callable[[str], Any] = json.loads, numbers: Sequence[str] = ()) -> dict[str, Any]:
        def checked(text: str) -> dict[str, Any]:
            content = parse(text)
            if not isinstance(content, dict):
                raise ValueError("a mapping of names to values is expected")
            for number in numbers:
                if not isinstance(content.get(number), (int, float, type(None))):
                    raise ValueError(f"{number} is {content[number]!r}; a number is expected")
            return content

        return read(folder / name, checked) or {}

    run = Run(
        folder=folder,
        name=folder.resolve().name,
        metrics=read(folder / "metrics.csv", metrics_of) or {},
        arguments=mapping("arguments.yaml", yaml.safe_load),
        environment=mapping("environment.json"),
        summary=mapping("train_summary.json", numbers=("steps", "epochs", "wall_seconds", "tokens_per_second")),
        scores={
            split: found for split in REPORT_ORDER if (found := mapping(f"{split}_scores.json", numbers=["examples"]))
        },
        speeds={split: found for split in REPORT_ORDER if (found := mapping(f"{split}_speed.json"))},
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
        for split in REPORT_ORDER
        if any(split in run.scores or split in run.speeds or articles_path(run, split).exists() for run in runs)
    ]
