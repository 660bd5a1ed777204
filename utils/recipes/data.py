"""The data of a run, before a task reads them."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bart.errors import InputError
from utils.corpora.prepare import prepared
from utils.data.splits import MissingSplit
from utils.tasks.task import Task, TrainedTask

logger = logging.getLogger(__name__)
AnyTask = TypeVar("AnyTask", bound=TrainedTask)


def with_table_prepared(task: AnyTask) -> AnyTask:
    """A task that reads pairs of lines, on the data directory that is made of its table once.

    Raises:
        InputError: as `prepared` does.
    """
    if task.pair_fields is None:
        return task
    place = task.place
    return task.at(replace(place, data_dir=prepared(place.data_dir, task.pair_fields, place.cache_dir)))


def check_val_ratio(task: TrainedTask) -> None:
    """Raise InputError where --val_ratio is given for data that are one file, or have a validation split."""
    place = task.place
    if place.val_ratio is None:
        return
    fault = "is one file, which is split by itself" if Path(place.data_dir).expanduser().is_file() else None
    if fault is None:
        with suppress(MissingSplit):
            with_table_prepared(task.at(replace(place, val_ratio=None))).read("val")
            fault = "has a validation split"
    if fault is not None:
        raise InputError(
            f"--val_ratio is {place.val_ratio}; {place.data_dir} {fault}; allowed: data without a validation split"
        )


def read_to_train(task: TrainedTask, data_dir: str) -> dict[str, Any]:
    """Read the splits train and val of a task whose --data_dir is given; the log says what is held out.

    Raises:
        InputError: one is missing or malformed.
    """
    try:
        examples = {split: task.read(split) for split in ("train", "val")}
    except MissingSplit as error:
        text = str(error).replace(task.place.data_dir, data_dir)
        raise InputError(f"{text}; --val_ratio 0.1 holds a tenth of the training examples out as val") from None
    if task.place.val_ratio is not None:
        logger.info(
            "%s of the training examples are held out for validation, by a hash of their texts",
            f"{task.place.val_ratio:.1%}",
        )
    return examples


def read_to_score(task: Task, split: str | None) -> tuple[str, Any]:
    """Read the split that is scored, and return its name: by default test or, where the data have none, val.

    Raises:
        InputError: it is missing or malformed.
    """
    try:
        return split or "test", task.read(split or "test", for_scoring=True)
    except MissingSplit:
        if split is not None:
            raise
    raw = task.read("val", for_scoring=True)
    logger.info("the data have no test split: the validation split is scored")
    return "val", raw
