"""A run's files, as training and scoring wrote them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bart.errors import InputError, brief
from bart.files import PathName, read_json
from utils.app.run_directory import REPORT_ORDER, Metrics, joined, metrics_of_sessions, of_sessions
from utils.tasks import find_task
from utils.tasks.options import TOKEN


@dataclass(eq=False)
class ReportedRun:
    """The content of a run's directory; a part that is not there is empty."""

    folder: Path
    name: str
    metrics: Metrics  # of all sessions
    arguments: dict[str, Any]
    environments: list[dict[str, Any]]  # of each session, the first one first
    summary: dict[str, Any]  # train_summary.json
    scores: dict[str, dict[str, Any]]  # of each split that was scored, in REPORT_ORDER
    speeds: dict[str, dict[str, Any]]
    articles: list[dict[str, Any]] = field(default_factory=list)  # of one split, which `add_articles` reads

    @property
    def target(self) -> str:
        """The unit that the loss is a mean over."""
        tasks = [record["task"] for record in (*self.scores.values(), self.arguments) if "task" in record]
        try:
            return find_task(tasks[0]).target if tasks else TOKEN
        except InputError:  # of a file that is gone
            return TOKEN

    @property
    def loss_unit(self) -> str:
        if "val_pearson" in self.metrics or any("pearson" in scores for scores in self.scores.values()):
            return "squared units of the label"
        return f"nats per {self.target}"

    def articles_path(self, split: str) -> Path:
        return self.folder / f"{split}_articles.jsonl"


def scores_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The scores in scores.json or of an article, whatever the task. Settings and counts are no fractions."""
    return {name: value for name, value in record.items() if isinstance(value, float) and math.isfinite(value)}


def _arguments(path: Path) -> dict[str, Any]:
    """The options that a run was started with, empty where the file is not there."""
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read, or is damaged ({brief(error)})") from None


def read_run(folder: PathName) -> ReportedRun:
    """All of a run but its articles."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"run directory {folder}: no such directory")

    def of_splits(name: str) -> dict[str, dict[str, Any]]:
        paths = {split: folder / f"{split}_{name}.json" for split in REPORT_ORDER}
        return {split: read_json(path) for split, path in paths.items() if path.exists()}

    sessions, summary = metrics_of_sessions(folder), folder / "train_summary.json"
    run = ReportedRun(
        folder=folder,
        name=folder.resolve().name,
        metrics=joined(sessions),
        arguments=_arguments(folder / "arguments.yaml"),
        environments=[*map(read_json, of_sessions(folder, "environment.json"))],
        summary=read_json(summary) if summary.exists() else {},
        scores=of_splits("scores"),
        speeds=of_splits("speed"),
    )
    if not (run.summary or run.scores or sessions):
        raise InputError(f"run directory {folder}: holds no run; allowed: what finetune.py or run_eval.py wrote")
    return run
