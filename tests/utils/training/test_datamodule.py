"""Loader processes, and what signals do to them."""

from __future__ import annotations

import os
import signal

import pytest
from torch.utils.data import DataLoader

from tests.tiny_run import Train, same, weights
from utils.training.datamodule import _outlive_signals

tells_senders = pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system tells no sender of a signal")


@tells_senders
def test_loader_processes_outlive_signals_from_anybody_but_their_parent() -> None:
    batches = iter(DataLoader(range(40), batch_size=1, num_workers=2, worker_init_fn=_outlive_signals))
    assert next(batches).tolist() == [0]
    assert next(batches).tolist() == [1]  # both have started
    for worker in batches._workers:
        os.system(f"kill -TERM {worker.pid}")
    assert [batch.item() for batch in batches] == list(range(2, 40))


@tells_senders
def test_loader_processes_obey_their_parents_sigterm() -> None:
    batches = iter(DataLoader(range(40), batch_size=1, num_workers=1, worker_init_fn=_outlive_signals))
    next(batches)
    (worker,) = batches._workers
    worker.terminate()
    worker.join(timeout=60)
    status = worker.exitcode
    worker.kill()  # else a worker that obeys nobody would keep the tests from ending
    assert status == 0


def test_loader_processes_change_nothing(train: Train) -> None:
    """Not even the random state that dropout draws from, on the way to an epoch's end and from there."""
    options = ("--dropout", 0.1, "--learning_rate", 1e-3, "--max_epochs", 2, "--gradient_accumulation_steps", 2)
    assert same(weights(train("some", *options, "--num_workers", 2)), weights(train("none", *options)))
