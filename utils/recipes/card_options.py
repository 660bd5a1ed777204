"""The options that a model card names."""

from __future__ import annotations

from pathlib import Path

import yaml

from utils.app.cli import option_groups
from utils.recipes import pretraining_arguments
from utils.recipes.finetuning_arguments import FinetuneArguments
from utils.tasks import find_task


def card_options(run_dir: Path) -> list[str]:
    """The names of the options that the card of a run names, by what its arguments.yaml says of the task."""
    name = yaml.safe_load((run_dir / "arguments.yaml").read_text(encoding="utf-8"))["task"]
    task = pretraining_arguments.TASKS.get(name)
    arguments: type = FinetuneArguments if task is None else pretraining_arguments.PretrainingArguments
    task = task or find_task(name)
    groups = option_groups(arguments, {"task_options": task.Options, "training": task.TrainingOptions})
    return [field.name for fields in groups for field, _ in fields if field.metadata["in_card"]]
