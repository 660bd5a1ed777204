"""Decoding on a CUDA device that is not there: the host waits in no step."""

from __future__ import annotations

import pytest

from tests.bart.generation.test_graphs import METHODS, tiny
from tests.fake_cuda.decoding import launches_of_steps, waits_in_steps
from tests.fake_cuda.device import needs_compiler

pytestmark = needs_compiler


@pytest.mark.parametrize("names", [["beams", "rules"], pytest.param([*METHODS], marks=pytest.mark.slow)], ids=str)
def test_no_step_waits(names: list[str]) -> None:
    assert waits_in_steps(tiny(), [METHODS[name] for name in names]) == [{}] * 3 * len(names)


def test_an_index_on_the_cpu_is_found() -> None:
    for waits in waits_in_steps(tiny(), [METHODS["greedy"]], planted=True):
        assert all("index with an index of torch.int64 on cpu" in wait for wait in waits) and waits


def test_launches_of_a_step() -> None:
    """Two layers of 17 operations each; the rest is the head, rules and search."""
    for options, most in (({"num_beams": 6, "no_repeat_ngram_size": 3, "min_length": 20}, 114), ({}, 60)):
        counts = launches_of_steps(tiny(), options)
        assert counts["eager"] <= counts["recorded"] <= most
        assert counts["around a replay"] == 3
