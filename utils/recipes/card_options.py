"""The options that a model card names."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

import yaml

from utils.recipes import pretraining_arguments
from utils.recipes.finetuning_arguments import FinetuneArguments
from utils.tasks import find_task


def card_options(run_dir: Path) -> list[str]:
    """The names of the options that the card of a run names, by what its arguments.yaml says of the task."""
    name = yaml.safe_load((run_dir / "arguments.yaml").read_text(encoding="utf-8"))["task"]
    task = pretraining_arguments.TASKS.get(name)
    arguments: type = FinetuneArguments if task is None else pretraining_arguments.PretrainingArguments
    task = task or find_task(name)
    return list(dict.fromkeys(_in_card(arguments, task.Options, task.TrainingOptions)))


def _in_card(*classes: type) -> Iterator[str]:
    for cls in classes:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if dataclasses.is_dataclass(hints[field.name]):
                yield from _in_card(hints[field.name])
            elif field.metadata.get("in_card"):
                yield field.name
