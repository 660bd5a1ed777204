"""Cross-entropy and its gradient against torch in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bart.cpu.kernels import Kernels
from tests.bart.cpu.common import EXPONENTIAL, U, threads


@pytest.mark.parametrize("count, width", [(0, 3), (1, 1), (3, 17), (48, 1601)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy(compiled: Kernels, count: int, width: int, smoothing: float, dtype: torch.dtype) -> None:
    logits, bias = (5 * torch.randn(count, width)).to(dtype), torch.randn(width)
    if count > 1:
        logits[0, width // 2] = 300.0  # the others' exponentials vanish
        logits[1, 3:] = logits[1, 3]
        bias[4:] = bias[3]  # greatest ones may be equal
        logits[1, 3:] += 100
    exact = (logits.double() + bias.double()).requires_grad_()
    labels = torch.randint(width, (count,))
    labels[: count // 2] = exact.argmax(dim=1)[: count // 2]
    expected = F.cross_entropy(exact, labels, reduction="none", label_smoothing=smoothing)
    [by_logits] = torch.autograd.grad(expected.sum(), exact)
    right = exact.argmax(dim=1) == labels

    untouched, scratch = logits.clone(), logits.clone()
    losses, actual = compiled.cross_entropy(logits, bias, labels, smoothing, True)
    without, correct = compiled.cross_entropy(scratch, bias, labels, smoothing, False)
    assert actual is logits and torch.equal(losses, without) and torch.equal(correct, right.long())
    if count == 0:
        return
    # A sum of a logit and its bias is rounded, and so is its difference from the greatest one.
    exact, top = exact.detach(), exact.detach().amax(dim=1, keepdim=True)
    size = (exact.abs() + top.abs() + (exact - top).abs()).amax(dim=1)
    bound = EXPONENTIAL + (width + 6) * U + (smoothing * (width + 6) + 4) * U * size
    assert ((losses.double() - expected).abs() <= bound).all()
    of_half = 2**-8 * by_logits.abs() if dtype == torch.bfloat16 else 0
    bound = exact.softmax(dim=1) * 2 * (EXPONENTIAL + (width + 6) * U + 2 * U * size[:, None]) + 4 * U + of_half
    assert logits.dtype == dtype and ((logits.double() - by_logits).abs() <= bound).all()
    if count > 1:
        with threads(1):
            again, _ = compiled.cross_entropy(untouched[1:2], bias, labels[1:2], smoothing, True)
        assert torch.equal(untouched[1], logits[1]) and torch.equal(again, losses[1:2])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_cross_entropy_of_special_numbers(compiled: Kernels, bad: float) -> None:
    logits = torch.zeros(2, 40)
    logits[1, 3] = bad
    losses, _ = compiled.cross_entropy(logits, torch.zeros(40), torch.tensor([3, 3]), 0.1, True)
    assert losses.isnan().tolist() == [False, True]
    for labels in ([0, -1], [2, 40]):
        with pytest.raises(IndexError, match=f"labels are {min(labels)} to {max(labels)}; allowed: 0 to 39"):
            compiled.cross_entropy(torch.zeros(2, 40), torch.zeros(40), torch.tensor(labels), 0.1, True)
    logits = torch.tensor([[0.0, -torch.inf]])  # no probability, which smoothing alone asks for
    assert compiled.cross_entropy(logits, torch.zeros(2), torch.tensor([0]), 0.0, False)[0] == 0
