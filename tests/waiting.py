"""A training step without numbers, which shows where a GPU would be waited for."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from bart.backend import TORCH
from utils.data.batches import Batch
from utils.training.module import TrainingModule


class _Computed(Exception):
    pass


@contextmanager
def waits_for_nothing() -> Iterator[None]:
    """Let a run's first step compute on torch's meta device, where reading a number is an error, and end the run."""

    def compute(module: TrainingModule, step: list[Batch], _: int) -> None:
        device = torch.device("meta")
        model = copy.deepcopy(module.model).to(device)
        model.compute_with(TORCH)  # as on GPUs
        for batch in step:
            inputs = batch.to(device).inputs
            (module.task.loss(model, inputs) / module.task.count(inputs)).sum().backward()
        module.on_before_optimizer_step(torch.optim.SGD(model.parameters()))
        raise _Computed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Computed):
        patch.setattr(TrainingModule, "training_step", compute)
        patch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # autocast knows no meta device
        patch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
        yield
