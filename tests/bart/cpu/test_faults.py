"""Tensors that do not fit, memory that is not there, and numbers that are not finite."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bart.cpu.kernels import Draws, Kernels, PackedCodes, PackedWeight
from bart.rows import Spans
from tests.bart.cpu.common import ROOT, rows_of


@pytest.mark.parametrize(
    "starts",
    [[1, 3, 4], [0, 3, 2], [0, 4, 4, 4], torch.tensor([0, 3, 4]), torch.arange(0, 6, 2).int()[::2]],
    ids=str,
)
def test_spans_that_are_none_are_refused(compiled: Kernels, starts: Tensor | list[int]) -> None:
    right = rows_of([3])
    wrong = replace(right, starts=starts if isinstance(starts, Tensor) else torch.tensor(starts, dtype=torch.int32))
    states = torch.ones(1, 3, 4, 8)
    for spans in (Spans(right, wrong), Spans(wrong, right)):
        with pytest.raises(ValueError, match="a kernel got a tensor"):
            compiled.attend_dropped(states, states, states, spans, False, Draws(0, 5, 1.0))


def test_tensors_that_do_not_fit_are_refused(compiled: Kernels) -> None:
    """Real checks refuse them, which `python -O` keeps, and not asserts."""
    ones = torch.ones
    query = keys = ones(2, 3, 4, 64)
    codes = PackedCodes(ones(40, 8, dtype=torch.int8), ones(40), ones(40), compiled.panel)
    weight, draws = PackedWeight(ones(40, 8), ones(40), compiled.panel), Draws(0, 5, 1.0)
    labels = torch.tensor([0, 1])
    calls = [
        lambda: compiled.attend(query, keys, keys[:, :2]),
        lambda: compiled.attend(query.double(), keys, keys),
        lambda: compiled.attend(query, keys.to("meta"), keys.to("meta")),
        lambda: compiled.attend(query, keys[..., :63], keys[..., :63]),
        lambda: compiled.attend(query, keys, keys, ones(2, 1, 4, 3)),
        lambda: compiled.attend(query, keys, keys, ones(2, 1, 3, 4)),
        lambda: compiled.attend(query, keys, keys, ones(3, 1, 1, 4)),
        lambda: compiled.attend(query.mT, keys.mT, keys.mT),
        lambda: compiled.code_heads(ones(2, 3, 7), 2, 2),
        lambda: compiled.cross_entropy(ones(2, 8).double(), ones(8), labels, 0, True),
        lambda: compiled.cross_entropy(ones(2, 8), ones(7), labels, 0, True),
        lambda: compiled.cross_entropy(ones(2, 8), ones(8), labels[:1], 0, True),
        lambda: compiled.quantize_rows(ones(2, 3, dtype=torch.float64)),
        lambda: compiled.quantize_rows(ones(2, (1 << 16) + 1)),
        lambda: compiled.log_softmax(ones(2, 3).double()),
        lambda: compiled.log_softmax(ones(3, 2).T),
        lambda: compiled.top_sums(ones(2, 3, 4), ones(2, 4), 2),
        lambda: compiled.top_sums(ones(2, 3, 4), ones(2, 3).double(), 2),
        lambda: compiled.top_sums(ones(2, 3, 4), ones(2, 3), 13),
        lambda: compiled.finish_rows(ones(2, 3), ones(1, 1), ones(3)),
        lambda: compiled.finish_rows(ones(2, 3), ones(2, 1), ones(3), False, torch.int8),
        lambda: compiled.drop(ones(2, 8).double(), draws),
        lambda: compiled.drop(ones(8, 2).T, draws),
        lambda: compiled.drop(ones(2, 8), draws, ones(2, 7)),
        lambda: compiled.drop(ones(2, 8), draws, ones(2, 8).bfloat16()),
        lambda: compiled.attend_dropped(query, keys, keys[:, :, :3], None, False, draws),
        lambda: compiled.attend_dropped(query, keys.bfloat16(), keys.bfloat16(), None, False, draws),
        lambda: compiled.attend_dropped(*ones(3, 2, 3, 4, 7).bfloat16(), None, False, draws),
        lambda: compiled.attend_dropped(*ones(3, 2, 3, 4, 9).bfloat16()[..., :8], None, False, draws),
        lambda: compiled.attend_dropped(*ones(3, 193).bfloat16()[:, 1:].view(3, 2, 3, 4, 8), None, False, draws),
        lambda: compiled.attend_dropped_backward(query.bfloat16(), query, keys, keys, None, False, draws),
        lambda: compiled.attend_dropped(query, keys, keys, ones(2, 1, 3, 4), False, draws),
        lambda: compiled.attend_dropped(query, keys, keys, ones(2, 1, 4, 4).bfloat16(), False, draws),
        lambda: compiled.attend_dropped_backward(ones(2, 3, 4, 8), query, keys, keys, None, False, draws),
        lambda: compiled.attend_dropped(query, keys, keys, Spans(rows_of([3]), rows_of([3])), False, draws),
        lambda: compiled.attend_dropped(query[:1], keys[:1], keys[:1], Spans(rows_of([2]), rows_of([2])), False, draws),
    ]
    of_products = [
        lambda: compiled.multiply(ones(2, 9), codes),
        lambda: compiled.multiply(ones(8, 2).T, codes),
        lambda: compiled.multiply(ones(2, 8), PackedCodes(ones(64, 8, dtype=torch.int8), ones(64), ones(64), 64)),
    ]
    of_products_in_fp32 = [
        lambda: compiled.multiply_fp32(ones(2, 9), weight),
        lambda: compiled.multiply_fp32(ones(2, 8).bfloat16(), weight),
        lambda: compiled.multiply_fp32(ones(2, 8), PackedWeight(ones(64, 8), ones(64), 64)),
    ]
    of_attention_in_int8 = [
        lambda: compiled.attend_many(query, keys, keys[:, :, :3]),
        lambda: compiled.attend_many(query[..., :32], keys[..., :32], keys[..., :32]),
        lambda: compiled.attend_many(query, keys, keys, ones(2, 1, 4, 4)),
    ]
    calls += of_products * compiled.multiplies + of_products_in_fp32 * compiled.multiplies_fp32
    for call in calls + of_attention_in_int8 * compiled.attends_in_int8:
        with pytest.raises(ValueError, match="a kernel got a tensor"):
            call()


UNDEFINED = """
import torch
from bart.cpu.kernels import Kernels, PackedCodes
kernels = Kernels("-O0", "-fsanitize=float-cast-overflow", "-fsanitize-undefined-trap-on-error")
for bad in (torch.nan, torch.inf, -torch.inf):
    states = torch.randn(2, 8, 2, 64)
    states[0, 1, 1, 3] = bad
    rows = states.view(4, -1)
    kernels.quantize_rows(rows)
    kernels.code_heads(states.flatten(2), 1, 2)
    kernels.attend(*[states.transpose(1, 2)] * 3)
    kernels.cross_entropy(rows.clone(), torch.ones(rows.shape[1]), torch.zeros(4, dtype=torch.int64), 0.1, True)
    kernels.top_sums(kernels.log_softmax(rows.clone())[None], torch.zeros(1, 4), 3)
    kernels.finish_rows(rows.clone(), torch.ones(4, 1), torch.ones(rows.shape[1]), True, torch.bfloat16)
    if kernels.attends_in_int8:
        kernels.attend_many(*[states.transpose(1, 2)] * 3)
"""


@pytest.mark.usefixtures("compiler")
def test_no_conversion_of_numbers_that_are_not_finite_is_undefined(cache: Path) -> None:
    """A conversion that C leaves undefined ends the process here."""
    done = subprocess.run([sys.executable, "-c", UNDEFINED], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
