"""bart.cuda.linear: what autocast computes, with gradients that are rounded less."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from bart.cuda.backend import CudaBackend
from bart.cuda.linear import HalfCopies
from tests.tiny_run import tiny_bart


def test_losses_are_those_of_autocast_and_gradients_no_worse() -> None:
    model = tiny_bart(dropout=0.0, d_model=64).train()
    ids, labels = torch.randint(5, 50, (3, 10)), torch.randint(5, 50, (3, 6))

    def computed(model: nn.Module, half: bool) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(ids, labels=labels, summed_loss=True, label_smoothing=0.1).loss
        loss.backward()
        return loss.detach(), torch.cat([one.grad.flatten() for one in model.parameters()])

    exact, under_autocast, by_copies = (copy.deepcopy(model) for _ in range(3))
    backend = CudaBackend()
    by_copies.compute_with(backend)
    backend.copies = HalfCopies(by_copies.layers, torch.bfloat16)
    backend.copies.refresh()
    backend.reads_copies = True
    _, expected = computed(exact, half=False)
    loss, gradient = computed(under_autocast, half=True)
    actual_loss, actual = computed(by_copies, half=True)
    assert actual_loss.equal(loss) and not actual.equal(gradient)
    assert (actual - expected).norm() < 1.01 * (gradient - expected).norm()


def test_copies_follow_the_weights_and_leave_adapters_alone() -> None:
    model = tiny_bart()
    attention = model.layers[0].self_attn
    attention.out_proj = nn.Sequential(attention.out_proj)  # as an adapter puts itself in a layer's place
    copies = HalfCopies(model.layers, torch.bfloat16)
    nn.init.ones_(attention.k_proj.weight)
    copies.refresh()
    states = torch.ones(2, attention.k_proj.in_features)
    keys, values = copies.project(states, [attention.k_proj, attention.v_proj])
    assert keys.eq(len(states[0])).all() and not values.equal(keys)
    attention.k_proj.weight.requires_grad_(False)
    keys, values = copies.project(states, [attention.k_proj, attention.v_proj])
    values.sum().backward()
    assert attention.k_proj.weight.grad is None and attention.v_proj.weight.grad is not None
    assert copies.project(states, [attention.out_proj]) is None
