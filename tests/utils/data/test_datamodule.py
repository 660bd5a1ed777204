from __future__ import annotations

import os
import signal

import pytest
from torch.utils.data import DataLoader

from utils.data.datamodule import outlive_sigterm


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system does not tell who sent a signal")
def test_loader_processes_outlive_sigterm_from_anybody_but_their_parent() -> None:
    batches = iter(DataLoader(range(40), batch_size=1, num_workers=2, worker_init_fn=outlive_sigterm))
    assert next(batches).tolist() == [0]
    assert next(batches).tolist() == [1]  # both have started
    workers = batches._workers
    for worker in workers:
        os.system(f"kill -TERM {worker.pid}")
    assert [batch.item() for batch in batches] == list(range(2, 40))


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system does not tell who sent a signal")
def test_loader_processes_obey_their_parents_sigterm() -> None:
    batches = iter(DataLoader(range(40), batch_size=1, num_workers=1, worker_init_fn=outlive_sigterm))
    next(batches)
    (worker,) = batches._workers
    worker.terminate()
    worker.join(timeout=10)
    status = worker.exitcode
    worker.kill()  # else a worker that obeys nobody would keep the tests from ending
    assert status == 0
