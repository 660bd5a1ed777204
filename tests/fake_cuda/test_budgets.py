"""Budgets of kernels and bytes of bart-large's steps on a GPU: less is welcome, more is not."""

from __future__ import annotations

import pytest

from tests.fake_cuda.budgets import decoding_step, training_step
from tests.fake_cuda.device import needs_compiler

pytestmark = needs_compiler


@pytest.mark.slow
def test_training() -> None:
    kernels, elementwise, by_name = training_step()
    assert kernels <= 1013, by_name
    assert elementwise <= 81.0e9


def test_decoding() -> None:
    kernels, traffic, by_name = decoding_step()
    assert kernels <= 321, by_name
    assert traffic <= 17.5e9
