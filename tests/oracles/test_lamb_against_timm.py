"""Our LAMB step for step against a recording of timm's, and against torch's Adam where LAMB is Adam."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch.optim import Adam

from tests.oracles.record_lamb import CLIPS, DTYPES, STEPS_FILE, walk
from utils.training.lamb import Lamb


@pytest.mark.parametrize("clipped", CLIPS)
@pytest.mark.parametrize(("name", "tolerance"), [("fp32", 1e-6), ("fp64", 1e-14)])
def test_every_step_is_that_of_timm(name: str, tolerance: float, clipped: str) -> None:
    """With and without decay and clip, under a changing learning rate, from a zero matrix, past a missing gradient."""
    recorded = load_file(STEPS_FILE)
    for i, places in enumerate(walk(Lamb, recorded, DTYPES[name], CLIPS[clipped])):
        expected = recorded[f"{name}.{clipped}.{i}"]
        assert ((places - expected).norm(dim=-1) <= tolerance * expected.norm(dim=-1)).all(), i
    norms = torch.stack([recorded[f"gradients.{i}"].nan_to_num().flatten(1).norm(dim=1) for i in range(5)]).norm(dim=0)
    assert norms.min() < CLIPS["clipped"] < norms.max()  # else there is nothing to tell a clip by


def test_without_decay_it_is_adam() -> None:
    weights = [torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64)) for _ in range(2)]
    with torch.no_grad():
        weights[1].copy_(weights[0])
    optimizers = [
        Lamb([weights[0]], lr=0.01, weight_decay=0.0, max_grad_norm=None),
        Adam([weights[1]], lr=0.01, eps=1e-6),
    ]
    for _ in range(5):
        gradient = torch.randn(4, 3, dtype=torch.float64)
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-12, atol=0)
