"""A run's files, as training and scoring wrote them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bart.errors import InputError
from bart.files import PathName, read_json
from utils.app.run_directory import REPORT_ORDER, joined, metrics_of_sessions, of_sessions
from utils.data.places import opening
from utils.tasks import find_task
from utils.tasks.options import TOKEN


class ReportedRun:
    """The content of a run's directory; a part that is not there is empty. InputError if there is no run in it."""

    def __init__(self, folder: PathName) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise InputError(f"run directory {folder}: no such directory")
        sessions, summary = metrics_of_sessions(self.folder), self.folder / "train_summary.json"
        self.name = self.folder.resolve().name
        self.metrics = joined(sessions)
        arguments = self.folder / "arguments.yaml"
        with opening(str(arguments)):
            self.arguments = dict(yaml.safe_load(arguments.read_text(encoding="utf-8"))) if arguments.exists() else {}
        self.environments = [*map(read_json, of_sessions(self.folder, "environment.json"))]  # the first session's first
        self.summary: dict[str, Any] = read_json(summary) if summary.exists() else {}
        self.scores, self.speeds = (self._of_splits(name) for name in ("scores", "speed"))
        self.articles: list[dict[str, Any]] = []  # of one split, which `add_articles` reads
        if not (self.summary or self.scores or sessions):
            raise InputError(f"run directory {folder}: holds no run; allowed: what finetune.py or run_eval.py wrote")

    def _of_splits(self, name: str) -> dict[str, dict[str, Any]]:
        """The content of such files of each split that has one, in REPORT_ORDER."""
        paths = {split: self.folder / f"{split}_{name}.json" for split in REPORT_ORDER}
        return {split: read_json(path) for split, path in paths.items() if path.exists()}

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
