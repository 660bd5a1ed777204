"""Dropout and attention on CPUs, against torch's and against the kernels they call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bart.cpu.backend import CpuBackend


def states(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (2, 4, 5, 8), keys and values (2, 4, 7, 8), in the memory layout of projections."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(2, length, 4, 8) for length in (5, 7, 7)]
    return tuple(torch.randn(shape, generator=generator, dtype=dtype).transpose(1, 2) for shape in shapes)


def test_attention_drops_weights_where_no_kernel_serves_and_no_gradient_is_wanted() -> None:
    width = 7  # which the compiled attention does not take in bf16
    query, keys, values = (state[..., :width].bfloat16() for state in states())
    with torch.no_grad():
        dropped = CpuBackend().attend(query, keys, torch.ones_like(values), None, dropout=0.5)
    assert dropped.unique().numel() > 1  # all ones if no weight is dropped


def test_norms_of_sums_are_torchs_and_autograd_follows_them() -> None:
    backend, layer, norm = CpuBackend(), nn.Linear(8, 8), nn.LayerNorm(8)
    inner, hidden = torch.randn(2, 5, 8), torch.randn(5, 2, 8).transpose(0, 1)
    arguments = inner, layer, (hidden, hidden, None), norm
    expected = norm(hidden + layer(inner))
    result = backend.add_and_norm(*arguments, 0.0)[0]
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert result.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(backend.add_and_norm(*arguments, 0.0)[0], expected, rtol=1e-5, atol=1e-6)
        torch.manual_seed(1)
        dropped = backend.add_and_norm(*arguments, 0.5)[0]
        torch.manual_seed(1)
        torch.testing.assert_close(dropped, norm(backend.dropout(layer(inner), 0.5, hidden)), rtol=0, atol=0)
