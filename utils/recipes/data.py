"""The data of a run, before a task reads them."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from bart.configuration.configuration import stored_configs
from bart.errors import InputError
from utils.app.distributed import told_by_first
from utils.corpora.prepare import prepared
from utils.data.splits import MissingSplit
from utils.tasks.task import ScoredTask, TrainedTask

logger = logging.getLogger(__name__)
AnyTask = TypeVar("AnyTask", bound=TrainedTask)


def as_trained(task: AnyTask, model: str) -> AnyTask:
    """A task that reads as training read, as far as the config of weights tells."""
    config, _ = stored_configs(model, task.config_classes())
    return task.as_trained(config or task.config_classes()[0]())


def with_table_prepared(task: AnyTask) -> AnyTask:
    """A task on the data directory that is made of its table once, if it reads pairs of lines."""
    place, ready = task.place, task
    if task.pair_fields is not None:
        of_table = place.data_dir, task.pair_fields, place.cache_dir, place.tables
        data_dir = told_by_first(f"directory of {of_table}", lambda: prepared(*of_table))
        ready = task.with_parts(place=replace(place, data_dir=data_dir))
    if place.val_ratio is not None:
        with suppress(MissingSplit):
            ready.with_parts(place=replace(ready.place, val_ratio=None)).read("val")
            raise InputError(
                f"--val_ratio is {place.val_ratio}; {place.data_dir} has a validation split; allowed: data without one"
            )
    return ready


def read_to_train(task: TrainedTask, data_dir: str) -> dict[str, Any]:
    """Read the splits train and val; an error names --data_dir as given."""
    examples: dict[str, Any] = {}
    try:
        for split in ("train", "val"):
            examples[split] = task.read(split)
    except MissingSplit as error:
        text = str(error).replace(task.place.data_dir, data_dir)
        hint = "; --val_ratio 0.1 holds a tenth of the training examples out as val" if examples else ""
        raise InputError(f"{text}{hint}") from None
    if task.place.val_ratio is not None:
        logger.info(
            "%s of the training examples are held out for validation, by a hash of their texts",
            f"{task.place.val_ratio:.1%}",
        )
    return examples


def read_to_score(task: ScoredTask, split: str | None) -> tuple[str, Any]:
    """Read the split that is scored, and return its name: by default test or, where the data have none, val."""
    try:
        return split or "test", task.read(split or "test", for_scoring=True)
    except MissingSplit:
        if split is not None:
            raise
    raw = task.read("val", for_scoring=True)
    logger.info("the data have no test split: the validation split is scored")
    return "val", raw
