"""Decoding on a CUDA device that is not there: the host waits where articles join and leave, and nowhere else."""

from __future__ import annotations

import re

import pytest

from tests.bart.generation.test_graphs import METHODS, tiny
from tests.fake_cuda.decoding import waits_in_runs, waits_in_steps
from tests.fake_cuda.device import needs_compiler

pytestmark = needs_compiler
# The functions that wait: where articles join and leave, and where a batch begins.
JOINS_AND_LEAVES = {"next_sources", "rows_of", "of", "join", "results", "_articles", "keep", "_changed"}
BEGINS = {"__init__", "rules_for", "bad_words", "<listcomp>"}


@pytest.mark.parametrize("names", [["beams", "rules"], pytest.param([*METHODS], marks=pytest.mark.slow)], ids=str)
def test_no_step_waits(names: list[str]) -> None:
    assert waits_in_steps(tiny(), [METHODS[name] for name in names]) == [{}] * 3 * len(names)


def test_an_index_on_the_cpu_is_found() -> None:
    for waits in waits_in_steps(tiny(), [METHODS["greedy"]], planted=True):
        assert all("index with an index of torch.int64 on cpu" in wait for wait in waits) and waits


@pytest.mark.slow
def test_whole_runs_wait_at_joins_and_leaves() -> None:
    for numbers, waits in waits_in_runs(tiny(), METHODS.values()):
        assert numbers == list(range(5))
        places = {re.search(r" at (\S+) ", wait)[1] for wait in waits}
        assert JOINS_AND_LEAVES - {"keep"} <= places <= JOINS_AND_LEAVES | BEGINS
