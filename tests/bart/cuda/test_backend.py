"""The backend of GPUs, on the CPU: what needs no GPU to be known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bart import torch_internals


@pytest.mark.parametrize("are_alike", [True, False])
def test_dropout_that_differs_between_the_passes_is_found(are_alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Attention(torch.autograd.Function):
        """Of two articles; the seed of the backward pass drops the same weights as that of the forward pass, or not."""

        @staticmethod
        def forward(ctx, values):
            return weights_of(seed=1) @ values.float()

        @staticmethod
        def backward(ctx, gradient):
            return weights_of(seed=1 if are_alike else 2).mT @ gradient

    def weights_of(seed: int) -> Tensor:
        kept = torch.rand(2, 128, 128, generator=torch.Generator().manual_seed(seed)) < 0.5
        kept[:, :48, 48:] = kept[:, 48:, :48] = False
        return kept / 40

    def attend(query, keys, values, starts, longest, is_causal, dropout):
        return Attention.apply(values.transpose(0, 1)).transpose(0, 1).to(values.dtype)

    monkeypatch.setattr(torch_internals, "attend_to_spans", attend)
    before = torch.get_rng_state()
    assert torch_internals.drops_alike.__wrapped__(torch.device("cpu")) is are_alike
    assert torch.get_rng_state().equal(before)


@pytest.mark.gpu
def test_flash_attention_drops_the_same_weights_in_both_passes() -> None:
    assert torch_internals.drops_alike(torch.device("cuda", 0))
