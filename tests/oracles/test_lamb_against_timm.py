"""Our LAMB step for step against a recording of timm's, and against torch's AdamW where LAMB is that."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch.optim import AdamW

from tests.oracles.record_lamb import DTYPES, STEPS, STEPS_FILE, walk
from utils.training.lamb import Lamb


@pytest.mark.parametrize("name", DTYPES)
def test_every_step_is_that_of_timm(name: str) -> None:
    """With and without decay, under a changing learning rate, from a zero matrix, past a missing gradient."""
    recorded = load_file(STEPS_FILE)
    # A step rounds its update, a few percent of the weights, at most some hundred times, and its result once.
    tolerance = STEPS * (0.03 * 300 + 1) * torch.finfo(DTYPES[name]).eps / 2
    for i, places in enumerate(walk(Lamb, recorded, DTYPES[name])):
        expected = recorded[f"{name}.{i}"]
        assert ((places - expected).norm(dim=-1) <= tolerance * expected.norm(dim=-1)).all(), i


def test_without_decay_it_is_adamw() -> None:
    """In fp64, under a changing learning rate, because there is no ratio."""
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(40, 30, dtype=torch.float64, generator=generator)
    weights = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [
        Lamb([weights[0]], lr=1.0, eps=1e-8, weight_decay=0.0),
        AdamW([weights[1]], lr=1.0, weight_decay=0.0),
    ]
    for step in range(20):
        gradient = torch.randn(40, 30, dtype=torch.float64, generator=generator) * 0.1**step
        for weight, optimizer in zip(weights, optimizers, strict=True):
            optimizer.param_groups[0]["lr"] = 0.01 * (1 + step % 3)
            weight.grad = gradient.clone()
            optimizer.step()
    # A step rounds each weight, which is below 5, a few times by 2**-53 of it, and the update, which is smaller.
    torch.testing.assert_close(*weights, rtol=0, atol=20 * 8 * 5 * 2**-53)
