"""The uses of the network: one file a task. `task.py` says what a task is, and `find_task` finds one by name."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import Any

import yaml

from bart.errors import InputError
from bart.files import read_json
from bart.hub import EXPORT, resolve
from utils.tasks.options import OPTIONS, PRETRAINING

TASKS = tuple(OPTIONS)
# BERT before it is fine-tuned. A bare BartModel is BART as it was published, which begins any task.
UNTUNED = ("BertModel", "BertForMaskedLM", "BertForPreTraining")
VECTORS = "for vectors of texts, use sentence-transformers (docs/tasks.md)"


def task_of(model: str, given: str | None = None) -> str:
    """The given --task if the class that a model's config.json names serves it, or else the task of the model's run.

    Without a run's arguments.yaml it is the first task that the class serves; without a config.json, summarization.
    """
    folder = resolve(model, ["config.json"])
    places = [folder] if folder.is_dir() else [folder.parent, folder.parent / EXPORT]
    config = next((read_json(place / "config.json") for place in places if (place / "config.json").is_file()), {})
    named = str(config.get("architectures")).strip("[]'")
    heads = {task: find_task(task).model_classes[0].__name__.removeprefix("Bart") for task in TASKS}
    allowed = [task for task, head in heads.items() if head in named]
    if named in UNTUNED and given in (None, *TASKS):
        raise InputError(f"{model} is a {named}, which is not fine-tuned; fine-tune it by finetune.py; {VECTORS}")
    if allowed and given in {*TASKS} - {*allowed}:
        raise InputError(f"--task is {given}; {model} is a {named}; allowed: {', '.join(allowed)}")
    record = (places[0].parent if places[0].name == EXPORT else places[0]) / "arguments.yaml"
    trained = str(yaml.safe_load(record.read_text(encoding="utf-8")).get("task")) if record.is_file() else ""
    if given is None and trained.endswith(".py"):  # which may come from elsewhere, so it is not run unasked
        raise InputError(f"{model} was trained with --task {trained}; give --task, this or another")
    own = [trained] if trained in (allowed or TASKS) else allowed or TASKS
    return given or ("translation" if config.get("source_encoder_layers") else own[0])


def options_of(name: str) -> tuple[type, type, type]:
    """The dataclasses of a task's options: in all programs, those of training, and those of scoring."""
    if name in OPTIONS:
        return OPTIONS[name]
    task = find_task(name)
    return task.Options, task.TrainingOptions, task.EvalOptions


@cache  # a file is loaded once, so that what it defines can be pickled
def find_task(name: str) -> type[Any]:
    """The task of a name: a `Task` of TASKS, a `TrainedTask` of PRETRAINING, or a `ScoredTask` in a Python file."""
    from utils.tasks.task import ScoredTask, TrainedTask

    kind = TrainedTask if name in PRETRAINING else ScoredTask
    if name in (*TASKS, *PRETRAINING):
        module = import_module(f"utils.tasks.{name}")
    elif not name.endswith(".py"):
        allowed = f"{', '.join(TASKS)}, or the path of a Python file with a task"
        raise InputError(f"--task is {name!r}; allowed: {allowed}" + (f"; {VECTORS}" if name == "embedding" else ""))
    elif not Path(name).is_file():
        raise InputError(f"--task is {name!r}: no such file")
    else:
        spec = importlib.util.spec_from_file_location(f"task_{Path(name).stem}", name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses and pickle look up their own
        spec.loader.exec_module(module)
    tasks = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, kind) and value.__module__ == module.__name__
        and not isabstract(value)
    ]  # fmt: skip
    if len(tasks) != 1:
        raise InputError(f"--task is {name!r}, which defines {len(tasks)} tasks; allowed: a file that defines one")
    return tasks[0]


def find_row_task(name: str) -> type[Any]:
    """The task of a name, if it is a `Task`, which predicts rows."""
    from utils.tasks.task import Task

    if not issubclass(task := find_task(name), Task):
        raise InputError(f"--task is {name!r}, which predicts no rows; allowed: run_eval.py with a data directory")
    return task
