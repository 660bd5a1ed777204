"""The fixture of the tests of benchmarks."""

from __future__ import annotations

import os

import pytest

from scripts.benchmarks import measuring


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Benchmarks run everything in this process: loading torch anew would take longer than all the rest."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(measuring, "in_new_process", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(measuring, "LEAST_SECONDS", 1e-9)
