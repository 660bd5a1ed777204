"""The loss in chunks against torch's cross entropy of all logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.backend import TORCH, Backend
from bart.cpu.backend import CpuBackend
from bart.cpu.kernels import load
from bart.modeling import loss
from bart.modeling.loss import chunked_cross_entropy
from tests.tiny_run import tiny_bart

TOKENS, WIDTH, VOCABULARY = 37, 16, 101


@pytest.fixture(params=[1, 7 * VOCABULARY, 2**25], ids=["a token", "7 tokens", "all"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", request.param)


@pytest.fixture(params=["compiled", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Computes the loss of fp32 and bf16 by the kernel, or by torch."""
    if request.param == "torch":
        return TORCH
    if load() is None:
        pytest.skip("there is no compiler")
    by_torch = Backend.cross_entropy

    def refuse(self: Backend, logits: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        assert logits.dtype not in (torch.float32, torch.bfloat16)
        return by_torch(self, logits, *others)

    monkeypatch.setattr(Backend, "cross_entropy", refuse)
    return CpuBackend()


def made_up(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, weight, bias and labels, of which some are no targets."""
    generator = torch.Generator().manual_seed(0)
    states, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)
        for shape in ((TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    labels = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    labels[:20:2] = (states @ weight.t() + bias).argmax(1)[:20:2]  # so that some are right
    labels[::5] = loss.IGNORE_INDEX
    return states.requires_grad_(), weight.requires_grad_(), bias, labels


def whole(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(states @ weight.t() + bias, labels, reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
@pytest.mark.usefixtures("at_once")
def test_loss_and_gradients_are_those_of_cross_entropy(
    smoothing: float, dtype: torch.dtype, tolerance: float, backend: Backend
) -> None:
    """Relative to the size of what is compared; behind the loss the gradient is scaled, as fp16 training does."""
    states, weight, bias, labels = made_up(dtype)
    given = states, weight, bias.requires_grad_()
    with torch.no_grad():
        without, correct = chunked_cross_entropy(states, weight, bias, labels, smoothing, backend)
    value, _ = chunked_cross_entropy(states, weight, bias, labels, smoothing, backend)
    assert torch.equal(value, without)
    ours = [value.detach(), *torch.autograd.grad(3 * value, given)]
    value = whole(states, weight, bias, labels, smoothing)
    theirs = [value.detach(), *torch.autograd.grad(3 * value, given)]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype == dtype
        assert (mine - other).abs().max() <= tolerance * other.abs().max()
    assert int(correct) == int(((states @ weight.t() + bias).argmax(1) == labels).sum()) > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1 / 3, 1e5])
def test_halves_are_scaled_in_fp32(dtype: torch.dtype, factor: float) -> None:
    """The factor, a loss scale over the number of targets, may be one that neither kind can hold."""
    states, weight, bias, labels = (t.detach().to(dtype) if t.is_floating_point() else t for t in made_up())
    given = [tensor.mul(1e-3).requires_grad_() for tensor in (states, weight)]
    value, _ = chunked_cross_entropy(*given, bias, labels)
    [plain] = torch.autograd.grad(value, given[0], retain_graph=True)
    [scaled] = torch.autograd.grad(value, given[0], torch.tensor(factor))
    assert scaled.isfinite().all() and torch.equal(scaled, (plain.float() * torch.tensor([factor])).to(dtype))


def test_of_equal_logits_one_is_right(backend: Backend) -> None:
    """Halves are often equal, and would otherwise be counted twice."""
    states, weight, bias = torch.ones(6, 2), torch.ones(6, 2), torch.zeros(1, 6)
    assert chunked_cross_entropy(states, weight, bias, torch.arange(6), backend=backend)[1] == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_without_a_target_add_nothing(dtype: torch.dtype, backend: Backend) -> None:
    """Such rows let numbers of rows recur."""
    states, weight, bias, _ = made_up(dtype)
    labels = torch.full((TOKENS,), 3)
    rows, padded = F.pad(states, (0, 0, 0, 4)), F.pad(labels, (0, 4), value=loss.IGNORE_INDEX)
    given = [one.detach().requires_grad_() for one in (rows, weight, bias)]
    spared = loss._ChunkedCrossEntropy.apply(*given, padded, 0.1, (True, True, True), backend)[0]
    actual = torch.autograd.grad(spared, given)
    given[0] = rows[:TOKENS].detach().requires_grad_()
    plain = loss._ChunkedCrossEntropy.apply(*given, labels, 0.1, (True, True, True), backend)[0]
    expected = torch.autograd.grad(plain, given)
    torch.testing.assert_close((spared, actual[0][:TOKENS], *actual[1:]), (plain, *expected))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_targets_at_all(dtype: torch.dtype, backend: Backend) -> None:
    states, weight, bias, labels = made_up(dtype)
    value, correct = chunked_cross_entropy(
        states, weight, bias, torch.full_like(labels, loss.IGNORE_INDEX), backend=backend
    )
    gradients = torch.autograd.grad(value, (states, weight))
    assert value.item() == correct.item() == 0 and not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("half", ["autocast", "weights"])
@pytest.mark.usefixtures("at_once")
def test_half_precision_is_off_by_its_rounding(half: str, backend: Backend) -> None:
    """In bf16 the logits, the gradients by them and the results are rounded once each; sums are in fp32.

    A logit that is off by d moves a loss by at most 2d and multiplies a probability by at most exp(2d).
    """
    states, weight, bias, labels = (t.detach().bfloat16() if t.is_floating_point() else t for t in made_up())
    exact = [tensor.double().requires_grad_() for tensor in (states, weight)]
    bias = torch.zeros_like(bias)
    expected = whole(*exact, bias.double(), labels, 0.0)
    by_states, by_weight = torch.autograd.grad(expected, exact)
    given = [(tensor.float() if half == "autocast" else tensor).requires_grad_() for tensor in (states, weight)]
    with torch.autocast("cpu", torch.bfloat16, enabled=half == "autocast"):
        value, _ = chunked_cross_entropy(*given, bias.float(), labels, backend=backend)
    gradients = torch.autograd.grad(value, given)
    assert [gradient.dtype for gradient in gradients] == [tensor.dtype for tensor in given]
    unit, rest = 2.0**-8, 1.01  # the rest: sums in fp32, and products of errors
    logits = (exact[0] @ exact[1].t()).detach()
    off = unit * logits.abs().max()
    targets = labels != loss.IGNORE_INDEX
    assert abs(value.item() - expected.item()) <= 2 * off * int(targets.sum()) * rest
    one_hot = F.one_hot(labels.where(targets, 0), VOCABULARY)
    by_logits = (((2 * off).exp() - 1) * logits.softmax(1) + unit * (logits.softmax(1) + one_hot)) * targets[:, None]
    wrong = [by_logits @ exact[1].abs(), by_logits.t() @ exact[0].abs()]
    for gradient, right, error in zip(gradients, (by_states, by_weight), wrong, strict=True):
        assert ((gradient.double() - right).abs() <= rest * (error.detach() + 2 * unit * right.abs())).all()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_model_gives_the_sum_of_the_loss(checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", 90)
    model = tiny_bart(vocab_size=30, dropout=0.0, init_std=0.1).double().train()
    model.gradient_checkpointing_enable(enabled=checkpointing)
    ids = torch.randint(3, 30, (2, 7))
    labels = ids.clone()
    labels[0, 4:] = loss.IGNORE_INDEX
    output = model(ids, labels=labels, summed_loss=True, smoothing=0.1)
    with torch.no_grad():
        correct = model(ids, labels=labels, summed_loss=True).correct
    assert output.logits is None
    output.loss.backward()
    ours = [output.loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    model.zero_grad()
    logits = model(ids, labels=labels).logits
    value = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=0.1)
    value.backward()
    theirs = [value.detach(), *(parameter.grad for parameter in model.parameters())]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert int(correct) == int((logits.argmax(2) == labels).sum())
