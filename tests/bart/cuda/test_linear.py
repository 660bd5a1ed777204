"""Products by copies of weights: what autocast computes, with gradients that are rounded less."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from bart.cuda.backend import CudaBackend
from tests.tiny_run import tiny_bart


def test_losses_are_those_of_autocast_and_gradients_no_worse() -> None:
    model = tiny_bart(dropout=0.0, d_model=64).train()
    ids, labels = torch.randint(5, 50, (3, 10)), torch.randint(5, 50, (3, 6))

    def computed(model: nn.Module, half: bool) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(ids, labels=labels, summed_loss=True, smoothing=0.1).loss
        loss.backward()
        return loss.detach(), torch.cat([one.grad.flatten() for one in model.parameters()])

    exact, under_autocast, by_copies = (copy.deepcopy(model) for _ in range(3))
    backend = CudaBackend()
    by_copies.compute_with(backend)
    backend.dtype, backend.joins_layers = torch.bfloat16, True
    _, expected = computed(exact, half=False)
    loss, gradient = computed(under_autocast, half=True)
    actual_loss, actual = computed(by_copies, half=True)
    assert actual_loss.equal(loss) and not actual.equal(gradient)
    assert (actual - expected).norm() < 1.01 * (gradient - expected).norm()


def test_copies_follow_the_weights_and_leave_adapters_alone() -> None:
    attention, copies = tiny_bart().layers[0].self_attn, CudaBackend()
    copies.dtype, copies.joins_layers = torch.bfloat16, True
    states = torch.ones(2, attention.k_proj.in_features)
    before, values = copies.project(states, [attention.k_proj, attention.v_proj])
    nn.init.ones_(attention.k_proj.weight)
    keys, same = copies.project(states, [attention.k_proj, attention.v_proj])
    assert keys.equal(before) and same.equal(values) and not keys.equal(values)
    copies.refresh()
    keys, same = copies.project(states, [attention.k_proj, attention.v_proj])
    assert keys.eq(len(states[0])).all() and same.equal(values)
    attention.k_proj.weight.requires_grad_(False)
    _, values = copies.project(states, [attention.k_proj, attention.v_proj])
    values.sum().backward()
    assert attention.k_proj.weight.grad is None and attention.v_proj.weight.grad is not None
    adapter, part = nn.Sequential(attention.q_proj), nn.Linear(16, 2, bias=False)
    assert {copies.project(states, [layer])[0].dtype for layer in (adapter, part)} == {torch.float32}


@pytest.fixture
def under_autocast() -> Iterator[None]:
    """As on a GPU."""
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "in place": lambda layer: nn.init.ones_(layer.weight),
    "unseen by autograd": lambda layer: layer.weight.data.neg_(),
    "loaded": lambda layer: layer.load_state_dict(nn.Linear(8, 4).state_dict()),
    "assigned": lambda layer: layer.load_state_dict(nn.Linear(8, 4).state_dict(), assign=True),
    "a parameter": lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(4, 8))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_step_has_copies_of_the_weights_that_there_are(
    change: Callable[[nn.Linear], object], under_autocast: None
) -> None:
    layers, states, backend = [nn.Linear(8, 4), nn.Linear(8, 4)], torch.ones(3, 8), CudaBackend()

    def computed(backend: CudaBackend) -> tuple[Tensor, ...]:
        with backend.step(layers):
            return backend.project(states, layers)

    before, same = computed(backend)
    change(layers[0])
    now, still = computed(backend)
    assert not now.equal(before) and still.equal(same) and now.equal(computed(CudaBackend())[0])
    between = backend.project(states, layers)[0]  # reads no copy
    assert (now.dtype, between.dtype) == (torch.float16, torch.float32)
