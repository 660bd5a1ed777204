"""The data of a run, before a task reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from utils.corpora.prepare import prepared
from utils.tasks.task import TrainedTask

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
